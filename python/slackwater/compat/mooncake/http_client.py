"""One request by HTTP, within a time altogether and of bounded length."""

import http.client
import threading
import time

from slackwater.compat.mooncake.http_service import cut


def ask(
    method: str, host: str, port: int, target: str, *, named: str, seconds: float, bytes_max: int,
    body: bytes | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Status and body of the answer of a server, which is asked by the name `named`.

    Raises `OSError` and `http.client.HTTPException` when there is none in time, and `ValueError` when it is too long.
    """
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    connection.connect()
    assert connection.sock is not None
    # The timeout of a connection is for each piece: a peer that sends slowly would never end.
    until = time.monotonic() + seconds
    end = threading.Timer(seconds, cut, [connection.sock])
    end.daemon = True
    end.start()
    try:
        connection.request(method, target, body, {"Host": named})
        answer = connection.getresponse()
        read = answer.read(bytes_max + 1)
        if len(read) > bytes_max:
            raise ValueError(f"{answer.status} with more than {bytes_max} bytes")
        if time.monotonic() >= until:
            raise TimeoutError(f"the answer took longer than {seconds} s")
        return answer.status, read
    finally:
        end.cancel()
        connection.close()
