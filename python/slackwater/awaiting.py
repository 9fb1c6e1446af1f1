"""Awaits calls of clients, which no thread waits for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from ._native import Awaiting


class Calls:
    """The calls of one client that are under way, from any number of event loops."""

    def __init__(self) -> None:
        self._under_way, self._ended = 0, threading.Condition()

    @property
    def under_way(self) -> int:
        """How many there are."""
        return self._under_way

    async def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The result of a function that makes one call of a client.

        When the coroutine that waits is cancelled, the call is ended, and the cancellation is raised once nothing touches the
        caller's memory any more.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            self._count(-1)
            # A loop that was closed has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, ended, result, error)

        awaiting, is_under_way = Awaiting(tell), False
        self._count(1)
        try:
            is_under_way, result = awaiting.begin(function, arguments, keywords)
        finally:
            if not is_under_way:
                self._count(-1)
        if not is_under_way:
            return result
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            awaiting.cancel()
            while not ended.done():
                # However often it is cancelled: the memory is in use until then.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({ended})
            # Taken, so that nobody reports it as lost: the cancellation is what is raised.
            ended.exception()
            raise

    def wait(self) -> None:
        """Waits, on this thread, until none is under way."""
        with self._ended:
            self._ended.wait_for(lambda: self._under_way == 0)

    def _count(self, more: int) -> None:
        with self._ended:
            self._under_way += more
            if self._under_way == 0:
                self._ended.notify_all()


def _settle(ended: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if error is not None:
        ended.set_exception(error)
    else:
        ended.set_result(result)
