"""The transfer engine: every call with success, misuse and failure; what Mooncake 0.3.13 returns is what is expected."""

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import mooncake.store
import pytest
from facts import comes_true, counted, leaves_nothing
from mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write
from slackwater.compat.mooncake import descriptions, http_service
from slackwater.compat.mooncake import engine as compat_engine
from slackwater.compat.mooncake.engine import InnerTransferEngine

from conftest import in_child
from processes import stop

BYTES = 65536
NOBODY = "127.0.0.1:1"


class Side:
    """An engine and memory that it has registered."""

    def __init__(self, fill: int, *, registers: bool = True) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.memory = ctypes.create_string_buffer(bytes([fill]) * BYTES, BYTES)
        self.at = ctypes.addressof(self.memory)
        if registers:
            assert self.engine.register_memory(self.at, BYTES) == 0

    @property
    def name(self) -> str:
        """By which peers know it."""
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def has(self, offset: int, expected: bytes) -> bool:
        """Whether these bytes are there."""
        return self.memory.raw[offset : offset + len(expected)] == expected


@pytest.fixture
def here() -> Side:
    return Side(1)


@pytest.fixture
def there() -> Side:
    return Side(0)


OTHER = """
import ctypes, sys
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("localhost", "P2PHANDSHAKE", "tcp", "") == 0
memory = ctypes.create_string_buffer(b"7" * 65536, 65536)
at = ctypes.addressof(memory)
assert engine.register_memory(at, 65536) == 0
print(engine.get_rpc_port(), at, flush=True)
for line in sys.stdin:
    print(memory.raw[:5].decode("latin-1"), [(one.name, one.msg) for one in engine.get_notifies()], flush=True)
"""


@contextmanager
def another_process() -> Iterator[tuple["subprocess.Popen[str]", str, int]]:
    """A process with an engine: its name, and the address of its memory."""
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, at = process.stdout.readline().split()
        try:
            yield process, f"127.0.0.1:{port}", int(at)
        finally:
            process.kill()


def test_transfers_that_are_waited_for(here: Side, there: Side) -> None:
    engine, peer, x, y = here.engine, there.name, here.at, there.at
    assert 15000 <= engine.get_rpc_port() <= 17000
    assert engine.get_first_buffer_address(peer) == y and engine.get_first_buffer_address(NOBODY) == 0
    assert engine.transfer_sync_write(peer, x, y, 100) == 0 and there.has(0, b"\1" * 100 + b"\0")
    there.memory[1000:1010] = b"0123456789"
    assert engine.transfer_sync_read(peer, x + 5, y + 1000, 10) == 0 and here.has(4, b"\0010123456789\1")
    assert engine.transfer_sync_write(peer, x, y, 0) == 0
    assert engine.transfer_sync_write(peer, x, y + BYTES - 10, 10) == 0
    for address, length in ((y + BYTES, 10), (y + BYTES - 9, 10), (y - 1, 10), (0, 10), (y, BYTES + 1)):
        assert engine.transfer_sync_write(peer, x, address, length) == -1
        assert engine.transfer_sync_read(peer, x, address, length) == -1
    for nobody in (NOBODY, "nonsense", "", "127.0.0.1"):
        assert engine.transfer_sync_write(nobody, x, y, 10) == -1
    assert engine.transfer_sync_write(peer, 0, y, 10) == -1
    with pytest.raises(TypeError):
        engine.transfer_sync_write(peer, -1, y, 10)
    loose = ctypes.create_string_buffer(b"loose", 5)
    assert engine.transfer_sync_write(peer, ctypes.addressof(loose), y, 5) == 0 and there.has(0, b"loose")
    assert engine.transfer_sync_read(peer, ctypes.addressof(loose), y + 1000, 5) == 0 and loose.raw == b"01234"
    assert engine.transfer_sync(peer, x, y, 3, TransferOpcode.Write) == 0
    assert engine.transfer_sync(peer, x, y, 3, opcode=Read, notify=None, transport_hint="") == 0

    assert engine.batch_transfer_sync_write(peer, [x + 5, x + 7], [y, y + 100], [2, 3]) == 0
    assert there.has(0, b"01") and there.has(100, b"234")
    assert engine.batch_transfer_sync_read(peer, [x, x + 1], [y + 1000, y + 1002], [1, 1]) == 0 and here.has(0, b"02")
    assert engine.batch_transfer_sync_write(peer, [], [], []) == 0
    for lists in (([x], [y, y], [5, 5]), ([x, x], [y], [5, 5]), ([x, x], [y, y], [5])):
        assert engine.batch_transfer_sync_write(peer, *lists) == -1
        assert engine.batch_transfer_sync(peer, *lists, Write) == -1
        assert engine.batch_transfer_async_write(peer, *lists) == 0
    assert engine.batch_transfer_sync_read(peer, [x, x], [y, y + 2 * BYTES], [5, 5]) == -1
    loose_too = [x, ctypes.addressof(loose)]
    assert engine.batch_transfer_sync(peer, loose_too, [y, y + 1000], [2, 5], Read) == 0
    assert here.has(0, b"01") and loose.raw == b"01234"


