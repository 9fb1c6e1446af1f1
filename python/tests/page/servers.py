"""Processes with a page, and what they have to do."""

import contextlib
import json
import os
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import slackwater


class Server:
    """A process with a page."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.address = process.stdout.readline().strip().removeprefix("serving at ")
        self.page = process.stdout.readline().strip().removeprefix("admin at ")

    def json(self, path: str) -> dict:
        """The answer of a path."""
        with urllib.request.urlopen(self.page + path, timeout=30) as answer:
            return json.load(answer)


def lasting_address() -> str:
    """An address for a server that comes back there: the kernel gives its port, which is below those that it gives out, to nobody else."""
    first = 31_000 + os.getpid() % 100 * 10
    for port in range(first, first + 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise OSError("no port is free")


@contextlib.contextmanager
def started(command: Path, *arguments: str, admin: str = "127.0.0.1:0") -> Iterator[Server]:
    """A server at free ports."""
    free = ["--listen", "127.0.0.1:0", "--admin", admin, "--log", "warn"]
    with subprocess.Popen([command, *arguments, *free], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@contextlib.contextmanager
def lent(command: Path, master: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A node that has told its number."""
    options = ["--memory", "8MiB", "--ssd", "64MiB", "--dir", str(directory), "--staging", "1MiB", "--log", "off"]
    arguments = [command, "node", "--master", master, *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.number = process.stdout.readline().split()[1]  # type: ignore[attr-defined]
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def traffic(address: str) -> Iterator[None]:
    """Reads and writes until the end."""
    ends = threading.Event()

    def run() -> None:
        with slackwater.connect(address) as client:
            number = 0
            while not ends.wait(0.005):
                number += 1
                with contextlib.suppress(slackwater.SlackwaterError):
                    client.put(f"model@{number}", bytes(30_000))
                    client.get(f"model@{number - number % 7}")
                    client.get("absent")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
