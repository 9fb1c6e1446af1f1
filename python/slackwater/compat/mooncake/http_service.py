"""Small HTTP services: a bounded number of requests at a time, of bounded length, each within a time, one a connection.

They ask nobody for a key. A browser makes requests for pages from elsewhere, which are refused: those name their origin, or
say that they are from elsewhere, or ask a name that was made to mean this machine. A service that is reached from other
machines, at names of its own, answers all that reach it.
"""

import contextlib
import errno
import http.client
import ipaddress
import json
import logging
import math
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from slackwater.compat.mooncake.timed_socket import TimedSocket

log = logging.getLogger("slackwater.mooncake")

REQUESTS_MAX = 64
"""Requests under way at a time; others wait to be accepted."""
_LENGTH_DIGITS_MAX = 18
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SCARCE_SECONDS = 0.1


@dataclass(frozen=True)
class Asked:
    """A request: method, path in decoded pieces, first values of the query, and body."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: int
    body: bytes
    kind: str = "application/json; charset=utf-8"

    @classmethod
    def json(cls, status: int, /, **fields: Any) -> "Answer":
        """An object with these fields."""
        return cls(status, json.dumps(fields).encode())


NOT_FOUND = Answer(404, b"404: Not Found", "text/plain; charset=utf-8")
NOT_ALLOWED = Answer(405, b"405: Method Not Allowed", "text/plain; charset=utf-8")
_FOREIGN = Answer.json(403, error="pages of other origins are not served: ask 127.0.0.1 or localhost")


class Service(ThreadingHTTPServer):
    """Answers requests with `answer`, on threads. A port of 0 is a free one."""

    daemon_threads = True
    request_queue_size = 128
    seconds_max = 120.0
    """How long a connection lasts at most."""
    asking_seconds: float | None = None
    """When all places are taken, the oldest connection that has not made its request after so long is cut for one that waits;
    `None` for no such time."""
    head_bytes_max = 64 << 10
    """How long a request may be before its body."""
    discarded_bytes_max = 256 << 20
    """How much of a body that is too long is read, so that the other side hears why it is not taken."""

    def __init__(self, host: str, port: int, bytes_max: int, answer: Callable[[Asked], Answer]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.bytes_max, self.answer = bytes_max, answer
        self._under_way, self._counting = 0, threading.Lock()
        # Connections that have not made their requests, the oldest first, and until when they keep their places.
        self._asking: dict[socket.socket, float] = {}
        # One that was cut for others, until its thread has ended.
        self._cut: socket.socket | None = None
        self._accepts_at = 0.0
        self._ends, self._ended = False, threading.Event()
        self._wake, self._woken = socket.socketpair()
        for one in (self._wake, self._woken):
            one.setblocking(False)
        super().__init__((host, port), _Handler)
        self.socket.setblocking(False)
        self.is_local = _is_loopback(str(self.server_address[0]))

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def serve_forever(self, poll_interval: float | None = None) -> None:
        """Answers until `shutdown`. Nobody holds up what it does besides, `service_actions`: after each event, and each
        time that the interval, in seconds, has passed without one."""
        self._ended.clear()
        try:
            while not self._ends:
                waits = select.poll()
                waits.register(self._woken, select.POLLIN)
                pause = self._pause()
                if pause == 0:
                    waits.register(self.socket, select.POLLIN)
                times = [seconds for seconds in (poll_interval, pause or None) if seconds is not None]
                timeout = math.ceil(min(times) * 1000) if times else None
                ready = [number for number, _ in waits.poll(timeout)]
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                if self.socket.fileno() in ready and not self._ends and self._has_room():
                    self._handle_request_noblock()
                self.service_actions()
        finally:
            self._ends = False
            self._ended.set()

    def shutdown(self) -> None:
        """Ends `serve_forever`, which another thread runs or is about to, and waits for that; requests that are under way go on."""
        self._ends = True
        self._awaken()
        self._ended.wait()

    def server_close(self) -> None:
        """Listens no more."""
        super().server_close()
        self._wake.close()
        self._woken.close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Where the system has nothing left for one, it waits a moment: the loop would be told of it at
        once, again and again."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _SCARCE:
                self._accepts_at = time.monotonic() + _SCARCE_SECONDS
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins a thread."""
        with self._counting:
            self._under_way += 1
            if self.asking_seconds is not None:
                self._asking[request] = time.monotonic() + self.asking_seconds
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def has_asked(self, request: Any) -> None:
        """A connection has made its request: it is answered, also while others wait."""
        with self._counting:
            self._asking.pop(request, None)

    def _leave(self, request: Any) -> None:
        with self._counting:
            was_full = self._under_way >= REQUESTS_MAX
            self._under_way -= 1
            self._asking.pop(request, None)
            if self._cut is request:
                self._cut = None
        if was_full:
            self._awaken()

    def _pause(self) -> float | None:
        """The seconds in which another connection may be looked for; `None` where one has to end first, which wakes the loop."""
        with self._counting:
            if self._under_way < REQUESTS_MAX:
                at = self._accepts_at
            elif self._cut is None and self._asking:
                at = next(iter(self._asking.values()))
            else:
                return None
        return max(at - time.monotonic(), 0)

    def _has_room(self) -> bool:
        """Whether there is a place for a connection that waits. If not, the one is cut that has had its time."""
        with self._counting:
            if self._under_way < REQUESTS_MAX:
                return True
            if self._cut is None and self._asking:
                oldest, until = next(iter(self._asking.items()))
                if until <= time.monotonic():
                    self._cut = oldest
                    cut(oldest)
            return False

    def _awaken(self) -> None:
        # What is full wakes too, and what is closed has nobody to wake.
        with contextlib.suppress(OSError):
            self._wake.send(b"w")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no event; anything else is."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request of %s failed", client_address)

    def run_until_stopped(self, name: str) -> None:
        """Answers until SIGINT or SIGTERM."""

        def stop(*_signal: object) -> None:
            # It waits for the loop, which this thread runs.
            threading.Thread(target=self.shutdown).start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        print(f"{name} serves at http://{self.server_address[0]}:{self.port}", file=sys.stderr, flush=True)
        self.serve_forever()
        self.server_close()


