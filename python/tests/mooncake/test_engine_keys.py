"""Engines with keys: who is a peer of whom, at loopback and between two networks."""

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mooncake.engine import TransferEngine, TransferNotify, Write
from slackwater.compat.mooncake import descriptions, http_service
from slackwater.compat.mooncake.descriptions import Keys, place_of
from test_directory import Server, server

__all__ = ["server"]

BYTES = 65536


class KeyPlace:
    """Key files and lists in a directory."""

    def __init__(self, command: Path, directory: Path) -> None:
        self.command, self.directory = command, directory
        self.public: dict[str, str] = {}

    def run(self, *words: str) -> str:
        done = subprocess.run([self.command, "keys", *words], cwd=self.directory, capture_output=True, text=True, check=True)
        return done.stdout

    def make(self, *names: str) -> None:
        """Keys of these names."""
        for name in names:
            self.public[name] = self.run("new", f"{name}.key").splitlines()[0].split()[-1]

    def allow(self, into: str, *names: str) -> None:
        """A list with the keys of these names."""
        path = self.directory / into
        path.write_text("".join(f"{self.public[name]} basic {name}\n" for name in names))

    def environment(self, key: str = "", allowed: str = "") -> dict[str, str]:
        """What names a key and a list."""
        named = {"SLACKWATER_KEY_FILE": key and f"{key}.key", "SLACKWATER_ALLOW": allowed}
        return {name: str(self.directory / file) for name, file in named.items() if file}


@pytest.fixture
def place(command: Path, tmp_path: Path) -> KeyPlace:
    """Keys of two engines, each on the list of the other, and of a third that is on none."""
    place = KeyPlace(command, tmp_path)
    place.make("here", "there", "other")
    place.allow("of-here", "there")
    place.allow("of-there", "here")
    place.allow("of-nobody")
    return place


