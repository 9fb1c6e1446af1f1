"""`TransferEngine`: moves bytes between registered memory of processes, with the calls of Mooncake's.

An engine answers at its port with the description of its memory; a peer fetches that when it meets an address that it does not
know, or is refused. Results are 0, or negative. With keys in the environment engines of several machines are peers: all that
they say to each other is sealed, and each has the keys of the others on its list.
"""

import ctypes
import enum
import http.client
import json
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from slackwater._native import RawEngine
from slackwater.compat.mooncake.descriptions import (
    SECONDS_MAX,
    DescriptionService,
    Keys,
    described,
    may_be_there,
    place_of,
    seconds,
)
from slackwater.compat.mooncake.directory import Directory
from slackwater.compat.mooncake.opening import PROTOCOLS, log, short, split, tell
from slackwater.compat.mooncake.shown import address_of
from slackwater.compat.mooncake.variables import begin, number

_FAILED, _UNKNOWN, _UNREACHABLE, _OVERLAPS = -1, -3, -102, -7
_STALE, _RAW_TIMED_OUT = -2, -3
_SECONDS_MIN, _SECONDS_PER_BYTE = 5, 1e-9
# Memory that something may still touch when its engine is gone.
_kept: list[mmap.mmap] = []


class TransferOpcode(enum.Enum):
    """What a transfer does, seen from here."""

    Read = 0
    Write = 1


