"""Memory of this package that tensors are shown over.

A tensor over a caller's memory is as good as that memory. Memory that was handed out here, by a pool, an allocator or a
thin client, stays as it is as long as a tensor is over it: it is neither used again nor given back to the system.
"""

import ctypes
import mmap
import weakref
from typing import Any

# By identity. A copy of the references is taken in one step, whatever other threads do.
_ALL: "weakref.WeakValueDictionary[int, Shared]" = weakref.WeakValueDictionary()


def address_of(memory: mmap.mmap) -> int:
    """The address of the first byte of a mapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Shared:
    """A mapping that is handed out by address, and ends when nobody has it any more. Any thread may show it."""

    def __init__(self, pages: mmap.mmap) -> None:
        self.pages, self.address, self.length = pages, address_of(pages), len(pages)
        # By identity, as arrays have no hash.
        self._shown: dict[int, weakref.ref[Any]] = {}
        _ALL[id(self)] = self

    def is_shown(self) -> bool:
        """Whether a tensor is over it."""
        return bool(self._shown)

    def is_viewed(self) -> bool:
        """Whether a `memoryview` of it is alive. A mapping is not given another length while one is; the same does
        nothing."""
        try:
            self.pages.resize(self.length)
        except BufferError:
            return True
        return False

    def close(self) -> None:
        """Ends the mapping, which nobody looks at."""
        _ALL.pop(id(self), None)
        self.pages.close()

    def no_longer_shown(self) -> None:
        """Called when a tensor over it is gone, at any time and in any thread."""

    def show(self, address: int, size: int) -> Any:
        """A buffer over bytes of it, which keeps it."""
        buffer = (ctypes.c_char * size).from_address(address)
        # The tensor keeps the array, and the array the mapping.
        buffer.shared = self
        shown = weakref.ref(buffer, self._end)
        self._shown[id(shown)] = shown
        return buffer

    def _end(self, shown: "weakref.ref[Any]") -> None:
        self._shown.pop(id(shown), None)
        self.no_longer_shown()


def memory_at(address: int, size: int) -> Any:
    """A buffer over memory, which it keeps if the memory is of this package."""
    for reference in _ALL.valuerefs():
        shared = reference()
        if shared is not None and shared.address <= address and address + size <= shared.address + shared.length:
            return shared.show(address, size)
    return (ctypes.c_char * size).from_address(address)
