"""The arguments of `setup`, as a call or a dictionary gives them, and how a client is opened with them."""

import ipaddress
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slackwater._native import RawClient
from slackwater.compat.mooncake import node_keys
from slackwater.compat.mooncake.variables import begin, milliseconds, number
from slackwater.errors import SlackwaterError

log = logging.getLogger("slackwater.mooncake")

INTERNAL_ERROR, INVALID_PARAMS, OTHER_SETUP, NOT_SUPPORTED = -1, -600, -1010, -1012
_UNITS = {"": 1, "b": 1} | {
    unit: 1024**power for power, letter in enumerate("kmgt", 1) for unit in (letter, f"{letter}b", f"{letter}ib")
}
_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_ALIASES = {"master_server_address": "master_server_addr", "device_name": "rdma_devices"}
PROTOCOLS = ("tcp", "rdma", "ascend", "efa", "cxl", "nvlink", "hip", "barex", "ubshmem")
_SCHEMES = ("http://", "https://", "etcd://", "redis://")
_NODE_BYTES_MIN = 1 << 20
BYTES_LIMIT = 1 << 63
_SAID_MAX = 500


@dataclass(frozen=True)
class Arguments:
    """What `setup` is called with."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int = 16 << 20
    local_buffer_size: int = 16 << 20
    protocol: str = "tcp"
    rdma_devices: str = ""
    master_server_addr: str = "127.0.0.1:50051"
    engine: Any = field(default=None, compare=False)
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300


_NAMES = tuple(one.name for one in fields(Arguments))
_POSITIONAL = _NAMES[:8]
_REQUIRED = _NAMES[:7]


def tell(method: str, code: int, reason: str) -> None:
    """Called once for each method and code of a client or an engine."""
    log.warning("%s: %d: %s; further calls that end so are not logged", method, code, reason)


def short(error: Exception) -> str:
    """What an error says, for the log: a peer may have chosen the words, and how many they are."""
    said = str(error)[:_SAID_MAX]
    return said if said.isprintable() else repr(said)


def from_call(given: tuple[Any, ...], named: Mapping[str, Any]) -> Arguments:
    """The arguments of a call. A `TypeError` names only what is wrong: callers take out what it names and try again."""
    unknown = [name for name in named if name not in _NAMES]
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    if len(given) > len(_POSITIONAL):
        raise TypeError(f"{len(given)} positional arguments, at most {len(_POSITIONAL)} are taken")
    values = dict(zip(_POSITIONAL, given, strict=False))
    twice = [name for name in named if name in values]
    if twice:
        raise TypeError(f"given twice: {', '.join(twice)}")
    values |= named
    missing = [name for name in _REQUIRED if name not in values]
    if missing:
        raise TypeError(f"missing: {', '.join(missing)}")
    for name, value in values.items():
        _check_type(name, value)
    return Arguments(**values)


def _check_type(name: str, value: Any) -> None:
    kinds = {one.name: one.type for one in fields(Arguments)}
    kind = kinds[name]
    if kind is int:
        fits = not isinstance(value, float) and hasattr(value, "__index__") and value.__index__() >= 0
    elif kind is bool:
        fits = isinstance(value, (bool, int))
    else:
        fits = kind is Any or isinstance(value, str)
    if not fits:
        raise TypeError(f"wrong type for {name}: {type(value).__name__}")


def from_dict(config: Mapping[str, Any]) -> Arguments | None:
    """The arguments in a dictionary, whose values may all be texts; `None`, with the reason in the log, for bad ones."""
    named: dict[str, Any] = {}
    ignored = []
    for name, value in config.items():
        known = _ALIASES.get(name, name)
        if known == "ipc_socket_path":
            continue
        if known not in _NAMES:
            ignored.append(str(name))
        elif known == name or known not in config:
            named[known] = value
        elif config[known] != value:
            log.warning("setup: %s and %s differ: %s counts", name, known, known)
    if ignored:
        log.warning("setup: unknown keys without effect: %s", ", ".join(sorted(ignored)))
    missing = [name for name in ("local_hostname", "metadata_server") if not named.get(name)]
    if missing:
        log.error("setup: needed and not given: %s", ", ".join(missing))
        return None
    try:
        return Arguments(**{name: _read(name, value) for name, value in named.items()})
    except (ValueError, OverflowError) as error:
        log.error("setup: %s", error)
        return None


def _read(name: str, value: Any) -> Any:
    kinds = {one.name: one.type for one in fields(Arguments)}
    kind = kinds[name]
    if kind is int:
        return size_of(name, value)
    if kind is bool:
        return truth_of(name, value)
    return value if kind is Any else str(value)


def truth_of(name: str, value: Any) -> bool:
    """A truth, or a text such as `yes` or `off`."""
    truth = _TRUTHS.get(str(value).strip().lower())
    if truth is None:
        raise ValueError(f"{name}: expected true or false, found {value!r}")
    return truth


def size_of(name: str, value: Any) -> int:
    """Bytes as a number or a text such as `512MB`, whose units are powers of 1024."""
    if not isinstance(value, str):
        if isinstance(value, float) or not hasattr(value, "__index__") or value.__index__() < 0:
            raise ValueError(f"{name}: expected a number of bytes, found {value!r}")
        return int(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{name}: expected bytes or a text such as 512MB, found {value!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def checked(arguments: Arguments) -> int:
    """0, or the code of what `setup` refuses; the reason is in the log."""
    if arguments.protocol not in PROTOCOLS:
        log.error("setup: unknown protocol %r: it is one of %s", arguments.protocol, ", ".join(PROTOCOLS))
        return INTERNAL_ERROR
    if not arguments.local_hostname:
        log.error("setup: the local host name is empty")
        return INVALID_PARAMS
    for name in ("global_segment_size", "local_buffer_size"):
        if getattr(arguments, name) >= BYTES_LIMIT:
            log.error("setup: %s: %d bytes are more than any memory has", name, getattr(arguments, name))
            return INVALID_PARAMS
    metadata = arguments.metadata_server
    if metadata != "P2PHANDSHAKE" and not metadata.startswith(_SCHEMES):
        log.error("setup: metadata server %r is neither P2PHANDSHAKE nor a URL", metadata)
        return INTERNAL_ERROR
    return 0


def server_address(text: str) -> str:
    """The address of the master as Slackwater writes it."""
    return text if "://" in text else f"tcp://{text}"


def opened(client: RawClient, arguments: Arguments, key_file: str = "") -> tuple[int, str]:
    """Connects a client and lends its memory: 0 or a code, and the name of this client. `SLACKWATER_KEY_FILE` goes before
    `key_file`."""
    begin("setup")
    address = server_address(arguments.master_server_addr)
    scheme = address.split("://")[0]
    if scheme in ("etcd", "redis", "k8s"):
        log.error("setup: %s: masters are not looked up by %s; give host:port", address, scheme)
        return INVALID_PARAMS, ""
    if arguments.enable_ssd_offload and not arguments.global_segment_size:
        log.warning("setup: enable_ssd_offload has no effect without a segment, which is what goes to the SSD")
    try:
        # The name is reserved while the client is opened, so that two clients of a process take different ones.
        with _reserved(arguments.local_hostname) as name:
            client.open(
                address,
                key_file=os.environ.get("SLACKWATER_KEY_FILE") or key_file or None,
                timeout=milliseconds("MC_RPC_TIMEOUT_MS"),
                connect_timeout=milliseconds("MC_RPC_CONNECT_TIMEOUT_MS"),
                force_tcp=bool(os.environ.get("MC_FORCE_TCP")),
                tenant="" if arguments.tenant_id == "default" else arguments.tenant_id,
                staging=arguments.local_buffer_size,
            )
        if arguments.global_segment_size:
            lend(client, arguments, name)
    except SlackwaterError as error:
        log.error("setup: %s", error)
        code = int(error.code)
    except (ValueError, OverflowError, OSError) as error:
        # Numbers that are too large for a length or a port, and hosts that no name server knows, too.
        log.error("setup: %s", error)
        code = INVALID_PARAMS
    else:
        return 0, name
    client.close()
    node_keys.give_back_all(client)
    return code, ""


@dataclass(frozen=True)
class Lent:
    """Memory that is lent: the number of its node, and the file of the key that is the node's alone, if it has one."""

    node: int
    key: str | None


