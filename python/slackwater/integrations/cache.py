"""A store as a cache of an engine: calls do not raise, and what fails is a miss."""

import builtins
import ctypes
import functools
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .. import Chain, Client, SlackwaterError, Store


Key = bytes | str

KEYS_LISTED = 10_000
"""Keys that are listed at a time."""


class Cache:
    """The batch calls of a store. A failure is logged when it is the first of its kind, and counted in `counts`.

    Any thread may call. After `close` every call finds nothing.
    """

    def __init__(self, store: Store | Client, log: logging.Logger, tenant: str | None = None) -> None:
        self._store, self._log, self._tenant = store, log, tenant
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def exists(self, keys: Sequence[Key]) -> builtins.list[bool]:
        """Whether each key is there."""
        if not keys or self._store.closed:
            return [False] * len(keys)
        try:
            found = self._store.exists_batch(keys, tenant=self._tenant)
        except Exception as error:
            self.failed("exists", error)
            return [False] * len(keys)
        self._count(exists_hits=sum(found), exists_misses=len(found) - sum(found))
        return found

    def read(
        self, keys: Sequence[Key], buffers: Sequence[Any], sizes: Sequence[int], chain: Chain | None = None
    ) -> builtins.list[bool]:
        """Reads values into buffers: whether each was there and filled its buffer to the last byte."""
        if not keys or self._store.closed:
            return [False] * len(keys)
        try:
            lengths = self._store.get_batch_into(keys, buffers, tenant=self._tenant, chain=chain)
        except Exception as error:
            self.failed("read", error)
            return [False] * len(keys)
        filled, hits, misses, length_of_hits = [], 0, 0, 0
        for key, length, size in zip(keys, lengths, sizes, strict=True):
            filled.append(length == size)
            if length == size:
                hits, length_of_hits = hits + 1, length_of_hits + size
            elif length is None:
                misses += 1
            else:
                self.failed("read", length if isinstance(length, Exception) else WrongLength(key, length, size))
        self._count(read_hits=hits, read_misses=misses, read_bytes=length_of_hits)
        return filled

    def write(
        self, keys: Sequence[Key], buffers: Sequence[Any], sizes: Sequence[int], chain: Chain | None = None
    ) -> builtins.list[bool]:
        """Writes values: whether each is there now, written by this call or before."""
        if not keys or self._store.closed:
            return [False] * len(keys)
        try:
            stored = self._store.put_batch(keys, buffers, tenant=self._tenant, chain=chain)
        except Exception as error:
            self.failed("write", error)
            return [False] * len(keys)
        new, length_of_new = 0, 0
        for outcome, size in zip(stored, sizes, strict=True):
            if isinstance(outcome, Exception):
                self.failed("write", outcome)
            elif outcome:
                new, length_of_new = new + 1, length_of_new + size
        there = [not isinstance(outcome, Exception) for outcome in stored]
        self._count(write_new=new, write_existing=sum(there) - new, write_bytes=length_of_new)
        return there

    def remove(self, keys: Sequence[Key]) -> builtins.list[bool]:
        """Removes values: whether each is gone, also when it was not there."""
        if not keys or self._store.closed:
            return [False] * len(keys)
        try:
            # The engine decides what is removed: a lease that a reader still has delays only the reuse of the memory.
            removed = self._store.remove_batch(keys, force=True, tenant=self._tenant)
        except Exception as error:
            self.failed("remove", error)
            return [False] * len(keys)
        for outcome in removed:
            if isinstance(outcome, Exception):
                self.failed("remove", outcome)
        return [not isinstance(outcome, Exception) for outcome in removed]

    def get(self, keys: Sequence[Key]) -> builtins.list[bytes | None]:
        """Values in memory of their own, None for those that are not there."""
        if not keys or self._store.closed:
            return [None] * len(keys)
        try:
            values = self._store.get_batch(keys, tenant=self._tenant)
        except Exception as error:
            self.failed("read", error)
            return [None] * len(keys)
        for value in values:
            if isinstance(value, Exception):
                self.failed("read", value)
        return [value if isinstance(value, bytes) else None for value in values]

    def list(self, prefix: str) -> Iterator[builtins.list[bytes]]:
        """The keys that begin with a text, in byte order and some at a time; fewer when they cannot be listed."""
        after: Key = prefix
        while not self._store.closed:
            try:
                keys = self._store.list(after=after, limit=KEYS_LISTED, tenant=self._tenant)
            except Exception as error:
                self.failed("list", error)
                return
            ours = [key for key in keys if key.startswith(prefix.encode())]
            if ours:
                yield ours
            if len(ours) < KEYS_LISTED:
                return
            after = ours[-1]

    def ping(self) -> int:
        """0 when the store answers, otherwise the number of an error."""
        try:
            self._store.exists_batch(["ping"], tenant=self._tenant)
        except SlackwaterError as error:
            return -error.code
        return 0

    @property
    def counts(self) -> dict[str, int]:
        """What calls did since the start; failures as `failures`, and by call and kind as `failures_CALL_KIND`."""
        with self._lock:
            return dict(self._counts)

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._store.closed

    def close(self) -> None:
        """Closes the store. Closing again does nothing."""
        if self._store.closed:
            return
        counts = self.counts
        self._store.close()
        if counts.get("failures"):
            self._log.warning("closed after %d failures: %s", counts["failures"], counts)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def failed(self, call: str, error: Exception) -> None:
        """Counts a failure, and logs the first of its kind."""
        kind = error.code.name.lower() if isinstance(error, SlackwaterError) else type(error).__name__
        name = f"failures_{call}_{kind}"
        with self._lock:
            self._counts["failures"] += 1
            self._counts[name] += 1
            first = self._counts[name] == 1
        if first and not self._store.closed:
            self._log.warning("%s: %s; further failures of this kind are counted, not logged", call, error)


class WrongLength(Exception):
    """A value whose length is not that of what the engine asked for."""

    def __init__(self, key: str, length: int, size: int) -> None:
        super().__init__(f"{key} has {length} bytes where the engine expects {size}")


@functools.cache
def _array(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    # ctypes never frees a type, so each length has one.
    return ctypes.c_ubyte * size


def memory_at(address: int, size: int) -> Any:
    """The memory of the engine at an address as a buffer. The engine keeps it there while the buffer is in use."""
    return _array(size).from_address(address)
