"""`mooncake_client`: a client in a process of its own, which lends memory to a pool and tells thin clients where that is.

Flags have one or two dashes, and their value after `=` or as the next word; a truth needs none, and `--noname` is false.
Thin clients are processes of the same user on this machine; see `MooncakeDistributedStore.setup_dummy`.
"""

import json
import logging
import os
import resource
import select
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slackwater.compat import installed_mooncake
from slackwater.compat.mooncake import node_keys, opening
from slackwater.compat.mooncake.client import MooncakeDistributedStore
from slackwater.compat.mooncake.client_http import HOST, Figure, answer
from slackwater.compat.mooncake.http_service import Service
from slackwater.compat.mooncake.master import FlagError, given_flags, help_if_asked
from slackwater.compat.mooncake.opening import log
from slackwater.compat.mooncake.thin import PoolAccess, socket_name, user_of

FLAGS: dict[str, dict[str, Any]] = {
    flag["name"]: flag for flag in json.loads((Path(__file__).parent / "client_flags.json").read_text(encoding="utf-8"))
}
THIN_CLIENTS_MAX = 4096
"""Thin clients at a time; others are sent away."""
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)
_QUEUE = 1024
# What is waited when there is no descriptor for a thin client.
_PAUSE_SECONDS = 1
_ANY_HOST = ("", "0.0.0.0", "::")
_SETUP = {one.name for one in fields(opening.Arguments)}


@dataclass(frozen=True)
class Settings:
    """What the flags say."""

    port: int
    setup: dict[str, Any]
    http_port: int | None
    level: int


def settings(words: Sequence[str], has_keys: bool) -> tuple[Settings, list[str]]:
    """What the flags say, and what is to be warned of. With keys, and none for what is lent, nothing is."""
    found = given_flags(words, FLAGS)
    values = {name: found.get(name, flag["default"]) for name, flag in FLAGS.items()}
    for name in ("port", "http_port"):
        if not 0 < values[name] < 1 << 16:
            raise FlagError(f"--{name}: {values[name]} is no port: ports are 1 to 65535")
    try:
        segment = opening.size_of("--global_segment_size", values["global_segment_size"])
        host = _host(values["host"], values["master_server_address"])
    except (ValueError, OverflowError) as error:
        raise FlagError(str(error)) from None
    if segment and has_keys:
        raise FlagError(
            "with keys, what is lent needs a key of its own: name it in SLACKWATER_NODE_KEY_FILE, or give"
            " --global_segment_size=0, and run `slackwater node` with it"
        )
    setup = {flag["option"]: values[name] for name, flag in FLAGS.items() if flag["option"] in _SETUP}
    setup |= {"local_hostname": host, "global_segment_size": segment, "local_buffer_size": 0}
    warnings = [
        f"--{name} has no effect: {FLAGS[name]['meaning']}"
        for name, value in found.items()
        if FLAGS[name]["option"] is None and value != FLAGS[name]["default"]
    ]
    http_port = values["http_port"] if values["enable_http_server"] else None
    level = _LEVELS[min(max(values["minloglevel"], 0), 2)]
    return Settings(values["port"], setup, http_port, level), warnings


def _host(given: str, master: str) -> str:
    """The host in the name of this client: the one that is given, or the one from which the master is reached."""
    if given not in _ANY_HOST:
        return given
    host, port = opening.split(opening.server_address(master).split("://")[1].split("/")[0])
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Nothing is sent: the kernel says which address it would send from.
            probe.connect(address)
            found = probe.getsockname()[0]
    except OSError:
        return "localhost"
    return f"[{found}]" if ":" in found else found


