"""Thin clients, in this process and in processes of their own."""

import ctypes
import errno
import gc
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import calls
import mooncake.store
import pytest
from facts import comes_true, counted, leaves_nothing
from mooncake.store import MooncakeDistributedStore
from slackwater.compat.mooncake.standalone import ThinClients
from slackwater.compat.mooncake.thin import MESSAGE_BYTES_MAX, PoolAccess, attach, socket_name
from standalones import fetched, free_port, free_tcp_port, heard, standalone, thin_process
from test_calls import TABLE
from test_life import setup
from test_tensors import matrix, torch

from conftest import Starter, in_child
from processes import stop

__all__ = ["torch"]

ACCESS = PoolAccess("localhost:12345", "127.0.0.1:1", "tcp", "default", "")
CODES = {-200, -703, -704, -900, -901}
@pytest.fixture(scope="module")
def pool(started: Starter) -> Iterator[tuple[str, str]]:
    """A master, and a stand-alone client that lends it memory: the addresses of both."""
    with started("master") as (master, _), standalone(master, "--global_segment_size=64 MB") as (address, _):
        yield master, address


@pytest.fixture(scope="module")
def shared_thin(pool: tuple[str, str]) -> Iterator[calls.Player]:
    """A thin client for the tests of this file."""
    store = MooncakeDistributedStore()
    assert store.setup_dummy(1 << 20, 16 << 20, pool[1]) == 0
    yield calls.Player(mooncake.store, store)
    store.close()


@pytest.fixture
def thin(shared_thin: calls.Player) -> calls.Player:
    """It, with nothing in the pool."""
    shared_thin.store.remove_all(True)
    shared_thin.fill()
    return shared_thin


@pytest.mark.parametrize("name", TABLE)
def test_calls_of_a_thin_client_return_what_they_promise(name: str, thin: calls.Player) -> None:
    for call, expected in TABLE[name]:
        assert thin.play(call) == expected, call


def test_a_thin_client_is_opened_once_and_closed(pool: tuple[str, str]) -> None:
    master, address = pool
    store = MooncakeDistributedStore()
    assert store.health_check() == 1 and store.alloc_from_mem_pool(1) == 0
    assert store.setup_dummy(1 << 20, 1 << 20, address) == 0 == store.setup_dummy(1 << 20, 1 << 20, address)
    assert store.remove_all(True) >= 0
    host, port = store.get_hostname().split(":")
    assert host == "127.0.0.1" and 12300 <= int(port) <= 14300
    assert store.setup_dummy(2 << 20, 1 << 20, address) == -1010 == setup(store, master)
    assert store.health_check() == 0
    # The length of what is put from bytes is that of the buffer.
    assert store.put("k", bytes(1 << 20)) == 0 and store.put("l", bytes((1 << 20) + 1)) == -600
    assert store.close() == 0 == store.close()
    assert store.health_check() == 1 and store.put("k", b"v") == -600 and store.alloc_from_mem_pool(1) == 0
    assert setup(store, master) == 0
    assert store.setup_dummy(1 << 20, 1 << 20, address) == -1010
    assert store.get_size("k") == 1 << 20 and store.remove("k", True) == 0 == store.close()
    assert store.setup_dummy(0, 0, address) == 0
    assert store.alloc_from_mem_pool(1) == 0 and store.put("k", b"v") == -600
    assert store.close() == 0


