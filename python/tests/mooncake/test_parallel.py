"""Tensors that the ranks of a model share, with the keys, headers and manifests that Mooncake 0.3.13 gives them."""

import ctypes
import json
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import calls
import numpy
import pytest
from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism
from slackwater.compat.mooncake.parallelism import Manifest
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES, Axis, FormatError, Layout

from test_tensors import matrix, torch

__all__ = ["torch"]

# Of two parts along dimension 1 of a whole of (4, 12), as Mooncake wrote it.
MANIFEST = (
    "4e414d5701006000000000000200000001000000020000000000000000000000"
    "04000000000000000c00000000000000"
) + "f" * 96


def axis(rank: int, size: int, split_dim: Any = None, kind: str = "tp", **more: Any) -> ParallelAxis:
    """An axis with these attributes."""
    made = ParallelAxis()
    given = {"kind": kind, "rank": rank, "size": size, "split_dim": split_dim, **more}
    for name, value in given.items():
        setattr(made, name, value)
    return made


def parallel(*axes: ParallelAxis) -> TensorParallelism:
    """A parallelism with these axes."""
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def cut(rank: int, size: int, split_dim: int) -> TensorParallelism:
    """One axis of tp."""
    return parallel(axis(rank, size, split_dim))


def target(mode: str, parallelism: Any = None) -> ReadTarget:
    """A target with these attributes."""
    made = ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


def read(store: Any, key: str, asked: Any = None) -> Any:
    """The elements of what is read."""
    tensor = store.get_tensor_with_parallelism(key, asked)
    return None if tensor is None else tensor.numpy().tolist()


def keys(player: calls.Player, among: Sequence[str]) -> list[str]:
    """Those that are there."""
    return [key for key, there in zip(among, player.store.batch_is_exist(among), strict=True) if there]


def layout(store: Any, key: str) -> Layout:
    """What the header of a value says."""
    value = store.get(key)
    return Layout.parse(value, len(value))


def test_attributes_are_those_of_mooncake() -> None:
    one, many, asked = ParallelAxis(), TensorParallelism(), ReadTarget()
    assert [one.kind, one.rank, one.size, one.split_dim, one.expert_id, one.stage_id] == ["", 0, 1, None, None, None]
    assert (many.axes, asked.mode, asked.parallelism) == ([], "as_stored", None)
    asked.mode = "FULL"
    assert asked.mode == "full"
    with pytest.raises(RuntimeError, match="Unsupported ReadTarget mode: half"):
        asked.mode = "half"
    for thing, name, value in [
        (one, "rank", "1"), (one, "rank", None), (one, "rank", 1 << 31), (one, "split_dim", 1.0), (one, "kind", 5),
        (many, "axes", [1]), (many, "axes", one), (asked, "mode", 3), (asked, "parallelism", 5),
        (asked, "parallelism", one),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=name):
            setattr(thing, name, value)
    many.axes = (one,)
    one.rank = 7
    assert many.axes[0].rank == 0 and many.axes[0].kind == "" and "axes=[ParallelAxis(kind=''" in repr(many)


def test_a_manifest_is_that_of_mooncake() -> None:
    manifest = Manifest(Layout.of("float32", (4, 12)), 1, 2)
    assert manifest.bytes().hex() == MANIFEST and Manifest.parse(bytes.fromhex(MANIFEST)) == manifest
    assert manifest.part(1).axes == (Axis(1, 2, 1),) and manifest.part(1).shape == (4, 6)
    for at, kind, value in [(0, "I", 1), (4, "H", 2), (6, "H", 95), (8, "i", 15), (12, "i", 9), (12, "i", -1), (12, "i", 1),
                            (16, "i", 2), (16, "i", -1), (20, "i", 0), (20, "i", 5), (20, "i", -2), (40, "q", -12)]:  # fmt: skip
        wrong = bytearray.fromhex(MANIFEST)
        struct.pack_into(f"<{kind}", wrong, at, value)
        with pytest.raises(FormatError):
            Manifest.parse(bytes(wrong))
    for length in (0, 95):
        with pytest.raises(FormatError):
            Manifest.parse(bytes.fromhex(MANIFEST)[:length])
    # Its number of parts was believed, where there is nothing to be cut.
    with pytest.raises(FormatError):
        Manifest(Layout.of("float32", (4, 0)), 1, 1 << 30)


