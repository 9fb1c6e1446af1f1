"""Calls of the store about tensors that the ranks of a model share: each has a part, and may read any other.

A rank puts its own part with one axis of `tp`; with more axes, and as one of several writers, it is given the whole tensor
and puts the part that is its own. A part that nobody has put is made of those that are there.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, NamedTuple

from slackwater.compat.mooncake.parallelism import (
    MANIFEST_BYTES,
    Manifest,
    Share,
    share_manifest,
    writer_key,
    writer_manifest,
    writer_of,
)
from slackwater.compat.mooncake.replicate import CREATE_NEAR, DEFAULT, UPSERT_NEAR, ReplicateConfig, plan_of
from slackwater.compat.mooncake.shown import memory_at
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES, Axis, FormatError, Layout
from slackwater.compat.mooncake.tensors import Piece, Source, Tensors, tensor_of

_INVALID_PARAMS = -600
_READ = "read of parts of a tensor"
_ABSENT = -704
# Where the parts of a tensor are: how it was cut, and the key of each part.
_Parts = tuple[Manifest, Callable[[int], str]]


class _Unread(Exception):
    """A value that may be there was not read: what else is there must not take its place."""


class _Memory(NamedTuple):
    """Memory of a caller."""

    pointer: int
    size: int


class ParallelTensors(Tensors):
    """The calls of a store about tensors that several ranks share."""

    # Putting.

    def put_tensor_with_parallelism(
        self, key: str, tensor: Any, parallelism: Any = None, config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:  # fmt: skip
        """Stores the part of a tensor that is this rank's, or this writer's of a whole tensor: 0, also when it is there."""
        given = [key], [tensor], _one(parallelism), plan_of(config, CREATE_NEAR), _one(writer_partition)
        return self._put_shared("put_tensor_with_parallelism", *given)[0]

    def batch_put_tensor_with_parallelism(
        self, keys: Sequence[str], tensors_list: Sequence[Any], parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT, writer_partitions: Any = None,
    ) -> list[int]:  # fmt: skip
        """Stores parts of tensors: 0 or a code for each key."""
        given = keys, tensors_list, parallelisms, plan_of(config, CREATE_NEAR), writer_partitions
        return self._put_shared("batch_put_tensor_with_parallelism", *given)

    def upsert_tensor_with_parallelism(
        self, key: str, tensor: Any, parallelism: Any = None, config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:  # fmt: skip
        """As `put_tensor_with_parallelism`, in the place of a part that is there."""
        given = [key], [tensor], _one(parallelism), plan_of(config, UPSERT_NEAR), _one(writer_partition)
        return self._put_shared("upsert_tensor_with_parallelism", *given)[0]

    def batch_upsert_tensor_with_parallelism(
        self, keys: Sequence[str], tensors_list: Sequence[Any], parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT, writer_partitions: Any = None,
    ) -> list[int]:  # fmt: skip
        """As `batch_put_tensor_with_parallelism`, in the place of parts that are there."""
        given = keys, tensors_list, parallelisms, plan_of(config, UPSERT_NEAR), writer_partitions
        return self._put_shared("batch_upsert_tensor_with_parallelism", *given)

    def put_tensor_with_parallelism_from(
        self, key: str, buffer_ptr: int, size: int, parallelism: Any = None, config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:  # fmt: skip
        """Stores the parts of all ranks of a whole tensor that lies in memory behind its header, or that of a writer."""
        given = [key], [_Memory(buffer_ptr, size)], _one(parallelism), plan_of(config, CREATE_NEAR), _one(writer_partition)
        return self._put_shared("put_tensor_with_parallelism_from", *given)[0]

    def batch_put_tensor_with_parallelism_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT, writer_partitions: Any = None,
    ) -> list[int]:  # fmt: skip
        """As `put_tensor_with_parallelism_from`: 0 or a code for each key."""
        given = keys, _paired(buffer_ptrs, sizes), parallelisms, plan_of(config, CREATE_NEAR), writer_partitions
        return self._put_shared("batch_put_tensor_with_parallelism_from", *given)

    def upsert_tensor_with_parallelism_from(
        self, key: str, buffer_ptr: int, size: int, parallelism: Any = None, config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:  # fmt: skip
        """As `put_tensor_with_parallelism_from`, in the place of parts that are there."""
        given = [key], [_Memory(buffer_ptr, size)], _one(parallelism), plan_of(config, UPSERT_NEAR), _one(writer_partition)
        return self._put_shared("upsert_tensor_with_parallelism_from", *given)[0]

    def batch_upsert_tensor_with_parallelism_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT, writer_partitions: Any = None,
    ) -> list[int]:  # fmt: skip
        """As `batch_put_tensor_with_parallelism_from`, in the place of parts that are there."""
        given = keys, _paired(buffer_ptrs, sizes), parallelisms, plan_of(config, UPSERT_NEAR), writer_partitions
        return self._put_shared("batch_upsert_tensor_with_parallelism_from", *given)

    def _put_shared(
        self, method: str, keys: Sequence[str], tensors: Sequence[Any], shares: Any, plan: Any, writers: Any
    ) -> list[int]:
        """Puts tensors of PyTorch, or those that lie in memory."""
        code = plan if plan.__class__ is int else self._raw.state()
        both = shares is not None and writers is not None
        each, partitions = _listed(shares, len(keys)), _listed(writers, len(keys))
        if code or both or len(tensors) != len(keys) or each is None or partitions is None:
            return [code or _INVALID_PARAMS] * len(keys)
        codes, kept = [0] * len(keys), []
        puts: list[_Put] = []
        for at, (key, tensor, share, writer) in enumerate(zip(keys, tensors, each, partitions, strict=True)):
            try:
                in_memory = isinstance(tensor, _Memory)
                source = Source.at(tensor.pointer, tensor.size) if in_memory else Source.of(tensor)
                kept.append(source)
                puts.append(_put(at, key, source, share, writer, all_ranks=in_memory))
            except FormatError as error:
                codes[at] = self._no_tensor(method, error)
        if not plan.upsert:
            # Of a tensor that is there, cut in another way, the manifest stays, by which these parts are not found.
            self._refuse_others([one.manifest for one in puts if one.manifest is not None], codes)
            puts = [one for one in puts if not codes[one.owner]]
        return self._put_pieces([piece for one in puts for piece in one.pieces], plan, codes)

    # Reading.

    def get_tensor_with_parallelism(self, key: str, target: Any = None) -> Any:
        """What is asked for of a tensor, in memory of its own; None when it is not there."""
        return self._get_shared(key, target, None)

    def batch_get_tensor_with_parallelism(self, keys: Sequence[str], targets: Any = None) -> list[Any]:
        """What is asked for of each tensor, None where it is not there."""
        each = _listed(targets, len(keys))
        if each is None:
            return [None] * len(keys)
        if targets is None:
            return self.batch_get_tensor(keys)
        return [self._get_shared(key, target, None) for key, target in zip(keys, each, strict=True)]

    def get_tensor_with_parallelism_into(self, key: str, buffer_ptr: int, size: int, target: Any = None) -> Any:
        """Reads header and elements of what is asked for into memory: a tensor over it, or None."""
        return self._get_shared(key, target, _Memory(buffer_ptr, size))

    def batch_get_tensor_with_parallelism_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], targets: Any = None
    ) -> list[Any]:
        """Reads what is asked for of each tensor into memory: tensors over it, None where it is not there."""
        each, memories = _listed(targets, len(keys)), _paired(buffer_ptrs, sizes)
        if each is None or len(memories) != len(keys):
            return [None] * len(keys)
        given = zip(keys, each, memories, strict=True)
        return [self._get_shared(key, target, memory) for key, target, memory in given]

    def _get_shared(self, key: str, target: Any, memory: _Memory | None) -> Any:
        try:
            mode, share = _asked(target)
            if mode == "as_stored" or (mode == "full" and share is None):
                found = self._stored(key, memory, None)
                if found is not None or mode == "as_stored":
                    return found
            elif mode == "shard" and share is not None:
                found = self._stored(share.key(key), memory, share)
                if found is not None:
                    return found
            return self._made(key, share, mode, memory)
        except FormatError as error:
            self._no_tensor(_READ, error)
            return None
        except _Unread:
            # The reason is in the log of the call that failed.
            return None

    def _read(self, keys: Sequence[str]) -> list[Any]:
        """The values of keys, None for those that are not there."""
        found: list[Any] = self._raw.read_buffers(keys)
        if any(value.__class__ is int and value != _ABSENT for value in found):
            raise _Unread
        return [None if value.__class__ is int else value for value in found]

    def _stored(self, key: str, memory: _Memory | None, share: Share | None) -> Any:
        """The tensor of a key, if it is the part that is asked for; None otherwise."""
        if memory is not None:
            read = self._raw.get_into([key], [memory.pointer], [memory.size])[0]
            # A part of another cut has the same key, and may be longer than the one that is asked for.
            if read == _ABSENT or (read < 0 and share is not None and self._raw.size(key) > memory.size):
                return None
            if read < 0:
                raise _Unread
            held: Any = memory_at(memory.pointer, read)
        else:
            held = self._read([key])[0]
            if held is None:
                return None
        layout = _layout_of(held)
        if share is not None and set(layout.axes) != set(share.axes):
            return None
        return tensor_of(layout, held, HEADER_BYTES)

    def _made(self, key: str, share: Share | None, mode: str, memory: _Memory | None) -> Any:
        """What is asked for, made of parts that are there; None when they are not all of one tensor."""
        cut = None if share is None else share.cut
        if share is not None and cut is None:
            return None
        for manifest, name in self._parts_of(key, share):
            whole = manifest.whole
            if mode == "full" or cut is None:
                layout, dimension, begin = whole, manifest.dimension, 0
            else:
                # Refuses what is no equal part of it.
                layout = Manifest(whole, cut.dimension, cut.size).part(cut.rank)
                layout = replace(layout, axes=share.axes if share else ())
                dimension, begin = cut.dimension, cut.rank * layout.shape[cut.dimension]
            joined = self._joined(manifest, name, dimension, begin, layout.shape[dimension])
            if joined is not None:
                return _placed(layout, joined, memory)
        return None

    def _parts_of(self, key: str, share: Share | None) -> Iterator[_Parts]:
        """The ways in which a tensor is there in parts."""
        for way in (self._shared_parts, self._written_parts):
            try:
                yield from way(key, share)
            except FormatError as error:
                # It may be there in the other way.
                self._no_tensor(_READ, error)

    def _shared_parts(self, key: str, share: Share | None) -> Iterator[_Parts]:
        if share is None or share.cut is None:
            return
        first = share.with_cut(replace(share.cut, rank=0)).key(key)
        manifest = self._manifest(share_manifest(key)) or self._cut_of(first)
        if manifest is not None:
            cut, count = manifest.dimension, manifest.count
            yield manifest, lambda rank: share.with_cut(Axis(rank, count, cut)).key(key)

    def _written_parts(self, key: str, _share: Share | None) -> Iterator[_Parts]:
        manifest = self._manifest(writer_manifest(key))
        if manifest is not None:
            cut, count = manifest.dimension, manifest.count
            yield manifest, lambda rank: writer_key(key, Axis(rank, count, cut))

    def _manifest(self, key: str) -> Manifest | None:
        value = self._read([key])[0]
        return None if value is None else Manifest.parse(bytes(memoryview(value)[: MANIFEST_BYTES + 1]))

    def _cut_of(self, key: str) -> Manifest | None:
        """How a tensor was cut whose parts were put without a manifest, by one of them."""
        value = self._read([key])[0]
        return None if value is None else Manifest.of(_layout_of(value))

    def _joined(self, manifest: Manifest, name: Callable[[int], str], dimension: int, begin: int, extent: int) -> Any:
        """The bytes of a range along a dimension, read from the parts that have them; None when one is missing or of
        another tensor."""
        import torch

        part = manifest.part(0)
        along = dimension == manifest.dimension
        width = part.shape[manifest.dimension]
        first, last = (begin // width, -(-(begin + extent) // width)) if along and width else (0, manifest.count)
        handles = self._read([name(rank) for rank in range(first, last)])
        rows, run = _rows(part, manifest.dimension)
        columns = []
        if any(handle is None or not _is_part(handle, manifest.part(rank)) for rank, handle in enumerate(handles, first)):
            return None
        if len({_layout_of(handle).write for handle in handles}) > 1:
            raise FormatError(f"{name(first)} and the parts after it are of different writes")
        for handle in handles:
            if part.bytes:
                flat = torch.frombuffer(handle, dtype=torch.uint8, count=part.bytes, offset=HEADER_BYTES)
                columns.append(flat.reshape((rows, run)))
        if not columns:
            return torch.empty((0,), dtype=torch.uint8)
        joined = torch.cat(columns, 1)
        # Of the parts that were read, or of the whole tensor.
        element = run // width if along else _rows(manifest.whole, dimension)[1] // manifest.whole.shape[dimension]
        start = begin - first * width if along else begin
        rows = rows if along else _rows(manifest.whole, dimension)[0]
        table = joined.reshape((rows, part.bytes * len(columns) // rows))
        return table.narrow(1, start * element, extent * element).contiguous().reshape((rows * extent * element,))


def _rows(layout: Layout, dimension: int) -> tuple[int, int]:
    """How many runs of bytes a tensor has along a dimension, and how long they are."""
    rows = prod(layout.shape[:dimension])
    return rows, layout.bytes // rows if rows else 0


def _layout_of(value: Any) -> Layout:
    return Layout.parse(bytes(memoryview(value)[:HEADER_BYTES]), len(value))


def _is_part(value: Any, expected: Layout) -> bool:
    layout = _layout_of(value)
    same = (layout.number, layout.shape, layout.whole) == (expected.number, expected.shape, expected.whole)
    return same and expected.axes[0] in layout.axes


def _placed(layout: Layout, joined: Any, memory: _Memory | None) -> Any:
    """A tensor of elements as bytes, in memory of its own or where it is to be; None when it does not fit there."""
    import torch

    if memory is None:
        if not layout.bytes:
            return torch.empty(layout.shape, dtype=getattr(torch, layout.name))
        return joined.view(getattr(torch, layout.name)).reshape(layout.shape)
    pointer, size = memory.pointer, memory.size
    length = HEADER_BYTES + layout.bytes
    if not pointer or size < length:
        raise FormatError(f"{size} bytes at {pointer} have no room for {length}")
    ctypes.memmove(pointer, layout.header(), HEADER_BYTES)
    ctypes.memmove(pointer + HEADER_BYTES, joined.data_ptr(), layout.bytes)
    return tensor_of(layout, memory_at(pointer, length), HEADER_BYTES)


class _Put(NamedTuple):
    """What is put for one key of a call."""

    owner: int
    pieces: list[Piece]
    manifest: Piece | None = None


def _put(at: int, key: str, source: Source, given: Any, writer: Any, *, all_ranks: bool) -> _Put:
    """The values that are put for a tensor: it, or parts of it with their manifest, by one of the two."""
    everything = [(0, source.layout.bytes)]
    if given is None and writer is None:
        return _Put(at, [Piece(at, key, source.layout.header(), source.address, everything)])
    # What was a part of another tensor is the tensor here.
    layout = replace(source.layout, whole=source.layout.shape, axes=(), write=0)
    if writer is not None:
        axis = writer_of(writer)
        part, runs = next(islice(layout.parts(axis.size, axis.dimension), axis.rank, None))
        part = replace(part, write=source.write())
        manifest = Piece(at, writer_manifest(key), Manifest.of(part).bytes(), 0, [])
        return _Put(at, [Piece(at, writer_key(key, axis), part.header(), source.address, runs), manifest], manifest)
    share = Share.of(given)
    cut = share.cut
    if cut is None:
        part = replace(layout, axes=share.axes)
        return _Put(at, [Piece(at, share.key(key), part.header(), source.address, everything)])
    if all_ranks:
        pieces, write = [], source.write()
        for rank, (part, runs) in enumerate(layout.parts(cut.size, cut.dimension)):
            own = share.with_cut(replace(cut, rank=rank))
            header = replace(part, axes=own.axes, write=write).header()
            pieces.append(Piece(at, own.key(key), header, source.address, runs))
        return _Put(at, pieces)
    if len(share.axes) == 1:
        # This rank has nothing but its part, of which nobody can say what it is a part of.
        part, runs = _as_part(layout, cut), everything
    else:
        part, runs = next(islice(layout.parts(cut.size, cut.dimension), cut.rank, None))
        part = replace(part, axes=share.axes, write=source.write())
    manifest = Piece(at, share_manifest(key), Manifest.of(part).bytes(), 0, [])
    return _Put(at, [Piece(at, share.key(key), part.header(), source.address, runs), manifest], manifest)


def _as_part(layout: Layout, cut: Axis) -> Layout:
    """A tensor as the part of a rank, of a whole that is as many times as long."""
    if not 0 <= cut.dimension < len(layout.shape):
        raise FormatError(f"no dimension {cut.dimension} in extents {layout.shape}")
    extents = list(layout.shape)
    extents[cut.dimension] *= cut.size
    return replace(layout, whole=tuple(extents), axes=(cut,))


def _asked(target: Any) -> tuple[str, Share | None]:
    """What a target asks for."""
    if target is None:
        return "as_stored", None
    if not hasattr(target, "mode") or not hasattr(target, "parallelism"):
        raise FormatError(f"expected a ReadTarget, found {target!r}")
    mode, share = target.mode, None if target.parallelism is None else Share.of(target.parallelism)
    if mode not in ("as_stored", "shard", "full"):
        raise FormatError(f"ReadTarget: no mode {mode!r}")
    if mode == "shard" and share is None:
        raise FormatError("ReadTarget: a shard is of a parallelism")
    if mode == "as_stored" and share is not None:
        raise FormatError("ReadTarget: what is stored as it is has no parallelism")
    return mode, share


def _one(given: Any) -> list[Any] | None:
    return None if given is None else [given]


def _listed(given: Any, count: int) -> list[Any] | None:
    """One for each key: None for each where nothing is given; nothing when there are not as many."""
    if given is None:
        return [None] * count
    return list(given) if isinstance(given, (list, tuple)) and len(given) == count else None


def _paired(pointers: Sequence[int], sizes: Sequence[int]) -> list[_Memory]:
    """Addresses with their lengths; none when there are not as many of both."""
    return list(map(_Memory, pointers, sizes)) if len(pointers) == len(sizes) else []
