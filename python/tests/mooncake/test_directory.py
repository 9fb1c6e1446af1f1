"""Engines that find each other by a metadata server."""

import contextlib
import ctypes
import gc
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mooncake.engine import TransferEngine
from slackwater.compat.mooncake.http_metadata_server import VALUE_BYTES_MAX, MetadataServer
from slackwater.compat.mooncake.http_service import Answer, Service


class Server:
    """A metadata server in this process, whose texts a test may change."""

    def __init__(self) -> None:
        self.metadata = MetadataServer()
        self.answer = self.metadata.answer
        self.service = Service("127.0.0.1", 0, VALUE_BYTES_MAX, lambda asked: self.answer(asked))
        self.url = f"http://127.0.0.1:{self.service.port}/metadata"
        threading.Thread(target=self.service.serve_forever, daemon=True).start()

    @property
    def texts(self) -> dict[str, bytes]:
        return self.metadata._texts

    def close(self) -> None:
        """Ends it."""
        self.service.shutdown()
        self.service.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def engine_of(name: str, url: str) -> tuple[TransferEngine, Any]:
    """An engine, and memory that it has registered."""
    engine, memory = TransferEngine(), ctypes.create_string_buffer(4096)
    assert engine.initialize(name, url, "tcp", "") == 0
    assert engine.register_memory(ctypes.addressof(memory), 4096) == 0
    return engine, memory


def test_engines_find_each_other_by_name(server: Server) -> None:
    (here, mine), (there, theirs) = engine_of("here", server.url), engine_of("localhost:12345", server.url)
    at, peer = ctypes.addressof(theirs), "localhost:12345"
    entry = json.loads(server.texts["mooncake/rpc_meta/localhost:12345"])
    assert entry == {"ip_or_host_name": "127.0.0.1", "rpc_port": there.get_rpc_port()}
    mine.value = b"hello"
    assert here.transfer_sync_write(peer, ctypes.addressof(mine), at, 5) == 0 and theirs.value == b"hello"
    assert here.get_first_buffer_address(peer) == at and here.send_probe(peer) == 0 == there.send_probe("here")
    batch = here.batch_transfer_async_read(peer, [ctypes.addressof(mine) + 10], [at], [5])
    assert batch > 0 and here.get_batch_transfer_status([batch]) == 0 and mine.raw[10:15] == b"hello"
    odd, _ = engine_of("a b&c?d=e/é", server.url)
    assert here.send_probe("a b&c?d=e/é") == 0 == odd.send_probe("here")
    # Names are those of the server, and no addresses.
    for nobody in ("nobody", f"127.0.0.1:{there.get_rpc_port()}", "", "localhost:12345&x=1"):
        assert here.transfer_sync_write(nobody, ctypes.addressof(mine), at, 5) == -1, nobody
        assert here.get_first_buffer_address(nobody) == 0 and here.send_probe(nobody) == -102


def test_the_entry_of_an_engine_ends_with_it(server: Server) -> None:
    engine, _ = engine_of("one", server.url)
    assert list(server.texts) == ["mooncake/rpc_meta/one"]
    other = TransferEngine()
    assert other.initialize("one", server.url, "tcp", "") == -1, "the name is taken"
    assert json.loads(server.texts["mooncake/rpc_meta/one"])["rpc_port"] == engine.get_rpc_port()
    assert other.get_rpc_port() == 0
    assert other.initialize("two", server.url, "tcp", "") == 0 and len(server.texts) == 2
    del engine
    gc.collect()
    assert list(server.texts) == ["mooncake/rpc_meta/two"]


def test_an_entry_of_another_engine_stays(server: Server) -> None:
    engine, _ = engine_of("one", server.url)
    server.texts["mooncake/rpc_meta/one"] = later = b'{"ip_or_host_name": "127.0.0.1", "rpc_port": 9}'
    del engine
    gc.collect()
    assert server.texts == {"mooncake/rpc_meta/one": later}


KILLED = """
import os, sys
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("one", sys.argv[1], "tcp", "") == 0
os._exit(0)
"""


def test_the_name_of_an_engine_that_was_killed_is_free(server: Server) -> None:
    """A program that was started again under its name was refused for ever."""
    subprocess.run([sys.executable, "-c", KILLED, server.url], check=True, timeout=60)
    assert list(server.texts) == ["mooncake/rpc_meta/one"]
    engine, _ = engine_of("one", server.url)
    assert json.loads(server.texts["mooncake/rpc_meta/one"])["rpc_port"] == engine.get_rpc_port()


