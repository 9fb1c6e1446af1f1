"""Spans as a collector is told of them, from Python through a master and a node that are processes of their own."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import slackwater
from slackwater.compat.mooncake.store import MooncakeDistributedStore

from callers import Package, Span

INTERNAL, SERVER, CLIENT = 1, 2, 3
# Longer than anything here takes.
PATIENCE = 120
VALUE = bytes(range(256)) * 400
Fields = list[tuple[int, int | bytes]]


@dataclass
class Told:
    """A span as it was told."""

    service: str
    name: str
    trace: int
    own: int
    parent: int
    kind: int
    notes: dict[str, int | str]


class Collector:
    """Takes OTLP over HTTP and keeps what it is told."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self._more = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """A test says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        spans = list(spans_of(body))
        with self._more:
            self._told += spans
            self._more.notify_all()

    def until(self, trace: int, names: set[str]) -> list[Told]:
        """The spans of a trace, once one of each name was told."""

        def found() -> list[Told]:
            return [span for span in self._told if span.trace == trace]

        with self._more:
            told = self._more.wait_for(lambda: names <= {span.name for span in found()}, PATIENCE)
            assert told, f"{names} were not told, but {found()}"
            return found()

    def all(self) -> list[Told]:
        with self._more:
            return list(self._told)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def fields(message: bytes) -> Fields:
    """The fields of a message of Protocol Buffers."""
    found: Fields = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def piece(length: int) -> bytes:
        nonlocal at
        at += length
        return message[at - length : at]

    while at < len(message):
        key = number()
        match key & 7:
            case 0:
                found.append((key >> 3, number()))
            case 1:
                found.append((key >> 3, int.from_bytes(piece(8), "little")))
            case 2:
                found.append((key >> 3, piece(number())))
            case 5:
                found.append((key >> 3, int.from_bytes(piece(4), "little")))
            case kind:
                raise AssertionError(f"a field of kind {kind}")
    return found


def parts(message: bytes, number: int) -> list[bytes]:
    return [value for field, value in fields(message) if field == number and isinstance(value, bytes)]


def notes_of(message: bytes, number: int) -> dict[str, int | str]:
    notes: dict[str, int | str] = {}
    for note in parts(message, number):
        [name], [value] = parts(note, 1), parts(note, 2)
        [(_, shown)] = fields(value)
        notes[name.decode()] = shown.decode() if isinstance(shown, bytes) else shown
    return notes


