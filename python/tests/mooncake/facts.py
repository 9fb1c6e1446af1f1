"""Facts that tests wait for, and what this process holds."""

import os
import time
from collections.abc import Callable


def comes_true(fact: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether a fact holds before so many seconds are over."""
    until = time.monotonic() + seconds
    while not (held := fact()) and time.monotonic() < until:
        time.sleep(0.01)
    return held


def counted() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def leaves_nothing(before: tuple[int, int]) -> bool:
    """Whether no more is held than before. Linux lists a thread for a moment after it was joined."""
    return comes_true(lambda: all(held <= had for held, had in zip(counted(), before, strict=True)), 60)
