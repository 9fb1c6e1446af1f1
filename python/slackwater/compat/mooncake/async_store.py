"""`MooncakeDistributedStoreAsync`: each call of the store as a coroutine too."""

from collections.abc import Awaitable, Callable
from typing import Any

from slackwater.compat.mooncake.client import MooncakeDistributedStore
from slackwater.driver import Driver

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store whose method `name` is awaited as `async_name`.

    A few threads of the store drive all its calls; one that is cancelled ends soon, and raises only when nothing touches
    the caller's memory any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._driver = Driver()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(type(self), name.removeprefix(_PREFIX), None) if name.startswith(_PREFIX) else None
        if not callable(method):
            wanted = name.removeprefix(_PREFIX)
            raise AttributeError(f"{type(self).__name__!r} object has no method {wanted!r}", name=name, obj=self)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            return await self._driver.call(method, self, *arguments, **keywords)

        call.__name__, call.__doc__ = name, method.__doc__
        return call

    def __del__(self) -> None:
        # Threads that are idle end; none is joined, as this may run on one of them.
        driver = self.__dict__.get("_driver")
        if driver is not None:
            driver.close(wait=False)