def test_a_rank_puts_its_own_part(torch: Any, player: calls.Player) -> None:
    store, parts = player.store, [matrix(), matrix(100)]
    whole = numpy.concatenate(parts, 1).tolist()
    for rank, part in enumerate(parts):
        assert store.put_tensor_with_parallelism("k", torch.from_numpy(part), cut(rank, 2, 1)) == 0
    assert keys(player, ["k", "k_tp_0", "k_tp_1", "k__writer_manifest"]) == ["k_tp_0", "k_tp_1"]
    assert store.get("k__parallelism_manifest").hex() == MANIFEST
    assert layout(store, "k_tp_1") == Layout(0, (4, 6), (4, 12), (Axis(1, 2, 1),))
    # The value of a rank that is there stays, but for an upsert.
    assert store.put_tensor_with_parallelism("k", torch.from_numpy(parts[1]), cut(0, 2, 1)) == 0
    assert read(store, "k", target("shard", cut(0, 2, 1))) == parts[0].tolist()
    for rank in range(2):
        assert read(store, "k", target("full", cut(rank, 2, 1))) == whole
    for size in (1, 2, 3, 4, 6, 12):
        for rank in range(size):
            wanted = numpy.split(numpy.array(whole), size, 1)[rank].tolist()
            assert read(store, "k", target("shard", cut(rank, size, 1))) == wanted, (rank, size)
    # Along another dimension than it was cut.
    for size in (1, 2, 4):
        for rank in range(size):
            wanted = numpy.split(numpy.array(whole), size, 0)[rank].tolist()
            assert read(store, "k", target("shard", cut(rank, size, 0))) == wanted, (rank, size)
    nothing = [None, target("as_stored"), target("full"), target("as_stored", cut(0, 2, 1)), target("shard"),
               target("shard", cut(0, 5, 1)), target("shard", cut(0, 2, 2)), target("shard", cut(0, 8, 0)),
               target("shard", cut(2, 2, 1)), target("full", parallel()), 7, {"mode": "full"}]  # fmt: skip
    assert [read(store, "k", asked) for asked in nothing] == [None] * len(nothing)
    assert read(store, "k", SimpleNamespace(mode="full", parallelism=cut(0, 2, 1))) == whole
    assert store.upsert_tensor_with_parallelism("k", torch.from_numpy(parts[1]), cut(0, 2, 1)) == 0
    assert read(store, "k", target("shard", cut(0, 2, 1))) == parts[1].tolist()
    assert store.remove("k_tp_1", True) == 0
    assert read(store, "k", target("full", cut(0, 2, 1))) is None
    assert read(store, "k", target("shard", cut(0, 4, 1))) is not None, "the first part has it"


def test_a_writer_puts_its_part_of_a_whole(torch: Any, player: calls.Player) -> None:
    store, tensor = player.store, torch.from_numpy(matrix())
    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", tensor, writer_partition=axis(rank, 2, 1)) == 0
    names = ["k", "k__writer_0of2_sd1", "k__writer_1of2_sd1", "k__writer_manifest", "k__parallelism_manifest"]
    assert keys(player, names) == names[1:4]
    assert layout(store, "k__writer_1of2_sd1") == Layout(0, (4, 3), (4, 6), (Axis(1, 2, 1),))
    assert Manifest.parse(store.get("k__writer_manifest")) == Manifest(Layout.of("float32", (4, 6)), 1, 2)
    assert read(store, "k", target("full")) == matrix().tolist() == read(store, "k", target("full", cut(0, 2, 1)))
    assert read(store, "k") is None is read(store, "k", target("as_stored"))
    for size, dimension in [(2, 1), (3, 1), (6, 1), (1, 0), (4, 0)]:
        for rank in range(size):
            wanted = numpy.split(matrix(), size, dimension)[rank].tolist()
            assert read(store, "k", target("shard", cut(rank, size, dimension))) == wanted, (rank, size, dimension)
    own = SimpleNamespace(rank=0, size=1, split_dim=0)
    assert store.put_tensor_with_parallelism("one", tensor, None, ReplicateConfig(), own) == 0
    assert read(store, "one", target("full")) == matrix().tolist()
    wrong = [axis(2, 2, 0), axis(-1, 2, 0), axis(0, 0, 0), axis(0, 2, 5), axis(0, 2, -1), axis(0, 2), axis(0, 5, 1), 3,
             (0, 2, 0), {"rank": 0, "size": 2, "split_dim": 0}, axis(0, 1 << 20, 0)]  # fmt: skip
    for partition in wrong:
        assert store.put_tensor_with_parallelism("none", tensor, writer_partition=partition) == -600, partition
    assert store.put_tensor_with_parallelism("none", tensor, cut(0, 2, 0), writer_partition=axis(0, 2, 0)) == -600
    assert store.put_tensor_with_parallelism("", tensor, writer_partition=axis(0, 2, 0)) == -600
    assert store.is_exist("none__writer_manifest") == 0


