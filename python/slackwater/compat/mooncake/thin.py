"""Thin clients: clients that a stand-alone client of this machine tells where its pool is.

A stand-alone client (`standalone`) lends memory that outlives the programs which use it. It is asked once, over a Unix
socket with an abstract name, by processes of its user; after that it only sees whether they are there. What a thin client
reads and writes does not pass through it: the memory that it lends is handed over by descriptor, as that of every node
of this machine.
"""

import contextlib
import json
import mmap
import os
import socket
import struct
import threading
from dataclasses import asdict, dataclass
from typing import Self

from slackwater._native import RawClient
from slackwater.compat.mooncake import opening
from slackwater.compat.mooncake.opening import INVALID_PARAMS, NOT_SUPPORTED, log
from slackwater.compat.mooncake.shown import Shared
from slackwater.compat.mooncake.variables import milliseconds
from slackwater.errors import ErrorCode

MESSAGE_BYTES_MAX = 16 << 10
"""What a stand-alone client says is at most so long."""
VERSION = 1
"""Of the message of a stand-alone client."""
_ALIGNMENT = 64
_SECONDS_MAX = 1 << 30
_CREDENTIALS = struct.Struct("@iII")
_TIME = struct.Struct("@ll")


def socket_name(port: int) -> str:
    """The abstract name at which the stand-alone client of a port is."""
    return f"\0mooncake_client_{port}.sock"


def user_of(connection: socket.socket) -> int:
    """The user of the process at the other end, as the kernel knows it."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


@dataclass(frozen=True)
class PoolAccess:
    """How processes of this machine use the pool that a stand-alone client belongs to."""

    hostname: str
    master_server_addr: str
    protocol: str
    tenant_id: str
    key_file: str

    def message(self) -> bytes:
        """What a stand-alone client says."""
        message = json.dumps(asdict(self) | {"version": VERSION}).encode()
        if len(message) > MESSAGE_BYTES_MAX:
            raise ValueError(f"names of {len(message)} bytes, at most {MESSAGE_BYTES_MAX} are told to thin clients")
        return message

    @classmethod
    def of(cls, message: bytes) -> Self:
        """Reads what a stand-alone client says. Raises `ValueError` for anything else."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise ValueError(f"it says more than {MESSAGE_BYTES_MAX} bytes")
        try:
            said = json.loads(message)
        except (ValueError, RecursionError):
            raise ValueError("what it says is not JSON") from None
        if not isinstance(said, dict) or said.pop("version", None) != VERSION:
            raise ValueError(f"what it says is not of version {VERSION}: is it of another release?")
        if set(said) != set(cls.__dataclass_fields__) or not all(isinstance(one, str) for one in said.values()):
            raise ValueError("what it says has other names or values than it should")
        return cls(**said)


def attach(server_address: str, seconds: float) -> tuple[socket.socket, PoolAccess]:
    """Asks the stand-alone client at an address of this machine: its connection, which is open while both live.

    Raises `ValueError` for an address or an answer that is none, `PermissionError` for one of another user, and `OSError`
    when nobody is there or answers in so many seconds.
    """
    host, port = opening.split(server_address)
    if not port or "://" in server_address:
        raise ValueError(f"{server_address!r} is no address of a stand-alone client: it is HOST:PORT")
    if not _is_here(host):
        raise ValueError(f"{host!r} is another machine: a thin client uses the stand-alone client of its own")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # By the kernel: it also ends the wait for a place in a queue that is full.
        time = _TIME.pack(min(int(seconds), _SECONDS_MAX), max(int(seconds % 1 * 1e6), 1))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, time)
        connection.connect(socket_name(port))
        user = user_of(connection)
        if user != os.geteuid():
            raise PermissionError(f"the process there belongs to user {user}, and not to ours")
        message = connection.recv(MESSAGE_BYTES_MAX + 1)
        if not message:
            raise ConnectionRefusedError("it takes no more thin clients, or belongs to another user")
        return connection, PoolAccess.of(message)
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"no answer in {seconds} s") from None
    except BaseException:
        connection.close()
        raise


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine: the others cannot be bound."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


