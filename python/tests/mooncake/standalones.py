"""Stand-alone clients and processes that are thin clients of them, for tests."""

import os
import random
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slackwater.compat.mooncake.standalone import ThinClients

HERE = str(Path(__file__).parent)
# What a process of its own does as a thin client.
THIN = """
import sys
sys.path.insert(0, sys.argv[1])
import slackwater.compat
slackwater.compat.install(over=True)
import ctypes, mooncake.store, os, time
store = mooncake.store.MooncakeDistributedStore()
assert store.setup_dummy(32 << 20, 1 << 20, sys.argv[2]) == 0

def say(word):
    print(word, flush=True)

"""


def free_port() -> int:
    """A port whose Unix socket nobody has."""
    while True:
        port = random.randrange(20_000, 60_000)
        with suppress(OSError):
            ThinClients(port).close()
            return port


@contextmanager
def standalone(
    master: str, *flags: str, port: int | None = None, **environment: str
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A `mooncake_client`, whose address and process the block gets."""
    port = port or free_port()
    words = [f"--port={port}", f"--master_server_address={master}", *flags]
    with subprocess.Popen(
        [sys.executable, "-m", "slackwater.compat.mooncake.standalone", *words],
        stderr=subprocess.PIPE, text=True, env=os.environ | environment,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "serves at" in line:
                    break
            assert said and "serves at" in said[-1], said
            yield f"127.0.0.1:{port}", process
        finally:
            process.kill()


@contextmanager
def thin_process(address: str, code: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that does something as a thin client, and tells it by its output."""
    with subprocess.Popen(
        [sys.executable, "-c", THIN + code, HERE, address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def heard(process: "subprocess.Popen[str]") -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def free_tcp_port() -> int:
    """A port of TCP that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetched(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
