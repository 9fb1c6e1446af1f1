"""Tensors as bytes: a header of 304 bytes, and the elements in the order of rows after it.

Numbers are little-endian. The header has, from byte 0: magic, version, its own length, kind of element, number of
dimensions, layout, flags, where the elements begin, and their bytes; from 40 the eight extents of the whole tensor and of
this part of it, -1 where there is no such dimension; from 168 how many axes it was split by, and four axes of kind,
index, rank, size, dimension, the number of an expert or a stage, and the extent of this part.

The four bytes after the number of axes are reserved: here they say which write a part is of.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

HEADER_BYTES = 304
_MAGIC, _VERSION, _FULL, _SHARD = 0x4D4F4F4E, 1, 0, 1
DIMENSIONS_MAX, AXES_MAX = 8, 4
_FIXED = struct.Struct("<IHHiiIIQQ8q8qII")
_AXIS = struct.Struct("<6iq")
AXIS_KINDS = {"dp": 0, "tp": 1, "ep": 2, "pp": 3}
"""The numbers of the kinds of axis: by data, tensor, expert and stage."""
TENSOR_PARALLEL = AXIS_KINDS["tp"]
# Lengths are signed numbers of 64 bits, of empty tensors too, whose rows PyTorch counts all the same.
_BYTES_LIMIT, PARTS_MAX = 1 << 63, 1 << 16

# Name as PyTorch has it, bytes, and name in files of safetensors, by number.
_KINDS: dict[int, tuple[str, int, str]] = {
    0: ("float32", 4, "F32"),
    1: ("float64", 8, "F64"),
    2: ("int8", 1, "I8"),
    3: ("uint8", 1, "U8"),
    4: ("int16", 2, "I16"),
    5: ("uint16", 2, "U16"),
    6: ("int32", 4, "I32"),
    7: ("uint32", 4, "U32"),
    8: ("int64", 8, "I64"),
    9: ("uint64", 8, "U64"),
    10: ("bool", 1, "BOOL"),
    11: ("float16", 2, "F16"),
    12: ("bfloat16", 2, "BF16"),
    13: ("float8_e4m3fn", 1, "F8_E4M3"),
    14: ("float8_e5m2", 1, "F8_E5M2"),
}
NUMBERS = {name: number for number, (name, _, _) in _KINDS.items()}
"""The numbers of the kinds of element, by their names in PyTorch."""
SAFE_NUMBERS = {name: number for number, (_, _, name) in _KINDS.items()}
"""The same by their names in files of safetensors."""


class FormatError(ValueError):
    """Bytes that are no tensor, or a tensor that has no such bytes."""


@dataclass(frozen=True)
class Axis:
    """What a part is one of `size` of: along a dimension that the tensor was cut by, or of whole tensors, -1, told apart by a
    number."""

    rank: int
    size: int
    dimension: int
    kind: int = TENSOR_PARALLEL
    number: int = 0


@dataclass(frozen=True)
class Layout:
    """What a header says: the kind of the elements, the extents, and those of the whole tensor if this is a part."""

    number: int
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    axes: tuple[Axis, ...] = ()
    write: int = field(default=0, compare=False)
    """Of a part, which bytes the whole tensor had that it was cut from; 0 when that is not known."""

    def __post_init__(self) -> None:
        shape, whole, rank = self.shape, self.whole, len(self.shape)
        if rank > DIMENSIONS_MAX:
            raise FormatError(f"{rank} dimensions, at most {DIMENSIONS_MAX} are stored")
        if len(whole) != rank or any(not 0 <= part <= all_of for part, all_of in zip(shape, whole, strict=True)):
            raise FormatError(f"extents {shape} are no part of {whole}")
        if prod(max(extent, 1) for extent in whole) * self.element_bytes >= _BYTES_LIMIT:
            raise FormatError(f"extents {whole} are more than any memory has")
        for axis in self.axes:
            least = 0 if axis.kind == TENSOR_PARALLEL else -1
            if not (least <= axis.dimension < rank and 0 <= axis.rank < axis.size):
                raise FormatError(f"part {axis.rank} of {axis.size} along dimension {axis.dimension} of extents {whole}")

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...]) -> "Layout":
        """The layout of a whole tensor."""
        number = NUMBERS.get(name.removeprefix("torch."))
        if number is None:
            raise FormatError(f"elements of {name} have no number")
        return cls(number, shape, shape)

    @classmethod
    def of_number(cls, number: int, shape: tuple[int, ...]) -> "Layout":
        """The layout of a whole tensor, by the number of its kind of element."""
        if number not in _KINDS:
            raise FormatError(f"no elements of kind {number} are known")
        return cls(number, shape, shape)

    @property
    def name(self) -> str:
        """The kind of the elements as PyTorch names it."""
        return _KINDS[self.number][0]

    @property
    def safe_name(self) -> str:
        """The kind of the elements as files of safetensors name it."""
        return _KINDS[self.number][2]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return _KINDS[self.number][1]

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.element_bytes

    def header(self) -> bytes:
        """The bytes before the elements."""
        rank, unused = len(self.shape), (-1,) * (DIMENSIONS_MAX - len(self.shape))
        layout = _SHARD if self.axes else _FULL
        extents = (*self.whole, *unused, *self.shape, *unused)
        fixed = (_MAGIC, _VERSION, HEADER_BYTES, self.number, rank, layout, 0, HEADER_BYTES, self.bytes)
        axes = [
            _AXIS.pack(axis.kind, at, axis.rank, axis.size, axis.dimension, axis.number, self._extent(axis))
            for at, axis in enumerate(self.axes)
        ]
        absent = [bytes(_AXIS.size)] * (AXES_MAX - len(axes))
        return b"".join([_FIXED.pack(*fixed, *extents, len(axes), self.write), *axes, *absent])

    @classmethod
    def parse(cls, header: bytes, total_bytes: int) -> "Layout":
        """What a header says that begins an object of so many bytes."""
        if len(header) < HEADER_BYTES or total_bytes < HEADER_BYTES:
            raise FormatError(f"{min(len(header), total_bytes)} bytes are no tensor: its header has {HEADER_BYTES}")
        magic, version, own, number, rank, kind, _flags, begin, data, *rest = _FIXED.unpack_from(header)
        if magic != _MAGIC:
            raise FormatError("no header of a tensor")
        if (version, own, begin) != (_VERSION, HEADER_BYTES, HEADER_BYTES):
            raise FormatError(f"a header of version {version} with {own} bytes and elements at {begin}")
        if number not in _KINDS or not 0 <= rank <= DIMENSIONS_MAX or kind not in (_FULL, _SHARD):
            raise FormatError(f"elements of kind {number} in {rank} dimensions with layout {kind}")
        whole, shape, count = tuple(rest[:rank]), tuple(rest[8 : 8 + rank]), rest[16]
        write = rest[17]
        if count > AXES_MAX:
            raise FormatError(f"split by {count} axes, at most {AXES_MAX} are known")
        axes = []
        for at in range(count):
            axis_kind, _index, axis_rank, size, dimension, told, _ = _AXIS.unpack_from(header, _FIXED.size + at * _AXIS.size)
            axes.append(Axis(axis_rank, size, dimension, axis_kind, told))
        layout = cls(number, shape, whole, tuple(axes), write)
        if layout.bytes != data or total_bytes != HEADER_BYTES + data:
            raise FormatError(f"{data} bytes of elements in an object of {total_bytes}, for extents {shape}")
        return layout

    def _extent(self, axis: Axis) -> int:
        return self.shape[axis.dimension] if axis.dimension >= 0 else 0

    def parts(self, size: int, dimension: int) -> "Iterator[tuple[Layout, list[tuple[int, int]]]]":
        """The tensor cut into so many equal parts: of each the layout, and where its runs of bytes are: offset and length."""
        if not 0 <= dimension < len(self.shape):
            raise FormatError(f"no dimension {dimension} in extents {self.shape}")
        if not 0 < size <= PARTS_MAX or self.shape[dimension] % size:
            raise FormatError(f"an extent of {self.shape[dimension]} is not cut into {size} equal parts")
        extent = self.shape[dimension] // size
        row = prod(self.shape[dimension + 1 :]) * self.element_bytes
        rows, run = prod(self.shape[:dimension]), extent * row
        shape = (*self.shape[:dimension], extent, *self.shape[dimension + 1 :])
        for rank in range(size):
            # An empty part may have any number of rows.
            runs = [(at * run * size + rank * run, run) for at in range(rows if run else 0)]
            yield replace(self, shape=shape, axes=(Axis(rank, size, dimension),)), runs
