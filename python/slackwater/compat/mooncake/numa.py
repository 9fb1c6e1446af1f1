"""Threads and memory near one another: `bind_to_numa_node`."""

import ctypes
import os
import platform
from pathlib import Path

from slackwater.compat.mooncake.opening import log

NODES = Path("/sys/devices/system/node")
# The number of set_mempolicy(2), which the C library has no function for.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}.get(platform.machine())
_PREFERRED = 1
_NODES_MAX = 1024


def bind_to_numa_node(node: int) -> None:
    """Has this thread run on the CPUs of a NUMA node, of those that it may run on, and take its new memory there first.

    What the system does not know or does not allow changes nothing, and is logged.
    """
    if not isinstance(node, int):
        raise TypeError(f"node: expected a whole number, found {type(node).__name__}")
    try:
        cpus = _numbers((NODES / f"node{node}" / "cpulist").read_text(encoding="utf-8"))
        usable = cpus & os.sched_getaffinity(0)
        if not 0 <= node < _NODES_MAX or not usable:
            raise OSError(f"none of its CPUs may run this thread: {sorted(cpus)}")
        _prefer(node)
        os.sched_setaffinity(0, usable)
    except (OSError, ValueError) as error:
        log.warning("bind_to_numa_node: node %d: %s", node, error)


def _numbers(text: str) -> set[int]:
    """The numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _prefer(node: int) -> None:
    if _SET_MEMPOLICY is None:
        raise OSError(f"memory policies of {platform.machine()} are not known")
    mask = (ctypes.c_ulong * (_NODES_MAX // ctypes.sizeof(ctypes.c_ulong) // 8))()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask[node // bits] = 1 << node % bits
    # The kernel takes one number less than it is told.
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(_SET_MEMPOLICY, _PREFERRED, mask, ctypes.c_ulong(_NODES_MAX + 1)):
        raise OSError(ctypes.get_errno(), "set_mempolicy")
