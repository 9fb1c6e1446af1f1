"""Clients of served stores for coroutines.

>>> import asyncio, slackwater.aio
>>> async def main():
...     async with await slackwater.aio.connect("tcp://127.0.0.1:50051") as client:
...         await client.put("block-1", b"bytes of a block")
...         return await client.get("block-1")

Calls may be awaited from several event loops. At most `threads` of them are under way at a time, on as many threads of the
client; the others wait in line. A call that is cancelled ends soon, and raises only when nothing touches its buffers
any more.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from . import _native
from ._native import Client
from .driver import THREADS, Driver
from .errors import SlackwaterError

__all__ = ["AsyncClient", "connect"]

Key = bytes | str


async def connect(
    address: str | None = None, *, key_file: Any = None, timeout: float = 10.0, threads: int = THREADS
) -> "AsyncClient":
    """Connects as `slackwater.connect` does."""
    driver = Driver(threads)
    try:
        client = await driver.call(_native.connect, address, key_file=key_file, timeout=timeout)
    except BaseException:
        driver.close(wait=False)
        raise
    return AsyncClient(client, driver)


class AsyncClient:
    """A client whose calls are awaited; made by `connect`. Arguments, results and errors are those of `slackwater.Client`."""

    def __init__(self, client: Client, driver: Driver) -> None:
        self._client, self._driver = client, driver

    async def put(self, key: Key, value: Any, **options: Any) -> bool:
        """Puts one value."""
        return await self._driver.call(self._client.put, key, value, **options)

    async def put_batch(
        self, keys: Sequence[Key], values: Sequence[Any], **options: Any
    ) -> list[bool | SlackwaterError]:
        """Puts values."""
        return await self._driver.call(self._client.put_batch, keys, values, **options)

    async def get(self, key: Key, **options: Any) -> bytes | None:
        """Reads one value."""
        return await self._driver.call(self._client.get, key, **options)

    async def get_into(self, key: Key, buffer: Any, **options: Any) -> int | None:
        """Reads one value into a buffer."""
        return await self._driver.call(self._client.get_into, key, buffer, **options)

    async def get_batch(self, keys: Sequence[Key], **options: Any) -> list[bytes | None | SlackwaterError]:
        """Reads values."""
        return await self._driver.call(self._client.get_batch, keys, **options)

    async def get_batch_into(
        self, keys: Sequence[Key], buffers: Sequence[Any], **options: Any
    ) -> list[int | None | SlackwaterError]:
        """Reads values into buffers."""
        return await self._driver.call(self._client.get_batch_into, keys, buffers, **options)

    async def exists(self, key: Key, **options: Any) -> bool:
        """Whether a value is there."""
        return await self._driver.call(self._client.exists, key, **options)

    async def exists_batch(self, keys: Sequence[Key], **options: Any) -> list[bool]:
        """Whether values are there."""
        return await self._driver.call(self._client.exists_batch, keys, **options)

    async def remove(self, key: Key, **options: Any) -> bool:
        """Removes one value."""
        return await self._driver.call(self._client.remove, key, **options)

    async def remove_batch(self, keys: Sequence[Key], **options: Any) -> list[bool | SlackwaterError]:
        """Removes values."""
        return await self._driver.call(self._client.remove_batch, keys, **options)

    async def list(self, **options: Any) -> list[bytes]:
        """Keys in byte order."""
        return await self._driver.call(self._client.list, **options)

    async def close(self) -> None:
        """Ends the client, after the calls that have begun; those that wait in line are cancelled."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._driver.close()
        self._client.close()

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._client.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
