"""How a tensor is shared by the ranks of a model: `ParallelAxis`, `TensorParallelism` and `ReadTarget`, the keys of its parts,
and the manifests beside them.

A manifest has 96 bytes, little-endian: magic, version, its own length, kind of element, number of dimensions, the
dimension that the tensor is cut along, into how many equal parts, eight bytes of zero, and the eight extents of the whole,
-1 where there is no such dimension.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.compat.mooncake.fields import Field, defaults, member, or_none, text, whole
from slackwater.compat.mooncake.tensor_format import (
    AXES_MAX,
    AXIS_KINDS,
    DIMENSIONS_MAX,
    PARTS_MAX,
    TENSOR_PARALLEL,
    Axis,
    FormatError,
    Layout,
)

MANIFEST_BYTES = 96
_MAGIC, _VERSION = 0x574D414E, 1
_MANIFEST = struct.Struct("<IHHiiii8x8q")
_NUMBER = whole(-(2**31), 2**31 - 1)
_NAMES = {number: name for name, number in AXIS_KINDS.items()}
_MODES = ("as_stored", "shard", "full")


class _Spec:
    """Attributes that are checked when they are assigned."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = defaults(type(self))

    def _changed(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class ParallelAxis(_Spec):
    """One of `size` ranks of a kind: `tp` cuts the tensor along `split_dim`, `dp` has copies of it, `ep` the tensor of an
    expert, and `pp` that of a stage."""

    kind = Field("", text, "a text")
    rank = Field(0, _NUMBER, "a whole number")
    size = Field(1, _NUMBER, "a whole number")
    split_dim = Field(None, or_none(_NUMBER), "a whole number or None")
    expert_id = Field(None, or_none(_NUMBER), "a whole number or None")
    stage_id = Field(None, or_none(_NUMBER), "a whole number or None")


def _copied(value: Any) -> list[ParallelAxis]:
    """Copies of axes: those of a list can be changed for the next one."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, ParallelAxis) for one in value):
        raise TypeError
    copies = [ParallelAxis() for _ in value]
    for copy, one in zip(copies, value, strict=True):
        copy._values = dict(one._values)
    return copies


class TensorParallelism(_Spec):
    """Which part of a tensor is meant: one axis of each kind at most."""

    axes = Field([], _copied, "a list of ParallelAxis")


def _mode(value: Any) -> str:
    mode = text(value).lower()
    if mode not in _MODES:
        raise RuntimeError(f"Unsupported ReadTarget mode: {value}: it is one of {', '.join(_MODES)}")
    return mode


class ReadTarget(_Spec):
    """What is to be read: what a key has, a part of a tensor, or the whole of it."""

    mode = Field("as_stored", _mode, "a text")
    parallelism = Field(None, or_none(member(TensorParallelism)), "a TensorParallelism or None")


@dataclass(frozen=True)
class Share:
    """Axes that fit together."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, given: Any) -> "Share":
        """Those of what has `axes`."""
        axes = getattr(given, "axes", None)
        if not isinstance(axes, Sequence) or not 0 < len(axes) <= AXES_MAX:
            raise FormatError(f"parallelism: expected 1 to {AXES_MAX} axes in a TensorParallelism, found {given!r}")
        found = tuple(_axis(one) for one in axes)
        if len({one.kind for one in found}) < len(found):
            raise FormatError("parallelism: two axes of one kind")
        return cls(found)

    @property
    def cut(self) -> Axis | None:
        """The axis that cuts the tensor, if there is one."""
        return next((one for one in self.axes if one.kind == TENSOR_PARALLEL), None)

    def with_cut(self, cut: Axis) -> "Share":
        """The same for another part of the tensor."""
        return Share(tuple(cut if one.kind == TENSOR_PARALLEL else one for one in self.axes))

    def key(self, key: str) -> str:
        """The key of the part."""
        _check(key)
        if self.cut and len(self.axes) == 1:
            return f"{key}_tp_{self.cut.rank}"
        parts = (f"__{_NAMES[one.kind]}_{one.rank}of{one.size}{_told(one)}" for one in self._ordered())
        return key + "".join(parts)

    def _ordered(self) -> list[Axis]:
        return sorted(self.axes, key=lambda one: one.kind)


def _check(key: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"key: expected a text, found {type(key).__name__}")
    if not key:
        raise FormatError("a key must not be empty")


def _told(axis: Axis) -> str:
    told = {"dp": "", "tp": f"_sd{axis.dimension}", "ep": f"_eid{axis.number}", "pp": f"_sid{axis.number}"}
    return told[_NAMES[axis.kind]]


def _axis(given: Any) -> Axis:
    names = ("kind", "rank", "size", "split_dim", "expert_id", "stage_id")
    try:
        kind, rank, size, dimension, expert, stage = (getattr(given, name) for name in names)
        number = AXIS_KINDS[kind.lower()]
    except (AttributeError, KeyError):
        raise FormatError(f"parallelism: {given!r} is no axis of tp, dp, ep or pp") from None
    if not (_is_number(rank) and _is_number(size) and 0 <= rank < size):
        raise FormatError(f"parallelism: rank {rank} of {size} along {kind}")
    if number == TENSOR_PARALLEL:
        if not _is_number(dimension):
            raise FormatError("parallelism: an axis of tp needs a split_dim")
        return Axis(rank, size, dimension)
    told = {"dp": 0, "ep": expert, "pp": stage}[_NAMES[number]]
    if dimension is not None or not _is_number(told):
        raise FormatError(f"parallelism: an axis of {kind} has no split_dim; ep needs an expert_id, pp a stage_id")
    return Axis(rank, size, -1, number, told)


def _is_number(value: Any) -> bool:
    # As long as it is in a header.
    return isinstance(value, int) and -(2**31) <= value < 2**31


def writer_of(given: Any) -> Axis:
    """The part that one of several writers writes: what has `rank`, `size` and `split_dim`."""
    values = [getattr(given, name, None) for name in ("rank", "size", "split_dim")]
    if not all(_is_number(value) for value in values):
        raise FormatError("writer_partition must provide rank, size, and split_dim")
    rank, size, dimension = values
    if not 0 <= rank < size or dimension < 0:
        raise FormatError(f"writer_partition: rank {rank} of {size} along dimension {dimension}")
    return Axis(rank, size, dimension)


def writer_key(key: str, axis: Axis) -> str:
    """The key of the part of a writer."""
    _check(key)
    return f"{key}__writer_{axis.rank}of{axis.size}_sd{axis.dimension}"


def writer_manifest(key: str) -> str:
    """The key of the manifest of what several writers wrote."""
    return f"{key}__writer_manifest"


def share_manifest(key: str) -> str:
    """The key of the manifest of a tensor whose parts were put by their ranks."""
    return f"{key}__parallelism_manifest"


@dataclass(frozen=True)
class Manifest:
    """How a tensor was cut: the whole of it, along which dimension, into how many equal parts."""

    whole: Layout
    dimension: int
    count: int

    def __post_init__(self) -> None:
        extents = self.whole.shape
        known = 0 <= self.dimension < len(extents) and 0 < self.count <= PARTS_MAX
        if not known or extents[self.dimension] % self.count:
            raise FormatError(f"extents {extents} are not cut into {self.count} equal parts along dimension {self.dimension}")

    @classmethod
    def of(cls, part: Layout) -> "Manifest":
        """That of a tensor by one of its parts."""
        cut = next((one for one in part.axes if one.kind == TENSOR_PARALLEL), None)
        if cut is None:
            raise FormatError("no part of a tensor that was cut")
        found = cls(replace(part, shape=part.whole, axes=()), cut.dimension, cut.size)
        if found.part(cut.rank).shape != part.shape:
            raise FormatError(f"extents {part.shape} are none of {cut.size} equal parts of {part.whole}")
        return found

    def part(self, rank: int) -> Layout:
        """The layout of one of the parts."""
        extents = list(self.whole.shape)
        extents[self.dimension] //= self.count
        return replace(self.whole, shape=tuple(extents), axes=(Axis(rank, self.count, self.dimension),))

    def bytes(self) -> bytes:
        """It as bytes."""
        extents = self.whole.shape
        unused = (-1,) * (DIMENSIONS_MAX - len(extents))
        head = (_MAGIC, _VERSION, MANIFEST_BYTES, self.whole.number, len(extents), self.dimension, self.count)
        return _MANIFEST.pack(*head, *extents, *unused)

    @classmethod
    def parse(cls, value: bytes) -> "Manifest":
        """What the bytes say."""
        if len(value) != MANIFEST_BYTES:
            raise FormatError(f"{len(value)} bytes are no manifest: it has {MANIFEST_BYTES}")
        magic, version, own, number, rank, dimension, count, *extents = _MANIFEST.unpack(value)
        if (magic, version, own) != (_MAGIC, _VERSION, MANIFEST_BYTES) or not 0 <= rank <= DIMENSIONS_MAX:
            raise FormatError("no manifest of a tensor")
        return cls(Layout.of_number(number, tuple(extents[:rank])), dimension, count)