def cut(connection: socket.socket) -> None:
    """Ends a connection that another thread uses."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def is_foreign(headers: Message, is_local: bool) -> bool:
    """Whether a page from elsewhere makes a request, by its headers: <https://www.w3.org/TR/fetch-metadata/>. Another port
    of this machine is elsewhere too."""
    host, origin = headers.get("Host"), headers.get("Origin")
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return True
    if origin is not None and (host is None or "://" not in origin or origin.partition("://")[2].lower() != host.lower()):
        return True
    return is_local and host is not None and not _is_this_machine(host)


def _is_this_machine(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Head:
    """The lines of a request before its body, which have a length altogether."""

    def __init__(self, lines: Any, bytes_max: int) -> None:
        self._lines, self._left = lines, bytes_max

    def readline(self, bytes_max: int) -> bytes:
        """The next line. Raises `LineTooLong` when it is none any more."""
        line: bytes = self._lines.readline(min(bytes_max, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    server: Service
    server_version = "slackwater"
    sys_version = ""

    def setup(self) -> None:
        # However slowly the other side sends and reads.
        seconds = self.server.seconds_max
        timed = TimedSocket(self.request, seconds, time.monotonic() + seconds)
        self.connection, self.rfile, self.wfile = self.request, timed.makefile("rb"), timed.writer()

    def handle_one_request(self) -> None:
        # As the base class does, but for every method, and for heads of a length.
        body: Any = self.rfile
        head: Any = _Head(body, self.server.head_bytes_max)
        self.rfile = head
        try:
            self.raw_requestline = head.readline(self.server.head_bytes_max + 1)
            if not self.raw_requestline or not self.parse_request():
                return
        except http.client.LineTooLong:
            # Of the first line, at which nothing can be answered yet.
            return
        finally:
            self.rfile = body
        self._unread = 0
        answer = self._answer()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self._discard()

    def _discard(self) -> None:
        """Reads what is left of a body that is not taken: the system would cut the connection, and the answer with it."""
        left = min(self._unread, self.server.discarded_bytes_max)
        while left > 0 and (piece := self.rfile.read1(min(left, 1 << 16))):
            left -= len(piece)

    def _answer(self) -> Answer:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            return Answer.json(411, error="Content-Length is needed")
        self._unread = bytes_given = int(length[-_LENGTH_DIGITS_MAX:])
        if len(length) > _LENGTH_DIGITS_MAX or bytes_given > self.server.bytes_max:
            return Answer.json(413, error=f"{length[:32]} bytes, at most {self.server.bytes_max} are taken")
        if is_foreign(self.headers, self.server.is_local):
            return _FOREIGN
        body = self.rfile.read(bytes_given)
        self._unread = 0
        self.server.has_asked(self.request)
        if len(body) != bytes_given:
            return Answer.json(400, error="the body ends early")
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True)
        except ValueError as error:
            return Answer.json(400, error=f"the path is none: {error}")
        path = tuple(unquote(piece) for piece in parts.path.split("/")[1:])
        first = {name: values[0] for name, values in query.items()}
        try:
            return self.server.answer(Asked(self.command, path, first, body))
        except Exception:
            log.exception("%s %s", self.command, parts.path)
            return Answer.json(500, error="internal error")

    def log_message(self, form: str, *arguments: Any) -> None:
        log.debug(form, *arguments)
