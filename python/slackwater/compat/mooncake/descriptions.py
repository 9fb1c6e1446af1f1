"""How engines tell each other of their memory: a service at the port of an engine.

Without keys the service and all that it tells of are at loopback, and it answers `GET /engine` with the description. With keys it
may be at any address: `GET /key` tells a public key, which counts for nothing unless it is on the list of the asker, and
`POST /engine` takes a question that only the owner of that key can read, and answers a peer that proves a key of its own list.
"""

import ipaddress
import json
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass

from slackwater._native import RawEngine, RawQuestion
from slackwater.compat.mooncake.http_client import ask
from slackwater.compat.mooncake.http_service import NOT_FOUND, Answer, Asked, Service
from slackwater.compat.mooncake.opening import log
from slackwater.compat.mooncake.variables import number

_DESCRIPTION_BYTES_MAX, _KEY_BYTES_MAX, _QUESTION_BYTES_MAX = 64 << 20, 256, 8192
_CONNECTION_SECONDS, _ASKING_SECONDS, _LOOK_SECONDS, _PORT_TRIES, _SAID_MAX = 20.0, 1.0, 0.5, 64, 200
SECONDS_MAX = 365 * 24 * 3600
"""The longest that anything may take, whatever a variable says: clocks have bounds."""
_KEYS_NEEDED = (
    "engines reach other machines with keys alone: name the file of a key in SLACKWATER_KEY_FILE and a list with the keys of"
    " its peers in SLACKWATER_ALLOW (`slackwater keys new`, `slackwater keys allow`), or give localhost"
)


@dataclass(frozen=True)
class Keys:
    """The files of the key of this engine, and of the list with the keys of its peers."""

    key_file: str
    allow: str

    @classmethod
    def of_environment(cls) -> "Keys | None":
        """Those that the environment names. A key of which it names no list is that of a store's client, and not for engines;
        raises `ValueError` where it is for transfers alone."""
        for key_file, allow in (
            ("SLACKWATER_KEY_FILE", "SLACKWATER_ALLOW"),
            ("SLACKWATER_TCP_SEAL_KEY", "SLACKWATER_TCP_SEAL_CLIENTS"),
        ):
            found = cls(os.environ.get(key_file, ""), os.environ.get(allow, ""))
            if found.key_file and found.allow:
                return found
            if found.key_file and key_file == "SLACKWATER_TCP_SEAL_KEY":
                raise ValueError(f"{key_file} is set and {allow} is not: it names the list with the keys of peers")
        return None


@dataclass(frozen=True)
class Place:
    """Where an engine listens, and the address by which peers find it."""

    bound: str
    told: str


def place_of(host: str, keys: Keys | None, *, is_a_name: bool) -> Place:
    """Where the engine of a host name is to be. The name of an engine in a metadata server may be that of no host.

    Raises `ValueError` for an address of other machines without keys, and `OSError` for a name of nothing.
    """
    bind = os.environ.get("MC_TCP_BIND_ADDRESS", "")
    try:
        told = address_of(host, keys is not None)
    except (socket.gaierror, UnicodeError):
        if not is_a_name or not host:
            raise
        told = address_of(bind or "127.0.0.1", keys is not None)
    bound = address_of(bind, keys is not None) if bind else told
    if is_a_name and ipaddress.ip_address(told).is_unspecified:
        raise ValueError(f"{host} is {told}, where no peer finds this engine: give an address of this machine")
    return Place(bound, told)


def address_of(host: str, has_keys: bool) -> str:
    """The address of a host name. Raises `ValueError` for one beyond loopback without keys."""
    found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    if not has_keys and not ipaddress.ip_address(found).is_loopback:
        raise ValueError(f"{host} is {found}: {_KEYS_NEEDED}")
    return found