EXPERT, STAGE, COPY = {"kind": "ep", "expert_id": 7}, {"kind": "pp", "stage_id": 0}, {"kind": "dp"}
KEYS: list[tuple[list[ParallelAxis], str | None]] = [
    ([axis(0, 2, 0)], "k_tp_0"),
    ([axis(0, 1, 0)], "k_tp_0"),
    ([axis(1, 2, **COPY)], "k__dp_1of2"),
    ([axis(1, 2, **EXPERT)], "k__ep_1of2_eid7"),
    ([axis(1, 2, **STAGE)], "k__pp_1of2_sid0"),
    ([axis(1, 2, 1), axis(0, 2, **COPY)], "k__dp_0of2__tp_1of2_sd1"),
    ([axis(0, 3, **STAGE), axis(1, 2, 1), axis(1, 2, **EXPERT)], "k__tp_1of2_sd1__ep_1of2_eid7__pp_0of3_sid0"),
    ([], None),
    ([axis(0, 2, 0, kind="")], None),
    ([axis(0, 2, 0, kind="xp")], None),
    ([axis(0, 2)], None),
    ([axis(2, 2, 0)], None),
    ([axis(-1, 2, 0)], None),
    ([axis(0, 2, 2)], None),
    ([axis(0, 2, -1)], None),
    ([axis(0, 2, 0, **COPY)], None),
    ([axis(0, 2, kind="ep")], None),
    ([axis(0, 2, 0, **EXPERT)], None),
    ([axis(0, 2, kind="pp")], None),
    ([axis(0, 2, 0), axis(0, 2, 1)], None),
    ([axis(0, 5, 1), axis(0, 2, **COPY)], None),
    ([axis(0, 2, 0)] + [axis(0, 2, **COPY)] * 4, None),
]


@pytest.mark.parametrize(("axes", "name"), KEYS, ids=[str(number) for number in range(len(KEYS))])
def test_a_part_has_the_key_of_its_axes(axes: Any, name: str | None, torch: Any, player: calls.Player) -> None:
    store, tensor = player.store, torch.from_numpy(matrix())
    code = store.put_tensor_with_parallelism("k", tensor, parallel(*axes))
    assert code == (-600 if name is None else 0)
    if name is not None:
        assert store.is_exist(name) == 1 and read(store, "k", target("shard", parallel(*axes))) is not None
        numbers = [{"dp": 0, "tp": 1, "ep": 2, "pp": 3}[one.kind] for one in axes]
        assert [one.kind for one in layout(store, name).axes] == numbers
        assert store.is_exist("k__parallelism_manifest") == int(any(one.kind == "tp" for one in axes))
        assert read(store, "k", target("full", parallel(*axes))) is None or axes[0].size == 1


def test_more_axes_cut_the_whole(torch: Any, player: calls.Player) -> None:
    store, tensor = player.store, torch.from_numpy(matrix())

    def of(rank: int, size: int, split_dim: int = 1, copy: int = 0) -> TensorParallelism:
        return parallel(axis(copy, 2, **COPY), axis(rank, size, split_dim))

    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", tensor, of(rank, 2)) == 0
    assert layout(store, "k__dp_0of2__tp_1of2_sd1") == Layout(0, (4, 3), (4, 6), (Axis(0, 2, -1, 0), Axis(1, 2, 1)))
    assert read(store, "k", target("full", of(1, 2))) == matrix().tolist()
    assert read(store, "k", target("shard", of(1, 3))) == matrix()[:, 2:4].tolist()
    assert read(store, "k", target("shard", of(3, 4, 0))) == matrix()[3:].tolist()
    made = store.get_tensor_with_parallelism_into("k", player.base, 400, target("shard", of(1, 3)))
    found = Layout.parse(bytes(player.memory), HEADER_BYTES + 32)
    assert made is not None and found == Layout(0, (4, 2), (4, 6), (Axis(0, 2, -1, 0), Axis(1, 3, 1)))
    for asked in (of(0, 2, 1, 1), cut(0, 2, 1), parallel(axis(0, 2, **COPY))):
        assert read(store, "k", target("full", asked)) is None