def test_transfers_that_are_looked_after(here: Side, there: Side) -> None:
    engine, peer, x, y = here.engine, there.name, here.at, there.at
    ids = [engine.batch_transfer_async_write(peer, [x, x], [y, y + 100], [10, 10]) for _ in range(10)]
    assert all(one > 0 for one in ids) and len(set(ids)) == 10
    assert engine.get_batch_transfer_status(ids) == 0 == engine.get_batch_transfer_status([])
    assert there.has(100, b"\1" * 10 + b"\0")
    # A batch is told of once.
    assert engine.get_batch_transfer_status(ids[:1]) == -1
    assert [engine.transfer_check_status(one) for one in (ids[0], 0, -1, 1 << 40, 1 << 70)] == [-1] * 5
    one = engine.transfer_submit_write(peer, x, y + 200, 10)
    while (status := engine.transfer_check_status(one)) == 0:
        pass
    assert status == 1 and there.has(200, b"\1" * 10) and engine.transfer_check_status(one) == -1
    assert engine.get_batch_transfer_status([engine.batch_transfer_async(peer, [x], [y + 300], [5], Read)]) == 0
    assert engine.get_batch_transfer_status([engine.batch_transfer_async_read(peer, [x], [y + 300], [5])]) == 0
    assert here.has(0, b"\0" * 5 + b"\1")
    assert engine.batch_transfer_async_write(NOBODY, [x], [y], [5]) == 0
    assert engine.transfer_submit_write(peer, x, y + BYTES, 5) == 0
    loose = ctypes.create_string_buffer(5)
    assert engine.transfer_submit_write(peer, ctypes.addressof(loose), y, 5) == 0