def test_memory_of_the_pool_is_handed_out_until_it_is_used_up(thin: calls.Player, pool: tuple[str, str]) -> None:
    store = MooncakeDistributedStore()
    assert store.setup_dummy(1 << 20, 1 << 20, pool[1]) == 0
    one, other = store.alloc_from_mem_pool(100), store.alloc_from_mem_pool(1 << 19)
    assert one and one % 64 == 0 and other == one + 128
    left = (1 << 20) - 128 - (1 << 19)
    assert [store.alloc_from_mem_pool(size) for size in (0, -1, left + 1)] == [0, 0, 0]
    last = store.alloc_from_mem_pool(left)
    assert last == other + (1 << 19) and store.alloc_from_mem_pool(1) == 0
    ctypes.memset(one, 7, 100)
    assert store.put_from("k", one, 100) == 0
    assert store.get_into("k", last, left) == 100 and ctypes.string_at(last, 100) == bytes([7]) * 100
    # Parts are copied into registered memory alone, and all of this is.
    assert store.get_into_ranges([one], [["k"]], [[[left]]], [[[0]]], [[[10]]]) == [[[10]]]
    assert store.register_buffer(one, 100) == -600
    assert store.close() == 0
    # The addresses are the same after another opening, as a call may still have been using them, and the bytes are not.
    assert store.setup_dummy(1 << 20, 1 << 20, pool[1]) == 0
    assert store.alloc_from_mem_pool(100) == one and ctypes.string_at(one, 100) == bytes(100)
    assert store.close() == 0
    # What is left counts from the next address, not from the last byte in use.
    assert store.setup_dummy(100, 0, pool[1]) == 0
    first = store.alloc_from_mem_pool(10)
    assert [store.alloc_from_mem_pool(size) - first for size in (37, 36)] == [-first, 64]
    assert store.close() == 0


def test_memory_is_given_back_when_no_call_uses_it(pool: tuple[str, str]) -> None:
    """A put that waited for room when its client was closed stored zeros: the memory was given back under it."""
    store = MooncakeDistributedStore()
    assert store.setup_dummy(1 << 20, 1 << 20, pool[1]) == 0
    address = store.alloc_from_mem_pool(100)
    ctypes.memset(address, 7, 100)
    raw, seen = store._raw, []

    class Told:
        def __getattr__(self, name: str) -> Any:
            if name in ("unregister", "close"):
                seen.append((name, ctypes.string_at(address, 1)))
            return getattr(raw, name)

    store._raw = Told()  # type: ignore[assignment]
    assert store.close() == 0
    assert seen == [("unregister", b"\x07"), ("close", b"\x07")]
    assert ctypes.string_at(address, 1) == b"\x00"


def test_openings_leave_nothing_behind(pool: tuple[str, str]) -> None:
    store = MooncakeDistributedStore()
    before, maps = counted(), []
    for opening in range(30):
        assert store.setup_dummy(1 << 20, 1 << 20, pool[1]) == 0
        assert store.upsert("k", b"v") == 0 and store.get("k") == b"v"
        store.close()
        assert MooncakeDistributedStore().setup_dummy(1 << 20, 1 << 20, pool[1]) == 0
        if opening == 5:
            before = counted()
        maps.append(Path("/proc/self/maps").read_text().count("\n"))
    assert leaves_nothing(before), (before, counted())
    # Allocators keep some mappings, in number independent of the openings.
    assert maps[-1] - maps[9] < 10, maps


ARGUMENTS: list[tuple[tuple[Any, ...], int, str]] = [
    ((1 << 63, 1, "127.0.0.1:1"), -600, "more than any memory"),
    ((1, 1 << 63, "127.0.0.1:1"), -600, "more than any memory"),
    ((1 << 50, 1, "127.0.0.1:1"), -600, "mem_pool_size"),
    ((1, 1, "127.0.0.1"), -600, "HOST:PORT"),
    ((1, 1, "127.0.0.1:99999"), -600, "no port"),
    ((1, 1, "tcp://127.0.0.1:1"), -600, "HOST:PORT"),
    ((1, 1, "192.0.2.1:1"), -600, "another machine"),
    ((1, 1, "no.such.host.invalid:1"), -600, "no.such.host.invalid"),
    ((1, 1, "127.0.0.1:1"), -900, "no stand-alone client at 127.0.0.1:1"),
    ((1, 1, "[::1]:1"), -900, "no stand-alone client"),
]