def test_parts_of_different_tensors_are_not_joined(torch: Any, player: calls.Player) -> None:
    store, shared = player.store, target("full", cut(0, 2, 1))
    assert store.put_tensor_with_parallelism("k", torch.from_numpy(matrix()), cut(0, 2, 1)) == 0
    for other, split in [
        (matrix().astype("float64"), cut(1, 2, 1)), (matrix()[:3], cut(1, 2, 1)), (matrix(), cut(1, 3, 1)),
        (matrix(), cut(1, 2, 0)),
    ]:  # fmt: skip
        assert store.upsert_tensor_with_parallelism("other", torch.from_numpy(other.copy()), split) == 0
        assert store.upsert("k_tp_1", store.get("other_tp_1")) == 0
        assert read(store, "k", shared) is None
    # The part of another rank, which has the same extents.
    assert store.upsert("k_tp_1", store.get("k_tp_0")) == 0 and read(store, "k", shared) is None
    for junk in (b"junk", bytes(96), bytes(400)):
        assert store.upsert("k_tp_1", junk) == 0 and read(store, "k", shared) is None
        assert store.upsert("k__parallelism_manifest", junk) == 0
        assert read(store, "k", target("shard", cut(0, 4, 1))) is None
    assert read(store, "k", target("shard", cut(0, 2, 1))) == matrix().tolist(), "it needs none of these"


def test_whole_tensors_in_memory_are_cut_for_all_ranks(torch: Any, player: calls.Player) -> None:
    store, base = player.store, player.base
    assert store.put_tensor("whole", torch.from_numpy(matrix())) == 0 and store.get_into("whole", base, 400) == 400
    assert store.put_tensor_with_parallelism_from("k", base, 400, cut(1, 2, 1)) == 0
    names = ["k_tp_0", "k_tp_1", "k__parallelism_manifest"]
    assert keys(player, names) == names[:2]
    assert layout(store, "k_tp_0") == Layout(0, (4, 3), (4, 6), (Axis(0, 2, 1),))
    assert read(store, "k", target("full", cut(0, 2, 1))) == matrix().tolist()
    assert read(store, "k", target("shard", cut(2, 3, 1))) == matrix()[:, 4:].tolist()
    many = parallel(axis(0, 2, **COPY), axis(1, 2, 1))
    assert store.put_tensor_with_parallelism_from("m", base, 400, many) == 0
    assert keys(player, ["m__dp_0of2__tp_0of2_sd1", "m__dp_0of2__tp_1of2_sd1"]) != []
    assert read(store, "m", target("full", many)) == matrix().tolist()
    assert store.put_tensor_with_parallelism_from("w", base, 400, writer_partition=axis(0, 2, 0)) == 0
    assert keys(player, ["w__writer_0of2_sd0", "w__writer_1of2_sd0", "w__writer_manifest"])[1:] == ["w__writer_manifest"]
    assert store.upsert_tensor_with_parallelism_from("w", base, 400, writer_partition=axis(1, 2, 0)) == 0
    assert read(store, "w", target("full")) == matrix().tolist()
    assert store.put_tensor_with_parallelism_from("p", base, 400) == 0 and read(store, "p") == matrix().tolist()
    for at, size in ((base, 399), (base, 303), (base, 0), (0, 400)):
        assert store.put_tensor_with_parallelism_from("none", at, size, cut(0, 2, 1)) == -600
    # A part of a tensor is a tensor of its own when it is cut again.
    assert store.get_into("k_tp_1", base, 400) == 352
    assert store.put_tensor_with_parallelism_from("again", base, 352, cut(0, 3, 1)) == 0
    assert read(store, "again", target("full", cut(0, 3, 1))) == matrix()[:, 3:].tolist()


