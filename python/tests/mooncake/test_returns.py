"""What calls leave behind when they have returned: nothing that touches memory, and nothing of clients that were closed."""

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from facts import comes_true, counted, leaves_nothing
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import MooncakeDistributedStore
from test_life import setup

from conftest import Starter

BYTES = 16 << 20
ROUNDS = 12
PATHS = pytest.mark.parametrize("force_tcp", ["1", ""], ids=["tcp", "memory"])


class Poisoned:
    """Memory that a call was given, and zeros after it."""

    def __init__(self) -> None:
        self.memory = bytearray(BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def poison(self) -> None:
        """Nobody may write to it from now on."""
        self.memory[:] = bytes(BYTES)

    def is_clean(self) -> bool:
        """Whether nobody has."""
        return self.memory == bytes(BYTES)


def watched(call: Callable[[Poisoned], None], settled: Callable[[], None], rounds: int) -> None:
    """Makes calls that end early, each with memory of its own, and watches what they had while others run."""
    memories = [Poisoned(), Poisoned()]
    for number in range(rounds):
        mine, other = memories[number % 2], memories[1 - number % 2]
        call(mine)
        mine.poison()
        settled()
        assert mine.is_clean() and (other.is_clean() or number == 0), number


@PATHS
def test_a_call_that_took_too_long_touches_nothing_later(
    force_tcp: str, started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is stopped in the middle of a read goes on with it after the call has given up."""
    monkeypatch.setenv("MC_FORCE_TCP", force_tcp)
    with started("serve") as (address, server):
        store, writer = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert setup(writer, address, local_buffer_size=BYTES) == 0
        assert writer.put("k", b"\xaa" * BYTES) == 0 == writer.put("small", b"v") == writer.close()
        monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "300")
        assert setup(store, address, local_buffer_size=BYTES) == 0
        codes = []

        def read(memory: Poisoned) -> None:
            stopper = threading.Timer(0.001 * (len(codes) % 6), os.kill, [server.pid, signal.SIGSTOP])
            stopper.start()
            codes.append(store.get_into("k", memory.address, BYTES))
            stopper.join()

        def settled() -> None:
            os.kill(server.pid, signal.SIGCONT)
            assert comes_true(lambda: store.get("small") == b"v", 60)

        watched(read, settled, ROUNDS)
        assert set(codes) <= {BYTES, -900, -901}, codes
        store.close()


@PATHS
def test_a_call_that_was_cancelled_touches_nothing_later(
    force_tcp: str, started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", force_tcp)

    async def run(address: str) -> None:
        store = MooncakeDistributedStoreAsync()
        assert await asyncio.to_thread(setup, store, address, local_buffer_size=BYTES) == 0
        assert await store.async_put("k", b"\xaa" * BYTES) == 0
        memories = [Poisoned(), Poisoned()]
        for number in range(ROUNDS):
            mine = memories[number % 2]
            with suppress(TimeoutError):
                await asyncio.wait_for(store.async_get_into("k", mine.address, BYTES), 0.001 * (number % 6))
            mine.poison()
            assert await store.async_is_exist("k") == 1 and mine.is_clean(), number
        assert all(memory.is_clean() for memory in memories)
        await store.async_close()

    with started("serve") as (address, _):
        asyncio.run(run(address))


@PATHS
def test_a_call_that_was_interrupted_touches_nothing_later(
    force_tcp: str, started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", force_tcp)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with started("serve") as (address, _):
            store = MooncakeDistributedStore()
            assert setup(store, address, local_buffer_size=BYTES) == 0 == store.put("k", b"\xaa" * BYTES)
            interrupted = []

            def read(memory: Poisoned) -> None:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 * (1 + len(interrupted)))
                    while True:
                        store.get_into("k", memory.address, BYTES)
                except KeyboardInterrupt:
                    interrupted.append(True)

            def settled() -> None:
                assert store.is_exist("k") == 1

            watched(read, settled, ROUNDS)
            assert len(interrupted) == ROUNDS
            store.close()
    finally:
        signal.signal(signal.SIGALRM, before)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("server", "segment", "cycles"), [("serve", 0, 1000), ("master", 16 << 20, 60)])
def test_clients_that_were_closed_leave_nothing(server: str, segment: int, cycles: int, started: Starter) -> None:
    options = ("--put-wait", "100ms") if server == "master" else ()
    with started(server, *options) as (address, _):
        store: Any = MooncakeDistributedStore()
        counts, memory = [], []
        for cycle in range(cycles):
            assert setup(store, address, global_segment_size=segment) == 0
            assert store.put("k", b"v") == 0 and store.get("k") == b"v"
            assert store.close() == 0
            if cycle % 2:
                # Some end without being closed.
                assert setup(store, address, global_segment_size=segment) == 0
                store = MooncakeDistributedStore()
            if cycle >= cycles // 10:
                counts.append(counted())
                memory.append(resident())
        # A thread of the last client may still be about to end, and has its stack until then.
        descriptors, threads = zip(*counts[: len(counts) // 2], strict=True)
        most = max(descriptors), max(threads)
        assert leaves_nothing(most), (counted(), most, counts)
        assert comes_true(lambda: resident() - memory[0] < 16 << 20, 60), (resident(), memory)
