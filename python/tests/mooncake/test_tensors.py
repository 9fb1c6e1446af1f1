"""Tensors: their bytes, which Mooncake reads too, and the calls about them."""

import ctypes
import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import calls
import mooncake.store
import numpy
import pytest
import standin
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES, NUMBERS, FormatError, Layout

# As Mooncake 0.3.13 writes it: extents 4 and 6 of float32, whole, and its second half along the second dimension.
WHOLE = (
    "4e4f4f4d 0100 3001 00000000 02000000 00000000 00000000 3001000000000000 6000000000000000"
    + " 0400000000000000 0600000000000000" + " ff" * 48 + " 0400000000000000 0600000000000000" + " ff" * 48 + " 00" * 136
)  # fmt: skip
HALF = (
    "4e4f4f4d 0100 3001 00000000 02000000 01000000 00000000 3001000000000000 3000000000000000"
    + " 0400000000000000 0600000000000000" + " ff" * 48 + " 0400000000000000 0300000000000000" + " ff" * 48
    + " 01000000 00000000 01000000 00000000 01000000 02000000 01000000 00000000 0300000000000000" + " 00" * 96
)  # fmt: skip


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch, or what stands in for it where it is not installed."""
    if importlib.util.find_spec("torch") is not None:
        return importlib.import_module("torch")
    monkeypatch.setitem(sys.modules, "torch", standin)
    return standin


def test_tensors_are_those_of_pytorch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: tensors are those of a stand-in over numpy")


def matrix(first: float = 0) -> Any:
    """Four rows of six."""
    return numpy.arange(first, first + 24, dtype="float32").reshape(4, 6)


def test_headers_are_those_of_mooncake() -> None:
    whole = Layout.of("torch.float32", (4, 6))
    assert whole.header() == bytes.fromhex(WHOLE)
    assert [layout.header() for layout, _ in whole.parts(2, 1)][1] == bytes.fromhex(HALF)
    for header, size in ((WHOLE, 96), (HALF, 48)):
        parsed = Layout.parse(bytes.fromhex(header), HEADER_BYTES + size)
        assert parsed.header() == bytes.fromhex(header)
    assert list(NUMBERS.values()) == list(range(15))


def test_mooncake_makes_the_same_headers() -> None:
    code = f"""
import torch, mooncake.store as store
for name in {list(NUMBERS)!r}:
    for shape in [(), (3,), (2, 0, 5), (1,) * 8]:
        print(name, list(shape), store._serialize_tensor(torch.zeros(shape).to(getattr(torch, name)))[0].hex(), sep=";")
