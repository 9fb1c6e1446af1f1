"""Embedding tables in a store: `EngramStore`. Needs numpy when it is used.

A layer has one table for each head, `[N_h, D]` of float32, which is one value of the store: `engram:l<layer>:h<head>`. A lookup reads
the rows that it asks for, unless these are most of a table: that is read, and verified, as a whole.
"""

from collections.abc import Sequence
from typing import Any

from slackwater.compat.mooncake.client import MooncakeDistributedStore
from slackwater.compat.mooncake.opening import INVALID_PARAMS, log
from slackwater.compat.mooncake.replicate import CREATE, DEFAULT, plan_of
from slackwater.errors import ErrorCode

_NUMBER_MAX = (1 << 31) - 1
_FLOAT_BYTES = 4
# Rows that are no farther apart are read together with those between them.
_GAP_BYTES = 1 << 10
# Of tables of which so much is read, all is read.
_WHOLE = 0.5


class EngramStoreConfig:
    """The tables of a layer: the rows of each, and the length of a row."""

    __slots__ = ("_dimension", "_sizes")

    def __init__(self) -> None:
        self._sizes, self._dimension = [1024], 64

    @property
    def table_vocab_sizes(self) -> list[int]:
        """Rows of the table of each head."""
        return list(self._sizes)

    @table_vocab_sizes.setter
    def table_vocab_sizes(self, sizes: Sequence[int]) -> None:
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
            raise TypeError(f"table_vocab_sizes: expected a list of numbers, found {sizes!r}")
        self._sizes = [_number("table_vocab_sizes", size) for size in sizes]

    @property
    def embedding_dim(self) -> int:
        """Numbers in a row."""
        return self._dimension

    @embedding_dim.setter
    def embedding_dim(self, dimension: int) -> None:
        self._dimension = _number("embedding_dim", dimension)


def _number(name: str, number: Any, bits: int = 64) -> int:
    limit = 1 << (bits - 1)
    if isinstance(number, float) or not hasattr(number, "__index__") or not -limit <= number.__index__() < limit:
        raise TypeError(f"{name}: expected a whole number of {bits} bits, found {number!r}")
    return int(number)