def spans_of(body: bytes) -> Iterator[Told]:
    """The spans of an `ExportTraceServiceRequest`."""
    for of_resource in parts(body, 1):
        resource = notes_of(parts(of_resource, 1)[0], 1)
        for of_scope in parts(of_resource, 2):
            for span in parts(of_scope, 2):
                named = dict(fields(span))

                def identity(number: int, named: dict[int, int | bytes] = named) -> int:
                    value = named.get(number, b"")
                    return int.from_bytes(value, "big") if isinstance(value, bytes) else 0

                name, kind = named[5], named[6]
                assert isinstance(name, bytes) and isinstance(kind, int)
                yield Told(
                    service=str(resource["service.name"]),
                    name=name.decode(),
                    trace=identity(1),
                    own=identity(2),
                    parent=identity(4),
                    kind=kind,
                    notes=notes_of(span, 9),
                )


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector for all tests."""
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def pool(traced_command: Path, collector: Collector) -> Iterator[str]:
    """The master of a pool with a node from which bytes come over TCP."""

    @contextmanager
    def started(beginning: str, *arguments: str) -> Iterator[str]:
        line = [traced_command, *arguments, "--traces", collector.url, "--log", "warn"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline().strip()
                assert said.startswith(beginning), said
                yield said.removeprefix(beginning)
            finally:
                # Told to end, it tells the collector what it has done.
                process.terminate()
                assert process.wait(PATIENCE) == 0

    with (
        started("serving at ", "master", "--listen", "127.0.0.1:0", "--admin", "none") as address,
        started("node ", "node", "--master", address, "--memory", "32MiB", "--force-tcp"),
    ):
        yield address


@pytest.fixture
def exported(traced_command: Path, collector: Collector) -> Iterator[None]:
    """What this process does is told."""
    slackwater.export_traces(collector.url, service="engine")
    yield
    slackwater.export_traces(None)


Line = tuple[str, str, int, str]


def tree(spans: list[Told], caller: int) -> list[Line]:
    """Name, service, kind and the name of the parent of each span."""
    names = {span.own: span.name for span in spans} | {caller: "caller", 0: "nothing"}
    assert len(names) == len(spans) + 2, "each span has an id of its own"
    return sorted((span.name, span.service, span.kind, names[span.parent]) for span in spans)


FROM_MEMORY: list[Line] = [
    ("slackwater.get", "engine", CLIENT, "caller"),
    ("slackwater.look_up", "engine", CLIENT, "slackwater.get"),
    ("slackwater.master.look_up", "slackwater-master", SERVER, "slackwater.look_up"),
    ("slackwater.node.read", "slackwater-node", SERVER, "slackwater.read"),
    ("slackwater.read", "engine", CLIENT, "slackwater.get"),
]


@pytest.mark.usefixtures("exported")
def test_one_get_is_followed_through_master_and_node(pool: str, collector: Collector, package: Package) -> None:
    with slackwater.connect(pool) as client:
        client.put("a", VALUE)
    # One that has not put it does not know where it is.
    with slackwater.connect(pool) as client:
        package.span.set(Span(0xA1 << 64, 0xB1))
        assert client.get("a") == VALUE
    spans = collector.until(0xA1 << 64, {name for name, *_ in FROM_MEMORY})
    assert tree(spans, 0xB1) == FROM_MEMORY
    notes = {span.name: span.notes for span in spans}
    assert notes["slackwater.get"] == {"slackwater.keys": 1, "slackwater.hits": 1, "slackwater.bytes": len(VALUE)}
    assert notes["slackwater.read"]["slackwater.way"] == "tcp"
    assert notes["slackwater.node.read"] == {"slackwater.bytes": len(VALUE)}


@pytest.mark.usefixtures("exported")
def test_each_call_is_a_part_of_its_callers_span(pool: str, collector: Collector, package: Package) -> None:
    def check(trace: int, call: Callable[[slackwater.Client], object], *expected: Line) -> None:
        with slackwater.connect(pool) as client:
            token = package.span.set(Span(trace << 64, 0xC))
            call(client)
            package.span.reset(token)
        spans = collector.until(trace << 64, {name for name, *_ in expected})
        assert tree(spans, 0xC) == sorted(expected)

    def asked(call: str, name: str) -> list[Line]:
        return [
            (call, "engine", CLIENT, "caller"),
            ("slackwater.request", "engine", CLIENT, call),
            (name, "slackwater-master", SERVER, "slackwater.request"),
        ]

    put: list[Line] = [
        ("slackwater.put", "engine", CLIENT, "caller"),
        ("slackwater.put_start", "engine", CLIENT, "slackwater.put"),
        ("slackwater.master.put_start", "slackwater-master", SERVER, "slackwater.put_start"),
        ("slackwater.write", "engine", CLIENT, "slackwater.put"),
        ("slackwater.node.write", "slackwater-node", SERVER, "slackwater.write"),
        ("slackwater.put_end", "engine", CLIENT, "slackwater.put"),
        ("slackwater.master.put_end", "slackwater-master", SERVER, "slackwater.put_end"),
    ]
    check(1, lambda client: client.put("b", VALUE), *put)
    check(2, lambda client: client.get_batch(["b"]), *FROM_MEMORY)
    check(3, lambda client: client.get_into("b", bytearray(len(VALUE))), *FROM_MEMORY)
    check(4, lambda client: client.exists_batch(["b", "c"]), *asked("slackwater.exists", "slackwater.master.exists"))
    check(5, lambda client: client.remove("c"), *asked("slackwater.remove", "slackwater.master.remove"))
    assert all("b" not in span.notes.values() for span in collector.all()), "no key is told"


@pytest.mark.usefixtures("exported")
def test_programs_of_the_other_package_are_followed_too(pool: str, collector: Collector, package: Package) -> None:
    with slackwater.connect(pool) as client:
        client.put("d", VALUE)
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", pool.removeprefix("tcp://")) == 0
    token = package.span.set(Span(0xD1 << 64, 0xD))
    assert store.get("d") == VALUE
    package.span.reset(token)
    store.close()
    spans = collector.until(0xD1 << 64, {name for name, *_ in FROM_MEMORY})
    assert tree(spans, 0xD) == FROM_MEMORY


@pytest.mark.usefixtures("exported")
def test_a_store_within_the_process_has_spans(collector: Collector, package: Package, tmp_path: Path) -> None:
    def opened() -> slackwater.Store:
        return slackwater.Store(tmp_path, memory="8MiB", ssd="64MiB", log="off")

    with opened() as store:
        package.span.set(Span(0xE1 << 64, 0xE))
        store.put("e", VALUE, durable=True)
        assert store.exists("e")
        with store.view("e") as memory:
            assert bytes(memory) == VALUE
    with opened() as store:
        # All that it has is on SSD.
        assert store.get("e") == VALUE
        assert store.remove("e", force=True)
    spans = collector.until(0xE1 << 64, {"slackwater.remove"})
    mine = ("engine", INTERNAL)
    assert tree(spans, 0xE) == [
        ("slackwater.exists", *mine, "caller"),
        ("slackwater.get", *mine, "caller"),
        ("slackwater.get", *mine, "caller"),
        ("slackwater.put", *mine, "caller"),
        ("slackwater.remove", *mine, "caller"),
        ("slackwater.ssd_read", *mine, "slackwater.get"),
    ]
    [read] = [span for span in spans if span.name == "slackwater.ssd_read"]
    assert read.notes == {"slackwater.bytes": len(VALUE)}


@pytest.mark.usefixtures("exported")
def test_a_fork_tells_nothing_until_it_is_to(pool: str, collector: Collector, package: Package) -> None:
    with slackwater.connect(pool) as client:
        client.put("f", VALUE)

    def get(trace: int) -> bool:
        token = package.span.set(Span(trace << 64, 0xF))
        with slackwater.connect(pool) as client:
            right = client.get("f") == VALUE
        package.span.reset(token)
        return right

    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        right = get(0xF1)
        slackwater.export_traces(collector.url, service="child")
        right &= get(0xF2)
        slackwater.export_traces(None)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert get(0xF3)
    collector.until(0xF2 << 64, {"slackwater.get"})
    collector.until(0xF3 << 64, {"slackwater.get"})
    gets = {(span.trace >> 64, span.service) for span in collector.all() if span.name == "slackwater.get"}
    assert {(trace, service) for trace, service in gets if trace > 0xF0} == {(0xF2, "child"), (0xF3, "engine")}


@pytest.mark.usefixtures("exported")
def test_who_does_not_record_is_not_recorded(pool: str, collector: Collector, package: Package) -> None:
    before = len(collector.all())
    package.span.set(Span(0x91 << 64, trace_flags=0))
    with slackwater.connect(pool) as client:
        client.put("g", VALUE)
        assert client.get("g") == VALUE
    package.span.set(Span(0x92 << 64))
    with slackwater.connect(pool) as client:
        assert client.get("g") == VALUE
    collector.until(0x92 << 64, {name for name, *_ in FROM_MEMORY})
    assert all(span.trace == 0x92 << 64 for span in collector.all()[before:])


def test_calls_without_a_caller_begin_traces_for_a_share(pool: str, collector: Collector) -> None:
    before = len(collector.all())
    with slackwater.connect(pool) as client:
        client.put("h", VALUE)
        slackwater.export_traces(collector.url, share=1.0, service="engine")
        assert client.exists("h") and client.remove("h", force=True)
        slackwater.export_traces(None)
    roots = [span for span in collector.all()[before:] if span.parent == 0]
    assert sorted(span.name for span in roots) == ["slackwater.exists", "slackwater.remove"]
    assert len({span.trace for span in roots}) == 2