class Memory(Shared):
    """Memory that is handed out from its front. The system gives pages when they are written."""

    def __init__(self, size: int) -> None:
        super().__init__(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.size, self._used = size, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> int:
        """The address of so many bytes; 0 when there are not so many left."""
        with self._lock:
            start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
            if not 0 < size <= self.size - start:
                return 0
            self._used = start + size
            return self.address + start

    def forget(self) -> None:
        """Gives the pages back, when no call uses them any more. The addresses stay those of this memory. Under a tensor
        all stays as it is."""
        with self._lock:
            if not self.is_shown():
                self._used = 0
                self.pages.madvise(mmap.MADV_DONTNEED)


class _Attached:
    """What a client has of a stand-alone client until it is closed, or dropped."""

    def __init__(self, asked: tuple[int, int, str], connection: socket.socket, memory: Memory | None) -> None:
        self.asked, self.connection, self.memory = asked, connection, memory

    def is_alone(self) -> bool:
        """Whether the stand-alone client is gone."""
        try:
            return not self.connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def __del__(self) -> None:
        self.connection.close()


class Thin:
    """The calls of a store about a stand-alone client."""

    _raw: RawClient
    _lock: threading.Lock
    _setup: opening.Arguments | None
    _hostname: str
    _attached: _Attached | None
    _memories: list[Memory]

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Opens a thin client: 0 or a negative code.

        `server_address` is the HOST:PORT of a `mooncake_client` of this machine and this user; `mem_pool_size` is the length
        of the memory that `alloc_from_mem_pool` hands out, and `local_buffer_size` that of the longest value that is put
        from bytes. All other calls are those of a client that `setup` opened with a segment of 0 bytes.
        """
        for name, size in (("mem_pool_size", mem_pool_size), ("local_buffer_size", local_buffer_size)):
            if isinstance(size, float) or not hasattr(size, "__index__") or size.__index__() < 0:
                raise TypeError(f"{name}: expected a number of bytes, found {size!r}")
        if not isinstance(server_address, str):
            raise TypeError(f"server_address: expected a text, found {server_address!r}")
        if self._raw.state() == NOT_SUPPORTED:
            log.error("setup_dummy: this client belongs to the parent of this process: make one here")
            return NOT_SUPPORTED
        asked = (int(mem_pool_size), int(local_buffer_size), server_address)
        with self._lock:
            if self._setup is not None:
                if self._attached is not None and self._attached.asked == asked:
                    return 0
                log.error("setup_dummy: the client is open with other arguments: close it first")
                return opening.OTHER_SETUP
            try:
                return self._attach(*asked)
            finally:
                if self._setup is None:
                    self._detach()

    def _attach(self, pool_bytes: int, buffer_bytes: int, server_address: str) -> int:
        if max(pool_bytes, buffer_bytes) >= opening.BYTES_LIMIT:
            log.error("setup_dummy: %d bytes are more than any memory has", max(pool_bytes, buffer_bytes))
            return INVALID_PARAMS
        try:
            memory = self._memory(pool_bytes)
        except (OSError, OverflowError, ValueError) as error:
            log.error("setup_dummy: mem_pool_size: %d bytes: %s", pool_bytes, error)
            return INVALID_PARAMS
        try:
            connection, access = attach(server_address, milliseconds("MC_RPC_CONNECT_TIMEOUT_MS"))
        except (ValueError, socket.gaierror) as error:
            log.error("setup_dummy: %s: %s", server_address, error)
            return INVALID_PARAMS
        except PermissionError as error:
            log.error("setup_dummy: %s: %s", server_address, error)
            return int(ErrorCode.ILLEGAL_CLIENT)
        except OSError as error:
            log.error("setup_dummy: no stand-alone client at %s: %s", server_address, error)
            return int(ErrorCode.RPC_FAIL)
        self._attached = _Attached((pool_bytes, buffer_bytes, server_address), connection, memory)
        arguments = opening.Arguments(
            local_hostname=access.hostname,
            metadata_server="P2PHANDSHAKE",
            global_segment_size=0,
            local_buffer_size=buffer_bytes,
            protocol=access.protocol,
            master_server_addr=access.master_server_addr,
            tenant_id=access.tenant_id,
        )
        code = opening.checked(arguments)
        if code == 0:
            code, self._hostname = opening.opened(self._raw, arguments, access.key_file)
        if code == 0:
            self._setup = arguments
            if memory is not None:
                self._raw.register(memory.address, memory.size)
        return code

    def _memory(self, size: int) -> Memory | None:
        """Memory of a length; that of an earlier opening, which a call may still use, is used again unless a tensor is over
        it."""
        if not size:
            return None
        free = (memory for memory in self._memories if memory.size == size and not memory.is_shown())
        memory = next(free, None)
        if memory is None:
            memory = Memory(size)
            self._memories.append(memory)
        memory.forget()
        return memory

    def _detach(self) -> None:
        """Ends what `setup_dummy` began, when the client itself has ended."""
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.connection.close()
            if attached.memory is not None:
                attached.memory.forget()

    def _await_calls(self) -> None:
        """Waits for the calls that use memory of the pool: zeros that they found there afterwards they would store."""
        attached = self._attached
        if attached is not None and attached.memory is not None:
            self._raw.unregister(attached.memory.address)

    def _is_alone(self) -> bool:
        attached = self._attached
        return attached is not None and attached.is_alone()

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of so many bytes of the memory that `setup_dummy` was given the length of, until the client is closed;
        0 when they are not there, and for other clients."""
        attached = self._attached
        if attached is None or attached.memory is None or self._raw.state():
            return 0
        return attached.memory.take(size)
