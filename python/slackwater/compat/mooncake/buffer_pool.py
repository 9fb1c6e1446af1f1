"""Registered memory that is lent and given back: `BufferPool`, and the pages of `MooncakeHostMemAllocator`.

Leases and pools that are dropped give back what they have, as far as nobody looks at it; at the end of the interpreter, and
in a fork, they leave it to the system.
"""

import ctypes
import mmap
import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from slackwater.compat.mooncake.shown import Shared

__all__ = ["BufferPool", "RegisteredBufferPool"]


class _Region(Shared):
    """Memory that one lease at a time has a part of."""

    def __init__(self, pool: "BufferPool", size: int, alignment: int) -> None:
        # Longer by the alignment: the system gives pages when they are written, so that the rest costs none.
        super().__init__(mmap.mmap(-1, size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.start, self.size = -self.address % alignment, size
        self.first = self.address + self.start
        self._pool = weakref.ref(pool)
        if pool._store.register_buffer(self.first, size) != 0:
            self.close()
            raise RuntimeError(f"an overflow region of {size} bytes is not registered: is the store set up?")

    def is_free(self) -> bool:
        """Whether nobody looks at it any more."""
        return not self.is_shown() and not self.is_viewed()

    def no_longer_shown(self) -> None:
        """Somebody may wait for it."""
        pool = self._pool()
        if pool is not None:
            pool._tell()

    def end(self, store: Any) -> None:
        """Gives the memory back to the system, when nobody looks at it any more."""
        store.unregister_buffer(self.first)
        if self.is_free():
            self.close()


class BufferLeaseView(ABC):
    """What shows the bytes of a lease: the lease itself."""

    @property
    @abstractmethod
    def buffer(self) -> memoryview:
        """The bytes."""


class BufferLease(BufferLeaseView):
    """Memory until `release`, or the end of a `with` block: its address, its length, and a view of it."""

    def __init__(self, pool: "BufferPool", region: _Region, size: int) -> None:
        self._pool, self._region, self._size = pool, region, size
        self._released = False

    def _open(self) -> _Region:
        if self._released:
            raise RuntimeError("buffer lease is closed")
        return self._region

    @property
    def ptr(self) -> int:
        """The address of the first byte."""
        return self._open().first

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The bytes."""
        region = self._open()
        return memoryview(region.pages)[region.start : region.start + self._size]

    def release(self) -> None:
        """Gives the memory back to the pool; again does nothing. Raises while a view of it is alive; under a tensor the
        memory stays, and goes back to the pool with it."""
        self._pool._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not self._released:
            self._pool._drop(self._region)


class BufferPool:
    """Registered memory in regions, kept by length for the next lease. Calls may be made from any thread.

    `max_bytes` is what all regions have together, twice the local buffer of the store when it is 0; lengths are rounded
    up to a power of two of at least `min_size_class`. Those above `max_size_class` are not kept.
    """

    def __init__(
        self, store: Any, max_bytes: int = 0, min_size_class: int = 65536, max_size_class: int | None = None,
        alignment: int = 8388608, block_on_exhaustion: bool = True, default_timeout: float | None = None,
        max_regions: int | None = None, prewarm_size: int | None = None, prewarm_count: int = 0,
    ) -> None:  # fmt: skip
        # What a pool that is refused has, too, when it is dropped.
        self._process, self._closed = os.getpid(), True
        setup = getattr(store, "_setup", None)
        if not hasattr(store, "register_buffer"):
            raise RuntimeError("store: expected a MooncakeDistributedStore")
        if setup is None:
            raise RuntimeError("store: set it up first: registered memory belongs to an open client")
        if alignment < ctypes.sizeof(ctypes.c_void_p) or alignment & (alignment - 1):
            raise RuntimeError("alignment must be a power of two and at least sizeof(void*)")
        self._store, self._alignment = store, alignment
        self._bytes_max = max_bytes or 2 * setup.local_buffer_size
        self._least, self._most = max(min_size_class, 1), max_size_class or self._bytes_max
        self._blocks, self._timeout = block_on_exhaustion, default_timeout
        self._regions_max = max_regions
        self._changed = threading.Condition()
        self._free: dict[int, list[_Region]] = {}
        self._leased: set[_Region] = set()
        # Those of leases that were dropped, which any thread may do at any time, even one that changes the pool.
        self._dropped: deque[_Region] = deque()
        self._bytes = 0
        self._closed = False
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def _class_of(self, size: int) -> int:
        if size < 0:
            raise TypeError(f"size: {size}: expected a number of bytes")
        size = max(size, 1)
        length = max(self._least, 1 << (size - 1).bit_length())
        if length > self._bytes_max or length > self._most:
            # The power of two would be too much where the length itself is not.
            length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if size > self._bytes_max:
            raise RuntimeError(
                f"requested buffer size exceeds pool capacity: {size} of {self._bytes_max} bytes: give a larger max_bytes"
            )
        return min(length, self._bytes_max)

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """So many bytes. When there are none it waits, or raises, as `block` and `timeout` in seconds say."""
        length = self._class_of(size)
        blocks = self._blocks if block is None else block
        timeout = self._timeout if timeout is None else timeout
        until = None if timeout is None else time.monotonic() + timeout
        if not self._is_here():
            raise RuntimeError("buffer pool belongs to the parent of this process: make one here")
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                self._collect()
                region = self._take(length)
                if region is not None:
                    self._leased.add(region)
                    return BufferLease(self, region, size)
                left = None if until is None else until - time.monotonic()
                if not blocks or (left is not None and left <= 0):
                    raise RuntimeError(f"buffer pool is exhausted: {size} bytes, {self._bytes} of {self._bytes_max} in use")
                self._changed.wait(left)

    buffer = acquire

    def _take(self, length: int) -> _Region | None:
        """A region of this length, free or new; free ones of other lengths make room for it."""
        if self._free.get(length):
            return self._free[length].pop()
        while not self._fits(length):
            free = next((regions for regions in self._free.values() if regions), None)
            if free is None:
                return None
            self._end(free.pop())
        region = _Region(self, length, self._alignment)
        self._bytes += length
        return region

    def _fits(self, length: int) -> bool:
        regions = len(self._leased) + sum(map(len, self._free.values()))
        return self._bytes + length <= self._bytes_max and (not self._regions_max or regions < self._regions_max)

    def _end(self, region: _Region) -> None:
        self._bytes -= region.size
        region.end(self._store)

    def _is_here(self) -> bool:
        """Whether this is the process that made it: in a fork another thread may have held its lock."""
        return self._process == os.getpid()

    def _release(self, lease: BufferLease) -> None:
        if not self._is_here():
            return
        with self._changed:
            if lease._released:
                return
            if lease._region.is_viewed():
                raise RuntimeError("cannot release buffer while exported views exist")
            lease._released = True
            if lease._region.is_shown():
                self._dropped.append(lease._region)
            else:
                self._take_back(lease._region)

    def _take_back(self, region: _Region) -> None:
        self._leased.discard(region)
        if region.size > self._most:
            self._end(region)
        else:
            self._free.setdefault(region.size, []).append(region)
        self._changed.notify_all()

    def _drop(self, region: _Region, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Takes note of a lease that was dropped. At the end of the interpreter its threads no longer run, and one of them
        may have the lock."""
        if is_finalizing() or not self._is_here():
            return
        self._dropped.append(region)
        self._tell()

    def _tell(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Has those who wait look again."""
        if is_finalizing() or not self._is_here():
            return
        with self._changed:
            self._changed.notify_all()

    def _collect(self) -> None:
        """Takes back what was dropped and is not looked at any more."""
        for _ in range(len(self._dropped)):
            region = self._dropped.popleft()
            if region.is_free():
                self._take_back(region)
            else:
                self._dropped.append(region)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nobody has a lease, which would have the pool.
        if self._closed or is_finalizing() or not self._is_here():
            return
        self._end_all()

    def prewarm(self, size: int, count: int) -> None:
        """Makes so many regions for leases of this length, as far as there is room."""
        leases = []
        try:
            for _ in range(count):
                leases.append(self.acquire(size, block=False))
        except RuntimeError:
            if self._closed or not leases:
                raise
        finally:
            for lease in leases:
                lease.release()

    def close(self) -> None:
        """Gives the memory back to the system; again does nothing. Raises while there are leases."""
        if not self._is_here():
            return
        with self._changed:
            self._collect()
            if len(self._leased) > len(self._dropped):
                raise RuntimeError("cannot close buffer pool with active leases")
            self._end_all()
            self._changed.notify_all()

    def _end_all(self) -> None:
        self._closed = True
        for region in [*self._leased, *(region for regions in self._free.values() for region in regions)]:
            self._end(region)
        self._leased.clear()
        self._dropped.clear()
        self._free.clear()


RegisteredBufferPool = BufferPool


class MooncakeHostMemAllocator:
    """Pages that forks of this process share."""

    def __init__(self) -> None:
        self._pages: dict[int, Shared] = {}

    def alloc(self, size: int) -> int:
        """The address of so many zeros; 0 when there is not that much memory."""
        try:
            pages = Shared(mmap.mmap(-1, size))
        except (OSError, ValueError, OverflowError):
            return 0
        self._pages[pages.address] = pages
        return pages.address

    def free(self, ptr: int) -> int:
        """Gives pages back, those under a tensor when it is gone: 0, or -1 when there are none at the address."""
        return -1 if self._pages.pop(ptr, None) is None else 0
