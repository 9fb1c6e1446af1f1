"""The store whose calls are awaited."""

import asyncio
import inspect
import os
import signal
import time

import calls
import mooncake.store
import pytest
from mooncake.async_store import MooncakeDistributedStoreAsync

from conftest import Starter, in_child
from processes import stop


def test_each_method_is_a_coroutine_too(master: str) -> None:
    async def main() -> None:
        store = MooncakeDistributedStoreAsync()
        assert isinstance(store, mooncake.store.MooncakeDistributedStore)
        assert await store.async_setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
        assert inspect.iscoroutinefunction(store.async_put)
        assert await store.async_put("awaited", b"v") == 0 == store.put("awaited", b"w")
        got = await asyncio.gather(*(store.async_get("awaited") for _ in range(50)))
        assert got == [b"v"] * 50
        assert await store.async_batch_is_exist(keys=["awaited", "none"]) == [1, 0]
        assert await store.async_remove("awaited", force=True) == 0
        with pytest.raises(TypeError):
            await store.async_put("k", "text")
        for name in ("async_nothing", "nothing"):
            with pytest.raises(AttributeError, match="nothing"):
                getattr(store, name)
        assert await store.async_close() == 0

    asyncio.run(main())


def test_the_end_of_a_write_session_can_be_cancelled(started: Starter) -> None:
    """Its put was made as the call that started the session: who started it could cancel it, and who ended it could not."""

    async def main() -> None:
        with started("serve") as (address, server):
            store = MooncakeDistributedStoreAsync()
            assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", address) == 0
            assert store.batch_put_session_start(["s"], [4096]) == [0]
            stop(server)
            begun = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(store.async_batch_put_session_end(["s"]), 0.1)
            assert time.monotonic() - begun < 10
            os.kill(server.pid, signal.SIGCONT)
            assert await store.async_batch_put_session_end(["s"]) == [0]
            store.close()

    asyncio.run(main())


def test_calls_are_awaited_in_a_fork_too(master: str) -> None:
    """They waited for threads that only the parent had, and closing waited for the lock of one."""

    async def used() -> bool:
        return await store.async_put("forked", b"v") == -1012 and await store.async_close() == 0

    store = MooncakeDistributedStoreAsync()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
    assert asyncio.run(store.async_is_exist("forked")) == 0
    with store._driver._threads._shutdown_lock:
        assert in_child(lambda: asyncio.run(used()))
    assert in_child(lambda: store._driver.close() is None)
    assert asyncio.run(store.async_is_exist("forked")) == 0
    store.close()


def test_a_cancelled_call_ends_soon(started: Starter) -> None:
    """The server is stopped, so that the calls would last until their deadline."""

    async def main() -> None:
        with started("serve") as (address, server):
            store = MooncakeDistributedStoreAsync()
            assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", address) == 0
            player = calls.Player(mooncake.store, store)
            assert store.put_from("k", player.base, 4096) == 0
            stop(server)
            begun = time.monotonic()
            for call in (
                store.async_get_into("k", player.base, 4096),
                store.async_put_from("other", player.base, 4096),
                store.async_is_exist("k"),
                store.async_get_size("k"),
                store.async_remove("k"),
                store.async_remove_all(),
            ):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(call, 0.1)
            assert time.monotonic() - begun < 10
            os.kill(server.pid, signal.SIGCONT)
            store.close()

    asyncio.run(main())