def test_reads_go_to_the_memory_that_is_named(torch: Any, player: calls.Player) -> None:
    store, base = player.store, player.base
    parts = [matrix(), matrix(100)]
    for rank, part in enumerate(parts):
        assert store.put_tensor_with_parallelism("k", torch.from_numpy(part), cut(rank, 2, 1)) == 0
    assert store.put_tensor("p", torch.from_numpy(matrix())) == 0
    whole = numpy.concatenate(parts, 1)
    for key, asked, wanted, axes in [
        ("p", None, matrix(), ()), ("p", target("as_stored"), matrix(), ()), ("p", target("full"), matrix(), ()),
        ("k", target("shard", cut(1, 2, 1)), parts[1], (Axis(1, 2, 1),)),
        ("k", target("full", cut(0, 2, 1)), whole, ()),
        ("k", target("shard", cut(1, 3, 1)), whole[:, 4:8], (Axis(1, 3, 1),)),
        ("k", target("shard", cut(0, 2, 0)), whole[:2], (Axis(0, 2, 0),)),
    ]:  # fmt: skip
        need = HEADER_BYTES + wanted.nbytes
        found = store.get_tensor_with_parallelism_into(key, base + 8, need, asked)
        assert (found.numpy() == wanted).all() and found.data_ptr() == base + 8 + HEADER_BYTES
        header = Layout.parse(bytes(player.memory[8:]), need)
        assert (header.shape, header.axes) == (wanted.shape, axes)
        for at, size in ((base + 8, need - 1), (base + 8, 0), (0, need)):
            assert store.get_tensor_with_parallelism_into(key, at, size, asked) is None
    assert store.get_tensor_with_parallelism_into("none", base, 4096, target("full", cut(0, 2, 1))) is None


def test_each_key_of_a_batch_stands_for_itself(torch: Any, player: calls.Player) -> None:
    store, base = player.store, player.base
    tensor, two = torch.from_numpy(matrix()), cut(0, 2, 1)
    put, full = store.batch_put_tensor_with_parallelism, target("full", two)
    assert put(["a", "b", "c", ""], [tensor, tensor, 7, tensor], [two, None, None, two]) == [0, 0, -600, -600]
    assert put(["d", "e"], [tensor] * 2) == [0, 0] and put([], []) == []
    writers = [axis(0, 2, 0), None]
    assert put(["f", "g"], [tensor] * 2, None, ReplicateConfig(), writers) == [0, 0]
    assert keys(player, ["a_tp_0", "b", "d", "e", "f__writer_0of2_sd0", "g"]) == ["a_tp_0", "b", "d", "e", "f__writer_0of2_sd0", "g"]
    given: list[tuple[Any, ...]] = [
        (["x", "y"], [tensor]), (["x", "y"], [tensor] * 2, [None]), (["x", "y"], [tensor] * 2, 5),
        (["x", "y"], [tensor] * 2, [two, None], ReplicateConfig(), writers), (["x", "y"], [tensor] * 2, None, ReplicateConfig(), [None]),
    ]  # fmt: skip
    for arguments in given:
        assert put(*arguments) == [-600, -600] == store.batch_upsert_tensor_with_parallelism(*arguments)
    assert store.batch_upsert_tensor_with_parallelism(["a"], [torch.from_numpy(matrix(100))], [two]) == [0]
    assert read(store, "a", target("shard", two)) == matrix(100).tolist()
    assert store.get_into("b", base, 400) == 400
    put_from = store.batch_put_tensor_with_parallelism_from
    assert put_from(["h", "i", "j"], [base] * 3, [400, 400, 5], [two, None, None]) == [0, 0, -600]
    assert put_from(["x", "y"], [base], [400, 400]) == [-600] * 2 == put_from(["x", "y"], [base] * 2, [400] * 2, [two])
    assert store.batch_upsert_tensor_with_parallelism_from(["h"], [base], [400], None, ReplicateConfig(), [axis(0, 1, 0)]) == [0]
    assert keys(player, ["x", "y", "x_tp_0", "h_tp_1", "i", "j", "h__writer_0of1_sd0"]) == ["h_tp_1", "i", "h__writer_0of1_sd0"]

    def shapes(tensors: list[Any]) -> list[Any]:
        return [None if one is None else tuple(one.shape) for one in tensors]

    get = store.batch_get_tensor_with_parallelism
    assert shapes(get(["h", "none", "b"], [full, full, None])) == [(4, 6), None, (4, 6)]
    assert shapes(get(["b", "none"])) == [(4, 6), None] and get([], []) == []
    assert get(["h", "b"], [full]) == [None, None] == get(["h", "b"], full)
    get_into = store.batch_get_tensor_with_parallelism_into
    assert shapes(get_into(["h", "none"], [base, base + 1024], [400] * 2, [target("shard", two), None])) == [(4, 3), None]
    assert get_into(["h", "b"], [base], [400] * 2) == [None] * 2 == get_into(["h", "b"], [base] * 2, [400] * 2, [full])


