"""Servers that the tests of the package `mooncake` share, and stores that are connected to them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import slackwater.compat

sys.path.insert(0, str(Path(__file__).parent))

import calls

slackwater.compat.install(over=True)

import mooncake.store

Starter = Callable[..., Any]


@pytest.fixture(scope="session")
def started(command: Path) -> Starter:
    """Starts a server, whose address and process the block gets."""

    @contextmanager
    def start(kind: str, *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
        arguments = [kind, "--listen", "127.0.0.1:0", "--log", "error", "--admin", "none", *options]
        if kind == "serve":
            arguments += ["--memory", "64MiB"]
        with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield server.stdout.readline().strip().removeprefix("serving at tcp://"), server
            finally:
                server.kill()

    return start


@pytest.fixture(scope="session", params=["serve", "master"])
def kind(request: pytest.FixtureRequest) -> str:
    """A store of one process, or a master to which clients lend memory."""
    return request.param


@pytest.fixture(scope="session")
def master(kind: str, started: Starter) -> Iterator[str]:
    """Where a server of each kind is, for all tests; a client lends it memory if it takes any."""
    with started(kind) as (address, _):
        lender = calls.opened(mooncake.store, address, segment=32 << 20)
        yield address
        lender.store.close()


@pytest.fixture(scope="session")
def shared_player(master: str) -> Iterator[calls.Player]:
    """A store for all tests."""
    player = calls.opened(mooncake.store, master, segment=0)
    yield player
    player.store.close()


@pytest.fixture
def player(shared_player: calls.Player) -> calls.Player:
    """An empty store, and memory in which each byte is the last of its offset."""
    shared_player.store.remove_all(True)
    shared_player.memory[:] = bytes(range(256)) * (calls.MEMORY // 256)
    return shared_player


def in_child(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a fork of this process, and ends there."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        held = False
        try:
            held = check()
        finally:
            os._exit(0 if held else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls give up after a second."""
    monkeypatch.setitem(os.environ, "MC_RPC_TIMEOUT_MS", "1000")
    monkeypatch.setitem(os.environ, "MC_RPC_CONNECT_TIMEOUT_MS", "1000")
