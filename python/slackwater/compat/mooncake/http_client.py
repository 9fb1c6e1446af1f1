"""One request by HTTP, within a time altogether and of bounded length."""

import http.client
import time
from typing import Any

from slackwater.compat.mooncake.timed_socket import TimedSocket


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
    connection.sock = TimedSocket(plain, seconds, until)
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