def test_a_configuration_holds_for_every_part(torch: Any, player: calls.Player) -> None:
    """Groups are of the keys of a call: with the keys that its parts have they did not fit."""
    store, tensor, grouped, none = player.store, torch.from_numpy(matrix()), ReplicateConfig(), ReplicateConfig()
    grouped.group_ids, none.replica_num = ["g"], 0
    assert store.put_tensor_with_parallelism("k", tensor, cut(0, 2, 1), grouped) == 0
    assert store.pub_tensor_with_tp("t", tensor, grouped, 0, 2, 1) == 0
    assert store.put_tensor_with_parallelism("x", tensor, cut(0, 2, 1), none) == -600
    grouped.group_ids = ["g", "h"]
    assert store.put_tensor_with_parallelism("x", tensor, cut(0, 2, 1), grouped) == -600
    assert store.batch_put_tensor_with_parallelism(["x", "y"], [tensor] * 2, None, grouped) == [0, 0]
    with pytest.raises(TypeError):
        store.put_tensor_with_parallelism("x", tensor, None, 5)
    with pytest.raises(TypeError):
        store.put_tensor_with_parallelism(5, tensor, cut(0, 2, 1))


def test_tensors_without_elements_are_shared_too(torch: Any, player: calls.Player) -> None:
    store, empty = player.store, torch.from_numpy(numpy.zeros((2, 0), "float32"))
    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", empty, cut(rank, 2, 1)) == 0
        assert store.put_tensor_with_parallelism("w", empty, writer_partition=axis(rank, 2, 0)) == 0
    for key, asked, shape in [
        ("k", target("full", cut(0, 2, 1)), (2, 0)), ("k", target("shard", cut(0, 2, 1)), (2, 0)),
        ("k", target("shard", cut(0, 3, 1)), (2, 0)), ("w", target("full"), (2, 0)),
        ("w", target("shard", cut(1, 2, 0)), (1, 0)), ("k", target("shard", cut(0, 2, 0)), (1, 0)),
    ]:  # fmt: skip
        assert tuple(store.get_tensor_with_parallelism(key, asked).shape) == shape
        assert tuple(store.get_tensor_with_parallelism_into(key, player.base, HEADER_BYTES, asked).shape) == shape
    scalar = torch.from_numpy(numpy.array(5, "float32"))
    assert store.put_tensor_with_parallelism("s", scalar, cut(0, 2, 0)) == -600
    assert store.put_tensor_with_parallelism("s", scalar) == 0


def test_what_is_shared_before_setup_is_refused(torch: Any) -> None:
    store, tensor = MooncakeDistributedStore(), torch.from_numpy(matrix())
    assert store.put_tensor_with_parallelism("k", tensor, cut(0, 2, 1)) == -600
    assert store.batch_put_tensor_with_parallelism_from(["k"], [1000], [400], [cut(0, 2, 1)]) == [-600]
    memory = ctypes.create_string_buffer(400)
    for mode in ("shard", "full"):
        assert read(store, "k", target(mode, cut(0, 2, 1))) is None
        asked = target(mode, cut(0, 2, 1))
        assert store.get_tensor_with_parallelism_into("k", ctypes.addressof(memory), 400, asked) is None
    assert json.dumps(repr(target("full"))) and memory.raw == bytes(400)


def test_a_put_beside_a_tensor_of_another_cut_is_refused(torch: Any, player: calls.Player) -> None:
    """Such a part was stored and 0 returned, though nobody finds it by the manifest that stays."""
    store, tensor = player.store, torch.from_numpy(matrix())
    for given, first, other, wrong in [
        ({"parallelism": cut(0, 2, 1)}, "k_tp_0", {"parallelism": cut(2, 3, 1)}, "k_tp_2"),
        ({"writer_partition": axis(0, 2, 1)}, "k__writer_0of2_sd1", {"writer_partition": axis(0, 3, 1)}, "k__writer_0of3_sd1"),
    ]:  # fmt: skip
        assert store.put_tensor_with_parallelism("k", tensor, **given) == 0
        assert store.put_tensor_with_parallelism("k", tensor, **given) == 0
        assert store.put_tensor_with_parallelism("k", tensor, **other) == -705
        assert keys(player, [first, wrong]) == [first]
        assert store.upsert_tensor_with_parallelism("k", tensor, **other) == 0 and store.is_exist(wrong) == 1
    # One of a batch.
    put = store.batch_put_tensor_with_parallelism
    assert put(["k", "l"], [tensor] * 2, [cut(0, 2, 1)] * 2) == [-705, 0]


