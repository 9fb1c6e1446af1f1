"""Runs the calls of a client for coroutines, on a bounded number of threads."""

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Callable

# From where it is: the package imports it at the first use.
from concurrent.futures.thread import ThreadPoolExecutor
from typing import Any, TypeVar

from ._native import Cancelling

T = TypeVar("T")

THREADS = 8
"""Calls of one client that are under way at a time, unless another number is given; the others wait in line."""


class Driver:
    """Up to so many threads, which begin with the first calls and end with `close`.

    A call lets other threads of Python run while it waits and copies, so that many may be under way.
    """

    def __init__(self, threads: int = THREADS) -> None:
        if threads < 1:
            raise ValueError(f"threads: {threads}: at least one is needed")
        self._count = threads
        self._begin()

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="slackwater")
        self._process = os.getpid()

    async def call(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """The result of a function that calls a client.

        When the coroutine that waits is cancelled, the calls of the client are ended, and the cancellation is raised once
        nothing touches the caller's memory any more; a call that has not begun never does.
        """
        cancelling = Cancelling()
        if self._process != os.getpid():
            # A fork has none of the threads, and perhaps a lock that one of them held.
            self._begin()
        # The trace that the coroutine is in, for one.
        run = contextvars.copy_context().run
        running = self._threads.submit(run, cancelling.run, function, arguments, keywords)
        ended = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not running.cancel():
                cancelling.cancel()
                while not ended.done():
                    # However often it is cancelled: the memory is in use until then.
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({ended})
                if not ended.cancelled():
                    # Taken, so that nobody reports it as lost: the cancellation is what is raised.
                    ended.exception()
            raise

    def close(self, *, wait: bool = True) -> None:
        """Ends the threads, after the calls that have begun; those that have not are cancelled."""
        if self._process == os.getpid():
            self._threads.shutdown(wait=wait, cancel_futures=True)
