"""Calls of the store about tensors of PyTorch, which is imported when one is to be made."""

import ctypes
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slackwater._native import RawClient, checksum
from slackwater.compat.mooncake.opening import log
from slackwater.compat.mooncake.replicate import CREATE_NEAR, DEFAULT, UPSERT_NEAR, ReplicateConfig, plan_of
from slackwater.compat.mooncake.shown import memory_at
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES, SAFE_NUMBERS, FormatError, Layout

_INVALID_PARAMS, _FILE_NOT_FOUND, _OTHER_EXISTS = -600, -1100, -705
_SAFE_HEADER_BYTES_MAX = 100_000_000


class Source:
    """The elements of a tensor in memory, and what keeps them there."""

    def __init__(self, layout: Layout, address: int, keep: Any = None) -> None:
        self.layout, self.address, self.keep = layout, address, keep

    @classmethod
    def of(cls, tensor: Any) -> "Source":
        """Those of a tensor of PyTorch, on this host and in the order of rows."""
        if not hasattr(tensor, "data_ptr") or str(getattr(tensor, "layout", "")) != "torch.strided":
            raise FormatError(f"no plain tensor of PyTorch: {type(tensor).__name__}")
        layout = Layout.of(str(tensor.dtype), tuple(tensor.shape))
        if tensor.device.type == "meta":
            raise FormatError("a tensor without elements in memory")
        held = tensor.detach().cpu().contiguous()
        return cls(layout, held.data_ptr(), held)

    @classmethod
    def at(cls, address: int, size: int) -> "Source":
        """Those behind a header in memory of this length."""
        if size < HEADER_BYTES or not address:
            raise FormatError(f"{size} bytes at {address} are no tensor")
        return cls(Layout.parse(ctypes.string_at(address, HEADER_BYTES), size), address + HEADER_BYTES)

    def write(self) -> int:
        """Which bytes these are, never 0: what all parts of them have in common, of any writer and at any time."""
        return checksum(self.address, self.layout.bytes) & 0xFFFF_FFFF or 1


@dataclass(frozen=True)
class Piece:
    """A value that is put for one of the keys of a call: bytes, and runs of memory after them."""

    owner: int
    key: str
    head: bytes
    address: int
    runs: Sequence[tuple[int, int]]

    def is_part(self) -> bool:
        """Whether it is a tensor or a part of one, and no manifest."""
        return len(self.head) == HEADER_BYTES


def tensor_of(layout: Layout, memory: Any, offset: int) -> Any:
    """A tensor over the bytes of a buffer from there on, which it keeps."""
    import torch

    # A tensor without dimensions comes back with one, as those who read it know it.
    kind, shape = getattr(torch, layout.name), layout.shape or (1,)
    if not layout.bytes:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=layout.bytes, offset=offset)
    return flat.view(kind).reshape(shape)


def _device_of(tensor: Any) -> str:
    return str(getattr(getattr(tensor, "device", None), "type", "nothing"))


def _copied_into(tensor: Any, held: Any) -> int:
    """Copies the elements of a value to a tensor of a GPU: 0."""
    layout = Layout.parse(bytes(memoryview(held)[:HEADER_BYTES]), len(held))
    wanted = Layout.of(str(tensor.dtype), tuple(tensor.shape))
    if (layout.number, layout.shape) != (wanted.number, wanted.shape):
        raise FormatError(f"{layout.name} of {layout.shape} for a tensor of {wanted.name} and {wanted.shape}")
    tensor.copy_(tensor_of(layout, held, HEADER_BYTES).reshape(layout.shape))
    return 0


