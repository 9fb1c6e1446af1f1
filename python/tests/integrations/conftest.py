"""What the tests of integrations share."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import stop

# Doubles of engines, and tests' own modules.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def address(command: Path) -> Iterator[str]:
    """Where a store is served, for all tests: each uses keys of its own."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--memory", "64MiB", "--log", "warn"]
    arguments += ["--lease-ttl", "300ms"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip().removeprefix("serving at ")
        finally:
            server.kill()


class Frozen:
    """A server that can be stopped: it takes connections then, and answers nothing."""

    def __init__(self, server: "subprocess.Popen[Any]") -> None:
        assert server.stdout is not None
        self._server = server
        self.address = server.stdout.readline().strip().removeprefix("serving at ")

    def stop(self) -> None:
        stop(self._server)

    def go_on(self) -> None:
        os.kill(self._server.pid, signal.SIGCONT)


@pytest.fixture
def frozen(command: Path) -> Iterator[Frozen]:
    """A server of the test's own, which still runs."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--memory", "16MiB", "--log", "off"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield Frozen(server)
        finally:
            server.kill()