def test_memory_is_registered_and_not(here: Side, there: Side) -> None:
    engine, x = here.engine, here.at
    for start, length, code in ((x, BYTES, -7), (x + 10, 100, -7), (x, 0, -1), (0, 10, -1), (x, -1, -1)):
        assert engine.register_memory(start, length) == code
    assert engine.unregister_memory(x + 1) == -3
    assert engine.unregister_memory(x) == 0 and engine.unregister_memory(x) == -3
    assert engine.batch_register_memory([x, x + 1000], [100, 100], location="cpu:0") == 0
    assert engine.batch_unregister_memory([x, x + 1000]) == 0 and engine.batch_unregister_memory([x]) == -3
    # All or none.
    assert engine.batch_register_memory([x, x + 50], [100, 100]) == -7
    assert engine.batch_register_memory([x], [1, 2]) == -1
    assert engine.register_memory(x, BYTES) == 0

    managed = engine.allocate_managed_buffer(1000)
    assert managed and engine.transfer_sync_read(there.name, managed, there.at, 1000) == 0
    assert engine.write_bytes_to_buffer(managed, b"hello", 5) == 0 == engine.write_bytes_to_buffer(managed, b"", 0)
    assert engine.read_bytes_from_buffer(managed, 6) == b"hello\0"
    assert engine.write_bytes_to_buffer(managed, "text", 3) == 0 and engine.read_bytes_from_buffer(managed, 5) == b"texlo"
    loose = ctypes.create_string_buffer(10)
    for start, data, length in ((ctypes.addressof(loose), b"x", 1), (managed + 996, b"12345", 5), (managed, b"x", 2)):
        assert engine.write_bytes_to_buffer(start, data, length) == -1
    assert engine.read_bytes_from_buffer(ctypes.addressof(loose), 5) == b"" == engine.read_bytes_from_buffer(managed, -1)
    assert engine.free_managed_buffer(managed, 1000) == 0 and engine.free_managed_buffer(managed, 1000) == -1
    assert engine.allocate_managed_buffer(0) == 0 == engine.allocate_managed_buffer(1 << 62)


def test_a_peer_that_changes_is_asked_again(here: Side, there: Side) -> None:
    """Its memory is registered anew, elsewhere or by another engine at the same port: what was known of it is refused, and
    the call finds out."""
    engine, x, y = here.engine, here.at, there.at
    assert engine.transfer_sync_write(there.name, x, y, 10) == 0
    assert there.engine.unregister_memory(y) == 0
    assert engine.transfer_sync_write(there.name, x, y, 10) == -1
    assert there.engine.register_memory(y, 100) == 0
    assert engine.transfer_sync_write(there.name, x, y, 10) == 0
    assert engine.transfer_sync_write(there.name, x, y + 100, 10) == -1
    assert there.engine.register_memory(y + 100, 100) == 0
    assert engine.get_batch_transfer_status([engine.transfer_submit_write(there.name, x, y + 100, 10)]) == 0
    assert engine.get_first_buffer_address(there.name) == y


def test_a_peer_of_two_names_is_asked_again_by_both(here: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another engine took its port, the call by one name forgot the peer for the other name too, by which nobody was found
    again."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for variable in ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"):
        monkeypatch.setenv(variable, str(port))
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost")]
    for tries in (1, 2):
        there = Side(tries)
        for name in names:
            moved = [here.engine.transfer_sync_read(name, here.at, there.at, 5) for _ in range(tries)]
            assert moved[-1] == 0 and here.has(0, bytes([tries]) * 5), (name, moved)
        del there
        gc.collect()


def test_a_peer_that_refuses_what_is_not_waited_for_is_asked_again(here: Side, there: Side) -> None:
    """What was known of a peer was asked for again by calls that wait alone: when it registered its memory anew, every call
    that does not wait failed from then on."""
    engine, x, y = here.engine, here.at, there.at
    ends = (
        lambda batch: engine.get_batch_transfer_status([batch]) == 0,
        lambda batch: until_over(engine, batch) == 1,
    )
    for is_fine in ends:
        assert is_fine(engine.transfer_submit_write(there.name, x, y, 10))
        assert there.engine.unregister_memory(y) == 0 == there.engine.register_memory(y, BYTES)
        refused = engine.transfer_submit_write(there.name, x, y, 10)
        assert refused > 0 and not is_fine(refused)
        assert is_fine(engine.transfer_submit_write(there.name, x, y, 10))


def until_over(engine: TransferEngine, batch: int) -> int:
    """The result of a batch that is looked after."""
    while (status := engine.transfer_check_status(batch)) == 0:
        pass
    return int(status)


