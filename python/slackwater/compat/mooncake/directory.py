"""Where engines are, by name: a metadata server, to which each engine tells its port.

The entry of an engine has the key `mooncake/rpc_meta/NAME` and is JSON: `ip_or_host_name` and `rpc_port`. It goes with the
engine. One that an engine left behind which did not end in order is replaced by the next engine of its name.
"""

import http.client
import json
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from slackwater.compat.mooncake.http_client import ask
from slackwater.compat.mooncake.opening import log, short

_SECONDS, _ENTRY_BYTES_MAX = 5, 4096
_FAILURES = (OSError, ValueError, http.client.HTTPException)


class Directory:
    """The entries of a metadata server. Calls raise `OSError`, `ValueError` and `http.client.HTTPException`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError(f"metadata server {url!r}: expected P2PHANDSHAKE or http://HOST:PORT/metadata")
        self._host, self._port, self._named = parts.hostname, parts.port or 80, parts.netloc
        self._path = parts.path or "/metadata"

    def enter(self, name: str, host: str, port: int, may_be_there: Callable[[str, int], bool]) -> None:
        """Tells where the engine of this name is. `may_be_there` says whether an engine may be at an address."""
        entry = json.dumps({"ip_or_host_name": host, "rpc_port": port}).encode()
        status, said = self._ask("PUT", name, entry)
        if status == 400 and (old := self.find(name)) is not None:
            # This one has its port, where that one was killed.
            if old != (host, port) and may_be_there(*old):
                raise ValueError(f"{name!r} is the name of another engine, at {old[0]}:{old[1]}")
            self._ask("DELETE", name)
            status, said = self._ask("PUT", name, entry)
        if status != 200:
            raise ValueError(f"the metadata server does not take {name!r}: {status} {said[:100]!r}")

    def find(self, name: str) -> tuple[str, int] | None:
        """Where the engine of this name is; None when there is no entry."""
        status, said = self._ask("GET", name)
        if status == 404:
            return None
        if status != 200:
            raise ValueError(f"the metadata server answers {status} for {name!r}")
        try:
            entry = json.loads(said)
            host, port = entry["ip_or_host_name"], entry["rpc_port"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise ValueError(f"the entry of {name!r} is none: {said[:100]!r}") from None
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 1 << 16:
            raise ValueError(f"the entry of {name!r} has no address: {said[:100]!r}")
        return host, port

    def leave(self, name: str, host: str, port: int) -> None:
        """Removes the entry of an engine that ends, unless it is of another one by now. Does not raise."""
        try:
            if self.find(name) == (host, port):
                self._ask("DELETE", name)
        except _FAILURES as error:
            log.warning("%s: the entry in the metadata server stays: %s", name, short(error))

    def _ask(self, method: str, name: str, body: bytes | None = None) -> tuple[int, bytes]:
        target = f"{self._path}?key={quote(f'mooncake/rpc_meta/{name}', safe='')}"
        return ask(
            method, self._host, self._port, target,
            named=self._named, seconds=_SECONDS, bytes_max=_ENTRY_BYTES_MAX, body=body,
        )  # fmt: skip
