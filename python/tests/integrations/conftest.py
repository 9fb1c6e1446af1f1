"""What the tests of integrations share."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
