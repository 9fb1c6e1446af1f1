"""Calls that are awaited."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import slackwater
import slackwater.aio
import slackwater.awaiting
from slackwater.driver import Driver

from processes import stop


@pytest.fixture
def server(command: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server of little memory, which a test may stop."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--memory", "16MiB", "--log", "error"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().removeprefix("serving at "), process
        finally:
            process.kill()


async def under_way(client: slackwater.aio.AsyncClient, count: int) -> None:
    """Lets tasks run until so many calls have begun."""
    for _ in range(10):
        if client._calls.under_way == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{client._calls.under_way} calls are under way, and not {count}")


@asynccontextmanager
async def connected(server: tuple[str, "subprocess.Popen[str]"]) -> AsyncIterator[slackwater.aio.AsyncClient]:
    """A client of it."""
    async with await slackwater.aio.connect(server[0]) as client:
        yield client


@pytest.fixture(autouse=True)
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An event loop has nothing to complain of: no result that nobody took, and no callback that failed."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Buffer(bytearray):
    """One that can be referred to weakly."""


def test_what_failed_keeps_nothing(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """An error named a frame that named the error: each call that failed kept its value for ever."""

    async def main() -> list[Callable[[], object]]:
        kept = []
        async with connected(server) as client:
            stop(server[1])
            for name in range(4):
                value = Buffer(4096)
                kept.append(weakref.ref(value))
                with pytest.raises(slackwater.RetryError):
                    await client.put(f"k{name}", value, timeout=0.05)
                del value
            call = asyncio.ensure_future(client.put("n", Buffer(4096)))
            await under_way(client, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            os.kill(server[1].pid, signal.SIGCONT)
        return kept

    kept = asyncio.run(main())
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


def test_every_call_is_awaited(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    async def main() -> None:
        async with connected(server) as client:
            assert await client.put("k", b"v") and not await client.put("k", b"w")
            assert await client.get("k") == b"v" and await client.get("none") is None
            assert await client.put_batch(["a", "b"], [b"1", b"22"]) == [True, True]
            assert await client.get_batch(["a", "none"], prefix_only=True) == [b"1", None]
            one, other = bytearray(2), bytearray(2)
            assert await client.get_into("b", one) == 2 and one == b"22"
            assert await client.get_batch_into(["a", "b"], [one, other]) == [1, 2] and other == b"22"
            assert await client.exists("a") and await client.exists_batch(["a", "none"]) == [True, False]
            assert await client.list(pattern="^[ab]$") == [b"a", b"b"]
            assert await client.remove("a", force=True) and not await client.remove("a")
            assert await client.remove_batch(["b", "none"], force=True) == [True, False]
            assert await client.put("k2", b"w", replicas=1) and await client.stat("none") is None
            view = await client.view("k")
            with view as memory, await client.view_batch(["k2", "none"]) as blocks:
                assert memory == b"v" and blocks == [b"w", None]
            known, reasons = await client.stat("k"), await client.explain("k")
            assert known["bytes"] == 1 and [reason["tier"] for reason in reasons] == ["memory"]
            assert (await client.stats())["record_reads"] == 0 and "# TYPE" in await client.metrics()
            assert await client.remove_matching("^k2$", force=True) == await client.remove_all(force=True) == 1
            assert [quota["tenant"] for quota in await client.quotas()] == ["default"]
            for refused in (client.set_quota("acme", memory=1), client.delete_quota("acme")):
                with pytest.raises(slackwater.RefusedError):
                    await refused
            with pytest.raises(slackwater.RefusedError):
                await client.put("", b"v")
            with pytest.raises(TypeError):
                await client.get(7)  # type: ignore[arg-type]
        assert client.closed
        with pytest.raises(slackwater.RefusedError, match="closed"):
            await client.get("k")

    asyncio.run(main())


def test_many_calls_are_under_way_and_none_has_a_thread(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """They were made on eight threads, and the ninth waited in line."""
    keys = [f"k{number}" for number in range(300)]

    async def main() -> None:
        async with connected(server) as client:
            assert await client.put_batch(keys, [key.encode() for key in keys]) == [True] * len(keys)
            stop(server[1])
            before = len(os.listdir("/proc/self/task"))
            calls = [asyncio.ensure_future(client.get(key)) for key in keys]
            await under_way(client, len(keys))
            assert len(os.listdir("/proc/self/task")) <= before
            calls[0].cancel()
            os.kill(server[1].pid, signal.SIGCONT)
            got = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(got[0], asyncio.CancelledError)
            assert got[1:] == [key.encode() for key in keys[1:]]
            assert client._calls.under_way == 0

    asyncio.run(main())


@pytest.mark.parametrize("length", [1, 4096, 65536, 65537, 1 << 20, 5_000_001])
def test_values_of_any_length_are_put_and_read(server: tuple[str, "subprocess.Popen[str]"], length: int) -> None:
    value = os.urandom(length)

    async def main() -> None:
        async with connected(server) as client:
            assert await client.put("k", value)
            assert await client.get("k") == value
            buffers = [bytearray(length + 3) for _ in range(3)]
            assert await client.get_into("k", buffers[0]) == length
            assert await client.get_batch_into(["k", "none", "k"], buffers) == [length, None, length]
            for buffer in (buffers[0], buffers[2]):
                assert buffer[:length] == value
                # The call is over for its memory too.
                buffer.clear()
            with pytest.raises(slackwater.RefusedError, match="bytes"):
                await client.get_into("k", bytearray(length - 1))
            with pytest.raises(ValueError, match="read-only"):
                await client.get_into("k", value)
            with pytest.raises(ValueError, match="overlap"):
                await client.get_batch_into(["k", "k"], [buffers[1], buffers[1]])
            assert client._calls.under_way == 0

    asyncio.run(main())


def test_a_cancelled_call_ends_soon_and_leaves_the_buffer_alone(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """The server is stopped, so that the call would last until its deadline."""

    async def main() -> None:
        async with connected(server) as client:
            await client.put("k", bytes(1 << 20))
            stop(server[1])
            begun = time.monotonic()
            buffers = [bytearray(1 << 20) for _ in range(20)]
            calls = [asyncio.ensure_future(client.get_into("k", buffer)) for buffer in buffers]
            await under_way(client, len(calls))
            for call in calls:
                call.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended)
            assert client._calls.under_way == 0 and time.monotonic() - begun < 5
            for buffer in buffers:
                buffer[:] = b"\x01" * len(buffer)
            os.kill(server[1].pid, signal.SIGCONT)
            assert await client.get("k") == bytes(1 << 20)
            assert all(buffer == b"\x01" * len(buffer) for buffer in buffers)

    asyncio.run(main())


def test_a_call_ends_at_its_own_time(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    async def main() -> None:
        async with connected(server) as client:
            await client.put("k", b"v")
            stop(server[1])
            for call in (client.put("n", b"v", timeout=0.2), client.exists("k", timeout=0.2), client.list(timeout=0.2)):
                with pytest.raises(slackwater.RetryError, match="no answer came"):
                    await call
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.get("k")

    asyncio.run(main())


def test_calls_wait_for_a_server_that_is_away(command: Path, server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """They pause between one try and the next, without a thread."""
    listen = server[0].removeprefix("tcp://")
    arguments = [command, "serve", "--listen", listen, "--admin", "none", "--memory", "16MiB", "--log", "error"]

    async def main() -> None:
        async with await slackwater.aio.connect(server[0], timeout=30) as client:
            assert await client.put("k", b"v")
            server[1].kill()
            server[1].wait()
            with pytest.raises(slackwater.RetryError):
                await client.exists("k", timeout=0.5)
            calls = [asyncio.ensure_future(client.put(f"k{number}", b"w")) for number in range(10)]
            await asyncio.sleep(0.3)
            assert client._calls.under_way == len(calls)
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as second:
                try:
                    assert await asyncio.gather(*calls[1:]) == [True] * 9
                    assert await client.get("k5") == b"w"
                finally:
                    second.kill()

    asyncio.run(main())


def test_a_loop_that_is_closed_leaves_nothing_under_way(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    client = asyncio.run(slackwater.aio.connect(server[0]))

    async def begin() -> None:
        stop(server[1])
        call = client.get("k")
        # Its first step, on a loop that does not wait for the rest.
        call.send(None)
        assert client._calls.under_way == 1

    asyncio.run(begin())
    os.kill(server[1].pid, signal.SIGCONT)
    # It waits for what is under way.
    asyncio.run(client.close())


def test_a_cancellation_waits_for_the_call_however_often_it_comes() -> None:
    """The memory of a call is in use until the call has ended."""

    async def main() -> None:
        driver, entered, release = Driver(1), threading.Event(), threading.Event()

        def call() -> None:
            entered.set()
            release.wait()
            raise ValueError

        task = asyncio.ensure_future(driver.call(call))
        while not entered.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        driver.close()
        with pytest.raises(ValueError, match="at least one"):
            Driver(0)

    asyncio.run(main())


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(slackwater.RetryError, match="no server"):
        asyncio.run(slackwater.aio.connect("tcp://127.0.0.1:9", timeout=0.2))


def test_tasks_whose_calls_wait_for_nothing_leave_the_loop_to_others(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """A task that read what was at hand again and again never came back to its loop: no timer ended it."""

    async def main() -> None:
        async with connected(server) as client:
            await client.put("k", bytes(1000))

            async def read() -> None:
                while True:
                    assert await client.get("k") == bytes(1000)

            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.gather(*(read() for _ in range(8)))

    asyncio.run(main())


def test_a_coroutine_that_is_closed_ends_its_call(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    async def main() -> None:
        async with connected(server) as client:
            stop(server[1])
            calls = [client.get(f"k{number}") for number in range(8)]
            for call in calls:
                call.send(None)
            assert client._calls.under_way > 0
            for call in calls:
                call.close()
            begun = time.monotonic()
            while client._calls.under_way:
                assert time.monotonic() - begun < 5
                await asyncio.sleep(0.001)
            os.kill(server[1].pid, signal.SIGCONT)

    asyncio.run(main())


def test_a_fork_waits_for_no_call_of_its_parent(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    async def main() -> None:
        async with connected(server) as client:
            stop(server[1])
            call = asyncio.ensure_future(client.get("k"))
            await under_way(client, 1)
            child = os.fork()
            if child == 0:
                client._end()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            os.kill(server[1].pid, signal.SIGCONT)
            assert await call is None

    asyncio.run(main())


EXITS = """
import asyncio, sys, threading, slackwater.aio
begun = threading.Event()
async def main():
    client = await slackwater.aio.connect(sys.argv[1])
    async def ask():
        while True:
            await client.exists("k")
    tasks = [asyncio.ensure_future(ask()) for _ in range(20)]
    await asyncio.sleep(0.05)
    begun.set()
    await asyncio.gather(*tasks)
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
begun.wait()
"""


def test_an_interpreter_ends_with_calls_under_way(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """The thread that told tasks of their ends was stopped in the middle of that, and took the process with it."""
    for _ in range(10):
        subprocess.run([sys.executable, "-c", EXITS, server[0]], check=True, timeout=60)


def test_a_call_that_an_argument_makes_is_not_the_one_that_is_awaited(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    """A timeout that reads another key while it becomes a number had that read awaited: the task got its value for its own key."""

    class Late:
        def __init__(self, client: slackwater.Client) -> None:
            self.client, self.read = client, b""

        def __float__(self) -> float:
            self.read = self.client.get("other") or b"nothing"
            return 5.0

    async def main() -> None:
        async with connected(server) as client:
            await client.put("k", b"mine")
            await client.put("other", b"not mine")
            for by in [client._client, slackwater.connect(server[0])]:
                late = Late(by)
                assert await client.get("k", timeout=late) == b"mine"
                assert late.read == b"not mine"

    asyncio.run(main())


def test_loops_of_many_threads_begin_at_once() -> None:
    """A loop's first call failed while another thread's loop made its own: a dictionary changed its size."""
    interval = sys.getswitchinterval()
    failed: list[BaseException] = []

    async def main() -> None:
        slackwater.awaiting.ends_of(asyncio.get_running_loop())

    def run() -> None:
        try:
            for _ in range(60):
                asyncio.run(main())
        except Exception as error:
            failed.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []


def test_two_loops_share_a_client(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    client = asyncio.run(slackwater.aio.connect(server[0]))
    assert asyncio.run(client.put("k", b"v"))
    assert asyncio.run(client.get("k")) == b"v"
    asyncio.run(client.close())
