"""A store as a cache of an engine: calls do not raise, and what fails is a miss."""

import builtins
import ctypes
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import Chain, Client, ErrorCode, SlackwaterError, Store
from .chains import UNPLACED

Key = bytes | str

KEYS_LISTED = 10_000
"""Keys that are listed at a time."""

AWAY = frozenset({ErrorCode.RPC_FAIL, ErrorCode.RPC_TIMEOUT, ErrorCode.DEADLINE_PASSED})
"""Failures of a store that does not answer."""

PAUSE = 10.0
"""Seconds without a call to a store that did not answer. Each call would wait for its whole deadline, on a thread of the
engine that others wait for; one call after the pause tries again."""

LOG_PAUSE = 60.0
"""Seconds in which one failure of a kind is logged."""


class Cache:
    """The batch calls of a store. A failure is logged when it is the first of its kind in a minute, and counted in `counts`.

    Any thread may call. After `close`, and while the store is away, every call finds nothing.
    """

    def __init__(
        self,
        store: Store | Client,
        log: logging.Logger,
        tenant: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._log, self._tenant, self._clock = store, log, tenant, clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._away_until: float | None = None

    def exists(self, keys: Sequence[Key]) -> builtins.list[bool]:
        """Whether each key is there."""
        found = self._outcomes("exists", keys, lambda: self._store.exists_batch(keys, tenant=self._tenant))
        if found is None:
            return [False] * len(keys)
        self._count(exists_hits=sum(found), exists_misses=len(found) - sum(found))
        return found

    def read(
        self, keys: Sequence[Key], buffers: Sequence[Any], sizes: Sequence[int], chain: Chain = UNPLACED
    ) -> builtins.list[bool]:
        """Reads values into buffers: whether each was there and filled its buffer to the last byte."""
        lengths = self._outcomes(
            "read", keys, lambda: self._store.get_batch_into(keys, buffers, tenant=self._tenant, chain=chain)
        )
        if lengths is None:
            return [False] * len(keys)
        filled = [length == size for length, size in zip(lengths, sizes, strict=True)]
        for key, length, size in zip(keys, lengths, sizes, strict=True):
            if isinstance(length, int) and length != size:
                self.failed("read", WrongLength(key, length, size))
        read_bytes = sum(size for size, one in zip(sizes, filled, strict=True) if one)
        self._count(read_hits=sum(filled), read_misses=lengths.count(None), read_bytes=read_bytes)
        return filled

    def write(
        self, keys: Sequence[Key], buffers: Sequence[Any], sizes: Sequence[int], chain: Chain = UNPLACED
    ) -> builtins.list[bool]:
        """Writes values: whether each is there now, written by this call or before."""
        return [one is not None for one in self.put(keys, buffers, sizes, chain)]

    def put(
        self, keys: Sequence[Key], buffers: Sequence[Any], sizes: Sequence[int], chain: Chain = UNPLACED
    ) -> builtins.list[bool | None]:
        """Writes values: True for each that this call wrote, False for one that was there, None for one that is not."""
        stored = self._outcomes(
            "write", keys, lambda: self._store.put_batch(keys, buffers, tenant=self._tenant, chain=chain)
        )
        if stored is None:
            return [None] * len(keys)
        new = [outcome is True for outcome in stored]
        write_bytes = sum(size for size, one in zip(sizes, new, strict=True) if one)
        self._count(write_new=sum(new), write_existing=stored.count(False), write_bytes=write_bytes)
        return [None if isinstance(outcome, Exception) else outcome for outcome in stored]

    def remove(self, keys: Sequence[Key]) -> builtins.list[bool]:
        """Removes values: whether each is gone, also when it was not there."""
        # The engine decides what is removed: a lease that a reader still has delays only the reuse of the memory.
        removed = self._outcomes(
            "remove", keys, lambda: self._store.remove_batch(keys, force=True, tenant=self._tenant)
        )
        if removed is None:
            return [False] * len(keys)
        return [not isinstance(outcome, Exception) for outcome in removed]

    def get(self, keys: Sequence[Key]) -> builtins.list[bytes | None]:
        """Values in memory of their own, None for those that are not there."""
        values = self._outcomes("read", keys, lambda: self._store.get_batch(keys, tenant=self._tenant, chain=UNPLACED))
        if values is None:
            return [None] * len(keys)
        return [value if isinstance(value, bytes) else None for value in values]

    def list(self, prefix: str) -> Iterator[builtins.list[bytes]]:
        """The keys that begin with a text, in byte order and some at a time; fewer when they cannot be listed."""
        after: Key = prefix
        while keys := self._listed(after):
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
        self._answered()
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

    def failed(self, call: str, error: BaseException) -> None:
        """Counts a failure, and logs it if none of its kind was logged in the last minute. A call that was ended is none."""
        if isinstance(error, SlackwaterError) and error.code == ErrorCode.CANCELLED:
            self._count(cancelled=1)
            return
        kind = error.code.name.lower() if isinstance(error, SlackwaterError) else type(error).__name__
        name = f"failures_{call}_{kind}"
        with self._lock:
            self._counts["failures"] += 1
            self._counts[name] += 1
            now = self._clock()
            told = name not in self._logged or now - self._logged[name] >= LOG_PAUSE
            if told:
                self._logged[name] = now
            if isinstance(error, SlackwaterError) and error.code in AWAY:
                self._away_until = now + PAUSE
        if told and not self._store.closed:
            self._log.warning("%s: %s; further failures of this kind in the next minute are only counted", call, error)

    def _outcomes(self, call: str, keys: Sequence[Key], ask: Callable[[], Any]) -> Any:
        """The outcome of each key, failures counted; None when there is none: nothing is asked, or nothing answered."""
        if not keys or self._store.closed or self._is_away():
            return None
        try:
            outcomes = ask()
        except Exception as error:
            self.failed(call, error)
            return None
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in failures:
            self.failed(call, error)
        if not failures:
            self._answered()
        return outcomes

    def _listed(self, after: Key) -> Any:
        # The keys of `_outcomes` are those that are asked for: here the one that the listing begins after.
        return self._outcomes(
            "list", [after], lambda: self._store.list(after=after, limit=KEYS_LISTED, tenant=self._tenant)
        )

    def _is_away(self) -> bool:
        """Whether the store did not answer a short while ago. One caller after each pause is told that it may try."""
        if self._away_until is None:
            return False
        with self._lock:
            now = self._clock()
            if self._away_until is None:
                return False
            if now < self._away_until:
                self._counts["skipped"] += 1
                return True
            self._away_until = now + PAUSE
            return False

    def _answered(self) -> None:
        if self._away_until is None:
            return
        with self._lock:
            self._away_until = None
        self._log.warning("the store answers again")

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)


class WrongLength(Exception):
    """A value whose length is not that of what the engine asked for."""

    def __init__(self, key: Key, length: int, size: int) -> None:
        super().__init__(f"{key!r} has {length} bytes where the engine expects {size}")


@functools.cache
def _array(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    # ctypes never frees a type, so each length has one.
    return ctypes.c_ubyte * size


def memory_at(address: int, size: int) -> Any:
    """The memory of the engine at an address as a buffer. The engine keeps it there while the buffer is in use."""
    return _array(size).from_address(address)
