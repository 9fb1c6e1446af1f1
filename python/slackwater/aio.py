"""Clients of served stores for coroutines.

>>> import asyncio, slackwater.aio
>>> async def main():
...     async with await slackwater.aio.connect("tcp://127.0.0.1:50051") as client:
...         await client.put("block-1", b"bytes of a block")
...         return await client.get("block-1")

Calls may be awaited from several event loops, as many at a time as there are tasks: none has a thread. What they wait for is
told to one thread of the process, which goes on with them. A call that is cancelled ends soon, and raises only when nothing
touches its buffers any more.
"""

import asyncio
import builtins
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from . import _native
from ._native import Client, View
from .awaiting import Calls
from .errors import SlackwaterError
from .views import Views

__all__ = ["AsyncClient", "connect"]

Key = bytes | str


async def connect(address: str | None = None, *, key_file: Any = None, timeout: float = 10.0) -> "AsyncClient":
    """Connects as `slackwater.connect` does."""
    return AsyncClient(await asyncio.to_thread(_native.connect, address, key_file=key_file, timeout=timeout))


class AsyncClient:
    """A client whose calls are awaited; made by `connect`. Arguments, results and errors are those of `slackwater.Client`."""

    def __init__(self, client: Client) -> None:
        self._client, self._calls = client, Calls()

    async def put(self, key: Key, value: Any, **options: Any) -> bool:
        """Puts one value."""
        return await self._calls.call(self._client.put, key, value, **options)

    async def put_batch(
        self, keys: Sequence[Key], values: Sequence[Any], **options: Any
    ) -> list[bool | SlackwaterError]:
        """Puts values."""
        return await self._calls.call(self._client.put_batch, keys, values, **options)

    async def get(self, key: Key, **options: Any) -> bytes | None:
        """Reads one value."""
        return await self._calls.call(self._client.get, key, **options)

    async def get_into(self, key: Key, buffer: Any, **options: Any) -> int | None:
        """Reads one value into a buffer."""
        return await self._calls.call(self._client.get_into, key, buffer, **options)

    async def get_batch(self, keys: Sequence[Key], **options: Any) -> list[bytes | None | SlackwaterError]:
        """Reads values."""
        return await self._calls.call(self._client.get_batch, keys, **options)

    async def get_batch_into(
        self, keys: Sequence[Key], buffers: Sequence[Any], **options: Any
    ) -> list[int | None | SlackwaterError]:
        """Reads values into buffers."""
        return await self._calls.call(self._client.get_batch_into, keys, buffers, **options)

    async def view(self, key: Key, **options: Any) -> View | None:
        """A view of a value, whose block is a plain `with`."""
        return await self._calls.call(self._client.view, key, **options)

    async def view_batch(self, keys: Sequence[Key], **options: Any) -> Views:
        """Views of values, whose block is a plain `with`."""
        return await self._calls.call(self._client.view_batch, keys, **options)

    async def exists(self, key: Key, **options: Any) -> bool:
        """Whether a value is there."""
        return await self._calls.call(self._client.exists, key, **options)

    async def exists_batch(self, keys: Sequence[Key], **options: Any) -> list[bool]:
        """Whether values are there."""
        return await self._calls.call(self._client.exists_batch, keys, **options)

    async def remove(self, key: Key, **options: Any) -> bool:
        """Removes one value."""
        return await self._calls.call(self._client.remove, key, **options)

    async def remove_batch(self, keys: Sequence[Key], **options: Any) -> list[bool | SlackwaterError]:
        """Removes values."""
        return await self._calls.call(self._client.remove_batch, keys, **options)

    async def remove_matching(self, pattern: str, **options: Any) -> int:
        """Removes every value in whose key the regular expression is found."""
        return await self._calls.call(self._client.remove_matching, pattern, **options)

    async def remove_all(self, **options: Any) -> int:
        """Removes every value of the tenant."""
        return await self._calls.call(self._client.remove_all, **options)

    async def list(self, **options: Any) -> builtins.list[bytes]:
        """Keys in byte order."""
        return await self._calls.call(self._client.list, **options)

    async def set_quota(self, tenant: str, **options: Any) -> None:
        """Sets or changes how many bytes a tenant may keep."""
        await self._calls.call(self._client.set_quota, tenant, **options)

    async def delete_quota(self, tenant: str, **options: Any) -> None:
        """Forgets the quota of a tenant that has no values."""
        await self._calls.call(self._client.delete_quota, tenant, **options)

    async def quotas(self, **options: Any) -> builtins.list[dict[str, Any]]:
        """Quotas and use of every tenant that has either."""
        return await self._calls.call(self._client.quotas, **options)

    async def stat(self, key: Key, **options: Any) -> dict[str, Any] | None:
        """What the master knows of a value."""
        return await self._calls.call(self._client.stat, key, **options)

    async def explain(self, key: Key, **options: Any) -> builtins.list[dict[str, Any]] | None:
        """Where a value is and what keeps it there."""
        return await self._calls.call(self._client.explain, key, **options)

    async def stats(self) -> dict[str, Any]:
        """What the client counts."""
        return self._client.stats()

    async def metrics(self) -> str:
        """The same in the text form of Prometheus."""
        return self._client.metrics()

    async def close(self) -> None:
        """Ends the client, after the calls that have begun."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._client.close()
        self._calls.wait()

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