class TransferNotify:
    """What is said to a peer when a transfer is complete."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name, self.msg = name, msg


class InnerTransferEngine:
    """What `setup` of a store takes as `engine`."""

    def __init__(self, engine: "TransferEngine") -> None:
        self.engine = engine


class TransferEngine:
    """Moves bytes between memory of this process and of peers, named `host:port`. Calls may be made from any thread."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._raw: RawEngine | None = None
        self._service: DescriptionService | None = None
        self._managed: dict[int, mmap.mmap] = {}
        # The engines of a metadata server are known by the names that they gave themselves.
        self._directory: Directory | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """Starts the engine: 0 or a negative code; again is 0 and does nothing."""
        if not all(isinstance(one, str) for one in (local_hostname, metadata_server, protocol, device_name)):
            raise TypeError("initialize: expected four texts")
        if self._process != os.getpid():
            if self._raw is not None:
                log.error("initialize: this engine belongs to the parent of this process: make one here")
                return _FAILED
            # Another thread may have held the lock at the fork.
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if self._raw is not None:
                return 0
            begin("initialize")
            if protocol not in PROTOCOLS:
                log.error("initialize: protocol %r: expected one of %s", protocol, ", ".join(PROTOCOLS))
                return _FAILED
            try:
                directory = None if metadata_server == "P2PHANDSHAKE" else Directory(metadata_server)
                keys = Keys.of_environment()
                place = place_of(split(local_hostname)[0], keys, is_a_name=directory is not None)
                files = None if keys is None else (keys.key_file, keys.allow)
                raw = RawEngine(local_hostname, place.bound, tell, files)
                service = DescriptionService.at_free_port(place.bound, raw, keys)
            except (ValueError, OSError) as error:
                log.error("initialize: %s", error)
                return _FAILED
            serving = threading.Thread(target=service.serve_forever, name="slackwater-engine", daemon=True)
            serving.start()
            entry = _Entry(directory, keys is not None, local_hostname, place.told, service.port)
            # Before the interpreter ends, too: the thread of the service would not run then to be ended.
            ending = weakref.finalize(self, _end, self._process, raw, service, serving, self._managed, entry)
            try:
                entry.enter()
            except (ValueError, OSError, http.client.HTTPException) as error:
                log.error("initialize: metadata server %s: %s", metadata_server, short(error))
                ending()
                return _FAILED
            self._raw, self._service, self._directory = raw, service, directory
        return 0

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """As `initialize`."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port by which peers name this engine; 0 before `initialize`."""
        return 0 if self._service is None else self._service.port

    def get_engine(self) -> InnerTransferEngine:
        """What `setup` of a store takes as `engine`."""
        return InnerTransferEngine(self)

    # Registered memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers read and write memory, of the NUMA node N where the location is `cpu:N`: 0 or a negative code."""
        if self._raw is None or capacity <= 0 or not buffer_addr:
            return _FAILED
        return 0 if self._raw.register(buffer_addr, capacity, location) else _OVERLAPS

    def unregister_memory(self, addr: int, /) -> int:
        """Ends that; when it returns 0, no transfer touches the memory any more."""
        if self._raw is None:
            return _FAILED
        ended = self._raw.unregister(addr)
        return _UNKNOWN if ended == _STALE else ended

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Registers all of the memory, or none."""
        if len(buffer_addresses) != len(capacities):
            return _FAILED
        done: list[int] = []
        for address, capacity in zip(buffer_addresses, capacities, strict=True):
            code = self.register_memory(address, capacity, location)
            if code:
                self.batch_unregister_memory(done)
                return code
            done.append(address)
        return 0 if self._raw is not None else _FAILED

    def batch_unregister_memory(self, addrs: Sequence[int], /) -> int:
        """Ends the registration of all: 0, or the first code of one that has none."""
        codes = [self.unregister_memory(address) for address in addrs]
        return next((code for code in codes if code), 0 if self._raw is not None else _FAILED)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the memory that a peer registered first; 0 when there is none."""
        first = self._meet(segment_name)
        return first or 0

    def allocate_managed_buffer(self, length: int, /) -> int:
        """Registered memory of the engine: its address; 0 when there is none."""
        if self._raw is None:
            return 0
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError):
            return 0
        address = address_of(memory)
        if self.register_memory(address, length) != 0:
            return 0
        self._managed[address] = memory
        return address

    def free_managed_buffer(self, addr: int, length: int, /) -> int:
        """Gives such memory back, when no transfer touches it any more."""
        if addr not in self._managed:
            return _FAILED
        code = self.unregister_memory(addr)
        if code == 0:
            self._managed.pop(addr).close()
        return code

    def write_bytes_to_buffer(self, addr: int, data: bytes | str, length: int, /) -> int:
        """Copies the first bytes to registered memory: 0, or -1 where it is not registered or the data are shorter."""
        given = data.encode() if isinstance(data, str) else bytes(data)
        return self._copied(given[:length], addr, length) if 0 <= length <= len(given) else _FAILED

    def _copied(self, data: bytes, address: int, length: int) -> int:
        if self._raw is None or not length or not self._raw.is_registered(address, length):
            return 0 if self._raw is not None and not length else _FAILED
        ctypes.memmove(address, data, length)
        return 0

    def read_bytes_from_buffer(self, addr: int, length: int, /) -> bytes:
        """The bytes of registered memory; none where it is not registered."""
        is_there = self._raw is not None and length > 0 and self._raw.is_registered(addr, length)
        return ctypes.string_at(addr, length) if is_there else b""

    # Transfers.

    def transfer_sync(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: TransferOpcode,
        notify: TransferNotify | None = None, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Moves bytes and waits: 0, or negative."""
        return self._move(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify)

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Writes bytes to the memory of a peer and waits."""
        return self._move(target_hostname, [buffer], [peer_buffer_address], [length], TransferOpcode.Write)

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Reads bytes from the memory of a peer and waits."""
        return self._move(target_hostname, [buffer], [peer_buffer_address], [length], TransferOpcode.Read)

    def batch_transfer_sync(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, notify: TransferNotify | None = None, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Moves runs of bytes and waits: 0, or negative, and then nothing is under way any more."""
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)

    def batch_transfer_sync_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Writes runs of bytes and waits."""
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Write)

    def batch_transfer_sync_read(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Reads runs of bytes and waits."""
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Read)

    def batch_transfer_async(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Begins to move runs of bytes of registered memory: the number of the batch, 0 for a failure."""
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, opcode)

    def batch_transfer_async_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Begins to write runs of bytes."""
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Write)

    def batch_transfer_async_read(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Begins to read runs of bytes."""
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Read)

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Begins to write bytes of registered memory: the number of the batch, 0 for a failure."""
        return self._begin(target_hostname, [buffer], [peer_buffer_address], [length], TransferOpcode.Write)

    def transfer_check_status(self, id: int, /) -> int:
        """0 while a batch is under way; then, once, 1, or -1 when it failed, or -2 when it took too long."""
        if self._raw is None or not 0 < id < 1 << 63:
            return -1
        code = self._raw.check(id)
        if code == 1:
            return 0
        return 1 if code == 0 else -2 if code == _RAW_TIMED_OUT else -1

    def get_batch_transfer_status(self, ids: Sequence[int], /) -> int:
        """Waits for batches: 0, or -1 when one failed."""
        raw = self._raw
        if raw is None:
            return _FAILED
        codes = [raw.wait(one) if 0 < one < 1 << 63 else _FAILED for one in ids]
        return _FAILED if any(codes) else 0

    def send_probe(self, peer_server_name: str) -> int:
        """0 when a peer answers."""
        raw = self._raw
        if raw is None:
            return _FAILED
        code = self._with(peer_server_name, lambda: raw.probe(peer_server_name, seconds()))
        return 0 if code == 0 else _UNREACHABLE

    def get_notifies(self) -> list[TransferNotify]:
        """Takes what peers have said."""
        return [] if self._raw is None else [TransferNotify(name, msg) for name, msg in self._raw.notices()]

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Network interfaces by location of memory, as JSON: of each location the near ones and the rest. A list of names with
        commas keeps those alone. `cpu:0` is always there, without interfaces when the log says why there is nothing to tell."""
        try:
            topology: dict[str, list[list[str]]] = json.loads(RawEngine.topology())
        except (ValueError, OSError) as error:
            log.error("get_local_topology: %s", error)
            topology = {"cpu:0": [[], []]}
        kept = {name.strip() for name in (device_name or "").split(",")} - {""}
        if kept:
            for ranked in topology.values():
                ranked[:] = [[name for name in names if name in kept] for names in ranked]
        return json.dumps(topology)

    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: there is nothing to warm up."""
        return 0

    def _move(
        self, peer: str, buffers: Sequence[int], addresses: Sequence[int], lengths: Sequence[int],
        opcode: TransferOpcode, notify: TransferNotify | None = None,
    ) -> int:  # fmt: skip
        raw = self._raw
        if raw is None:
            return _FAILED
        seconds, write = _seconds(lengths), opcode is TransferOpcode.Write
        notice = None if notify is None else (notify.name, notify.msg)

        def move() -> int:
            return raw.transfer(peer, write, buffers, addresses, lengths, seconds, notice)

        return 0 if self._with(peer, move) == 0 else _FAILED

    def _begin(
        self, peer: str, buffers: Sequence[int], addresses: Sequence[int], lengths: Sequence[int], opcode: TransferOpcode
    ) -> int:
        raw = self._raw
        if raw is None:
            return 0
        seconds, write = _seconds(lengths), opcode is TransferOpcode.Write
        begun = self._with(peer, lambda: raw.submit(peer, write, buffers, addresses, lengths, seconds))
        return max(begun, 0)

    def _with(self, peer: str, call: Callable[[], int]) -> int:
        """A call about a peer; once more when the peer had to be described again."""
        code = call()
        if code == _STALE and self._meet(peer) is not None:
            code = call()
            if code == _STALE:
                log.warning("%s: no such memory is registered there", peer)
        return code

    def _meet(self, peer: str) -> int | None:
        """Asks a peer for its description: its first address, or 0; `None` when there is no such peer."""
        if not isinstance(peer, str):
            raise TypeError(f"a peer is named by a text, and not by {peer!r}")
        if self._raw is None or self._process != os.getpid():
            return None
        try:
            return self._raw.open(peer, *described(self._raw, *self._where(peer))) or 0
        except (ValueError, OSError, http.client.HTTPException) as error:
            log.warning("%s: no engine: %s", peer, short(error))
            return None

    def _where(self, peer: str) -> tuple[str, int]:
        """Where the engine of a peer is."""
        if self._directory is None:
            return split(peer)
        found = self._directory.find(peer)
        if found is None:
            raise ValueError("the metadata server knows none of this name")
        return found


class _Entry:
    """The entry of an engine in a metadata server, if it has one."""

    def __init__(self, directory: Directory | None, has_keys: bool, *entry: Any) -> None:
        self._directory, self._has_keys, self._entry, self._is_entered = directory, has_keys, entry, False

    def enter(self) -> None:
        """Makes it."""
        if self._directory is not None:
            self._directory.enter(*self._entry, lambda host, port: may_be_there(host, port, self._has_keys))
            self._is_entered = True

    def leave(self) -> None:
        """Removes it."""
        if self._directory is not None and self._is_entered:
            self._directory.leave(*self._entry)


def _end(
    process: int, raw: RawEngine, service: DescriptionService, serving: threading.Thread, managed: dict[int, mmap.mmap],
    entry: _Entry | None = None,
) -> None:  # fmt: skip
    """Ends an engine. Its threads and connections are those of the process that started it."""
    if process != os.getpid():
        return
    if threading.current_thread() is serving:
        # The garbage collector runs on any thread: this one would wait for its own end.
        given = process, raw, service, serving, managed, entry
        threading.Thread(target=_end, args=given, name="slackwater-end").start()
        return
    if entry is not None:
        entry.leave()
    service.shutdown()
    service.server_close()
    if not raw.close():
        log.error("the memory of an engine is kept: after a minute a transfer still touches it")
        _kept.extend(managed.values())


def _seconds(lengths: Sequence[int]) -> float:
    return min(max(number("MC_TRANSFER_TIMEOUT"), _SECONDS_MIN), SECONDS_MAX) + sum(lengths) * _SECONDS_PER_BYTE


Read, Write = TransferOpcode.Read, TransferOpcode.Write
SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False