class DescriptionService(Service):
    """Answers peers of an engine."""

    seconds_max = _CONNECTION_SECONDS
    asking_seconds = _ASKING_SECONDS
    head_bytes_max = _QUESTION_BYTES_MAX
    discarded_bytes_max = 1 << 20

    def __init__(self, host: str, port: int, raw: RawEngine, keys: Keys | None) -> None:
        self._raw, self._keys = raw, keys
        # The engine has read its list before: what has changed since is not known.
        self._list: tuple[int, ...] | None = ()
        # The one that could not be read.
        self._unread: tuple[int, ...] | None = ()
        super().__init__(host, port, _QUESTION_BYTES_MAX, _answer_of(raw))

    @classmethod
    def at_free_port(cls, host: str, raw: RawEngine, keys: Keys | None) -> "DescriptionService":
        """At one of the ports for engines."""
        first, last = number("MC_MIN_RPC_PORT"), number("MC_MAX_RPC_PORT")
        if not 0 < first <= last <= 65535:
            raise ValueError(f"MC_MIN_RPC_PORT {first} to MC_MAX_RPC_PORT {last} are no ports")
        for port in random.sample(range(first, last + 1), min(_PORT_TRIES, last - first + 1)):
            try:
                return cls(host, port, raw, keys)
            except OSError:
                continue
        raise OSError(f"no free port between {first} and {last} of {host}")

    def serve_forever(self, poll_interval: float | None = None) -> None:
        """Answers until `shutdown`, and looks twice a second whether the list of keys has changed: no system tells of files
        that another machine writes."""
        super().serve_forever(_LOOK_SECONDS if self._keys else poll_interval)

    def service_actions(self) -> None:
        """A list of keys that has changed is in force from now on. One that cannot be read may be read at the next look."""
        if self._keys is None or (state := _state(self._keys.allow)) == self._list:
            return
        try:
            self._raw.reload()
        except ValueError as error:
            if state != self._unread:
                log.warning("the list of keys stays as it was: %s", error)
            self._unread = state
        else:
            self._list, self._unread = state, ()


def _answer_of(raw: RawEngine) -> Callable[[Asked], Answer]:
    # Not a method: a service that refers to itself would keep the engine until the garbage collector comes.
    def answer(asked: Asked) -> Answer:
        key = raw.key()
        if asked.path == ("engine",) and key is None and asked.method == "GET":
            return Answer(200, raw.describe())
        if asked.path == ("key",) and key is not None and asked.method == "GET":
            return Answer.json(200, key=key)
        if asked.path != ("engine",) or key is None:
            return NOT_FOUND
        if asked.method != "POST":
            return Answer.json(403, error="this engine has keys, and peers alone that have some too")
        try:
            return Answer(200, raw.answer(asked.body), "application/octet-stream")
        except ValueError:
            # An unauthenticated peer is told no more.
            return Answer.json(403, error="the key of the asker is not on the list of this engine")

    return answer


def seconds() -> float:
    """How long a peer has for each answer: a second at least, as none would be in time within none."""
    return min(max(number("MC_HANDSHAKE_CONNECT_TIMEOUT"), 1), SECONDS_MAX)


def described(raw: RawEngine, host: str, port: int) -> tuple[str, bytes, RawQuestion | None]:
    """The address of a peer, what it answers, and the question that opens the answer where there are keys.

    Raises `OSError` and `http.client.HTTPException` when there is none, and `ValueError` when it may not count.
    """
    address = address_of(host, raw.key() is not None)
    if raw.key() is None:
        return address, _asked("GET", address, port, "/engine", _DESCRIPTION_BYTES_MAX), None
    told = _asked("GET", address, port, "/key", _KEY_BYTES_MAX)
    try:
        key = json.loads(told)["key"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise ValueError(f"it tells no key: {told[:_SAID_MAX]!r}") from None
    try:
        question, sent = raw.ask(str(key))
    except ValueError as error:
        raise ValueError(f"{error}: {str(key)[:64]!r}") from None
    return address, _asked("POST", address, port, "/engine", _DESCRIPTION_BYTES_MAX, sent), question


def may_be_there(host: str, port: int, has_keys: bool) -> bool:
    """Whether an engine may be at an address: of another machine, or of one that is slow, nobody here can say that it is
    not."""
    try:
        socket.create_connection((address_of(host, has_keys), port), seconds()).close()
    except ConnectionRefusedError:
        return False
    except (ValueError, OSError):
        pass
    return True


def _asked(method: str, address: str, port: int, target: str, bytes_max: int, body: bytes | None = None) -> bytes:
    # A name of this machine that others chose is refused.
    named = "localhost" if ipaddress.ip_address(address).is_loopback else f"engine:{port}"
    status, said = ask(method, address, port, target, named=named, seconds=seconds(), bytes_max=bytes_max, body=body)
    if status == 404 and target == "/key":
        raise ValueError("it has no keys, and this engine has: name keys and lists for both, or for none")
    if status != 200:
        raise ValueError(f"{status} {said[:_SAID_MAX]!r}")
    return said


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
