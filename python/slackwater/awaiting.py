"""Awaits calls of clients, which no thread waits for."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ._native import Awaiting, Ends, UnderWay

AT_ONCE = 16
"""Calls that a client makes before the other tasks of an event loop have their turn: such that wait for nothing never come back
to it."""

_ENDS: "WeakKeyDictionary[asyncio.AbstractEventLoop, Ends]" = WeakKeyDictionary()
"""Where each event loop hears of the ends of its calls."""

_entering = threading.RLock()


def _after_fork() -> None:
    global _entering  # noqa: PLW0603
    _entering = threading.RLock()


# A thread that held it is not there in the child.
os.register_at_fork(after_in_child=_after_fork)


def ends_of(loop: asyncio.AbstractEventLoop) -> Ends:
    """Where an event loop hears of the ends of its calls, on its own thread."""
    ends = _ENDS.get(loop)
    if ends is None:
        ends = Ends()
        loop.add_reader(ends.fileno(), ends.settle)
        # Loops of other threads enter themselves meanwhile.
        with _entering:
            # What came too late for a loop that was closed names that loop, and would keep it.
            for other in [other for other in _ENDS if other.is_closed()]:
                _ENDS[other].discard()
            _ENDS[loop] = ends
    return ends


class Calls:
    """The calls of one client that are under way, from any number of event loops."""

    def __init__(self) -> None:
        self._under_way, self._made = UnderWay(), 0

    @property
    def under_way(self) -> int:
        """How many there are."""
        return len(self._under_way)

    async def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The result of a function that makes one call of a client.

        When the coroutine that waits is cancelled, the call is ended, and the cancellation is raised once nothing touches the
        caller's memory any more.
        """
        self._made = (self._made + 1) % AT_ONCE
        if self._made == 0:
            # Before the call: of one that is cancelled here nothing was done.
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        awaiting, is_under_way = Awaiting(ends_of(loop), self._under_way), False
        try:
            is_under_way, result = awaiting.begin(ended, function, arguments, keywords)
            return await asyncio.shield(ended) if is_under_way else result
        except BaseException as error:
            awaiting.cancel()
            # Taken, so that nobody reports it as lost: another error is what is raised.
            ended.add_done_callback(_taken)
            while is_under_way and isinstance(error, asyncio.CancelledError) and not ended.done():
                # However often it is cancelled: the memory is in use until then.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({ended})
            raise
        finally:
            # An error names this frame in its traceback, and would be kept by what it keeps.
            del ended, awaiting

    def wait(self) -> None:
        """Waits, on this thread, until none is under way."""
        self._under_way.wait()


def _taken(ended: "asyncio.Future[Any]") -> None:
    if not ended.cancelled():
        ended.exception()
