"""One request by HTTP, within a time altogether and of bounded length."""

import http.client
import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def ask(
    method: str, host: str, port: int, target: str, *, named: str, seconds: float, bytes_max: int,
    body: bytes | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Status and body of the answer of a server, which is asked by the name `named`.

    Raises `OSError` and `http.client.HTTPException` when there is none in time, and `ValueError` when it is too long.
    """
    until = time.monotonic() + seconds
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    connection.connect()
    plain: Any = connection.sock
    connection.sock = _Timed(plain, seconds, until)
    try:
        connection.request(method, target, body, {"Host": named})
        answer = connection.getresponse()
        read = answer.read(bytes_max + 1)
        if len(read) > bytes_max:
            raise ValueError(f"{answer.status} with more than {bytes_max} bytes")
        return answer.status, read
    finally:
        connection.close()
        plain.close()


class _Timed:
    """A socket for `http.client`, whose calls end within a time altogether.

    The timeout of a socket is for each piece: a peer that sends slowly would never end. And no thread can watch it, as none
    can be started when the interpreter ends.
    """

    def __init__(self, plain: socket.socket, seconds: float, until: float) -> None:
        self._plain, self._seconds, self._until = plain, seconds, until

    @contextmanager
    def in_time(self) -> Iterator[socket.socket]:
        """The socket, for a call that ends in time."""
        try:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._plain.settimeout(left)
            yield self._plain
        except TimeoutError:
            raise TimeoutError(f"the answer took longer than {self._seconds} s") from None

    def sendall(self, data: bytes) -> None:
        """Sends."""
        with self.in_time() as plain:
            plain.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A reader."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Nothing: a connection whose answer ends with it is closed before that is read."""


class _Reader(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._timed.in_time() as plain:
            return plain.recv_into(buffer)
