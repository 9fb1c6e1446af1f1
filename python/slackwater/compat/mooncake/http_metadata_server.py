"""`mooncake_http_metadata_server`: texts by key, for transfer engines that find each other by HTTP."""

import argparse
import logging
import threading

from slackwater.compat.mooncake.http_service import NOT_FOUND, Answer, Asked, Service

KEYS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX = 65_536, 4096, 1 << 20
BYTES_MAX = 256 << 20
"""What all keys and texts have together."""


class MetadataServer:
    """Texts by key, in memory."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def answer(self, asked: Asked) -> Answer:
        """GET, PUT and DELETE of `/metadata?key=…`."""
        if asked.path != ("metadata",):
            return NOT_FOUND
        key = asked.query.get("key", "")
        if not key.strip():
            return Answer(400, b"metadata key is required")
        with self._lock:
            if asked.method == "PUT":
                return self._put(key, asked.body)
            if asked.method not in ("GET", "DELETE"):
                return Answer(405, b"Method not allowed")
            if key not in self._texts:
                return Answer(404, b"metadata not found")
            if asked.method == "GET":
                return Answer(200, self._texts[key], "application/json")
            self._bytes -= len(key.encode()) + len(self._texts.pop(key))
            return Answer(200, b"metadata deleted")

    def _put(self, key: str, text: bytes) -> Answer:
        if "rpc_meta" in key and key in self._texts:
            return Answer(400, b"Duplicate rpc_meta key not allowed")
        key_bytes = len(key.encode())
        if key_bytes > KEY_BYTES_MAX:
            return Answer(400, b"metadata key is too long")
        if key not in self._texts and len(self._texts) >= KEYS_MAX:
            return Answer(507, b"there are too many metadata keys: delete some")
        before = key_bytes + len(self._texts[key]) if key in self._texts else 0
        after = self._bytes - before + key_bytes + len(text)
        if after > BYTES_MAX:
            return Answer(507, b"the metadata is too long altogether: delete some")
        self._texts[key], self._bytes = text, after
        return Answer(200, b"metadata updated")


def main(arguments: list[str] | None = None) -> None:
    """Serves until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="mooncake_http_metadata_server", description=__doc__)
    parser.add_argument("--host", "-host", default="127.0.0.1", help="where to listen (default: this machine alone)")
    parser.add_argument("--port", "-port", type=int, default=8080, help="port to listen on (default: 8080)")
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    parser.add_argument("--log-level", "-log-level", default="INFO", choices=levels)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=given.log_level)
    with Service(given.host, given.port, VALUE_BYTES_MAX, MetadataServer().answer) as service:
        service.run_until_stopped("mooncake_http_metadata_server")


if __name__ == "__main__":
    main()