def serialized(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Header, address and bytes of the elements of a tensor, and what keeps them there."""
    try:
        source = Source.of(tensor)
    except FormatError as error:
        raise ValueError(f"unsupported tensor for Mooncake tensor serialization: {error}") from None
    return source.layout.header(), source.address, source.layout.bytes, source.keep


def deserialized(value: bytes) -> Any:
    """The tensor in these bytes."""
    try:
        layout = Layout.parse(value[:HEADER_BYTES], len(value))
    except FormatError as error:
        raise ValueError(f"invalid serialized Mooncake tensor payload: {error}") from None
    return tensor_of(layout, bytearray(value), HEADER_BYTES)


def _checksum_of(value: bytes) -> tuple[int, int]:
    held = ctypes.create_string_buffer(value, len(value))
    return len(value), checksum(ctypes.addressof(held), len(value))


def _tp_key(key: str, rank: int) -> str:
    return f"{key}_tp_{rank}"


class Tensors:
    """The calls of a store about tensors. What was wrong with one that is refused is logged once for each call."""

    _raw: RawClient
    _told: set[str]

    def _no_tensor(self, method: str, error: FormatError) -> int:
        if method not in self._told:
            self._told.add(method)
            log.warning("%s: %d: %s; further calls that end so are not logged", method, _INVALID_PARAMS, error)
        return _INVALID_PARAMS

    def _put_parts_of(
        self, keys: Sequence[str], sources: "Sequence[Source | int]", plan: Any, split: tuple[int, int]
    ) -> list[int]:
        """Puts tensors, each cut into so many parts along a dimension if they are more than one; a number in the place of
        a tensor is its code."""
        codes = [0 if isinstance(source, Source) else source for source in sources]
        pieces: list[Piece] = []
        for at, (key, source) in enumerate(zip(keys, sources, strict=True)):
            if not isinstance(source, Source):
                continue
            try:
                parts = _parts(key, source, split)
            except FormatError as error:
                codes[at] = self._no_tensor("put of parts of a tensor", error)
                continue
            pieces += [Piece(at, name, layout.header(), source.address, runs) for name, layout, runs in parts]
        return self._put_pieces(pieces, plan, codes)

    def _other_exists(self, why: str) -> int:
        log.warning("put of parts of a tensor: %d: %s: remove them, or upsert", _OTHER_EXISTS, why)
        return _OTHER_EXISTS

    def _put_pieces(self, pieces: "Sequence[Piece]", plan: Any, codes: list[int]) -> list[int]:
        """Puts values for the keys of a call, whose codes are those of before and of the first of its values that fails."""
        spread = plan.spread([piece.owner for piece in pieces], len(codes))
        if spread is None:
            return [code or _INVALID_PARAMS for code in codes]
        heads = [ctypes.create_string_buffer(piece.head, len(piece.head)) for piece in pieces]
        starts, sizes = [], []
        for head, piece in zip(heads, pieces, strict=True):
            starts.append([ctypes.addressof(head), *(piece.address + start for start, _ in piece.runs)])
            sizes.append([len(piece.head), *(length for _, length in piece.runs)])
        put = self._raw.put_from_many([piece.key for piece in pieces], starts, sizes, spread)
        for piece, code in zip(pieces, put, strict=True):
            codes[piece.owner] = codes[piece.owner] or min(code, 0)
        self._check_beside([piece for piece, code in zip(pieces, put, strict=True) if code == 0],
                           [piece for piece, code in zip(pieces, put, strict=True) if code > 0], codes)  # fmt: skip
        return codes

    def _check_beside(self, stored: "Sequence[Piece]", existing: "Sequence[Piece]", codes: list[int]) -> None:
        """Refuses tensors of which some parts were stored and others were there, or the manifest, when those are of another
        tensor: neither can be read."""
        owners = {piece.owner for piece in stored if piece.is_part()}
        beside = [piece for piece in existing if piece.is_part() and piece.owner in owners]
        for piece in beside:
            # One at a time: together they may be longer than memory.
            value = None if codes[piece.owner] else self._raw.get_buffers([piece.key])[0]
            if value is not None and bytes(memoryview(value)[:HEADER_BYTES]) != piece.head:
                codes[piece.owner] = self._other_exists(f"{piece.key} is there, of another tensor")
        self._refuse_others([piece for piece in existing if not piece.is_part()], codes)

    def _refuse_others(self, manifests: "Sequence[Piece]", codes: list[int]) -> None:
        """Refuses tensors of which the manifest that is there is another one than theirs.

        Manifests are told apart by their checksums: those that were read could not be removed for the time of a lease.
        """
        found = self._raw.checksums([piece.key for piece in manifests])
        for piece, there in zip(manifests, found, strict=True):
            if there is not None and there != _checksum_of(piece.head) and not codes[piece.owner]:
                codes[piece.owner] = self._other_exists("a tensor is there that is cut in another way")

    def _put_tensors(
        self, method: str, keys: Sequence[str], tensors: Sequence[Any], plan: Any, split: tuple[int, int] = (1, 0)
    ) -> list[int]:
        """Puts tensors of PyTorch."""
        code = plan if plan.__class__ is int else _INVALID_PARAMS if len(tensors) != len(keys) else self._raw.state()
        if code:
            return [code] * len(keys)

        def source(tensor: Any) -> Source | int:
            try:
                return Source.of(tensor)
            except FormatError as error:
                return self._no_tensor(method, error)

        return self._put_parts_of(keys, [source(tensor) for tensor in tensors], plan, split)

    def _put_tensors_from(
        self, method: str, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int], plan: Any,
        split: tuple[int, int] = (1, 0),
    ) -> list[int]:  # fmt: skip
        """Puts tensors that lie in memory behind their headers: all of them, or none when one is no tensor."""
        code = plan if plan.__class__ is int else self._raw.state()
        if code or len(pointers) != len(keys) or len(sizes) != len(keys):
            return [code or _INVALID_PARAMS] * len(keys)
        try:
            sources = [Source.at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
        except FormatError as error:
            return [self._no_tensor(method, error)] * len(keys)
        return self._put_parts_of(keys, sources, plan, split)

    # Whole tensors.

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor: 0, also when the key exists, whose value then stays."""
        return self._put_tensors("put_tensor", [key], [tensor], plan_of(DEFAULT, CREATE_NEAR))[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Stores tensors: 0 or a code for each key."""
        return self._put_tensors("batch_put_tensor", keys, tensors_list, plan_of(DEFAULT, CREATE_NEAR))

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor in the place of a value that is there."""
        return self._put_tensors("upsert_tensor", [key], [tensor], plan_of(DEFAULT, UPSERT_NEAR))[0]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """As `batch_put_tensor`, in the place of values that are there."""
        return self._put_tensors("batch_upsert_tensor", keys, tensors_list, plan_of(DEFAULT, UPSERT_NEAR))

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `put_tensor`, by a configuration, whose segments are as many as its replicas if it names any."""
        return self._put_tensors("pub_tensor", [key], [tensor], _published(config, CREATE_NEAR))[0]

    def batch_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """As `batch_put_tensor`, by a configuration."""
        return self._put_tensors("batch_pub_tensor", keys, tensors_list, _published(config, CREATE_NEAR))

    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `pub_tensor`, in the place of a value that is there."""
        return self._put_tensors("upsert_pub_tensor", [key], [tensor], _published(config, UPSERT_NEAR))[0]

    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """As `batch_pub_tensor`, in the place of values that are there."""
        return self._put_tensors("batch_upsert_pub_tensor", keys, tensors_list, _published(config, UPSERT_NEAR))

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores a tensor that lies in memory behind its header."""
        return self._put_tensors_from("put_tensor_from", [key], [buffer_ptr], [size], plan_of(DEFAULT, CREATE_NEAR))[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Stores tensors that lie in memory behind their headers; none when one of them is no tensor."""
        return self._put_tensors_from("batch_put_tensor_from", keys, buffer_ptrs, sizes, plan_of(DEFAULT, CREATE_NEAR))

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As `put_tensor_from`, in the place of a value that is there."""
        return self._put_tensors_from("upsert_tensor_from", [key], [buffer_ptr], [size], plan_of(DEFAULT, UPSERT_NEAR))[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """As `batch_put_tensor_from`, in the place of values that are there."""
        return self._put_tensors_from("batch_upsert_tensor_from", keys, buffer_ptrs, sizes, plan_of(DEFAULT, UPSERT_NEAR))

    def get_tensor(self, key: str) -> Any:
        """The tensor, in memory of its own; None when there is none, or the value is no tensor."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """The tensors, None for those that are not there."""
        tensors = []
        for handle in self._raw.get_buffers(keys):
            try:
                layout = None if handle is None else Layout.parse(bytes(memoryview(handle)[:HEADER_BYTES]), len(handle))
                tensors.append(None if layout is None else tensor_of(layout, handle, HEADER_BYTES))
            except FormatError as error:
                self._no_tensor("get_tensor", error)
                tensors.append(None)
        return tensors

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Reads header and elements into memory: a tensor over it, or None."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any]:
        """Reads tensors into memory: those, or None for each that is not there; a code for each when lists do not fit."""
        if len(buffer_ptrs) != len(keys) or len(sizes) != len(keys):
            return [_INVALID_PARAMS] * len(keys)
        tensors = []
        for pointer, read in zip(buffer_ptrs, self._raw.get_into(keys, buffer_ptrs, sizes), strict=True):
            try:
                layout = None if read < 0 else Layout.parse(ctypes.string_at(pointer, min(read, HEADER_BYTES)), read)
            except FormatError as error:
                self._no_tensor("get_tensor_into", error)
                layout = None
            memory = None if layout is None else memory_at(pointer, read)
            tensors.append(None if layout is None else tensor_of(layout, memory, HEADER_BYTES))
        return tensors

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Reads elements into a tensor of a GPU, of the same kind and extents: 0 or a code."""
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Reads elements into tensors of a GPU: 0 or a code for each; -600 for a tensor that is in no GPU."""
        if len(tensors_list) != len(keys):
            return [_INVALID_PARAMS] * len(keys)
        codes = [self._raw.state()] * len(keys)
        places = [at for at, tensor in enumerate(tensors_list) if _device_of(tensor) == "cuda"]
        for at in set(range(len(keys))) - set(places):
            error = FormatError(f"a tensor in {_device_of(tensors_list[at])}, where one in a GPU is needed")
            codes[at] = codes[at] or self._no_tensor("get_tensor_into_cuda", error)
        for at, read in zip(places, self._raw.read_buffers([keys[at] for at in places]), strict=True):
            try:
                codes[at] = read if isinstance(read, int) else _copied_into(tensors_list[at], read)
            except FormatError as error:
                codes[at] = self._no_tensor("get_tensor_into_cuda", error)
        return codes

    # Tensors that are cut into a part for each rank.

    def put_tensor_with_tp(
        self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Stores a tensor in `tp_size` equal parts along a dimension, those of all ranks; whole for one rank."""
        plan = plan_of(DEFAULT, CREATE_NEAR)
        return self._put_tensors("put_tensor_with_tp", [key], [tensor], plan, (tp_size, split_dim))[0]

    def batch_put_tensor_with_tp(
        self, base_keys: Sequence[str], tensors_list: Sequence[Any], tp_rank: int = 0, tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:  # fmt: skip
        """Stores tensors in parts: 0 or a code for each."""
        plan = plan_of(DEFAULT, CREATE_NEAR)
        return self._put_tensors("batch_put_tensor_with_tp", base_keys, tensors_list, plan, (tp_size, split_dim))

    def pub_tensor_with_tp(
        self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT, tp_rank: int = 0, tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:  # fmt: skip
        """As `put_tensor_with_tp`, by a configuration."""
        plan = _published(config, CREATE_NEAR)
        return self._put_tensors("pub_tensor_with_tp", [key], [tensor], plan, (tp_size, split_dim))[0]

    def batch_pub_tensor_with_tp(
        self, base_keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0,
    ) -> list[int]:  # fmt: skip
        """As `batch_put_tensor_with_tp`, by a configuration."""
        plan = _published(config, CREATE_NEAR)
        return self._put_tensors("batch_pub_tensor_with_tp", base_keys, tensors_list, plan, (tp_size, split_dim))

    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """As `put_tensor_with_tp`, of a tensor that lies in memory behind its header."""
        given = [key], [buffer_ptr], [size], plan_of(DEFAULT, CREATE_NEAR)
        return self._put_tensors_from("put_tensor_with_tp_from", *given, (tp_size, split_dim))[0]

    def batch_put_tensor_with_tp_from(
        self, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
        tp_size: int = 1, split_dim: int = 0,
    ) -> list[int]:  # fmt: skip
        """As `batch_put_tensor_with_tp`, of tensors that lie in memory behind their headers."""
        given = base_keys, buffer_ptrs, sizes, plan_of(DEFAULT, CREATE_NEAR)
        return self._put_tensors_from("batch_put_tensor_with_tp_from", *given, (tp_size, split_dim))

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """The part of a rank, or None."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        """The parts of a rank, None for those that are not there."""
        return self.batch_get_tensor(_of_rank(base_keys, tp_rank, tp_size))

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """Reads the part of a rank into memory: a tensor over it, or None."""
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(
        self, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]:  # fmt: skip
        """Reads the parts of a rank into memory."""
        return self.batch_get_tensor_into(_of_rank(base_keys, tp_rank, tp_size), buffer_ptrs, sizes)

    # Files.

    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Writes a tensor to a file of safetensors, named as the key unless another name is given: 0 or a code."""
        handle = self._raw.get_buffers([key])[0]
        if handle is None:
            return self._raw.state() or _FILE_NOT_FOUND
        view = memoryview(handle).cast("B")
        try:
            layout = Layout.parse(bytes(view[:HEADER_BYTES]), len(view))
            entry = {"dtype": layout.safe_name, "shape": list(layout.shape), "data_offsets": [0, layout.bytes]}
            header = json.dumps({key: entry}, separators=(",", ":")).encode()
            header += b" " * (-len(header) % 8)
            with open(file_name or key, "wb") as file:
                file.writelines((struct.pack("<Q", len(header)), header, view[HEADER_BYTES:]))
        except (FormatError, OSError) as error:
            log.error("save_tensor_to_safetensor: %s", error)
            return _INVALID_PARAMS
        return 0

    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str | None = None) -> Any:
        """Stores a tensor of a file under a key, the name of the file unless another is given: the tensor, or None.

        Of a file without a tensor of that name, the first is taken, with a warning.
        """
        if file_name is None:
            raise TypeError("load_tensor_from_safetensor: file_name is needed")
        key = file_name if key is None else key
        try:
            layout, elements = _read_safe(Path(file_name), key)
        except (FormatError, OSError) as error:
            log.error("load_tensor_from_safetensor: %s: %s", file_name, error)
            return None
        tensor = tensor_of(layout, elements, 0)
        return None if self.put_tensor(key, tensor) < 0 else tensor


def _parts(key: str, source: Source, split: tuple[int, int]) -> list[tuple[str, Layout, list[tuple[int, int]]]]:
    """Key, layout and runs of bytes of each part of a tensor."""
    size, dimension = split
    if size <= 1:
        return [(key, source.layout, [(0, source.layout.bytes)])]
    if not key:
        raise FormatError("a key must not be empty")
    parts = [(_tp_key(key, rank), *part) for rank, part in enumerate(source.layout.parts(size, dimension))]
    write = source.write()
    return [(name, replace(layout, write=write), runs) for name, layout, runs in parts]


def _of_rank(keys: Sequence[str], rank: int, size: int) -> list[str]:
    return [_tp_key(key, rank) for key in keys] if size > 1 else list(keys)


def _published(config: ReplicateConfig, kind: int) -> Any:
    plan = plan_of(config, kind)
    named = [config.preferred_segment] if config.preferred_segment else config.preferred_segments
    return _INVALID_PARAMS if named and len(named) != config.replica_num else plan


def _read_safe(path: Path, key: str) -> tuple[Layout, bytearray]:
    """A tensor of a file of safetensors: length of its header, header as JSON, elements."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > _SAFE_HEADER_BYTES_MAX:
            raise FormatError("no file of safetensors")
        try:
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            name = key if key in entries else next(iter(entries))
            entry = entries[name]
            begin, end = entry["data_offsets"]
            number, shape = SAFE_NUMBERS[entry["dtype"]], tuple(entry["shape"])
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise FormatError(f"no tensor that is known: {type(error).__name__}: {error}") from None
        if any(type(one) is not int for one in (begin, end, *shape)):
            raise FormatError(f"{name}: extents and offsets must be whole numbers")
        layout = Layout(number, shape, shape)
        if begin < 0 or end - begin != layout.bytes:
            raise FormatError(f"{name}: extents {shape} in bytes {begin} to {end}")
        if name != key:
            log.warning("load_tensor_from_safetensor: %s has no tensor %r: %r is taken", path, key, name)
        if file.seek(0, os.SEEK_END) < 8 + length + end:
            raise FormatError(f"{name}: the file ends before its elements do")
        file.seek(8 + length + begin)
        elements = bytearray(file.read(layout.bytes))
        if len(elements) != layout.bytes:
            raise FormatError(f"{name}: the file was made shorter while it was read")
        return layout, elements