@pytest.fixture
def start(place: KeyPlace, monkeypatch: pytest.MonkeyPatch) -> Callable[..., "Side"]:
    """Starts an engine with a key and a list, or without. Within a process bytes would be copied, whatever the keys are."""
    monkeypatch.setenv("MC_FORCE_TCP", "1")

    def started(key: str = "", allowed: str = "", name: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE") -> Side:
        with monkeypatch.context() as patch:
            for variable in ("SLACKWATER_KEY_FILE", "SLACKWATER_ALLOW"):
                patch.delenv(variable, raising=False)
            for variable, path in place.environment(key, allowed).items():
                patch.setenv(variable, path)
            return Side(name, metadata)

    return started


class Side:
    """An engine and memory that it has registered."""

    def __init__(self, name: str, metadata: str) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize(name, metadata, "tcp", "") == 0
        self.memory = ctypes.create_string_buffer(BYTES)
        self.at = ctypes.addressof(self.memory)
        assert self.engine.register_memory(self.at, BYTES) == 0

    @property
    def name(self) -> str:
        """By which peers know it."""
        return f"127.0.0.1:{self.engine.get_rpc_port()}"


Start = Callable[..., Side]


def test_engines_with_keys_do_all_that_others_do(start: Start) -> None:
    here, there = start("here", "of-here"), start("there", "of-there")
    engine, peer, x, y = here.engine, there.name, here.at, there.at
    here.memory[:5] = b"hello"
    assert engine.get_first_buffer_address(peer) == y and engine.send_probe(peer) == 0
    assert engine.transfer_sync(peer, x, y, 5, Write, TransferNotify("n", "m")) == 0 and there.memory[:5] == b"hello"
    assert [(one.name, one.msg) for one in there.engine.get_notifies()] == [("n", "m")]
    assert engine.transfer_sync_read(peer, x + 10, y, 5) == 0 and here.memory[10:15] == b"hello"
    assert engine.get_batch_transfer_status([engine.batch_transfer_async_read(peer, [x + 20], [y], [5])]) == 0
    loose = ctypes.create_string_buffer(5)
    assert engine.transfer_sync_read(peer, ctypes.addressof(loose), y, 5) == 0 and loose.raw == b"hello"
    # Memory that is registered anew is asked for again.
    assert there.engine.unregister_memory(y) == 0 == there.engine.register_memory(y, 100)
    assert engine.transfer_sync_write(peer, x, y, 5) == 0
    assert there.engine.transfer_sync_read(here.name, y, x, 5) == 0


CASES = [
    (("here", "of-here"), ("there", "of-there"), ""),
    (("here", "of-nobody"), ("there", "of-there"), "its key is not on our list of keys"),
    (("here", "of-here"), ("there", "of-nobody"), "the key of the asker is not on the list of this engine"),
    (("other", "of-here"), ("there", "of-there"), "the key of the asker is not on the list of this engine"),
    (("here", "of-here"), ("other", "of-there"), "its key is not on our list of keys"),
    ((), ("there", "of-there"), "this engine has keys, and peers alone that have some too"),
    (("here", "of-here"), (), "it has no keys, and this engine has"),
    # A key without a list is that of a store's client.
    (("here",), (), ""),
]


@pytest.mark.parametrize(("ours", "theirs", "reason"), CASES)
def test_peers_have_each_other_on_their_lists(
    start: Start, caplog: pytest.LogCaptureFixture, ours: tuple[str, ...], theirs: tuple[str, ...], reason: str
) -> None:
    here, there = start(*ours), start(*theirs)
    moved = here.engine.transfer_sync_write(there.name, here.at, there.at, 5)
    assert moved == (-1 if reason else 0) and reason in caplog.text
    assert here.engine.send_probe(there.name) == (-102 if reason else 0)


def test_engines_with_keys_meet_by_a_metadata_server(start: Start, server: Server) -> None:
    """The server and its entries need no trust: an engine that an entry leads to proves its key."""
    here, there = (start(name, f"of-{name}", name, server.url) for name in ("here", "there"))
    assert here.engine.transfer_sync_write("there", here.at, there.at, 5) == 0
    other = start("other", "of-there")
    entry = {"ip_or_host_name": "127.0.0.1", "rpc_port": other.engine.get_rpc_port()}
    server.texts["mooncake/rpc_meta/fourth"] = json.dumps(entry).encode()
    assert here.engine.transfer_sync_write("fourth", here.at, other.at, 5) == -1


@contextmanager
def answering(answers: dict[tuple[str, str], bytes]) -> Iterator[str]:
    """A peer that says this."""

    def answer(asked: http_service.Asked) -> http_service.Answer:
        return http_service.Answer(200, answers[asked.method, asked.path[0]])

    service = http_service.Service("127.0.0.1", 0, 8192, answer)
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{service.port}"
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def test_who_tells_a_listed_key_must_own_it(start: Start, place: KeyPlace, caplog: pytest.LogCaptureFixture) -> None:
    here, there = start("here", "of-here"), start("there", "of-there")
    key = there.engine._raw.key()
    assert key == place.public["there"]
    told = json.dumps({"key": key}).encode()
    _, asked = here.engine._raw.ask(key)
    earlier = there.engine._raw.answer(asked)
    with pytest.raises(ValueError, match="proves a key"):
        there.engine._raw.describe()
    for said, reason in (
        (earlier, "does not prove the key"),
        (b"", "does not prove the key"),
        (json.dumps({"segment": {}, "ranges": []}).encode(), "does not prove the key"),
    ):
        with answering({("GET", "key"): told, ("POST", "engine"): said}) as peer:
            assert here.engine.get_first_buffer_address(peer) == 0 and reason in caplog.text
            caplog.clear()
    for tells in (b"", b"[]", b"{}", b'{"key": 5}', b'{"key": "zz"}', b'{"key": "' + b"+1" * 32 + b'"}', b"x" * 1000):
        with answering({("GET", "key"): tells}) as peer:
            assert here.engine.get_first_buffer_address(peer) == 0, tells
    with answering({("GET", "key"): told + b" " * 256}) as peer:
        assert here.engine.get_first_buffer_address(peer) == 0 and "more than 256 bytes" in caplog.text
    assert here.engine.get_first_buffer_address(there.name) == there.at
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", there.engine.get_rpc_port(), timeout=20)) as connection:
        connection.request("POST", "/engine", bytes(8193), {"Host": "localhost"})
        assert connection.getresponse().status == 413
    with socket.create_connection(("127.0.0.1", there.engine.get_rpc_port()), 20) as plain:
        plain.sendall(b"GET /key HTTP/1.0\r\nA: " + b"b" * 8192 + b"\r\n\r\n")
        assert b" 431 " in plain.recv(100)


def test_a_description_has_the_key_that_was_proven(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes go to the owner of the key in the description."""
    here, there = start(), start()
    described = json.loads(there.engine._raw.describe())
    described["segment"]["public_key"] = [7] * 32
    with answering({("GET", "engine"): json.dumps(described).encode()}) as peer:
        assert here.engine.get_first_buffer_address(peer) == 0
    assert "another key than the one that it proves" in caplog.text


def test_nothing_of_a_description_is_in_the_open(start: Start) -> None:
    """What a wire sees between two engines that meet."""
    here, there = start("here", "of-here"), start("there", "of-there")
    seen: list[bytes] = []

    def carry(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                seen.append(piece)
                to.sendall(piece)
            to.shutdown(socket.SHUT_WR)

    def relay() -> None:
        for _ in range(2):
            near, _ = listener.accept()
            with near, socket.create_connection(("127.0.0.1", there.engine.get_rpc_port())) as far:
                back = threading.Thread(target=carry, args=(far, near))
                back.start()
                carry(near, far)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay)
        thread.start()
        assert here.engine.get_first_buffer_address(f"127.0.0.1:{listener.getsockname()[1]}") == there.at
        thread.join()
    wire = b"".join(seen)
    assert b"/key" in wire and here.engine._raw.key().encode() not in wire
    for secret in (b"ranges", b"segment", str(there.at).encode(), b"incarnation"):
        assert secret not in wire, secret


def test_a_key_that_is_taken_from_the_list_is_refused_soon(
    start: Start, place: KeyPlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    here, there = start("here", "of-here"), start("there", "of-there")

    def moved() -> bool:
        return here.engine.transfer_sync_write(there.name, here.at, there.at, 5) == 0

    def until(expected: bool) -> None:
        end = time.monotonic() + 30
        while moved() != expected:
            assert time.monotonic() < end
            time.sleep(0.05)

    assert moved()
    # A list that cannot be read changes nothing.
    (place.directory / "of-there").write_text("nonsense")
    end = time.monotonic() + 30
    while "the list of keys stays as it was" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert moved()
    place.allow("of-there", "other")
    until(False)
    place.allow("of-there", "other", "here")
    until(True)


def test_a_key_that_is_taken_from_our_own_list_is_reached_no_more(start: Start, place: KeyPlace, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that was open was written to for ever: the list was asked when the peer described itself, and not again."""
    here, there = start("here", "of-here"), start("there", "of-there")
    engine, peer, x, y = here.engine, there.name, here.at, there.at

    def calls() -> list[int]:
        batch = engine.batch_transfer_async_write(peer, [x], [y], [5])
        return [
            engine.transfer_sync_write(peer, x, y, 5),
            engine.transfer_sync_read(peer, x, y, 5),
            engine.get_batch_transfer_status([batch]) if batch else -1,
            engine.send_probe(peer),
        ]

    assert calls() == [0, 0, 0, 0]
    place.allow("of-here", "other")
    end = time.monotonic() + 30
    while engine.transfer_sync_write(peer, x, y, 5) == 0:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert calls() == [-1, -1, -1, -102] and "its key is not on our list of keys" in caplog.text
    # What the peer asks of us is refused, too.
    assert there.engine.transfer_sync_write(here.name, y, x, 5) == -1
    place.allow("of-here", "other", "there")
    while engine.transfer_sync_write(peer, x, y, 5) != 0:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert calls() == [0, 0, 0, 0]


def test_a_list_that_could_not_be_read_is_read_at_the_next_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process without a descriptor for it kept a key that had been taken away, until the list changed once more."""
    path, reads = tmp_path / "list", [ValueError("too many open files")] * 3
    path.write_text("one")

    def reload() -> None:
        if reads:
            raise reads.pop()

    raw: Any = SimpleNamespace(reload=reload)
    with descriptions.DescriptionService("127.0.0.1", 0, raw, Keys("key", str(path))) as service:
        for left in (2, 1, 0):
            service.service_actions()
            assert len(reads) == left and caplog.text.count("stays as it was") == 1
        service.service_actions()
        reads.append(ValueError("another"))
        service.service_actions()
        assert len(reads) == 1, "it was read"
        path.write_text("three")
        service.service_actions()
        assert not reads and caplog.text.count("stays as it was") == 2


def test_a_question_is_answered_once(start: Start) -> None:
    """What a wire had seen of a question was answered, at the length of a description, as often as it was repeated."""
    here, there = start("here", "of-here"), start("there", "of-there")
    _, asked = here.engine._raw.ask(there.engine._raw.key())
    assert len(there.engine._raw.answer(asked)) > 2 * len(asked)
    for _ in range(2):
        with pytest.raises(ValueError, match="does not know our key"):
            there.engine._raw.answer(asked)
    assert here.engine.get_first_buffer_address(there.name) == there.at


def test_a_list_that_changes_while_an_engine_starts_is_read_again(tmp_path: Path) -> None:
    """A change between the engine's own reading and the first look of its service did not count until the next one."""
    path, reloads = tmp_path / "list", []
    path.write_text("one")
    raw: Any = SimpleNamespace(reload=lambda: reloads.append(path.read_text()))
    with descriptions.DescriptionService("127.0.0.1", 0, raw, Keys("key", str(path))) as service:
        service.service_actions()
        service.service_actions()
        path.write_text("three")
        service.service_actions()
    assert reloads == ["one", "three"]


def test_places_of_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = Keys("key", "list")
    for bind, host, given, is_a_name, expected in (
        ("", "127.0.0.1", None, False, ("127.0.0.1", "127.0.0.1")),
        ("", "192.0.2.1", keys, False, ("192.0.2.1", "192.0.2.1")),
        ("", "::1", None, False, ("::1", "::1")),
        ("", "no such host", None, True, ("127.0.0.1", "127.0.0.1")),
        ("192.0.2.7", "no such host", keys, True, ("192.0.2.7", "192.0.2.7")),
        ("0.0.0.0", "192.0.2.1", keys, True, ("0.0.0.0", "192.0.2.1")),
        ("127.0.0.2", "127.0.0.1", None, False, ("127.0.0.2", "127.0.0.1")),
        ("", "0.0.0.0", keys, False, ("0.0.0.0", "0.0.0.0")),
        ("", "192.0.2.1", None, False, "SLACKWATER_KEY_FILE"),
        ("0.0.0.0", "127.0.0.1", None, False, "SLACKWATER_KEY_FILE"),
        ("", "0.0.0.0", keys, True, "give an address of this machine"),
        ("0.0.0.0", "no such host", keys, True, "give an address of this machine"),
        ("", "no such host", keys, False, "Name or service not known"),
    ):
        monkeypatch.setenv("MC_TCP_BIND_ADDRESS", bind)
        if isinstance(expected, str):
            with pytest.raises((ValueError, OSError), match=expected):
                place_of(host, given, is_a_name=is_a_name)
            continue
        found = place_of(host, given, is_a_name=is_a_name)
        assert (found.bound, found.told) == expected, (bind, host)


def test_keys_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    names = ("SLACKWATER_KEY_FILE", "SLACKWATER_ALLOW", "SLACKWATER_TCP_SEAL_KEY", "SLACKWATER_TCP_SEAL_CLIENTS")
    for values, expected in (
        (("", "", "", ""), None),
        (("k", "", "", ""), None),
        (("", "l", "", ""), None),
        (("k", "l", "", ""), Keys("k", "l")),
        (("k", "", "s", "c"), Keys("s", "c")),
        (("k", "l", "s", "c"), Keys("k", "l")),
    ):
        for name, value in zip(names, values, strict=True):
            monkeypatch.setenv(name, value)
        assert Keys.of_environment() == expected, values
    for name, value in zip(names, ("", "", "s", ""), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="SLACKWATER_TCP_SEAL_CLIENTS is not"):
        Keys.of_environment()
    for name, value in zip(names, ("/no/such/key", "/no/such/list", "", ""), strict=True):
        monkeypatch.setenv(name, value)
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1 and "/no/such/key" in caplog.text


def test_connections_of_nobody_end_soon(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    assert descriptions.DescriptionService.seconds_max < http_service.Service.seconds_max
    monkeypatch.setattr(descriptions.DescriptionService, "seconds_max", 0.2)
    here = start("here", "of-here")
    with socket.create_connection(("127.0.0.1", here.engine.get_rpc_port()), timeout=20) as silent:
        assert silent.recv(1) == b"", "it is cut, and not kept until the peer speaks"


def test_connections_of_nobody_keep_no_peer_away(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """Sixty-four that said nothing kept all peers from an engine for twenty seconds, and could be made again."""
    monkeypatch.setattr(http_service, "REQUESTS_MAX", 4)
    here, there = start("here", "of-here"), start("there", "of-there")
    address = ("127.0.0.1", there.engine.get_rpc_port())
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(socket.create_connection(address))
        began = time.monotonic()
        assert here.engine.get_first_buffer_address(there.name) == there.at
        assert time.monotonic() - began < descriptions.DescriptionService.seconds_max / 2


# The two ends of a cable, each in a network of its own, made without any right of the machine.
TWO_NETWORKS = """
set -eu
unshare --net sleep 300 & other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set lo up
ip link add here type veth peer name there
ip link set there netns $other
ip address add 10.213.0.1/24 dev here
ip link set here up
nsenter --target $other --net ip address add 10.213.0.2/24 dev there
nsenter --target $other --net ip link set there up
nsenter --target $other --net ip link set lo up
"""
METADATA = """
"$PYTHON" -m slackwater.compat.mooncake.http_metadata_server --host 10.213.0.1 --port 18080 2> served & meta=$!
trap 'kill $other $meta 2>/dev/null || true' EXIT
until grep -q 'serves at' served; do kill -0 $meta; sleep 0.05; done
"""
BENCH = """
bench() { exec "$PYTHON" -m slackwater.compat.mooncake.transfer_engine_bench --protocol=tcp --buffer_size=4194304 $METADATA "$@"; }
export SLACKWATER_KEY_FILE=there.key SLACKWATER_ALLOW=of-there
MC_TCP_BIND_ADDRESS=$BIND bench --mode=target --local_server_name=$TARGET 2> said & server=$!
trap 'kill $server 2>/dev/null; wait $server || true; kill $other $meta 2>/dev/null || true' EXIT
until grep -q 'segment_id=' said; do kill -0 $server; sleep 0.05; done
name=$(sed -n 's/.*segment_id=//p' said)
initiator() {
    SLACKWATER_KEY_FILE=$2 SLACKWATER_ALLOW=$3 nsenter --target $other --net "$PYTHON" -m \
        slackwater.compat.mooncake.transfer_engine_bench --protocol=tcp --buffer_size=4194304 $METADATA \
        --local_server_name=$INITIATOR --segment_id=$name --threads=2 --batch_size=4 --block_size=65536 --duration=1 \
        --operation=$4 > "$1" 2>&1 || true
}
initiator right-read here.key of-here read
initiator right-write here.key of-here write
initiator wrong-key other.key of-here read
initiator no-list here.key '' read
initiator no-keys '' '' read
initiator not-listed here.key of-nobody read
"""
NEEDED = "engines reach other machines with keys alone"
SAID = {
    "right-read": "Test completed",
    "right-write": "Test completed",
    "wrong-key": "is not on the list of this engine",
    "no-list": NEEDED,
    "no-keys": NEEDED,
    "not-listed": "its key is not on our list of keys",
}


def networks_refused() -> str:
    """Why two networks cannot be made here, if they cannot."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    words = ["unshare", "--user", "--map-root-user", "--net", "ip", "link", "add", "one", "type", "veth"]
    tried = subprocess.run(words, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"this machine allows no networks of one's own: {tried.stderr.strip()}"


@pytest.mark.parametrize("metadata", ["P2PHANDSHAKE", "http"])
def test_engines_of_two_networks_are_peers_by_their_keys(place: KeyPlace, metadata: str) -> None:
    """`transfer_engine_bench` between them, with right keys and with others."""
    if reason := networks_refused():
        pytest.skip(f"{reason}; the same over loopback is tested by the others here")
    by_server = metadata == "http"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLACKWATER_", "MC_"))},
        "PYTHON": sys.executable,
        "METADATA": "--metadata_server=http://10.213.0.1:18080/metadata" if by_server else "",
        "TARGET": "10.213.0.1",
        "BIND": "0.0.0.0" if by_server else "",
        "INITIATOR": "10.213.0.2",
    }
    script = TWO_NETWORKS + (METADATA if by_server else "meta=$other\n") + BENCH
    words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script]
    done = subprocess.run(words, cwd=place.directory, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for case, reason in SAID.items():
        said = (place.directory / case).read_text()
        assert reason in said and ("Test completed" in said) == case.startswith("right"), (case, said)
