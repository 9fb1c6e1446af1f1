"""A socket whose calls end within a time altogether."""

import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TimedSocket:
    """What `http.client` and `http.server` use of a socket.

    The timeout of a socket is for each piece: a peer that sends slowly would never end. And no thread can watch it, as none
    can be started when the interpreter ends, and each connection would have two.
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
            raise TimeoutError(f"the exchange took longer than {self._seconds} s") from None

    def sendall(self, data: Any) -> None:
        """Sends."""
        with self.in_time() as plain:
            plain.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A reader."""
        return io.BufferedReader(_Reader(self))

    def writer(self) -> io.BufferedIOBase:
        """A writer that holds nothing back."""
        return _Writer(self)

    def close(self) -> None:
        """Nothing: a connection whose answer ends with it is closed before that is read."""


class _Reader(io.RawIOBase):
    def __init__(self, timed: TimedSocket) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._timed.in_time() as plain:
            return plain.recv_into(buffer)


class _Writer(io.BufferedIOBase):
    def __init__(self, timed: TimedSocket) -> None:
        self._timed = timed

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._timed.sendall(data)
        return len(data)