def test_a_put_of_a_new_tensor_holds_nothing_in_place(torch: Any, player: calls.Player) -> None:
    """Its manifest was read again, and therefore stayed when all was removed: for the time of a lease the tensor could not be put
    in another cut."""
    store, tensor = player.store, torch.from_numpy(matrix())
    for size in (2, 3, 6):
        assert store.put_tensor_with_parallelism("k", tensor, cut(0, size, 1)) == 0
        assert store.put_tensor_with_parallelism("w", tensor, writer_partition=axis(0, size, 1)) == 0
        assert store.remove_all() == 4


def test_a_put_beside_another_holds_no_manifest_in_place(torch: Any, player: calls.Player) -> None:
    """The second rank read the manifest of the first, which therefore stayed when all was removed: for the time of a lease the
    tensor could not be put in another cut."""
    store, tensor = player.store, torch.from_numpy(matrix())
    for given in [[{"parallelism": cut(rank, size, 1)} for rank in range(2)] for size in (2, 3)] + [
        [{"writer_partition": axis(rank, size, 1)} for rank in range(2)] for size in (2, 3)
    ]:
        assert [store.put_tensor_with_parallelism("k", tensor, **one) for one in given] == [0, 0]
        assert store.remove_all() == 3


class Racing:
    """A client in which another one writes the manifest just before."""

    def __init__(self, raw: Any, key: str, value: bytes) -> None:
        self._raw, self._value, self._key = raw, value, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def put_from_many(self, *arguments: Any) -> Any:
        """Puts, after the other one."""
        plan = ReplicateConfig()._plan(0)
        assert self._raw.put(self._key, [self._value], plan) == 0
        return self._raw.put_from_many(*arguments)


