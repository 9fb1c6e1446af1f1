"""The services by HTTP: texts by key, and a store."""

import contextlib
import errno
import http.client
import itertools
import json
import os
import select
import signal
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

import calls
import mooncake.store
import pytest
from slackwater.compat.mooncake import http_client, http_metadata_server, http_service, mooncake_store_service, timed_socket
from slackwater.compat.mooncake.http_metadata_server import MetadataServer
from slackwater.compat.mooncake.http_service import Answer, Asked, Service
from slackwater.compat.mooncake.mooncake_store_service import MooncakeStoreService, configuration

from conftest import Starter

Row = tuple[str, str, bytes, int, bytes]


@contextmanager
def serving(answer: Callable[[Asked], Answer], bytes_max: int = 1 << 20) -> Iterator[int]:
    """The port of a service."""
    with Service("127.0.0.1", 0, bytes_max, answer) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        try:
            yield service.port
        finally:
            service.shutdown()
            thread.join()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check(port: int, rows: list[Row]) -> None:
    """Requests in order, each with its answer."""
    for method, path, body, status, answer in rows:
        assert ask(port, method, path, body) == (status, answer), (method, path, body)


KEY, RPC = "/metadata?key=a%2Fb", "/metadata?key=mooncake/rpc_meta/host"
MISSING, NEEDED = b"metadata not found", b"metadata key is required"

# As Mooncake 0.3.13 answers.
METADATA: list[Row] = [
    ("GET", KEY, b"", 404, MISSING),
    ("PUT", KEY, b'{"x":1}', 200, b"metadata updated"),
    ("GET", KEY, b"", 200, b'{"x":1}'),
    ("PUT", KEY, b"two", 200, b"metadata updated"),
    ("GET", KEY, b"", 200, b"two"),
    ("DELETE", KEY, b"", 200, b"metadata deleted"),
    ("DELETE", KEY, b"", 404, MISSING),
    *[(method, f"/metadata{query}", b"", 400, NEEDED) for method in ("GET", "PUT") for query in ("", "?key=", "?key=%20")],
    ("PUT", RPC, b"1", 200, b"metadata updated"),
    ("PUT", RPC, b"1", 400, b"Duplicate rpc_meta key not allowed"),
    ("GET", RPC, b"", 200, b"1"),
    ("DELETE", RPC, b"", 200, b"metadata deleted"),
    ("PUT", RPC, b"2", 200, b"metadata updated"),
    ("PUT", KEY, b"", 200, b"metadata updated"),
    ("GET", KEY, b"", 200, b""),
    ("POST", KEY, b"x", 405, b"Method not allowed"),
    ("GET", "/", b"", 404, b"404: Not Found"),
    ("GET", "/metadata/more?key=a", b"", 404, b"404: Not Found"),
    ("HEAD", KEY, b"", 405, b""),
    ("PUT", "/metadata?key=" + "k" * 5000, b"x", 400, b"metadata key is too long"),
]


def test_texts_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(MetadataServer().answer) as port:
        check(port, METADATA)
        monkeypatch.setattr(http_metadata_server, "KEYS_MAX", 2)
        assert ask(port, "PUT", "/metadata?key=third", b"x")[0] == 507
        assert ask(port, "PUT", KEY, b"again")[0] == 200


def test_texts_have_bounds_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their number and the length of each had one, which together are 64 GiB."""
    monkeypatch.setattr(http_metadata_server, "BYTES_MAX", 20)
    with serving(MetadataServer().answer) as port:
        rows = [
            ("PUT", "a", 9, 200), ("PUT", "b", 10, 507), ("PUT", "b", 9, 200), ("PUT", "c", 0, 507), ("PUT", "b", 10, 507),
            ("GET", "b", 0, 200), ("PUT", "b", 8, 200), ("PUT", "c", 0, 200), ("PUT", "a", 9, 200), ("DELETE", "a", 0, 200),
            ("PUT", "d", 9, 200), ("PUT", "d", 10, 507), ("DELETE", "x", 0, 404), ("PUT", "e", 0, 507),
        ]  # fmt: skip
        for method, key, count, status in rows:
            assert ask(port, method, f"/metadata?key={key}", b"x" * count)[0] == status, (method, key, count)


def said(port: int, request: bytes) -> int:
    """The status of the answer to a request as it is."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        return int(connection.makefile("rb").readline().split()[1])