def test_runs_begin_and_end_anywhere_in_registered_memory(here: Side, there: Side) -> None:
    """Runs that were not all in one registration were copied as memory that is the caller's alone, which peers may have
    written at that time."""
    engine, y = here.engine, there.at
    memory = ctypes.create_string_buffer(bytes(range(200)), 200)
    x = ctypes.addressof(memory)
    # Two that touch, and one by itself.
    assert engine.batch_register_memory([x + 50, x + 70, x + 150], [20, 10, 20]) == 0
    for start, end in ((0, 200), (50, 80), (60, 75), (60, 160), (0, 55), (75, 100), (0, 50), (80, 150), (49, 51), (169, 171)):
        there.memory[:300] = bytes(300)
        notice = TransferNotify("from", f"{start}")
        assert engine.transfer_sync(there.name, x + start, y + 7, end - start, Write, notice) == 0
        assert there.has(6, b"\0" + bytes(range(start, end)) + b"\0"), (start, end)
        assert [one.msg for one in there.engine.get_notifies()] == [f"{start}"]
        there.memory[100:300] = bytes(range(200, 0, -1))
        assert engine.transfer_sync_read(there.name, x + start, y + 100, end - start) == 0
        assert memory.raw == bytes([*range(start), *range(200, 200 - end + start, -1), *range(end, 200)])
        memory[:] = bytes(range(200))
        if not engine._raw.is_registered(x + start, end - start) and (start, end) not in ((50, 80), (60, 75)):
            assert engine.transfer_submit_write(there.name, x + start, y, end - start) == 0


def test_a_call_has_one_deadline(here: Side, there: Side) -> None:
    """Each run of memory that is not registered had the time of the whole call."""
    assert here.engine.get_first_buffer_address(there.name) == there.at
    raw, count = here.engine._raw, 50_000
    loose = ctypes.create_string_buffer(1)
    runs = [ctypes.addressof(loose)] * count, [there.at] * count, [1] * count
    assert raw.transfer(there.name, True, *runs, 60.0) == 0
    # Enough for each of them, and for all of them on no machine.
    assert raw.transfer(there.name, True, *runs, 0.002) == -3


def test_peers_are_told(here: Side, there: Side) -> None:
    engine, x, y = here.engine, here.at, there.at
    assert here.engine.send_probe(there.name) == 0 and here.engine.send_probe(NOBODY) == -102
    assert engine.transfer_sync(there.name, x, y, 10, Write, TransferNotify("name", "text \u00e9")) == 0
    assert engine.batch_transfer_sync(there.name, [x], [y], [1], Write, notify=TransferNotify("second", "")) == 0
    assert [(one.name, one.msg) for one in there.engine.get_notifies()] == [("name", "text \u00e9"), ("second", "")]
    assert there.engine.get_notifies() == []


def test_another_process_is_a_peer(here: Side) -> None:
    engine, x = here.engine, here.at
    with another_process() as (process, peer, at):
        assert process.stdin is not None and process.stdout is not None
        assert engine.get_first_buffer_address(peer) == at and engine.send_probe(peer) == 0
        assert engine.transfer_sync_read(peer, x, at, BYTES) == 0 and here.has(0, b"7" * BYTES)
        here.memory[:5] = b"hello"
        assert engine.transfer_sync(peer, x, at, 5, Write, TransferNotify("n", "m")) == 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hello [('n', 'm')]\n"
        process.kill()
        process.wait()
        began = time.monotonic()
        # The kernel ends a process before it hangs up its links: until that is told, what is mapped here is read.
        assert comes_true(lambda: engine.transfer_sync_read(peer, x, at, 5) == -1) and engine.send_probe(peer) == -102
        assert time.monotonic() - began < 15, "the process is gone, which its host knows"


