"""`mooncake.allocator`: pools of GPU memory that can be exported to other machines or devices.

There are none here, as there are no transfers over NVLink fabric or Barex, which they are for. Imports work everywhere, without
PyTorch too; asking for an allocator says what to do instead.
"""

from enum import IntEnum
from typing import Any, NoReturn

__all__ = ["BarexAllocator", "MemoryBackend", "NVLinkAllocator"]


class MemoryBackend(IntEnum):
    """How a pool gets its memory."""

    USE_CUDAMALLOC = 0
    USE_CUMEMCREATE = 1
    UNKNOWN = -1
    UNSUPPORTED = -2


class NVLinkAllocator:
    """Memory for transfers over NVLink."""

    @classmethod
    def detect_mem_backend(cls) -> MemoryBackend:
        """`UNSUPPORTED`: there is no pool of such memory."""
        return MemoryBackend.UNSUPPORTED

    @classmethod
    def get_allocator(cls, device: Any) -> NoReturn:
        """Raises `RuntimeError`, with what to do."""
        raise RuntimeError(_reason("NVLinkAllocator", device))


class BarexAllocator:
    """Memory for transfers by Barex."""

    @classmethod
    def get_allocator(cls, device: Any) -> NoReturn:
        """Raises `RuntimeError`, with what to do."""
        raise RuntimeError(_reason("BarexAllocator", device))


def _reason(name: str, device: Any) -> str:
    return (
        f"{name}: no pool of memory of {device}: Slackwater has no transfers by NVLink fabric or Barex; allocate as usual, "
        "without SGLANG_MOONCAKE_CUSTOM_MEM_POOL and the like"
    )