def test_pages_from_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of any site could use a service of its reader's machine: by a form, or under a name that was made to mean this
    machine."""
    local, strange = "127.0.0.1:8080", "evil.example:8080"
    rows: list[tuple[dict[str, str], bool, bool]] = [
        ({}, False, False),
        *[({"Host": host}, False, False) for host in (local, "LOCALHOST", "localhost:1", "127.9.9.9", "[::1]:80")],
        *[({"Host": host}, True, False) for host in (strange, "10.0.0.1", "", "127.0.0.1.evil.example", "[::2]")],
        ({"Host": local, "Origin": f"http://{local}"}, False, False),
        ({"Host": "LocalHost", "Origin": "http://localhost"}, False, False),
        ({"Host": local, "Origin": "http://evil.example"}, True, True),
        ({"Host": local, "Origin": "http://127.0.0.1:9090"}, True, True),
        ({"Host": local, "Origin": "null"}, True, True),
        ({"Host": "", "Origin": "null"}, True, True),
        ({"Origin": "http://127.0.0.1"}, True, True),
        *[({"Host": local, "Sec-Fetch-Site": site}, False, False) for site in ("same-origin", "none")],
        *[({"Host": local, "Sec-Fetch-Site": site}, True, True) for site in ("same-site", "cross-site", "")],
    ]
    answered: list[str] = []

    def answer(asked: Asked) -> Answer:
        answered.append(asked.method)
        return Answer(200, b"")

    with Service("127.0.0.1", 0, 1 << 20, answer) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        assert service.is_local
        for is_local in (True, False):
            # What is reached from other machines has names that are not known here.
            service.is_local = is_local
            for headers, alone, open_to_others in rows:
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                expected = 403 if (alone if is_local else open_to_others) else 200
                answered.clear()
                assert said(service.port, f"POST / HTTP/1.1\r\n{lines}\r\n".encode()) == expected, (headers, is_local)
                assert len(answered) == (expected == 200)
        service.shutdown()
        thread.join()
    with Service("0.0.0.0", 0, 0, answer) as service:
        assert not service.is_local


def test_requests_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of length, of number, and of time: a side that sends slowly, or nothing, keeps nobody else from an answer."""

    def answer(asked: Asked) -> Answer:
        if asked.path == ("fails",):
            raise ValueError
        return Answer(200, asked.body)

    monkeypatch.setattr(http_service.Service, "seconds_max", 0.3)
    monkeypatch.setattr(http_service, "REQUESTS_MAX", 2)
    with serving(answer, bytes_max=10) as port:
        assert ask(port, "POST", "/", b"0123456789") == (200, b"0123456789")
        assert ask(port, "POST", "/", b"01234567890")[0] == 413
        assert ask(port, "GET", "/fails")[0] == 500
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        slow[0].sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n01")
        assert ask(port, "GET", "/") == (200, b"")
        for connection in slow:
            connection.close()
        for header in (b"Content-Length: x", b"Content-Length: -1", b"Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"POST / HTTP/1.1\r\n" + header + b"\r\n\r\n")
                assert b" 411 " in connection.recv(100)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n01")
            connection.shutdown(socket.SHUT_WR)
            assert b" 400 " in connection.recv(100)


def test_a_service_whose_connections_are_all_held_does_what_else_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop waited for one of them to end: a list of keys that had changed was not read until then, and neither the service
    nor the process of an engine ended."""
    monkeypatch.setattr(http_service, "REQUESTS_MAX", 2)
    looked = threading.Event()
    with Service("127.0.0.1", 0, 10, lambda asked: Answer(200, b"")) as service:
        monkeypatch.setattr(service, "service_actions", looked.set)
        thread = threading.Thread(target=service.serve_forever, args=(0.01,))
        thread.start()
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(3)]
        while service._under_way < 2:
            time.sleep(0.01)
        # A look that was under way may end still.
        for _ in range(2):
            looked.clear()
            assert looked.wait(20)
        began = time.monotonic()
        service.shutdown()
        thread.join()
        assert time.monotonic() - began < 20
        for connection in held:
            connection.close()


def test_a_service_without_work_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked twice a second whether it was to end, and ended half a second after it was told to."""
    waits: list[tuple[int, float | None]] = []

    def recorded() -> Any:
        poll = plain()

        def wait(timeout: float | None) -> Any:
            waits.append((threading.get_ident(), timeout))
            return poll.poll(timeout)

        return SimpleNamespace(register=poll.register, poll=wait)

    plain = select.poll
    monkeypatch.setattr(select, "poll", recorded)
    with Service("127.0.0.1", 0, 10, lambda asked: Answer(200, b"")) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        assert ask(service.port, "GET", "/") == (200, b"")
        service.shutdown()
        thread.join()
    assert {timeout for of, timeout in waits if of == thread.ident} == {None}


def test_a_request_for_which_there_is_no_thread_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of a connection was taken for good when the system had no thread for it."""

    class NoMore(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(http_service, "REQUESTS_MAX", 2)
    with serving(lambda asked: Answer(200, b"")) as port:
        with monkeypatch.context() as patch:
            patch.setattr(http_service.threading, "Thread", NoMore)
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port), 20) as connection:
                    assert connection.recv(1) == b""
        assert ask(port, "GET", "/") == (200, b"")


def test_a_connection_has_one_thread() -> None:
    """A second one watched its clock: twice the threads for connections of nobody."""
    before = set(threading.enumerate())
    with Service("127.0.0.1", 0, 10, lambda asked: Answer(200, b"")) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(8)]
        while service._under_way < 8:
            time.sleep(0.01)
        assert len(set(threading.enumerate()) - before) == 1 + 8
        for connection in held:
            connection.close()
        service.shutdown()
        thread.join()


def test_connections_that_ask_nothing_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are places kept all others from the service for as long as a connection may last."""
    monkeypatch.setattr(http_service, "REQUESTS_MAX", 3)
    monkeypatch.setattr(Service, "asking_seconds", 0.2)
    asked_for, may_end = threading.Event(), threading.Event()

    def answer(asked: Asked) -> Answer:
        if asked.path == ("long",):
            asked_for.set()
            assert may_end.wait(20)
        return Answer(200, b"")

    with serving(answer, bytes_max=10) as port, contextlib.ExitStack() as held:

        def connected(said: bytes) -> socket.socket:
            connection = held.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            connection.sendall(said)
            return connection

        # The oldest one has made its request, and is answered however long that takes.
        answered = connected(b"GET /long HTTP/1.0\r\n\r\n")
        assert asked_for.wait(20)
        silent = connected(b"")
        slow = connected(b"POST / HTTP/1.0\r\nContent-Length: 10\r\n\r\n01")
        began = time.monotonic()
        assert ask(port, "GET", "/") == (200, b"") == ask(port, "GET", "/")
        assert time.monotonic() - began < 20
        assert silent.recv(1) == b"", "the one that has asked nothing for longest"
        more = connected(b""), connected(b"")
        assert ask(port, "GET", "/") == (200, b"")
        assert slow.recv(1) == b"" and more[1] is not None
        may_end.set()
        assert b" 200 " in answered.recv(100)


def test_heads_have_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred lines each had one of 64 KiB: sixty-four connections of nobody took 400 MiB."""
    monkeypatch.setattr(Service, "head_bytes_max", 1000)
    with serving(lambda asked: Answer(200, b""), bytes_max=10) as port:
        line = b"GET / HTTP/1.0\r\n"
        for bytes_given, status in ((1000, 200), (1001, 431)):
            fields = b"A: " + b"b" * 97 + b"\r\n"
            head = line + fields * 9
            head += b"C: " + b"d" * (bytes_given - len(head) - 7) + b"\r\n\r\n"
            assert len(head) == bytes_given and said(port, head) == status
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.sendall(b"GET /" + b"x" * 1000 + b" HTTP/1.0\r\n\r\n")
            assert connection.recv(1) == b""
        assert ask(port, "POST", "/", b"0123456789") == (200, b"")


def test_a_service_without_descriptors_waits_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop was told at once, again and again, that a connection waits."""
    tries: list[float] = []
    plain = http_service.ThreadingHTTPServer.get_request

    def none(self: Service) -> Any:
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise OSError(errno.EMFILE, "no more")
        return plain(self)

    monkeypatch.setattr(http_service.ThreadingHTTPServer, "get_request", none)
    with serving(lambda asked: Answer(200, b"")) as port:
        assert ask(port, "GET", "/") == (200, b"")
    assert len(tries) == 4 and all(then + 0.09 < after for then, after in itertools.pairwise(tries)), tries


def test_what_cannot_be_taken_is_answered() -> None:
    """The connection was cut instead while a body that is too long was still sent, at a length of thousands of digits, and
    at a path with half an address."""
    with serving(lambda asked: Answer(200, b""), bytes_max=10) as port:
        assert ask(port, "PUT", "/", bytes(32 << 20))[0] == 413
        for digits in ("9" * 5000, "1" + "0" * 18, "0" * 30, "11"):
            assert said(port, f"PUT / HTTP/1.1\r\nContent-Length: {digits}\r\n\r\n".encode()) == 413, digits
        assert said(port, b"GET http://[/ HTTP/1.1\r\n\r\n") == 400


def test_little_is_read_of_what_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "discarded_bytes_max", 100)
    with serving(lambda asked: Answer(200, b""), bytes_max=10) as port:
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(100))
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert b" 413 " in answer


