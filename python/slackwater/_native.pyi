import builtins
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from typing_extensions import Buffer

from .errors import SlackwaterError
from .views import Views

class Tensor(Protocol):
    """A contiguous tensor on the CPU, with the attributes that PyTorch gives it."""

    @property
    def device(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...

Key: TypeAlias = bytes | str
Value: TypeAlias = Buffer | Tensor
Size: TypeAlias = int | str
Pin: TypeAlias = Literal["soft", "hard"] | float | None

__version__: str

class Chain:
    """The chain of the keys of one call: they are the blocks of a chain, in order."""

    POSITION_UNKNOWN: int

    def __new__(
        cls,
        *,
        parent: Key | None = None,
        position: int = 0,
        expect: Literal["continues", "ends"] | None = None,
        hint: int | None = None,
        output_tokens: int | None = None,
    ) -> Self: ...

class View:
    """A value that is shown where it lies, or that a client read: a context manager that gives a read-only `memoryview`.

    Its memory stays as it is until the view is closed and nothing else refers to the memory any more.
    """

    @property
    def closed(self) -> bool: ...
    @property
    def tier(self) -> Literal["memory", "ssd"]: ...
    def close(self) -> None:
        """Ends the view; memory that is still referred to stays in place until it no longer is."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> memoryview: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Store:
    """A tiered store inside this process: values in DRAM over SSD."""

    def __new__(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        memory: Size | None = None,
        ssd: Size | None = None,
        config: str | os.PathLike[str] | None = None,
        **options: str | float | bool,
    ) -> Self: ...
    @property
    def closed(self) -> bool:
        """Whether the store was closed."""

    def put(
        self,
        key: Key,
        value: Value,
        *,
        upsert: bool = False,
        pin: Pin = None,
        group: int | None = None,
        durable: bool = False,
        wait: float | None = None,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> bool:
        """Puts one value. True if it was stored, False if a value of that key was there and stays."""

    def put_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Value],
        *,
        upsert: bool = False,
        pin: Pin = None,
        group: int | None = None,
        durable: bool = False,
        wait: float | None = None,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> builtins.list[bool | SlackwaterError]:
        """Puts values: for each key what `put` returns, or the exception that it would raise."""

    def get(self, key: Key, *, tenant: str | None = None) -> bytes | None:
        """The value, or None if there is none."""

    def get_into(self, key: Key, buffer: Value, *, tenant: str | None = None) -> int | None:
        """Reads the value into the buffer: its length, or None if there is none."""

    def get_batch(
        self,
        keys: Sequence[Key],
        *,
        prefix_only: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> builtins.list[bytes | None | SlackwaterError]:
        """Reads values: for each key the bytes, None, or the exception."""

    def get_batch_into(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Value],
        *,
        prefix_only: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> builtins.list[int | None | SlackwaterError]:
        """Reads values into buffers, one each: for each key its length, None, or the exception."""

    def view(
        self,
        key: Key,
        *,
        verify: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> View | None:
        """A view of the value where it lies, without a copy; None if there is none."""

    def view_batch(
        self,
        keys: Sequence[Key],
        *,
        prefix_only: bool = False,
        verify: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
    ) -> Views:
        """Views of values, closed together: for each key the view, None, or the exception."""

    def exists(self, key: Key, *, tenant: str | None = None) -> bool:
        """Whether the key has a value that can be read."""

    def exists_batch(self, keys: Sequence[Key], *, tenant: str | None = None) -> builtins.list[bool]:
        """Whether each key has a value that can be read."""

    def __contains__(self, key: Key) -> bool: ...
    def remove(self, key: Key, *, force: bool = False, tenant: str | None = None) -> bool:
        """Removes the value for good. False if there was none."""

    def remove_batch(
        self, keys: Sequence[Key], *, force: bool = False, tenant: str | None = None
    ) -> builtins.list[bool | SlackwaterError]:
        """Removes values: for each key what `remove` returns, or the exception."""

    def remove_matching(self, pattern: str, *, force: bool = False, tenant: str | None = None) -> int:
        """Removes every value in whose key the regular expression is found; returns how many."""

    def remove_all(self, *, force: bool = False, tenant: str | None = None) -> int:
        """Removes every value of the tenant; returns how many."""

    def list(
        self,
        *,
        pattern: str | None = None,
        after: Key | None = None,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> builtins.list[bytes]:
        """Keys in byte order: all of them, or at most `limit`."""

    def set_quota(self, tenant: str, *, memory: Size, ssd: Size | None = None) -> None:
        """Sets or changes how many bytes the tenant may keep in memory and on SSD."""

    def delete_quota(self, tenant: str) -> None:
        """Forgets the quota of a tenant that has no values."""

    def quotas(self) -> builtins.list[dict[str, Any]]:
        """Quotas and use of every tenant that has either."""

    def explain(self, key: Key, *, tenant: str | None = None) -> builtins.list[dict[str, Any]] | None:
        """Why each tier keeps the value, or will evict it. None if there is no value."""

    def stats(self) -> dict[str, Any]:
        """What the store counts, as nested dictionaries."""

    def metrics(self) -> str:
        """The same as metrics in the text form of Prometheus."""

    def flush(self, timeout: float = 60.0) -> None:
        """Returns when everything queued for SSD is durable."""

    def close(self) -> None:
        """Writes what the offload mode requires, and closes. Closing again does nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Client:
    """A client of a store that another process serves; made by `connect`. Its methods do what those of `Store` do."""

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""

    def put(
        self,
        key: Key,
        value: Value,
        *,
        upsert: bool = False,
        pin: Pin = None,
        group: int | None = None,
        durable: bool = False,
        wait: float | None = None,
        replicas: int = 1,
        replicated: bool = False,
        preferred: Sequence[str] | None = None,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Puts one value. True if it was stored, False if a value of that key was there and stays."""

    def put_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Value],
        *,
        upsert: bool = False,
        pin: Pin = None,
        group: int | None = None,
        durable: bool = False,
        wait: float | None = None,
        replicas: int = 1,
        replicated: bool = False,
        preferred: Sequence[str] | None = None,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bool | SlackwaterError]:
        """Puts values: for each key what `put` returns, or the exception that it would raise."""

    def get(self, key: Key, *, tenant: str | None = None, timeout: float | None = None) -> bytes | None:
        """The value, or None if there is none."""

    def get_into(
        self, key: Key, buffer: Value, *, tenant: str | None = None, timeout: float | None = None
    ) -> int | None:
        """Reads the value into the buffer: its length, or None if there is none."""

    def get_batch(
        self,
        keys: Sequence[Key],
        *,
        prefix_only: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes | None | SlackwaterError]:
        """Reads values: for each key the bytes, None, or the exception."""

    def get_batch_into(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Value],
        *,
        prefix_only: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> builtins.list[int | None | SlackwaterError]:
        """Reads values into buffers, one each: for each key its length, None, or the exception."""

    def view(
        self,
        key: Key,
        *,
        verify: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> View | None:
        """A view of the value, read into memory that belongs to the view; None if there is none."""

    def view_batch(
        self,
        keys: Sequence[Key],
        *,
        prefix_only: bool = False,
        verify: bool = False,
        tenant: str | None = None,
        chain: Chain | None = None,
        timeout: float | None = None,
    ) -> Views:
        """Views of values, closed together: for each key the view, None, or the exception."""

    def exists(self, key: Key, *, tenant: str | None = None, timeout: float | None = None) -> bool:
        """Whether the key has a value that can be read."""

    def exists_batch(
        self, keys: Sequence[Key], *, tenant: str | None = None, timeout: float | None = None
    ) -> builtins.list[bool]:
        """Whether each key has a value that can be read."""

    def __contains__(self, key: Key) -> bool: ...

    def remove(
        self, key: Key, *, force: bool = False, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Removes the value for good. False if there was none."""

    def remove_batch(
        self,
        keys: Sequence[Key],
        *,
        force: bool = False,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bool | SlackwaterError]:
        """Removes values: for each key what `remove` returns, or the exception."""

    def remove_matching(
        self, pattern: str, *, force: bool = False, tenant: str | None = None, timeout: float | None = None
    ) -> int:
        """Removes every value in whose key the regular expression is found; returns how many."""

    def remove_all(
        self, *, force: bool = False, tenant: str | None = None, timeout: float | None = None
    ) -> int:
        """Removes every value of the tenant; returns how many."""

    def list(
        self,
        *,
        pattern: str | None = None,
        after: Key | None = None,
        limit: int | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> builtins.list[bytes]:
        """Keys in byte order: all of them, or at most `limit`."""

    def set_quota(
        self, tenant: str, *, memory: Size, ssd: Size | None = None, timeout: float | None = None
    ) -> None:
        """Sets or changes how many bytes the tenant may keep in memory and on SSD; for operators."""

    def delete_quota(self, tenant: str, *, timeout: float | None = None) -> None:
        """Forgets the quota of a tenant that has no values; for operators."""

    def quotas(self, *, timeout: float | None = None) -> builtins.list[dict[str, Any]]:
        """Quotas and use of every tenant that has either; for operators."""

    def stat(
        self, key: Key, *, tenant: str | None = None, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """What the master knows of the value, as `slackwater stat --json`. None if there is no value."""

    def explain(
        self, key: Key, *, tenant: str | None = None, timeout: float | None = None
    ) -> builtins.list[dict[str, Any]] | None:
        """Where the value is and what keeps it there, as the master tells clients. None if there is no value."""

    def stats(self) -> dict[str, Any]:
        """What this client counts, as nested dictionaries."""

    def metrics(self) -> str:
        """The same as metrics in the text form of Prometheus."""

    def close(self) -> None:
        """Ends the connection. Closing again does nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def connect(
    address: str | None = None,
    *,
    key_file: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> Client:
    """Connects to a store that another process serves, at tcp://127.0.0.1:50051 unless another address is given."""

def export_traces(endpoint: str | None, *, share: float = 0.0, service: str = "slackwater") -> None:
    """Tells a collector of OpenTelemetry, at http://HOST:PORT, what was done for calls that are traced.

    Traced are calls within a span of the package `opentelemetry`, and of the others the share `share` (0 to 1), which begin
    traces of their own. `None` ends that. A fork tells nothing until it calls this itself. Raises where the module was built
    without OpenTelemetry.
    """

def error_codes() -> dict[str, int]: ...
def after_fork() -> None: ...
def checksum(address: int, size: int) -> int: ...
def get_alloc_func_addr() -> int:
    """The address of `void *allocate(size_t)`: zeroed memory on huge pages where there are any; null when there is none."""

def get_free_func_addr() -> int:
    """The address of `void release(void *)`, which gives back what `allocate` gave; for any other address it does nothing."""

class Cancelling:
    """Ends the calls of clients that are made by `run`, from another thread."""

    def __new__(cls) -> Self: ...
    def cancel(self) -> None:
        """Ends them soon: they return once nothing touches the caller's memory any more."""

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Calls a function on this thread, whose calls of clients can be ended."""

class UnderWay:
    """How many calls of one client are under way."""

    def __new__(cls) -> Self: ...
    def __len__(self) -> int: ...
    def wait(self) -> None:
        """Waits on this thread until there is none."""

class Ends:
    """The ends of calls that tasks of one event loop await: a descriptor that can be read while there are some."""

    def __new__(cls) -> Self: ...
    def discard(self) -> None:
        """Forgets the ends that there are: their loop was closed."""

    def fileno(self) -> int: ...
    def settle(self) -> None:
        """Gives tasks the ends that there are, on the thread of their loop."""

class Awaiting:
    """A call of a client that is begun on one thread and ends on another."""

    def __new__(cls, ends: Ends, under_way: UnderWay) -> Self: ...

    def cancel(self) -> None:
        """Ends the call soon: it is told of once nothing touches the caller's memory any more."""

    def begin(
        self, future: Any, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[bool, Any]:
        """Makes a call of a client: whether it is under way, to give `future` its end, and if it is over, its result."""

class RawPlan:
    """How values are put by a `RawClient`: made once, used by many calls. `groups` has a name for each key of a call."""

    def __new__(
        cls,
        *,
        upsert: bool = False,
        replicas: int = 1,
        preferred: Sequence[str] = (),
        pin: Literal["none", "soft", "hard"] = "none",
        pin_milliseconds: int | None = None,
        groups: Sequence[str] | None = None,
        near: bool = False,
    ) -> Self: ...
    @property
    def upsert(self) -> bool: ...
    def spread(self, owners: Sequence[int], keys: int) -> RawPlan | None: ...

class BufferHandle:
    """The bytes of one value: a writable buffer, whose memory goes when the handle and every view of it are gone."""

    def ptr(self) -> int:
        """The address of the first byte."""

    def size(self) -> int:
        """The number of bytes."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class RawQuestion:
    """A question of a `RawEngine` with keys that waits for its answer."""

class RawEngine:
    """A transfer engine by address, on which `slackwater.compat` is written. Results are 0, or -1 for a failure, -2 when a peer
    is to be described again, and -3 for a deadline that passed."""

    def __new__(
        cls, name: str, host: str, log: Callable[[str, int, str], None], keys: tuple[str, str] | None = None
    ) -> Self: ...
    @staticmethod
    def topology() -> str:
        """Which network interfaces are near which memory, as JSON. Raises `OSError` where that cannot be told."""

    def register(self, start: int, bytes: int, location: str = "*") -> bool: ...
    def unregister(self, start: int) -> int: ...
    def close(self) -> bool:
        """Ends everything: whether nothing touches registered memory any more."""

    def is_registered(self, start: int, bytes: int) -> bool: ...
    def describe(self) -> bytes:
        """What peers are told. Raises `ValueError` with keys, as `answer` tells it then."""

    def key(self) -> str | None: ...
    def ask(self, key: str) -> tuple[RawQuestion, bytes]: ...
    def answer(self, asked: bytes) -> bytes: ...
    def reload(self) -> None: ...
    def open(self, name: str, reached: str, described: bytes, question: RawQuestion | None = None) -> int | None: ...
    def transfer(
        self,
        peer: str,
        write: bool,
        starts: Sequence[int],
        addresses: Sequence[int],
        lengths: Sequence[int],
        seconds: float,
        notice: tuple[str, str] | None = None,
    ) -> int: ...
    def submit(
        self,
        peer: str,
        write: bool,
        starts: Sequence[int],
        addresses: Sequence[int],
        lengths: Sequence[int],
        seconds: float,
    ) -> int:
        """The number of a batch, more than 0, or a code."""

    def check(self, batch: int) -> int:
        """1 while it is under way; then its result, once."""

    def wait(self, batch: int) -> int: ...
    def probe(self, peer: str, seconds: float) -> int: ...
    def notices(self) -> builtins.list[tuple[str, str]]: ...

class RawClient:
    """A client by address and code, on which `slackwater.compat` is written.

    Results are at least 0 for success and a negative code otherwise. `log(method, code, reason)` is called once for each
    method and code.
    """

    def __new__(cls, log: Callable[[str, int, str], None]) -> Self: ...
    def open(
        self,
        address: str,
        *,
        key_file: str | None = None,
        timeout: float = 10.0,
        connect_timeout: float = 10.0,
        force_tcp: bool = False,
        tenant: str | None = None,
        staging: int = 0,
    ) -> None: ...
    def lend(
        self,
        memory: int,
        *,
        name: str | None = None,
        ssd: int | None = None,
        directory: str | None = None,
        data: str | None = None,
        key_file: str | None = None,
        allow: str | None = None,
        timeout: float = 10.0,
        file: str | None = None,
        offset: int = 0,
    ) -> tuple[int | None, str | None]: ...
    def take_back(self, node: int, seconds: float) -> bool: ...
    def close(self) -> None: ...
    def state(self) -> int: ...
    def ping(self) -> int: ...
    def register(self, start: int, bytes: int) -> int: ...
    def unregister(self, start: int) -> int: ...
    def put(self, key: Key, parts: Sequence[Value], plan: RawPlan) -> int: ...
    def put_batch(self, keys: Sequence[Key], values: Sequence[Value], plan: RawPlan) -> int: ...
    def get(self, key: Key) -> bytes: ...
    def get_batch(self, keys: Sequence[Key]) -> builtins.list[bytes]: ...
    def get_buffers(self, keys: Sequence[Key]) -> builtins.list[BufferHandle | None]: ...
    def record_reads(self) -> int: ...
    def read_buffers(self, keys: Sequence[Key]) -> builtins.list[BufferHandle | int]: ...
    def exists(self, keys: Sequence[Key]) -> builtins.list[int]: ...
    def size(self, key: Key) -> int: ...
    def describe(
        self, keys: Sequence[Key]
    ) -> builtins.list[tuple[int, builtins.list[tuple[bool, int, str, int]]] | None]: ...
    def checksums(self, keys: Sequence[Key]) -> builtins.list[tuple[int, int] | None]: ...
    def put_from(
        self, keys: Sequence[Key], starts: Sequence[int], sizes: Sequence[int], plan: RawPlan
    ) -> builtins.list[int]: ...
    def put_from_many(
        self, keys: Sequence[Key], starts: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], plan: RawPlan
    ) -> builtins.list[int]: ...
    def get_into(self, keys: Sequence[Key], starts: Sequence[int], sizes: Sequence[int]) -> builtins.list[int]: ...
    def get_into_many(
        self, keys: Sequence[Key], starts: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> builtins.list[int]: ...
    def get_parts(
        self,
        start: int,
        keys: Sequence[Key],
        to: Sequence[Sequence[int]],
        at: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        /,
    ) -> builtins.list[builtins.list[int]]: ...
    def read_alone(
        self,
        keys: Sequence[Key],
        starts: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> builtins.list[int]: ...
    def start_reads(self, keys: Sequence[Key]) -> builtins.list[int]: ...
    def read_parts(
        self,
        keys: Sequence[Key],
        starts: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> builtins.list[int]: ...
    def end_reads(self, keys: Sequence[Key]) -> int: ...
    def start_writes(self, keys: Sequence[Key], sizes: Sequence[int], plan: RawPlan) -> builtins.list[int]: ...
    def write_parts(
        self,
        keys: Sequence[Key],
        starts: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> builtins.list[int]: ...
    def end_writes(self, keys: Sequence[Key]) -> builtins.list[int]: ...
    def revoke_writes(self, keys: Sequence[Key]) -> builtins.list[int]: ...
    def remove(self, keys: Sequence[Key], force: bool) -> builtins.list[int]: ...
    def replica_clear(self, keys: Sequence[Key], segment: str | None) -> builtins.list[int]: ...
    def start_task(self, key: Key, source: str | None, targets: Sequence[str]) -> int: ...
    def query_task(self, task: int) -> tuple[tuple[int, bool, int, int, int, str] | None, int]: ...
    def remove_matching(self, pattern: str, force: bool) -> int: ...
    def remove_all(self, force: bool) -> int: ...