def test_a_put_that_loses_a_race_for_the_manifest_says_so(
    torch: Any, player: calls.Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = player.store, Manifest(Layout.of("float32", (4, 18)), 1, 3).bytes()
    monkeypatch.setattr(store, "_raw", Racing(store._raw, "k__parallelism_manifest", other))
    assert store.put_tensor_with_parallelism("k", torch.from_numpy(matrix()), cut(0, 2, 1)) == -705


def test_parts_of_two_writes_are_not_joined(torch: Any, player: calls.Player, caplog: pytest.LogCaptureFixture) -> None:
    """The parts of two tensors of the same extents were joined into one that nobody wrote."""
    store, one, two = player.store, torch.from_numpy(matrix()), torch.from_numpy(matrix(100))
    base, writers = player.base, [axis(rank, 2, 1) for rank in range(2)]
    many = [parallel(axis(0, 2, **COPY), axis(rank, 2, 1)) for rank in range(2)]

    def full(key: str) -> Any:
        return read(store, key, target("full", None if key == "w" else many[0] if key == "m" else cut(0, 2, 1)))

    for rank in range(2):
        assert store.put_tensor_with_parallelism("w", one, writer_partition=writers[rank]) == 0
        assert store.put_tensor_with_parallelism("m", one, many[rank]) == 0
    assert store.put_tensor_with_tp("t", one, 0, 2, 1) == 0
    assert store.put_tensor("whole", one) == 0 and store.get_into("whole", base, 400) == 400
    assert store.put_tensor_with_parallelism_from("f", base, 400, cut(0, 2, 1)) == 0
    assert [full(key) for key in "wmtf"] == [matrix().tolist()] * 4
    # One of the writers goes on to the next tensor.
    assert store.upsert_tensor_with_parallelism("w", two, writer_partition=writers[1]) == 0
    assert store.upsert_tensor_with_parallelism("m", two, many[0]) == 0
    for key in "tf":
        assert store.upsert_tensor_with_parallelism(key, torch.from_numpy(matrix()[:, :3].copy()), cut(0, 2, 1)) == 0
    store._told.clear()
    assert [full(key) for key in "wmtf"] == [None] * 4 and "different writes" in caplog.text
    # What is asked for is of one of the writes.
    assert read(store, "w", target("shard", cut(3, 4, 1))) is None, "which has no part in four of six"
    assert read(store, "w", target("shard", cut(2, 3, 1))) == matrix(100)[:, 4:].tolist()
    # The other one follows.
    assert store.upsert_tensor_with_parallelism("w", two, writer_partition=writers[0]) == 0
    assert full("w") == matrix(100).tolist()


def test_a_put_beside_parts_of_another_tensor_is_refused(torch: Any, player: calls.Player) -> None:
    """Where some parts of a tensor were there already, of another one, 0 was returned and neither could be read."""
    store, one, two = player.store, torch.from_numpy(matrix()), torch.from_numpy(matrix(100))
    assert store.put_tensor("whole", two) == 0 and store.get_into("whole", player.base, 400) == 400
    for key, put in [
        ("t", lambda: store.put_tensor_with_tp("t", two, 0, 2, 1)),
        ("f", lambda: store.put_tensor_with_parallelism_from("f", player.base, 400, cut(0, 2, 1))),
    ]:
        parts = [f"{key}_tp_{rank}" for rank in range(2)]
        assert store.put_tensor_with_tp(key, one, 0, 2, 1) == 0
        # All of it is there: it stays.
        assert put() == 0 and store.remove(parts[1], True) == 0
        assert put() == -705, key
        assert store.batch_remove(parts, True) == [0, 0] and put() == 0
        # The part that was there is of the same tensor, as when a put is made again that ended half-way.
        assert store.remove(parts[0], True) == 0 == put()
        assert read(store, key, target("full", cut(0, 2, 1))) == matrix(100).tolist()


class Failing:
    """A client that does not read one of the keys."""

    def __init__(self, raw: Any, key: str) -> None:
        self._raw, self._key = raw, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read_buffers(self, keys: Sequence[str]) -> list[Any]:
        """Reads the others."""
        return [-900 if key == self._key else value for key, value in zip(keys, self._raw.read_buffers(keys), strict=True)]

    def get_into(self, keys: Sequence[str], starts: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Reads the others."""
        read = self._raw.get_into(keys, starts, sizes)
        return [-900 if key == self._key else code for key, code in zip(keys, read, strict=True)]


def test_other_parts_do_not_stand_for_one_that_was_not_read(
    torch: Any, player: calls.Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was there and could not be read was made of others, which may be older."""
    store, tensor, half = player.store, torch.from_numpy(matrix()), target("shard", cut(0, 2, 1))
    left = torch.from_numpy(matrix()[:, :3].copy())
    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", tensor, writer_partition=axis(rank, 2, 1)) == 0
    assert read(store, "k", half) == left.numpy().tolist(), "of writers"
    assert store.put_tensor_with_parallelism("k", left, cut(0, 2, 1)) == 0
    raw = store._raw
    for failing, asked in [("k_tp_0", half), ("k__parallelism_manifest", target("shard", cut(0, 1, 1))),
                           ("k__writer_manifest", target("full")), ("k__writer_1of2_sd1", target("full"))]:  # fmt: skip
        assert store.get_tensor_with_parallelism("k", asked) is not None, failing
        monkeypatch.setattr(store, "_raw", Failing(raw, failing))
        assert store.get_tensor_with_parallelism("k", asked) is None, failing
        assert store.get_tensor_with_parallelism_into("k", player.base, 400, asked) is None, failing
        monkeypatch.setattr(store, "_raw", raw)


def test_a_manifest_that_is_none_leaves_the_other(torch: Any, player: calls.Player) -> None:
    """It was an error that ended the read, where another manifest tells of all the parts."""
    store, tensor = player.store, torch.from_numpy(matrix())
    for rank in range(2):
        assert store.put_tensor_with_parallelism("k", tensor, writer_partition=axis(rank, 2, 1)) == 0
    for key in ("k__parallelism_manifest", "k_tp_0"):
        assert store.put(key, b"junk") == 0
        assert read(store, "k", target("full", cut(0, 2, 1))) == matrix().tolist(), key
    # A number that no header has room for was an exception.
    expert = SimpleNamespace(kind="ep", rank=0, size=2, split_dim=None, expert_id=1 << 40, stage_id=None)
    assert store.put_tensor_with_parallelism("e", tensor, SimpleNamespace(axes=[expert])) == -600