class EngramStore:
    """The tables of one layer. Calls may be made from any thread. What fails raises `RuntimeError`, with the reason in the
    log."""

    def __init__(self, layer_id: int, config: EngramStoreConfig, store: Any = None) -> None:
        layer = _number("layer_id", layer_id, 32)
        if not isinstance(config, EngramStoreConfig):
            raise TypeError(f"config: expected an EngramStoreConfig, found {config!r}")
        self._sizes, self._dimension = config.table_vocab_sizes, config.embedding_dim
        if not self._sizes:
            raise ValueError("EngramStoreConfig.table_vocab_sizes must not be empty")
        if self._dimension <= 0:
            raise ValueError("EngramStoreConfig.embedding_dim must be positive")
        if min(self._sizes) <= 0:
            raise ValueError("EngramStoreConfig.table_vocab_sizes must contain only positive values")
        if store is not None and not isinstance(store, MooncakeDistributedStore):
            raise RuntimeError("EngramStore store parameter must be a MooncakeDistributedStore")
        self._store: MooncakeDistributedStore | None = store
        self._keys = [f"engram:l{layer}:h{head}" for head in range(len(self._sizes))]

    def get_table_vocab_sizes(self) -> list[int]:
        """Rows of the table of each head."""
        return list(self._sizes)

    def get_embedding_dim(self) -> int:
        """Numbers in a row."""
        return self._dimension

    def get_num_heads(self) -> int:
        """Tables of the layer."""
        return len(self._sizes)

    def get_store_keys(self) -> list[str]:
        """The keys of the tables, in the order of heads."""
        return list(self._keys)

    def populate(self, embedding_buffers: list[Any]) -> None:
        """Stores the tables: arrays `[N_h, D]`, in the order of heads, whose numbers become float32. None of the keys may be
        there: a table that is there is not overwritten. When one cannot be stored, those of this call are removed."""
        import numpy

        if not isinstance(embedding_buffers, list):
            raise TypeError(f"embedding_buffers: expected a list, found {type(embedding_buffers).__name__}")
        if len(embedding_buffers) != len(self._sizes):
            raise RuntimeError("embedding_buffers size must match num_heads")
        for table, rows in zip(embedding_buffers, self._sizes, strict=True):
            if not isinstance(table, numpy.ndarray):
                raise RuntimeError("embedding_buffers must be NumPy arrays")
            if table.ndim != 2:
                raise RuntimeError("each embedding buffer must be 2D [N_h, D]")
            if table.shape != (rows, self._dimension):
                raise RuntimeError("embedding buffer shape does not match get_table_vocab_sizes()/get_embedding_dim()")
        store = self._store
        if store is None:
            raise RuntimeError("populate failed")
        for key, found in zip(self._keys, store.batch_is_exist(self._keys), strict=True):
            if found:
                log.error("EngramStore: %s: %s", key, "is there already: remove the layer first" if found > 0 else found)
                raise RuntimeError("populate failed")
        stored: list[str] = []
        for key, table in zip(self._keys, embedding_buffers, strict=True):
            # One at a time: a table that has to be changed is there twice.
            try:
                numbers = numpy.ascontiguousarray(table, dtype="<f4")
            except (TypeError, ValueError) as error:
                log.error("EngramStore: %s: %s", key, error)
                store.batch_remove(stored, True)
                raise RuntimeError("populate failed") from None
            code = store._raw.put_from([key], [numbers.ctypes.data], [numbers.nbytes], plan_of(DEFAULT, CREATE))[0]
            if code < 0:
                log.error("EngramStore: %s is not stored: %d", key, code)
                store.batch_remove(stored, True)
                raise RuntimeError("populate failed")
            stored.append(key)

    def lookup(self, row_ids: Any) -> Any:
        """The rows of numbers `[B, L, H]`, one for each head: float32 `[B, L, H, D]`."""
        import numpy

        if isinstance(row_ids, numpy.ndarray):
            if row_ids.ndim != 3:
                raise RuntimeError("row_ids array must have shape [B, L, H]")
            ids = row_ids
        else:
            ids = self._from_lists(row_ids)
        if ids.shape[2] != len(self._sizes):
            raise RuntimeError("row_ids last dimension must match num_heads")
        if not ids.size or self._store is None:
            raise RuntimeError("EngramStore lookup failed")
        try:
            with numpy.errstate(invalid="ignore"):
                rows = ids.astype("<i8", copy=False)
            # As they were given, too: large ones may be others by now.
            beyond = ((rows < 0) | (rows >= numpy.array(self._sizes)) | (ids < 0) | (ids >= numpy.array(self._sizes))).any()
        except (TypeError, ValueError) as error:
            log.error("EngramStore: row_ids are no numbers: %s", error)
            raise RuntimeError("EngramStore lookup failed") from None
        if beyond:
            log.error("EngramStore: a row beyond its table is asked for")
            raise RuntimeError("EngramStore lookup failed")
        found = numpy.empty((*ids.shape, self._dimension), dtype="<f4")
        for head, key in enumerate(self._keys):
            self._look_up(key, rows[:, :, head], self._sizes[head], found[:, :, head])
        return found

    def _look_up(self, key: str, ids: Any, rows: int, found: Any) -> None:
        """Reads the rows of a table that has so many."""
        import numpy

        assert self._store is not None
        row_bytes = self._dimension * _FLOAT_BYTES
        wanted, places = numpy.unique(ids, return_inverse=True)
        # Runs of rows: where each begins among those that are wanted, its first row, and how many it has.
        apart = numpy.diff(wanted) > 1 + _GAP_BYTES // row_bytes
        begins = numpy.flatnonzero(numpy.concatenate(([True], apart)))
        first = wanted[begins]
        last = wanted[numpy.append(begins[1:], len(wanted)) - 1]
        counts = last - first + 1
        if counts.sum() > rows * _WHOLE:
            begins, first, counts = begins[:1], numpy.zeros_like(first[:1]), numpy.full_like(counts[:1], rows)
        at = numpy.cumsum(counts) - counts
        read = numpy.empty((int(counts.sum()), self._dimension), dtype="<f4")
        starts = read.ctypes.data + at * row_bytes
        runs = [[numbers.tolist()] for numbers in (starts, counts * row_bytes, first * row_bytes)]
        length = self._store._raw.read_alone([key], *runs)[0]
        if length != rows * row_bytes:
            log.error("EngramStore: %s is not read: %s", key, length if length < 0 else f"it has {length} bytes")
            raise RuntimeError("EngramStore lookup failed")
        run_of = numpy.repeat(numpy.arange(len(begins)), numpy.diff(numpy.append(begins, len(wanted))))
        in_read = at[run_of] + wanted - first[run_of]
        numpy.take(read, in_read[places.reshape(ids.shape)], axis=0, out=found, mode="clip")

    def _from_lists(self, row_ids: Any) -> Any:
        import numpy

        if not isinstance(row_ids, (list, tuple)) or not all(isinstance(one, (list, tuple)) for one in row_ids):
            raise RuntimeError(f"row_ids: expected an array or lists [B, L, H], found {type(row_ids).__name__}")
        if not row_ids:
            raise RuntimeError("row_ids must not be empty")
        lines = [line for one in row_ids for line in one]
        if not all(isinstance(line, (list, tuple)) for line in lines):
            raise RuntimeError("row_ids: expected lists [B, L, H]")
        if any(isinstance(row, float) or not hasattr(row, "__index__") for line in lines for row in line):
            raise RuntimeError("row_ids: rows are whole numbers")
        try:
            ids = numpy.array(row_ids, dtype="<i8")
        except (ValueError, OverflowError):
            ids = None
        if ids is None or ids.ndim != 3:
            log.error("EngramStore: row_ids are lists of different lengths, or of numbers that no table has")
            raise RuntimeError("EngramStore lookup failed")
        return ids

    def remove_from_store(self, force: bool = False) -> int:
        """Removes the tables: how many were there. Without `force` one that a reader holds a lease on stays."""
        store = self._store
        codes = [INVALID_PARAMS] if store is None else store.batch_remove(self._keys, force)
        removed = sum(code == 0 for code in codes)
        for code in codes:
            if code not in (0, ErrorCode.OBJECT_NOT_FOUND):
                raise RuntimeError(f"remove_from_store failed, rc={code}")
        return removed