def lend(
    client: RawClient, arguments: Arguments, name: str, port: int | None = None, piece: tuple[str, int] | None = None
) -> Lent | None:
    """Lends memory under a name, and an SSD if it is asked for; None when it is not taken; raises what is wrong. Its bytes
    come in at the port of the name unless another is given. The memory is that of a file from an offset on, or of this
    process."""
    address = server_address(arguments.master_server_addr)
    ssd, directory = None, None
    if arguments.enable_ssd_offload:
        directory = arguments.ssd_offload_path or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "")
        path = Path(directory)
        if not path.is_absolute() or path.is_symlink() or not os.access(path, os.W_OK) or not path.is_dir():
            raise ValueError(f"{directory!r} is no directory that can be written, by its whole path and not by a link")
        ssd = number("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
    size = arguments.global_segment_size
    file, offset = piece or (None, 0)
    key = node_keys.take(client) if address.startswith("curve://") else None
    node = None
    try:
        node, refused = client.lend(
            size if piece else max(size, _NODE_BYTES_MIN),
            name=name,
            ssd=ssd,
            directory=directory,
            data=_data_address(name, address, port),
            # Without one for what is lent, the master says what the key of the client may not do.
            key_file=key or os.environ.get("SLACKWATER_KEY_FILE"),
            allow=os.environ.get("SLACKWATER_ALLOW"),
            timeout=milliseconds("MC_RPC_CONNECT_TIMEOUT_MS"),
            file=file,
            offset=offset,
        )
    finally:
        if node is None:
            node_keys.give_back(key)
    if node is None:
        log.warning("setup: %s takes no memory of this process (%s): its own memory is used", address, refused)
        return None
    return Lent(node, key)


def _data_address(name: str, master: str, other_port: int | None) -> str:
    """Where the bytes of this node come in: its own address, or the loopback that the master is on."""
    host, port = split(name)
    port = port if other_port is None else other_port
    master_host, _ = split(master.split("://")[1].split("/")[0])
    numbers = {info[4][0] for info in socket.getaddrinfo(master_host, None, type=socket.SOCK_STREAM)}
    if all(ipaddress.ip_address(number).is_loopback for number in numbers):
        return f"127.0.0.1:{port}"
    number = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    return f"[{number}]:{port}" if ":" in str(number) else f"{number}:{port}"


def split(text: str) -> tuple[str, int]:
    """Host and port; 0 when there is none."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, _port(port.removeprefix(":") or "0")
    host, colon, port = text.rpartition(":")
    return (host, _port(port)) if colon and ":" not in host else (text, 0)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{text!r} is no port: ports are 0 to 65535")
    return int(text)


class _reserved:
    """A name `host:port` of a port that nobody listens on; one that is given is taken as it is."""

    def __init__(self, hostname: str) -> None:
        self.hostname, self.held = hostname, None

    def __enter__(self) -> str:
        host, port = split(self.hostname)
        if port:
            return self.hostname
        first = number("MC_STORE_CLIENT_MIN_PORT")
        last = number("MC_STORE_CLIENT_MAX_PORT")
        for _ in range(_PORT_TRIES):
            port = first + int.from_bytes(os.urandom(4), "little") % max(last - first + 1, 1)
            held = socket.socket()
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                held.close()
                continue
            self.held = held
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(f"no free port between {first} and {last} in {_PORT_TRIES} tries")

    def __exit__(self, *_exception: object) -> None:
        if self.held is not None:
            self.held.close()


_PORT_TRIES = 20