class ThinClients:
    """The thin clients of this process. Each is told once where the pool is, and says nothing itself: a connection that
    does is closed, as is one of another user. `refused` counts those."""

    def __init__(self, port: int, most: int = THIN_CLIENTS_MAX) -> None:
        self._most, self._message = most, b""
        self.connected: set[socket.socket] = set()
        self.refused = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        try:
            self._listener.bind(socket_name(port))
        except OSError:
            self._listener.close()
            raise

    def listen(self, message: bytes) -> None:
        """Lets thin clients come, each of which is to be told this."""
        self._message = message
        self._listener.listen(_QUEUE)

    def run(self, stop: socket.socket) -> None:
        """Serves thin clients until something can be read from `stop`."""
        with selectors.DefaultSelector() as selector:
            for one in (stop, self._listener):
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if stop in ready:
                    return
                for one in ready & self.connected:
                    selector.unregister(one)
                    self._leave(one)
                if self._listener in ready:
                    self._accept(selector, stop)

    def _accept(self, selector: selectors.BaseSelector, stop: socket.socket) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # It stays in the queue, so that the next look would find it at once.
            log.error("a thin client waits: %s", error)
            select.select([stop], [], [], _PAUSE_SECONDS)
            return
        connection.setblocking(False)
        user = user_of(connection)
        if user != os.geteuid() or len(self.connected) >= self._most:
            self._refuse(f"of user {user}, where {len(self.connected)} of {self._most} are there")
            connection.close()
            return
        try:
            connection.send(self._message)
        except OSError:
            connection.close()
            return
        self.connected.add(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _leave(self, connection: socket.socket) -> None:
        try:
            if connection.recv(1):
                self._refuse("that says something, which none does")
        except OSError:
            # It left without reading what it was told.
            pass
        self.connected.discard(connection)
        connection.close()

    def _refuse(self, why: str) -> None:
        self.refused += 1
        # Each time there are twice as many: one process can be sent away any number of times.
        if self.refused & (self.refused - 1) == 0:
            log.warning("a thin client is sent away, the %d. of all: one %s", self.refused, why)

    def close(self) -> None:
        """Ends all connections."""
        for one in (self._listener, *self.connected):
            one.close()
        self.connected.clear()


def figures_of(thin: ThinClients) -> list[Figure]:
    """What is told of thin clients."""
    return [
        Figure("slackwater_thin_clients", "gauge", "Thin clients that are connected.", len(thin.connected)),
        Figure("slackwater_thin_clients_refused_total", "counter", "Thin clients that were sent away.", thin.refused),
    ]


def _serve_http(port: int, store: MooncakeDistributedStore, thin: ThinClients) -> None:
    try:
        service = Service(HOST, port, 0, lambda asked: answer(asked, store.health_check, lambda: figures_of(thin)))
    except OSError as error:
        log.warning("mooncake_client: no HTTP at %s:%d: %s", HOST, port, error)
        return
    # It ends with the process.
    threading.Thread(target=service.serve_forever, daemon=True).start()


def _told_to_end() -> socket.socket:
    """A socket from which something can be read once SIGINT or SIGTERM has come."""
    here, there = socket.socketpair()
    there.setblocking(False)
    # The process has it as long as it lives.
    signal.set_wakeup_fd(there.detach())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return here


def main() -> None:
    """Lends memory and serves thin clients until SIGINT or SIGTERM."""
    words = sys.argv[1:]
    help_if_asked(words, __doc__, FLAGS)
    try:
        other = installed_mooncake()
        if other is not None:
            raise FlagError(f"{other} is installed beside slackwater-mooncake: uninstall one of them")
        given, warnings = settings(words, bool(os.environ.get("SLACKWATER_KEY_FILE")) and not node_keys.files())
    except FlagError as error:
        sys.exit(f"mooncake_client: {error}")
    logging.basicConfig(level=given.level)
    for warning in warnings:
        log.warning("mooncake_client: %s", warning)
    # Each thin client has a connection here, and some to the memory that is lent.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        thin = ThinClients(given.port)
    except OSError as error:
        sys.exit(f"mooncake_client: port {given.port}: {error}: another one has it")
    store = MooncakeDistributedStore()
    code = store.setup(given.setup)
    if code:
        sys.exit(f"mooncake_client: setup failed with {code} at {given.setup['master_server_addr']}")
    access = PoolAccess(
        hostname=store.get_hostname(),
        master_server_addr=given.setup["master_server_addr"],
        protocol=given.setup["protocol"],
        tenant_id=given.setup["tenant_id"],
        key_file=str(Path(path).absolute()) if (path := os.environ.get("SLACKWATER_KEY_FILE")) else "",
    )
    try:
        message = access.message()
    except ValueError as error:
        store.close()
        sys.exit(f"mooncake_client: {error}")
    stop = _told_to_end()
    if given.http_port is not None:
        _serve_http(given.http_port, store, thin)
    thin.listen(message)
    print(f"mooncake_client {access.hostname} serves at @{socket_name(given.port)[1:]}", file=sys.stderr, flush=True)
    thin.run(stop)
    thin.close()
    store.close()


if __name__ == "__main__":
    main()