"""
    interpreter = os.environ.get("MOONCAKE_PYTHON")
    if not interpreter:
        pytest.skip("MOONCAKE_PYTHON names no interpreter with Mooncake: compared with nothing")
    ran = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=120)
    if "No module named 'torch'" in ran.stderr:
        pytest.skip("the interpreter of MOONCAKE_PYTHON has no PyTorch: headers are compared with nothing")
    lines = ran.stdout.splitlines()
    assert len(lines) == 60, ran.stderr
    for line in lines:
        name, shape, header = line.split(";")
        assert Layout.of(name, tuple(json.loads(shape))).header().hex() == header, line


@pytest.mark.parametrize(
    ("at", "kind", "value"),
    [(0, "I", 1), (4, "H", 2), (6, "H", 303), (8, "i", 15), (8, "i", -1), (12, "i", 9), (12, "i", -1), (16, "I", 2),
     (24, "Q", 303), (32, "Q", 95), (40, "q", -1), (104, "q", 5), (112, "q", -6), (168, "I", 5)],
)  # fmt: skip
def test_headers_that_are_none_are_refused(at: int, kind: str, value: int) -> None:
    header = bytearray.fromhex(WHOLE)
    struct.pack_into(f"<{kind}", header, at, value)
    with pytest.raises(FormatError):
        Layout.parse(bytes(header), HEADER_BYTES + 96)


@pytest.mark.parametrize(
    ("at", "kind", "value"),
    [(40, "q", 3), (48, "q", 2), (48, "q", 1 << 62), (184, "i", 2), (184, "i", -1), (188, "i", 1), (188, "i", 0),
     (188, "i", -2), (192, "i", 2), (192, "i", -1)],
)  # fmt: skip
def test_parts_that_are_of_no_tensor_are_refused(at: int, kind: str, value: int) -> None:
    """An axis along a dimension that the tensor has not raised `IndexError` when the tensor was stored again."""
    header = bytearray.fromhex(HALF)
    struct.pack_into(f"<{kind}", header, at, value)
    with pytest.raises(FormatError):
        Layout.parse(bytes(header), HEADER_BYTES + 48)


def test_extents_are_those_of_memory() -> None:
    """Of a tensor without elements they could be anything: PyTorch refused them with an error of its own, and to cut such a
    tensor into parts took as many steps as it had rows."""
    whole = Layout.of("float32", (1 << 40, 0))
    assert Layout.parse(whole.header(), HEADER_BYTES) == whole
    parts = list(whole.parts(2, 1))
    assert [(part.shape, runs) for part, runs in parts] == [((1 << 40, 0), [])] * 2
    assert [len(list(Layout.of("float32", (0,)).parts(size, 0))) for size in (2, 1 << 16)] == [2, 1 << 16]
    for size in (0, -1, (1 << 16) + 1, 1 << 40):
        with pytest.raises(FormatError):
            next(Layout.of("float32", (0,)).parts(size, 0))
    assert Layout.of("uint8", (0, (1 << 63) - 1)).bytes == 0
    for shape in ((0, 1 << 61), (1 << 40, 1 << 40, 0), (-1, 0), (-1, -1)):
        with pytest.raises(FormatError):
            Layout.of("float32", shape)
        header = bytearray(Layout.of("float32", (0,) * len(shape)).header())
        for at in (40, 104):
            struct.pack_into(f"<{len(shape)}q", header, at, *shape)
        with pytest.raises(FormatError):
            Layout.parse(bytes(header), HEADER_BYTES)


def test_lengths_that_are_wrong_are_refused() -> None:
    header = bytes.fromhex(WHOLE)
    for given, total in ((header[:-1], 400), (header, 399), (header, 401), (header, 0), (b"", 400)):
        with pytest.raises(FormatError):
            Layout.parse(given, total)
    for name, shape in (("torch.complex64", (1,)), ("float32", (1,) * 9)):
        with pytest.raises(FormatError):
            Layout.of(name, shape)


@pytest.mark.parametrize("name", standin.NAMES)
def test_tensors_come_back_as_they_were(name: str, torch: Any, player: calls.Player) -> None:
    store = player.store
    for number, shape in enumerate([(4, 6), (), (3,), (2, 0, 3), (2, 1, 3, 1)]):
        count = int(numpy.prod(shape))
        array = (numpy.arange(count) % 2 if name == "bool" else numpy.arange(count)).astype(name).reshape(shape)
        assert store.put_tensor(f"k{number}", torch.from_numpy(array)) == 0
        assert store.get_size(f"k{number}") == HEADER_BYTES + array.nbytes
        read = store.get_tensor(f"k{number}")
        assert str(read.dtype) == f"torch.{name}" and tuple(read.shape) == (shape or (1,))
        assert (read.numpy() == array.reshape(shape or (1,))).all()
    turned = torch.from_numpy(numpy.arange(6).astype(name).reshape(2, 3)).t()
    assert store.put_tensor("turned", turned) == 0
    assert (store.get_tensor("turned").numpy() == turned.numpy()).all()


def test_calls_about_tensors_return_what_they_promise(torch: Any, player: calls.Player) -> None:
    store, base = player.store, player.base
    tensor, other = torch.from_numpy(matrix()), torch.from_numpy(matrix(100))
    wrong: list[Any] = [None, b"bytes", matrix(), 5]

    def first(read: Any) -> Any:
        return None if read is None else float(read.numpy()[0, 0])

    assert store.put_tensor("a", tensor) == 0 == store.put_tensor("a", other)
    assert first(store.get_tensor("a")) == 0 and store.get_tensor("none") is None is store.get_tensor("")
    assert [store.put_tensor("b", one) for one in wrong] == [-600] * 4 and store.put_tensor("", tensor) == -600
    with pytest.raises(TypeError):
        store.put_tensor(3, tensor)
    assert store.upsert_tensor("a", other) == 0 and first(store.get_tensor("a")) == 100
    assert store.batch_put_tensor(["b", "c", "d"], [tensor, None, other]) == [0, -600, 0]
    assert [first(one) for one in store.batch_get_tensor(["d", "c", "b"])] == [100, None, 0]
    assert store.batch_upsert_tensor(["b", ""], [other, other]) == [0, -600]
    assert first(store.get_tensor("b")) == 100
    assert store.batch_put_tensor([], []) == [] == store.batch_get_tensor([])
    for method in ("batch_put_tensor", "batch_upsert_tensor", "batch_pub_tensor", "batch_upsert_pub_tensor"):
        assert getattr(store, method)(["x", "y"], [tensor]) == [-600, -600]
    assert store.put("text", b"x" * 400) == 0 == store.put("short", b"x")
    assert store.get_tensor("text") is None is store.get_tensor("short")

    near, many, none = ReplicateConfig(), ReplicateConfig(), ReplicateConfig()
    near.prefer_alloc_in_same_node = True
    many.preferred_segments = ["one", "two"]
    none.replica_num = 0
    assert store.pub_tensor("p", tensor, near) == 0 == store.upsert_pub_tensor("p", other)
    assert first(store.get_tensor("p")) == 100
    assert store.pub_tensor("q", tensor, many) == -600 == store.upsert_pub_tensor("q", tensor, none)
    assert store.batch_pub_tensor(["q", "r"], [tensor, other], many) == [-600, -600]
    assert store.batch_pub_tensor(["q"], [tensor]) == [0] == store.batch_upsert_pub_tensor(["q"], [other])
    many.replica_num = 2
    assert store.pub_tensor("s", tensor, many) == 0
    with pytest.raises(TypeError):
        store.pub_tensor("q", tensor, 5)

    into = store.get_tensor_into("a", base + 1024, 1000)
    assert first(into) == 100 and into.data_ptr() == base + 1024 + HEADER_BYTES
    assert store.get_tensor_into("a", base, 399) is None is store.get_tensor_into("none", base, 400)
    assert store.get_tensor_into("text", base, 400) is None is store.get_tensor_into("a", 0, 400)
    read = store.batch_get_tensor_into(["d", "none", "a"], [base, base + 1024, base + 2048], [400] * 3)
    assert [first(one) for one in read] == [100, None, 100]
    assert store.batch_get_tensor_into(["a", "b"], [base], [400, 400]) == [-600, -600]

    assert store.put_tensor_from("f", base, 400) == 0 == store.upsert_tensor_from("f", base, 400)
    assert first(store.get_tensor("f")) == 100
    for at, size in ((base, 399), (base, 401), (base, 303), (base, 0), (0, 400), (base + 8000, 400)):
        assert store.put_tensor_from("g", at, size) == -600
    assert store.batch_put_tensor_from(["g", "h"], [base, base + 8000], [400, 400]) == [-600, -600]
    assert store.batch_put_tensor_from(["g", "h"], [base], [400, 400]) == [-600, -600]
    assert store.batch_is_exist(["g", "h"]) == [0, 0]
    assert store.batch_put_tensor_from(["g", "h"], [base, base], [400, 400]) == [0, 0]
    assert store.batch_upsert_tensor_from(["g"], [base], [400]) == [0]


def test_each_rank_has_its_part(torch: Any, player: calls.Player) -> None:
    store, base = player.store, player.base
    tensor, five = torch.from_numpy(matrix()), torch.from_numpy(numpy.zeros((5, 6), "float32"))
    assert store.put_tensor_with_tp("rows", tensor, 0, 2) == 0
    assert store.put_tensor_with_tp("columns", tensor, tp_rank=1, tp_size=3, split_dim=1) == 0
    assert store.batch_is_exist(["rows", "rows_tp_0", "rows_tp_1", "rows_tp_2", "columns_tp_2"]) == [0, 1, 1, 0, 1]
    for rank in range(2):
        assert (store.get_tensor_with_tp("rows", rank, 2).numpy() == matrix()[2 * rank : 2 * rank + 2]).all()
    for rank in range(3):
        assert (store.get_tensor_with_tp("columns", rank, 3, 1).numpy() == matrix()[:, 2 * rank : 2 * rank + 2]).all()
    assert store.get_tensor_with_tp("rows", 2, 2) is None is store.get_tensor_with_tp("rows", -1, 2)
    assert store.get_tensor_with_tp("rows") is None
    assert store.put_tensor_with_tp("whole", tensor) == 0
    assert (store.get_tensor_with_tp("whole").numpy() == matrix()).all()
    for given in ((five, 0, 2, 0), (tensor, 0, 7, 0), (tensor, 0, 2, 2), (tensor, 0, 2, -1), (None, 0, 2, 0)):
        assert store.put_tensor_with_tp("none", *given) == -600
    assert store.batch_is_exist(["none", "none_tp_0", "none_tp_1"]) == [0, 0, 0]

    assert store.batch_put_tensor_with_tp(["a", "b", "c"], [tensor, five, None], 0, 2, 1) == [0, 0, -600]
    assert store.batch_put_tensor_with_tp(["d", "e"], [tensor], 0, 2) == [-600, -600]
    shapes = [None if one is None else tuple(one.shape) for one in store.batch_get_tensor_with_tp(["a", "c", "b"], 1, 2)]
    assert shapes == [(4, 3), None, (5, 3)]
    assert store.pub_tensor_with_tp("p", tensor, ReplicateConfig(), 0, 2) == 0
    two = ReplicateConfig()
    two.preferred_segments = ["one", "two"]
    assert store.pub_tensor_with_tp("q", tensor, two, 0, 2) == -600
    assert store.batch_pub_tensor_with_tp(["q", "r"], [tensor, tensor], two, 0, 2) == [-600, -600]
    assert store.batch_pub_tensor_with_tp(["q"], [tensor], tp_size=2) == [0]

    part = store.get_tensor_with_tp_into("rows", base, 352, 1, 2)
    assert part.data_ptr() == base + HEADER_BYTES and (part.numpy() == matrix()[2:]).all()
    assert store.get_tensor_with_tp_into("rows", base, 351, 1, 2) is None
    parts = store.batch_get_tensor_with_tp_into(["a", "none"], [base, base + 1024], [400, 400], 0, 2)
    assert (parts[0].numpy() == matrix()[:, :3]).all() and parts[1] is None
    assert store.batch_get_tensor_with_tp_into(["a", "b"], [base], [400, 400], 0, 2) == [-600, -600]
    assert store.get_tensor_with_tp_into("whole", base, 400) is not None
    assert store.put_tensor_with_tp_from("m", base, 400, 0, 2, 1) == 0
    assert (store.get_tensor_with_tp("m", 1, 2, 1).numpy() == matrix()[:, 3:]).all()
    assert store.put_tensor_with_tp_from("n", base, 399, 0, 2, 1) == -600
    assert store.batch_put_tensor_with_tp_from(["n", "o"], [base, base], [400, 400], 0, 2) == [0, 0]
    assert store.batch_put_tensor_with_tp_from(["u", "v"], [base], [400, 400], 0, 2) == [-600, -600]
    ctypes.memmove(base, Layout.of("float32", (1 << 40, 0)).header(), HEADER_BYTES)
    assert store.put_tensor_with_tp_from("w", base, HEADER_BYTES, 0, 2, 1) == 0
    assert store.get_size("w_tp_1") == HEADER_BYTES
    ctypes.memmove(base, store.get("o_tp_0"), 352)
    struct.pack_into("<i", (ctypes.c_char * 400).from_address(base), 192, 2)
    assert store.put_tensor_from("w", base, 352) == -600
    assert (store.get_tensor_with_tp("o", 0, 2).numpy() == matrix()[:2]).all()


def test_files_of_safetensors(
    torch: Any, player: calls.Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, file = player.store, tmp_path / "a.safetensors"
    assert store.put_tensor("a", torch.from_numpy(matrix())) == 0
    assert store.save_tensor_to_safetensor("a", str(file)) == 0
    header = b'{"a":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}}       '
    assert file.read_bytes() == struct.pack("<Q", len(header)) + header + matrix().tobytes()
    monkeypatch.chdir(tmp_path)
    assert store.save_tensor_to_safetensor("a") == 0 and (tmp_path / "a").read_bytes() == file.read_bytes()
    assert store.save_tensor_to_safetensor("none", str(file)) == -1100
    assert store.save_tensor_to_safetensor("a", str(tmp_path / "nowhere" / "a")) == -600
    assert (store.load_tensor_from_safetensor("b", str(file)).numpy() == matrix()).all()
    assert "has no tensor 'b': 'a' is taken" in caplog.text
    assert (store.get_tensor("b").numpy() == matrix()).all()
    assert store.load_tensor_from_safetensor(file_name="a") is not None and store.is_exist("a") == 1
    with pytest.raises(TypeError):
        store.load_tensor_from_safetensor("a")
    assert store.load_tensor_from_safetensor("c", str(tmp_path / "nowhere")) is None
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}
    for entries, elements, code in [
        ({"x": {**entry, "data_offsets": [0, 4]}, "c": entry, "__metadata__": {"made": "by"}}, 12, 0),
        ({"c": entry}, 11, -600),
        ({"c": {**entry, "dtype": "F99"}}, 12, -600),
        ({"c": {**entry, "shape": [3]}}, 12, -600),
        ({"c": {**entry, "shape": [-2]}}, 12, -600),
        ({"c": {**entry, "data_offsets": [-8, 0]}}, 12, -600),
        ({"c": {**entry, "shape": [1 << 60], "data_offsets": [0, 1 << 62]}}, 12, -600),
        # These raised errors of their own, or were taken for what they are not.
        *(
            ({"c": {**entry, **change}}, 12, -600)
            for change in (
                {"data_offsets": ["4", "12"]}, {"data_offsets": [4.0, 12.0]}, {"data_offsets": [4, None]},
                {"data_offsets": [4, 12, 20]}, {"data_offsets": 4}, {"shape": [2.5]}, {"shape": ["2"]}, {"shape": "2"},
                {"shape": [True, 2]}, {"shape": 2}, {"shape": [1] * 8 + [2]}, {"dtype": ["F32"]},
                {"shape": [0, 1 << 70], "data_offsets": [0, 0]},
            )
        ),
        ({"c": 5}, 12, -600),
        ({"c": {}}, 12, -600),
        ({}, 12, -600),
        ([], 12, -600),
    ]:
        text = json.dumps(entries).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(elements)))
        read = store.load_tensor_from_safetensor("c", str(file))
        assert (read is None) == (code < 0), entries
        assert read is None or bytes(memoryview(read.numpy()).cast("B")) == bytes(range(4, 12))
    nested = b"[" * 100_000
    for junk in (b"", b"junk", b"\xff" * 100, struct.pack("<Q", 5) + b"nojson", struct.pack("<Q", len(nested)) + nested):
        file.write_bytes(junk)
        assert store.load_tensor_from_safetensor("d", str(file)) is None


def test_tensors_are_serialized_for_those_who_store_them_themselves(torch: Any) -> None:
    tensor = torch.from_numpy(matrix())
    header, address, size, keep = mooncake.store._serialize_tensor(tensor)
    assert len(header) == mooncake.store._tensor_metadata_size() == HEADER_BYTES
    value = header + ctypes.string_at(address, size)
    assert (mooncake.store._deserialize_tensor(value).numpy() == matrix()).all() and keep is not None
    for bad in (b"", value[:-1], b"x" * 400):
        with pytest.raises(ValueError, match="invalid serialized"):
            mooncake.store._deserialize_tensor(bad)
    with pytest.raises(ValueError, match="unsupported tensor"):
        mooncake.store._serialize_tensor(5)


def test_calls_about_tensors_before_setup_are_refused(torch: Any, tmp_path: Path) -> None:
    store, tensor = MooncakeDistributedStore(), torch.from_numpy(matrix())
    file = str(tmp_path / "file")
    arguments: dict[str, tuple[Any, Any]] = {"key": ("k", ["k"]), "tensor": (tensor, [tensor])}
    called = set()
    for name in (name for name in dir(store) if "tensor" in name and name[0] != "_"):
        one = 1 if name.startswith("batch_") else 0
        given = [arguments["key"][one]]
        if name.endswith(("_from", "_into")):
            given += [[1000], [400]] if one else [1000, 400]
        elif "safetensor" in name:
            given += [file]
        elif "get" not in name or "cuda" in name:
            given += [arguments["tensor"][one]]
        result = getattr(store, name)(*given)
        expected = None if ("get" in name or "load" in name) and "cuda" not in name else -600
        assert result == ([expected] if one else expected), name
        called.add(name)
    assert len(called) == 42


class OfGpu:
    """A tensor that says that it is in a GPU."""

    def __init__(self, array: Any, kind: str = "torch.float32") -> None:
        self.array, self.shape, self.dtype = array, array.shape, kind
        self.device = SimpleNamespace(type="cuda")

    def copy_(self, source: Any) -> None:
        self.array[...] = source.numpy()


def test_tensors_of_a_gpu_are_read_into(torch: Any, player: calls.Player) -> None:
    store, zeros = player.store, numpy.zeros((4, 6), "float32")
    assert store.put_tensor("k", torch.from_numpy(matrix())) == 0 == store.put("junk", b"junk")
    assert store.put_tensor("scalar", torch.from_numpy(numpy.array(5, "float32"))) == 0
    into, scalar = OfGpu(zeros.copy()), OfGpu(numpy.zeros((), "float32"))
    assert store.get_tensor_into_cuda("k", into) == 0 and (into.array == matrix()).all()
    assert store.get_tensor_into_cuda("scalar", scalar) == 0 and scalar.array == 5
    on_host, untouched = torch.from_numpy(zeros), [OfGpu(zeros.copy()) for _ in range(2)]
    given = [into, on_host, OfGpu(numpy.zeros((6, 4), "float32")), OfGpu(zeros, "torch.float64"), *untouched, 5]
    found = ["k", "k", "k", "k", "none", "junk", "k"]
    assert store.batch_get_tensor_into_cuda(found, given) == [0, -600, -600, -600, -704, -600, -600]
    assert not on_host.numpy().any() and not any(one.array.any() for one in untouched)
    assert store.batch_get_tensor_into_cuda(["k", "k"], [into]) == [-600, -600]
    closed = MooncakeDistributedStore()
    assert closed.batch_get_tensor_into_cuda(["k", "k"], [into, on_host]) == [-600, -600]