STANDS = """
import ctypes, sys
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("one", sys.argv[1], "tcp", "") == 0
memory = ctypes.create_string_buffer(sys.argv[2].encode() * 4096, 4096)
assert engine.register_memory(ctypes.addressof(memory), 4096) == 0
print(ctypes.addressof(memory), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("force_tcp", ["", "1"])
def test_an_engine_that_was_started_again_is_met_again(server: Server, monkeypatch: pytest.MonkeyPatch, force_tcp: str) -> None:
    """A peer that had met the engine that was killed tried the place where that had been, each time for as long as a transfer may
    take, and never asked for the one that has the name now."""
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    if force_tcp:
        monkeypatch.setenv("MC_FORCE_TCP", force_tcp)
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    here, mine = engine_of("here", server.url)
    x = ctypes.addressof(mine)
    for life in ("a", "b"):
        words = [sys.executable, "-c", STANDS, server.url, life]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            y = int(process.stdout.readline())
            moved = [here.transfer_sync_read("one", x, y, 5) for _ in range(2)]
            assert moved[-1] == 0 and mine.raw[:5] == life.encode() * 5, moved
            process.kill()
    # With nobody there, a call fails as soon as the name leads nowhere.
    assert here.transfer_sync_read("one", x, y, 5) == -1
    began = time.monotonic()
    assert here.transfer_sync_read("one", x, y, 5) == -1 and time.monotonic() - began < 4


@pytest.mark.parametrize("where", ["another machine", "a program that is slow"])
def test_the_name_of_an_engine_that_may_be_there_is_taken(server: Server, where: str) -> None:
    """The entry of an engine that was not reached, or did not answer at once, was removed."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        host, port = ("192.0.2.1", 9) if where == "another machine" else slow.getsockname()
        server.texts["mooncake/rpc_meta/one"] = entry = json.dumps({"ip_or_host_name": host, "rpc_port": port}).encode()
        assert TransferEngine().initialize("one", server.url, "tcp", "") == -1
        assert server.texts["mooncake/rpc_meta/one"] == entry


def test_an_engine_takes_the_entry_of_one_that_had_its_port(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It found itself there, and was refused for ever where engines are given one port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MC_MIN_RPC_PORT", str(port))
    monkeypatch.setenv("MC_MAX_RPC_PORT", str(port))
    server.texts["mooncake/rpc_meta/one"] = json.dumps({"ip_or_host_name": "127.0.0.1", "rpc_port": port}).encode()
    engine, _ = engine_of("one", server.url)
    assert engine.get_rpc_port() == port and list(server.texts) == ["mooncake/rpc_meta/one"]


ENDS = """
import sys, threading
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("one", sys.argv[1], "tcp", "") == 0

def refused(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refused
"""


def test_the_entry_of_an_engine_ends_with_its_program(server: Server) -> None:
    """Python 3.12 starts no thread any more when it ends the engines that are left: the entry stayed, as did the engine."""
    done = subprocess.run([sys.executable, "-c", ENDS, server.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert server.texts == {}


ENTRIES = [b"", b"{}", b"[]", b'"x"', b'{"ip_or_host_name": 5, "rpc_port": 1}', b"[" * 3000,
           b'{"ip_or_host_name": "127.0.0.1", "rpc_port": "1"}', b'{"ip_or_host_name": "127.0.0.1", "rpc_port": 0}',
           b'{"ip_or_host_name": "127.0.0.1", "rpc_port": true}', b'{"ip_or_host_name": "127.0.0.1", "rpc_port": 65536}',
           b'{"ip_or_host_name": "192.0.2.1", "rpc_port": 1}', bytes(5000)]  # fmt: skip


def test_entries_that_are_none_are_refused(server: Server) -> None:
    engine, memory = engine_of("one", server.url)
    for entry in ENTRIES:
        server.texts["mooncake/rpc_meta/bad"] = entry
        assert engine.transfer_sync_write("bad", ctypes.addressof(memory), 4096, 5) == -1, entry


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:2379", "expected P2PHANDSHAKE or http://"),
        ("etcd://127.0.0.1:2379", "expected P2PHANDSHAKE or http://"),
        ("https://127.0.0.1:1/metadata", "expected P2PHANDSHAKE or http://"),
        ("http:///metadata", "expected P2PHANDSHAKE or http://"),
        ("http://127.0.0.1:99999/metadata", "out of range"),
        ("http://127.0.0.1:1/metadata", "refused"),
        ("", "expected P2PHANDSHAKE or http://"),
    ],
)
def test_a_server_that_is_none_is_named(url: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = TransferEngine()
    assert engine.initialize("one", url, "tcp", "") == -1
    assert reason in caplog.text and engine.get_rpc_port() == 0


def test_an_engine_goes_on_and_ends_without_its_server(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    (here, mine), (there, theirs) = engine_of("here", server.url), engine_of("there", server.url)
    assert here.transfer_sync_write("there", ctypes.addressof(mine), ctypes.addressof(theirs), 5) == 0
    server.answer = lambda asked: Answer(500, b"broken")
    assert TransferEngine().initialize("three", server.url, "tcp", "") == -1 and "500 b'broken'" in caplog.text
    server.close()
    assert here.transfer_sync_write("there", ctypes.addressof(mine), ctypes.addressof(theirs), 5) == 0
    del here, there
    with contextlib.suppress(OSError):
        gc.collect()
    assert caplog.text.count("the entry in the metadata server stays") == 2