def test_a_peer_that_stops_ends_calls_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then its memory is free: nothing arrives late."""
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "1")
    here = Side(1)
    engine, x = here.engine, here.at
    with another_process() as (process, peer, at):
        assert engine.transfer_sync_read(peer, x, at, 5) == 0
        stop(process)
        one, other = (engine.batch_transfer_async_read(peer, [x + place], [at], [5]) for place in (100, 200))
        assert one > 0 and other > 0 and engine.transfer_check_status(one) == 0
        assert engine.get_batch_transfer_status([other]) == -1
        while (status := engine.transfer_check_status(one)) == 0:
            pass
        # The connection was given up, or the deadline passed first.
        assert status in (-1, -2) and engine.transfer_check_status(one) == -1
        assert engine.unregister_memory(x) == 0
        os.kill(process.pid, signal.SIGCONT)
        loose = ctypes.create_string_buffer(5)
        assert engine.transfer_sync_read(peer, ctypes.addressof(loose), at, 5) == 0 and loose.raw == b"7" * 5
        assert here.has(100, b"\1" * 5) and here.has(200, b"\1" * 5)


def test_threads_share_an_engine(here: Side, there: Side) -> None:
    wrong: list[int] = []

    def move(place: int) -> None:
        for _ in range(50):
            at = place * 4096
            wrong.extend(
                code for code in (here.engine.transfer_sync_write(there.name, here.at + at, there.at + at, 4096),) if code
            )

    threads = [threading.Thread(target=move, args=(place,)) for place in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and there.has(0, b"\1" * BYTES)


def test_an_engine_that_was_not_started_refuses() -> None:
    engine = TransferEngine()
    memory = ctypes.create_string_buffer(10)
    at = ctypes.addressof(memory)
    refused = [
        engine.register_memory(at, 10), engine.unregister_memory(at), engine.batch_register_memory([at], [10]),
        engine.batch_register_memory([], []), engine.batch_unregister_memory([]),
        engine.transfer_sync_read(NOBODY, at, at, 1), engine.batch_transfer_sync_write(NOBODY, [at], [at], [1]),
        engine.transfer_check_status(1), engine.get_batch_transfer_status([]), engine.send_probe(NOBODY),
        engine.write_bytes_to_buffer(at, b"x", 1), engine.free_managed_buffer(at, 10),
    ]  # fmt: skip
    assert all(code < 0 for code in refused), refused
    assert engine.get_rpc_port() == 0 == engine.allocate_managed_buffer(10) == engine.get_first_buffer_address(NOBODY)
    assert engine.transfer_submit_write(NOBODY, at, at, 1) == 0 == engine.batch_transfer_async_read(NOBODY, [], [], [])
    assert engine.get_notifies() == [] and engine.read_bytes_from_buffer(at, 1) == b""


def test_engines_that_cannot_be_are_refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, reason in (
        (("127.0.0.1", "P2PHANDSHAKE", "pigeon", ""), "pigeon"),
        (("127.0.0.1", "etcd://127.0.0.1:1", "tcp", ""), "P2PHANDSHAKE"),
        (("192.0.2.1", "P2PHANDSHAKE", "tcp", ""), "SLACKWATER_KEY_FILE"),
        (("127.0.0.1:x", "P2PHANDSHAKE", "tcp", ""), "no port"),
    ):
        engine = TransferEngine()
        assert engine.initialize(*given) == -1 == engine.initialize_ext(*given, "")
        assert reason in caplog.text and engine.get_rpc_port() == 0
    for wrong in ((1, "P2PHANDSHAKE", "tcp", ""), ("127.0.0.1",)):
        with pytest.raises(TypeError):
            TransferEngine().initialize(*wrong)
    monkeypatch.setenv("MC_MIN_RPC_PORT", "17000")
    monkeypatch.setenv("MC_MAX_RPC_PORT", "16999")
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1


def test_a_description_that_is_none_is_refused(here: Side) -> None:
    good = json.loads(here.engine._raw.describe())
    start, length, capability = good["ranges"][0]
    segment = good["segment"]
    elsewhere = [*segment["addresses"], "192.0.2.1:5"]
    bad = [
        b"", b"junk", b"{}", b"[]", b"null",
        *(json.dumps(good | change).encode() for change in (
            {"segment": {}}, {"ranges": None}, {"ranges": [[]]}, {"ranges": [[start, length]]},
            {"ranges": [[-1, length, capability]]}, {"ranges": [[start, length, capability[1:]]]},
            {"ranges": [[start, length, [256, *capability[1:]]]]},
            # Bytes went there in the open.
            {"segment": {**segment, "addresses": elsewhere}},
        )),
    ]  # fmt: skip
    for described in bad:
        service = http_service.Service("127.0.0.1", 0, 0, lambda asked, text=described: http_service.Answer(200, text))
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        assert here.engine.get_first_buffer_address(f"127.0.0.1:{service.port}") == 0, described
        service.shutdown()
        thread.join()
        service.server_close()


def test_what_a_peer_says_is_in_the_log_in_few_words_and_one_line(here: Side, caplog: pytest.LogCaptureFixture) -> None:
    """It was there as it came: 64 MiB of it, and with what a terminal obeys."""
    words = b"\x1b[31mx\rWARNING all is well" * 2000
    long = json.dumps({"segment": {"incarnation": words.decode()}}).encode()
    for said in (words + b"\r\n", b"HTTP/1.0 200 OK\r\n\r\n" + long, b"HTTP/1.0 400 no\r\n\r\n" + words):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer(listener: socket.socket = listener, said: bytes = said) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            caplog.clear()
            assert here.engine.get_first_buffer_address(f"127.0.0.1:{listener.getsockname()[1]}") == 0
            thread.join()
        (line,) = caplog.messages
        assert "no engine" in line and line.isprintable() and len(line) < 4000, line[:200]


def test_a_transfer_may_take_as_long_as_clocks_say(here: Side, there: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "9" * 18)
    assert here.engine.transfer_sync_write(there.name, here.at, there.at, 10) == 0
    assert here.engine.get_batch_transfer_status([here.engine.transfer_submit_write(there.name, here.at, there.at, 10)]) == 0


def test_a_fork_is_refused_and_the_parent_goes_on(here: Side, there: Side) -> None:
    engine, x, y = here.engine, here.at, there.at
    batch = engine.transfer_submit_write(there.name, x, y, 10)

    def refused() -> bool:
        codes = (
            engine.transfer_sync_write(there.name, x, y, 10), engine.register_memory(x + BYTES, 1),
            engine.unregister_memory(x), engine.send_probe(there.name), engine.transfer_check_status(batch),
            engine.get_batch_transfer_status([batch]),
        )  # fmt: skip
        return all(code < 0 for code in codes) and not engine.transfer_submit_write(there.name, x, y, 10)

    assert in_child(refused)
    assert engine.get_batch_transfer_status([batch]) == 0
    assert engine.transfer_sync_write(there.name, x, y, 10) == 0


def test_engines_are_started_in_a_fork_but_not_those_of_the_parent(here: Side, there: Side) -> None:
    """`initialize` of the parent's engine said 0 in a fork, and waited for ever when another thread had been there at the
    fork; memory was said not to be registered only after it had been written."""
    new, given = TransferEngine(), ("127.0.0.1", "P2PHANDSHAKE", "tcp", "")

    def right() -> bool:
        engine, peer = here.engine, there.name
        described, compat_engine.described = compat_engine.described, lambda *asked: pytest.fail("a fork asks for its parent")
        is_refused = engine.initialize(*given) == -1 and engine.get_first_buffer_address(peer) == 0
        compat_engine.described = described
        is_untouched = engine.write_bytes_to_buffer(here.at, b"x", 1) == -1 == engine.free_managed_buffer(here.at, 1)
        started = new.initialize(*given) == 0 == new.initialize(*given)
        return is_refused and is_untouched and started and new.get_first_buffer_address(peer) == there.at

    with here.engine._lock, new._lock:
        assert in_child(right)
    assert new.initialize(*given) == 0 and here.engine.get_first_buffer_address(there.name) == there.at


def test_an_engine_ends_with_its_object() -> None:
    before = counted()
    for _ in range(5):
        side = Side(1)
        port = side.engine.get_rpc_port()
        del side
    until_gone = TransferEngine()
    assert until_gone.send_probe(f"127.0.0.1:{port}") < 0
    assert leaves_nothing(before), (before, counted())


def is_mapped(address: int) -> bool:
    """Whether there is memory at an address."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in file]
    return any(start <= address < end for start, end in ranges)