def test_the_time_of_a_request_begins_before_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer had the time once to be reached, and then again."""
    at = 0.0

    class Slow(http.client.HTTPConnection):
        def connect(self) -> None:
            nonlocal at
            super().connect()
            at += 30

    monkeypatch.setattr(http_client.http.client, "HTTPConnection", Slow)
    with serving(lambda asked: Answer(200, b"")) as port:
        service = threading.current_thread()
        clock = SimpleNamespace(monotonic=lambda: at if threading.current_thread() is service else time.monotonic())
        monkeypatch.setattr(http_client, "time", clock)
        monkeypatch.setattr(timed_socket, "time", clock)
        for seconds, is_in_time in ((31.0, True), (29.0, False)):
            with contextlib.nullcontext() if is_in_time else pytest.raises(TimeoutError):
                http_client.ask("GET", "127.0.0.1", port, "/", named="localhost", seconds=seconds, bytes_max=10)


def j(**fields: Any) -> bytes:
    """An object."""
    return json.dumps(fields).encode()


FINE, GONE = j(status="success"), j(error="Key not found")
GRACE = j(error="Invalid grace_period_seconds, must be a non-negative integer no greater than 3600")
NO_NAME, NO_PATH = j(error="Missing or invalid name or size"), j(error="Missing path or size for decode mode")
NO_PIECE = j(error="Invalid size or offset, must be a positive integer, and a non-negative one")
NOT_ALL, NO_MODE = "Unmount failed for one or more segments", j(error="Invalid mode. Use 'decode' or 'prefill'")
ROLLED_BACK = j(error="Mount failed, ret=-1; rolled back to prefill", mode="prefill")
NO_SIZE = j(error="Invalid size, must be a positive integer")

STORE: list[Row] = [
    ("PUT", "/api/put", j(key="a", value="hell\u00f6"), 200, FINE),
    ("GET", "/api/get/a", b"", 200, "hell\u00f6".encode()),
    ("GET", "/api/get/none", b"", 404, GONE),
    ("GET", "/api/exist/a", b"", 200, j(exists=True)),
    ("GET", "/api/exist/none", b"", 200, j(exists=False)),
    ("PUT", "/api/put", j(key="a"), 400, j(error="Missing key or value")),
    ("PUT", "/api/put", j(value="a"), 400, j(error="Missing key or value")),
    ("PUT", "/api/put", j(key="", value="x"), 400, j(error="Missing key or value")),
    ("PUT", "/api/put", j(key="b", value=5), 400, j(error="key and value must be texts")),
    ("PUT", "/api/put", b"[1]", 400, j(error="the body must be an object of names and values")),
    ("PUT", "/api/put", b"", 400, j(error="the body is not JSON: Expecting value: line 1 column 1 (char 0)")),
    ("PUT", "/api/put", j(key="b", value=""), 500, j(error="PUT operation failed", code=-600)),
    ("PUT", "/api/put", j(key="k/1", value="x"), 200, FINE),
    ("GET", "/api/get/k%2F1", b"", 200, b"x"),
    ("GET", "/api/get/k/1", b"", 404, b"404: Not Found"),
    ("GET", "/api/get/", b"", 404, b"404: Not Found"),
    ("POST", "/api/put", j(key="a", value="x"), 405, b"405: Method Not Allowed"),
    ("DELETE", "/api/remove/none", b"", 500, j(error="Remove operation failed", code=-704)),
    ("DELETE", "/api/remove/a", b"", 500, j(error="Remove operation failed", code=-706)),
    ("PUT", "/api/put", j(key="new", value="x"), 200, FINE),
    ("DELETE", "/api/remove/new", b"", 200, FINE),
    ("PUT", "/api/put", j(key="new", value="x"), 200, FINE),
    ("DELETE", "/api/remove_all", b"", 200, j(status="success removed 1 keys")),
    ("POST", "/api/mount", j(), 400, NO_SIZE),
    ("POST", "/api/mount", j(size=-1), 400, NO_SIZE),
    ("POST", "/api/mount", j(size=True), 400, NO_SIZE),
    ("POST", "/api/mount", j(size=1, protocol=5), 400, j(error="protocol and location must be texts")),
    ("POST", "/api/unmount", j(), 400, j(error="Missing segment_ids")),
    ("POST", "/api/unmount", j(segment_ids=[]), 400, j(error="Missing segment_ids")),
    ("POST", "/api/unmount", j(segment_ids=["1-2"]), 500, j(error="Unmount and free failed", code=-1)),
    ("GET", "/", b"", 404, b"404: Not Found"),
    ("GET", "/other/get/a", b"", 404, b"404: Not Found"),
    ("POST", "/api/unmount_local_disk", j(grace_period_seconds=5), 200, j(status="success")),
    ("POST", "/api/unmount_local_disk", j(grace_period_seconds=-1), 400, GRACE),
    *[("POST", "/api/mount_shm", j(name=name, size=1), 400, NO_NAME) for name in ("", "/", "a/b", "//a", ".", "..", 5, None)],
    ("POST", "/api/mount_shm", j(name="a"), 400, NO_NAME),
    *[("POST", "/api/mount_shm", j(name="a", **wrong), 400, NO_PIECE) for wrong in ({"size": 0}, {"size": "1"}, {"size": 1, "offset": -1})],
    ("POST", "/api/mount_shm", j(name="a", size=1, location=5), 400, j(error="protocol and location must be texts")),
    ("POST", "/api/mount_shm", j(name="/none-of-these", size=1 << 24), 500, j(error="Mount failed", code=-1)),
    ("POST", "/api/unmount_shm", j(), 400, j(error="Missing segment_ids")),
    ("POST", "/api/unmount_shm", j(segment_ids=["1-2"], grace_period_seconds=-1), 400, GRACE),
    ("POST", "/api/unmount_shm", j(segment_ids="1-2"), 500, j(error=NOT_ALL, failed_segment_ids=["1-2"])),
    *[("POST", "/api/reconfigure", body, 400, NO_MODE) for body in (j(), j(mode=""), j(mode=5), j(mode="idle"))],
    *[("POST", "/api/reconfigure", j(mode="decode", **few), 400, NO_PATH) for few in ({}, {"path": "/x"}, {"path": "", "size": 1})],
    ("POST", "/api/reconfigure", j(mode="decode", path="/none", size=1 << 24), 500, ROLLED_BACK),
    ("POST", "/api/reconfigure", j(mode="Prefill"), 200, j(status="success", mode="prefill")),
]  # fmt: skip


def test_a_store_by_http(player: calls.Player, kind: str) -> None:
    with serving(MooncakeStoreService(player.store).answer) as port:
        check(port, STORE)
        for wrong in (j(key="\ud800", value="x"), j(key="x", value="\ud800"), b"[" * 100_000):
            assert ask(port, "PUT", "/api/put", wrong)[0] == 400
        grace = j(segment_ids=["1-2"], grace_period_seconds=4000)
        assert ask(port, "POST", "/api/unmount", grace)[0] == 400
        status, body = ask(port, "POST", "/api/mount", j(size=16 << 20, protocol="tcp", location=""))
        if kind == "serve":
            assert (status, json.loads(body)["code"]) == (500, -1)
            return
        mounted = json.loads(body)
        assert status == 200 and mounted["allocated_size"] == 16 << 20 and mounted["status"] == "success"
        assert ask(port, "POST", "/api/unmount", j(segment_ids=mounted["segment_ids"])) == (200, FINE)


def test_files_are_lent_by_http(started: Starter, soon: None) -> None:
    """A new one is there before the old one goes, and what failed can be tried again."""
    name = f"slackwater-services-{os.getpid()}"
    path = Path("/dev/shm", name)
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    try:
        with started("master", "--put-wait", "100ms") as (address, _):
            store = calls.opened(mooncake.store, address, segment=0).store
            with serving(MooncakeStoreService(store).answer) as port:
                lend = j(name=f"/{name}", size=16 << 20, offset=4096, protocol="tcp", location="cpu:0")
                status, body = ask(port, "POST", "/api/mount_shm", lend)
                assert status == 200
                ids = json.loads(body)["segment_ids"]
                assert ask(port, "POST", "/api/unmount_shm", j(segment_ids=ids, grace_period_seconds=1)) == (200, FINE)
                again = j(error=NOT_ALL, failed_segment_ids=ids)
                assert ask(port, "POST", "/api/unmount_shm", j(segment_ids=ids)) == (500, again)
                found: list[list[str]] = []
                for offset in (0, 32 << 20):
                    decode = j(mode="decode", path=str(path), size=16 << 20, offset=offset)
                    status, body = ask(port, "POST", "/api/reconfigure", decode)
                    answer = json.loads(body)
                    assert (status, answer["status"], answer["mode"]) == (200, "success", "decode")
                    found.append(answer["segment_ids"])
                assert [len(one) for one in found] == [1, 1] and found[0] != found[1]
                assert store.unmount_segment(found[0]) == -1, "the first is taken back"
                kept = j(error="Mount failed, ret=-1; keeping previous decode segments", mode="decode")
                assert ask(port, "POST", "/api/reconfigure", j(mode="decode", path="/none", size=1 << 24)) == (500, kept)
                assert ask(port, "POST", "/api/reconfigure", j(mode="prefill")) == (200, j(status="success", mode="prefill"))
                assert store.unmount_segment(found[1]) == -1 and store.put("k", b"v") == -200
            store.close()
    finally:
        path.unlink()


def test_values_have_the_grace_of_a_request_to_move() -> None:
    class Asked(mooncake.store.MooncakeDistributedStore):
        def unmount_and_free_segment(self, segment_ids: Any, grace_period_seconds: int = 0) -> int:
            return 0 if (segment_ids, grace_period_seconds) == (["1-2"], 7) else -1

    with serving(MooncakeStoreService(Asked()).answer) as port:
        assert ask(port, "POST", "/api/unmount", j(segment_ids=["1-2"], grace_period_seconds=7)) == (200, FINE)
        assert ask(port, "POST", "/api/unmount", j(segment_ids=["1-2"]))[0] == 500


def test_configurations_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    config = configuration(None, ["master_server_address=h:1", "global_segment_size=1GB", "enable_ssd_offload=no"])
    assert (config.master_server_address, config.global_segment_size, config.local_hostname) == ("h:1", 1 << 30, "localhost")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"local_hostname": "a", "metadata_server": "b", "master_server_address": "c:1"}))
    assert configuration(str(file), ["local_hostname=x"]).local_hostname == "x"
    monkeypatch.setenv("MOONCAKE_MASTER", "e:1")
    assert configuration(None, []).master_server_address == "e:1"
    for wrong, reason in (("prtocol=tcp", "protocol"), ("protocol", "NAME=VALUE"), ("global_segment_size=x", "size")):
        with pytest.raises(ValueError, match=reason):
            configuration(None, [wrong])


def test_setup_is_tried_again_while_no_master_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused for ever was tried again for a minute, too."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: float(len(pauses)), sleep=pauses.append)
    monkeypatch.setattr(mooncake_store_service, "time", clock)
    config = configuration(None, ["master_server_address=h:1"])
    for codes, seconds, expected, tries in (
        ([0], 60, 0, 1),
        ([-900, -901, -2002, -2003, 0], 60, 0, 5),
        ([-900, -600, 0], 60, -600, 2),
        ([-1], 60, -1, 1),
        ([-601], 60, -601, 1),
        ([-900] * 9, 4, -900, 4),
        ([-900] * 9, 0, -900, 1),
    ):
        pauses.clear()
        left = iter(codes)
        store = SimpleNamespace(setup=lambda given, left=left: next(left))
        assert mooncake_store_service.set_up(store, config, seconds) == expected
        assert pauses == [1] * (tries - 1)


def test_the_programs_serve_until_they_are_stopped(master: str) -> None:
    service = [mooncake_store_service.__name__, "-D", f"master_server_address={master}", "-D", "global_segment_size=0"]
    for words, path, status in ((service, "/api/exist/none", 200), ([http_metadata_server.__name__], "/metadata", 400)):
        command = [sys.executable, "-m", *words, "--port=0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
            assert program.stderr is not None
            line = next(line for line in program.stderr if " serves at " in line)
            port = int(line.rpartition(":")[2])
            assert ask(port, "GET", path)[0] == status
            program.send_signal(signal.SIGTERM)
            assert program.wait(20) == 0, program.stderr.read()


def test_a_service_without_a_master_says_so(soon: None) -> None:
    words = ["-D", "master_server_address=127.0.0.1:1", "--port=0", "--max-wait-time=0"]
    command = [sys.executable, "-m", mooncake_store_service.__name__, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "setup failed with -900 at 127.0.0.1:1" in ran.stderr