@pytest.mark.parametrize(("given", "code", "reason"), ARGUMENTS)
def test_an_opening_that_is_refused_says_why(
    given: tuple[Any, ...], code: int, reason: str, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    store = MooncakeDistributedStore()
    assert store.setup_dummy(*given) == code
    assert reason in caplog.text
    assert store.health_check() == 1 and store.put("k", b"v") == -600 and store.close() == 0


@pytest.mark.parametrize("given", [(-1, 1, "x:1"), (1, 1.5, "x:1"), ("1", 1, "x:1"), (1, 1, 50052), (1, 1)])
def test_wrong_types_are_named(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="mem_pool_size|local_buffer_size|server_address"):
        MooncakeDistributedStore().setup_dummy(*given)


@contextmanager
def impostor(message: bytes | None) -> Iterator[str]:
    """Something at the socket of a stand-alone client that says this to one client and leaves, or says nothing."""
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(socket_name(port))
        listener.listen(1)

        def tell() -> None:
            connection, _ = listener.accept()
            with connection:
                if message:
                    connection.send(message)

        teller = threading.Thread(target=tell)
        if message is not None:
            teller.start()
        yield f"127.0.0.1:{port}"
        if message is not None:
            teller.join()


def told(**changed: Any) -> bytes:
    """What a stand-alone client says, with something changed."""
    said = json.loads(ACCESS.message()) | changed
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


IMPOSTORS: list[tuple[bytes | None, int, str]] = [
    (None, -900, "no answer in 1.0 s"),
    (b"", -900, "takes no more thin clients"),
    (b"\x80\x04N.", -600, "not JSON"),
    (b"[" * MESSAGE_BYTES_MAX, -600, "not JSON"),
    (b"[]", -600, "version 1"),
    (told(version=2), -600, "version 1"),
    (told(hostname="h" * MESSAGE_BYTES_MAX), -600, "more than 16384 bytes"),
    (told(hostname=None), -600, "other names"),
    (told(another="x"), -600, "other names"),
    (told(key_file=1), -600, "other names"),
    (told(protocol="pigeon"), -1, "unknown protocol"),
    (told(hostname=""), -600, "host name is empty"),
    (told(master_server_addr="etcd://x"), -600, "etcd"),
    (told(), -900, "tcp://127.0.0.1:1"),
]


@pytest.mark.parametrize(("message", "code", "reason"), IMPOSTORS)
def test_what_is_no_stand_alone_client_is_refused_in_time(
    message: bytes | None, code: int, reason: str, soon: None, pool: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    store = MooncakeDistributedStore()
    with impostor(message) as address:
        begun = time.monotonic()
        assert store.setup_dummy(1 << 20, 1, address) == code
        assert time.monotonic() - begun < 10
    assert reason in caplog.text
    assert store.health_check() == 1 and store.alloc_from_mem_pool(1) == 0
    # Nothing is left of it when the client is opened otherwise.
    assert setup(store, pool[0]) == 0 == store.health_check() == store.alloc_from_mem_pool(1) == store.close()


def test_a_queue_that_is_full_is_waited_for_in_time(soon: None) -> None:
    """The wait for a place has no end of its own."""
    with impostor(None) as address:
        port = int(address.split(":")[1])
        with closing(connected(port)), closing(connected(port)):
            begun = time.monotonic()
            assert MooncakeDistributedStore().setup_dummy(0, 0, address) == -900
            assert 0.9 < time.monotonic() - begun < 10


def test_what_is_told_arrives() -> None:
    with impostor(ACCESS.message()) as address:
        connection, access = attach(address, 5)
        connection.close()
    assert access == ACCESS
    with pytest.raises(ValueError, match="at most"):
        PoolAccess("h" * MESSAGE_BYTES_MAX, "", "", "", "").message()


def as_nobody(work: Callable[[], bool]) -> bool:
    """Whether something holds in a process of another user."""

    def switched() -> bool:
        os.setresuid(65534, 65534, 65534)
        return work()

    return in_child(switched)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_other_users_are_not_served_and_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    with few_served(5) as (port, clients):

        def is_sent_away() -> bool:
            with closing(connected(port)) as connection:
                return connection.recv(1) == b""

        assert as_nobody(is_sent_away)
        assert clients.refused == 1 and not clients.connected
    ready, go = os.pipe()
    port = free_port()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.setresuid(65534, 65534, 65534)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(socket_name(port))
            listener.listen(1)
            os.write(go, b"x")
            connection, _ = listener.accept()
            with suppress(OSError):
                connection.send(ACCESS.message())
        os._exit(0)
    os.close(go)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    store = MooncakeDistributedStore()
    assert store.setup_dummy(1, 1, f"127.0.0.1:{port}") == -601
    assert "belongs to user 65534" in caplog.text
    os.waitpid(child, 0)


def connected(port: int) -> socket.socket:
    """A connection to the stand-alone client of a port."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    connection.connect(socket_name(port))
    return connection


@contextmanager
def few_served(most: int) -> Iterator[tuple[int, ThinClients]]:
    """The port of something that serves so many thin clients at a time."""
    port = free_port()
    clients = ThinClients(port, most)
    clients.listen(ACCESS.message())
    stop, stopper = socket.socketpair()
    thread = threading.Thread(target=clients.run, args=(stop,))
    thread.start()
    try:
        yield port, clients
    finally:
        stopper.send(b"x")
        thread.join()
        clients.close()
        stop.close()
        stopper.close()


def test_thin_clients_are_so_many_at_most_and_say_nothing() -> None:
    with few_served(2) as (port, clients):
        one, other, third = (connected(port) for _ in range(3))
        assert PoolAccess.of(one.recv(1 << 16)) == ACCESS == PoolAccess.of(other.recv(1 << 16))
        assert third.recv(1) == b"" and clients.refused == 1
        third.close()
        # One that says something is sent away, however much it is, and its place is free.
        one.send(bytes(1 << 15))
        assert comes_true(lambda: len(clients.connected) == 1) and clients.refused == 2
        with suppress(ConnectionResetError):
            assert one.recv(1 << 16) == b""
        fourth = connected(port)
        assert PoolAccess.of(fourth.recv(1 << 16)) == ACCESS
        # Nor does one that leaves at once, or never reads, keep anything.
        for leaving in (one, other, fourth):
            leaving.close()
        for _ in range(500):
            connected(port).close()
        assert comes_true(lambda: not clients.connected)
        with closing(connected(port)) as last:
            assert PoolAccess.of(last.recv(1 << 16)) == ACCESS
    with pytest.raises(ConnectionRefusedError):
        connected(port)


def test_without_descriptors_thin_clients_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that cannot be taken stays in the queue, which was looked at again without a pause."""
    taken, tries = socket.socket.accept, []

    def exhausted(listener: socket.socket) -> Any:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "too many open files")
        return taken(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    with few_served(5) as (port, _), closing(connected(port)) as waiting:
        assert PoolAccess.of(waiting.recv(1 << 16)) == ACCESS
    assert len(tries) == 3 and tries[2] - tries[0] > 1.9
    assert caplog.text.count("a thin client waits: ") == 2


def test_memory_is_handed_over_by_descriptor(thin: calls.Player, pool: tuple[str, str]) -> None:
    """A thin client maps the memory that the stand-alone client lends, unless it is to use nothing but TCP."""
    assert thin.store.put("k", bytes(range(256)) * 4096) == 0
    code = """
assert store.get("k") == bytes(range(256)) * 4096
say(open("/proc/self/maps").read().count("memfd:slackwater"))
"""
    for environment, is_mapped in (({}, True), ({"MC_FORCE_TCP": "1"}, False)):
        with thin_process(pool[1], code, **environment) as process:
            assert (int(heard(process)) > 0) == is_mapped


SHARER = """
me = int(input())
size = 100_000
memory = store.alloc_from_mem_pool(2 * size)
wrong = 0
for turn in range(20):
    ctypes.memset(memory, (me + turn) % 256, size)
    keys = [f"{me}-{turn}-{one}" for one in range(4)]
    wrong += store.batch_put_from(keys, [memory] * 4, [size - one for one in range(4)]) != [0] * 4
    read = store.batch_get_into(keys[:1], [memory + size], [size])
    wrong += read != [size] or ctypes.string_at(memory, size) != ctypes.string_at(memory + size, size)
    wrong += store.batch_is_exist(keys) != [1] * 4 or store.batch_remove(keys, True) != [0] * 4
say(wrong)
input()
"""


def test_many_processes_share_a_stand_alone_client(started: Starter) -> None:
    http = free_tcp_port()
    flags = ["--global_segment_size=64MB", "--enable_http_server", f"--http_port={http}"]
    with started("master") as (master, _), standalone(master, *flags) as (address, _):

        def count() -> int:
            text = fetched(http, "/metrics")[1]
            return int(text.split("\nslackwater_thin_clients ")[1].split("\n")[0])

        many = 12
        contexts = [thin_process(address, SHARER) for _ in range(many)]
        processes = [context.__enter__() for context in contexts]
        try:
            for number, process in enumerate(processes):
                assert process.stdin is not None
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
            assert [heard(process) for process in processes] == ["0"] * many
            assert count() == many
        finally:
            for context in contexts:
                context.__exit__(None, None, None)
        assert comes_true(lambda: count() == 0)
        assert fetched(http, "/health") == (200, '{"status": "ok", "code": 0}')
        assert fetched(http, "/metrics/summary") == (200, "thin clients that are connected: 0, thin clients that were sent away: 0\n")
        assert fetched(http, "/other")[0] == 404 and fetched(http, "/health", "POST")[0] == 405


def test_a_killed_thin_client_holds_nothing(started: Starter) -> None:
    """Its leases end by their time, though it asked for more each moment, and its open session is nobody's."""
    with started("master", "--lease-ttl", "2s") as (master, _):
        with standalone(master, "--global_segment_size=32MB") as (address, _):
            other = MooncakeDistributedStore()
            assert other.setup_dummy(0, 1 << 20, address) == 0
            assert other.put("leased", b"value") == 0
            code = """
assert store.batch_put_session_start(["open"], [1 << 20]) == [0]
while store.get("leased") == b"value":
    say("holds")
    time.sleep(0.1)
"""
            with thin_process(address, code) as process:
                assert [heard(process) for _ in range(3)] == ["holds"] * 3
                assert other.remove("leased") == -706
                process.kill()
                process.wait()
                assert comes_true(lambda: other.remove("leased") == 0)
            assert other.batch_put_session_start(["open"], [1 << 20]) == [0] == other.batch_put_session_revoke(["open"])
            other.close()


WRITER = """
size = 24 << 20
memory = store.alloc_from_mem_pool(size)
ctypes.memset(memory, 1, size)
say("writes")
while True:
    store.put_from("k", memory, size)
    store.remove("k", True)
"""


def test_the_room_of_a_put_comes_back_when_its_writer_is_killed(started: Starter) -> None:
    with started("master", "--put-wait", "5s") as (master, _):
        with standalone(master, "--global_segment_size=32MB") as (address, _):
            other = MooncakeDistributedStore()
            assert other.setup_dummy(24 << 20, 1 << 20, address) == 0
            memory = other.alloc_from_mem_pool(24 << 20)
            for turn in range(4):
                with thin_process(address, WRITER) as process:
                    assert heard(process) == "writes"
                    time.sleep(0.05 + 0.02 * turn)
                    process.kill()
                    process.wait()
                    # What it has published is a value like others; what it has not was never there.
                    assert other.is_exist("k") in (0, 1)
                    other.remove("k", True)
                    assert other.put_from("mine", memory, 24 << 20) == 0
                    assert other.remove("mine", True) == 0
            other.close()


def test_a_killed_stand_alone_client_stops_nobody(
    started: Starter, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call ends within its time, what others hold is read as before, and the next one is used without more ado."""
    with started("master", "--put-wait", "100ms") as (master, _):
        lender = calls.opened(mooncake.store, master, segment=16 << 20)
        port = free_port()
        with standalone(master, "--global_segment_size=16MB", port=port) as (address, process):
            store = MooncakeDistributedStore()
            assert store.setup_dummy(1 << 20, 1 << 20, address) == 0
            player = calls.Player(mooncake.store, store)
            keys = [f"k{one}" for one in range(40)]
            assert [store.put(key, key.encode()) for key in keys] == [0] * 40
            process.kill()
            process.wait()
            begun = time.monotonic()

            def got(key: str) -> Any:
                return player.play(["get_into", [key, {"@": 0}, 100]])

            # The kernel ends a process before it hangs up its links: until that is told, what is mapped here is read.
            assert comes_true(lambda: any(got(key) not in (2, 3) for key in keys))
            read = [got(key) for key in keys]
            assert set(read) <= {2, 3} | CODES, read
            here = [key for key, size in zip(keys, read, strict=True) if size > 0]
            assert 0 < len(here) < 40
            assert all(store.get(key) == key.encode() for key in here)
            each = [
                ["put", ["new", {"bytes": "v"}]],
                ["put_from", ["newer", {"@": 0}, 10]],
                ["upsert", [keys[0], {"bytes": "v"}]],
                ["is_exist", ["new"]],
                ["get_size", ["new"]],
                ["remove", ["new", True]],
                ["batch_put_from", [["a", "b"], [{"@": 0}, {"@": 9}], [5, 5]]],
                ["batch_get_into", [["a", "b"], [{"@": 0}, {"@": 9}], [5, 5]]],
            ]
            for call in each:
                before = time.monotonic()
                result = player.play(call)
                assert all(one >= 0 or one in CODES for one in (result if isinstance(result, list) else [result])), call
                # A batch has a second for each of its keys.
                assert time.monotonic() - before < 6, call
            assert time.monotonic() - begun < 120
            assert store.health_check() == 2
        with standalone(master, "--global_segment_size=16MB", port=port) as (address, _):
            assert store.put("again", b"v") == 0 and store.get("again") == b"v"
            assert store.health_check() == 2 and store.close() == 0
            assert store.setup_dummy(1 << 20, 1 << 20, address) == 0 == store.health_check() == store.close()
        lender.store.close()


def test_a_stopped_stand_alone_client_hangs_nobody(
    started: Starter, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    with started("master") as (master, _), standalone(master, "--global_segment_size=0") as (address, process):
        stop(process)
        store = MooncakeDistributedStore()
        begun = time.monotonic()
        assert store.setup_dummy(0, 1 << 20, address) == -900
        assert time.monotonic() - begun < 5 and "no answer in 1.0 s" in caplog.text
        os.kill(process.pid, signal.SIGCONT)
        assert store.setup_dummy(0, 1 << 20, address) == 0
        # It lends nothing, so nothing is lost while it is stopped.
        stop(process)
        assert store.is_exist("k") == 0 == store.health_check() == store.close()
        os.kill(process.pid, signal.SIGCONT)


def test_a_fork_of_a_thin_client_is_none(shared_thin: calls.Player, pool: tuple[str, str]) -> None:
    store = shared_thin.store

    def is_none() -> bool:
        refused = store.setup_dummy(1, 1, pool[1]) == -1012 == store.health_check() and store.alloc_from_mem_pool(1) == 0
        return refused and store.close() == 0 == (own := MooncakeDistributedStore()).setup_dummy(1, 1, pool[1]) == own.close()

    with store._lock:
        assert in_child(is_none)
    assert store.health_check() == 0 and store.put("forked", b"v") == 0


def test_a_tensor_keeps_the_memory_of_a_thin_client(torch: Any, pool: tuple[str, str]) -> None:
    """A tensor over the memory of a thin client was zeros after `close`, and ended the process once the store was gone."""
    store, wanted = MooncakeDistributedStore(), matrix().tolist()
    assert store.setup_dummy(4096, 1 << 20, pool[1]) == 0
    assert store.upsert_tensor("k", torch.from_numpy(matrix())) == 0
    address = store.alloc_from_mem_pool(400)
    tensor = store.get_tensor_into("k", address, 400)
    assert store.close() == 0
    assert tensor.numpy().tolist() == wanted
    assert store.setup_dummy(4096, 1 << 20, pool[1]) == 0
    other = store.alloc_from_mem_pool(4096)
    assert other not in (0, address)
    assert store.get_tensor_into("k", other, 400).numpy().tolist() == wanted and tensor.numpy().tolist() == wanted
    # Nobody looks at the second memory any more, which is used again, and empty.
    assert store.close() == 0 == store.setup_dummy(4096, 1 << 20, pool[1])
    assert store.alloc_from_mem_pool(4096) == other and ctypes.string_at(other, 4096) == bytes(4096)
    assert store.close() == 0
    del store
    gc.collect()
    assert tensor.numpy().tolist() == wanted
    del tensor