def test_memory_of_an_engine_goes_when_no_peer_may_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory went first, while a request under way could still hold what writes there; and memory that is still touched
    went too."""
    side = Side(1)
    raw, managed = side.engine._raw, side.engine.allocate_managed_buffer(1 << 20)
    assert is_mapped(managed) and raw.is_registered(managed, 1 << 20)
    del side.engine
    assert not raw.is_registered(managed, 1) and not raw.is_registered(side.at, 1) and not is_mapped(managed)
    assert not json.loads(raw.describe())["ranges"] and raw.close()

    class Busy:
        def close(self) -> bool:
            return False

    other = Side(1)
    managed = other.engine.allocate_managed_buffer(1 << 20)
    service = other.engine._service
    kept: list[object] = []
    monkeypatch.setattr(compat_engine, "_kept", kept)
    compat_engine._end(os.getpid(), Busy(), service, threading.Thread(), other.engine._managed)
    assert kept == [other.engine._managed[managed]]
    compat_engine._end(os.getpid() + 1, None, None, threading.Thread(), {})


def test_a_program_ends_with_its_engine() -> None:
    """It hung: the end of the engine waited for a thread that no longer ran."""
    code = OTHER.replace("for line in sys.stdin", "assert engine.allocate_managed_buffer(100)\nfor line in []")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


@contextmanager
def answering(head: bytes, piece: bytes) -> Iterator[str]:
    """A peer that says this and then goes on saying the rest, slowly."""
    over = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while not over.wait(0.01):
                connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def test_peers_describe_themselves_in_time_and_in_bounds(
    here: Side, there: Side, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time was for each piece: a peer that sent a byte now and then kept its caller for ever."""
    monkeypatch.setattr(descriptions, "seconds", lambda: 0.3)
    begun = b"HTTP/1.1 200 OK\r\n"
    for head, piece in ((begun + b"Content-Length: 1000000\r\n\r\n", b" "), (begun + b"\r\n", b" "), (begun, b"A: b\r\n")):
        with answering(head, piece) as peer:
            assert here.engine.get_first_buffer_address(peer) == 0, head
    assert "took longer than 0.3 s" in caplog.text
    monkeypatch.setattr(descriptions, "_DESCRIPTION_BYTES_MAX", len(there.engine._raw.describe()))
    assert here.engine.get_first_buffer_address(there.name) == there.at
    monkeypatch.setattr(descriptions, "_DESCRIPTION_BYTES_MAX", len(there.engine._raw.describe()) - 1)
    assert here.engine.get_first_buffer_address(there.name) == 0


def test_a_store_takes_an_engine(here: Side, master: str) -> None:
    inner = here.engine.get_engine()
    assert isinstance(inner, InnerTransferEngine)
    store = mooncake.store.MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master, inner) == 0 == store.close()
    assert json.loads(here.engine.get_local_topology()) and here.engine.warmup_efa_segment("x") == 0


def test_an_engine_that_its_own_thread_collects_ends() -> None:
    """The garbage collector ran on the thread of the engine's service, which then waited for its own end."""
    before = set(threading.enumerate())
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    (serving,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "slackwater-engine")
    service = engine._service
    assert service is not None
    gc.disable()
    try:
        engine.itself = engine  # type: ignore[attr-defined]
        del engine
        service.service_actions = gc.collect  # type: ignore[method-assign]
        socket.create_connection(("127.0.0.1", service.port)).close()
        serving.join(20)
    finally:
        gc.enable()
    assert not serving.is_alive()
