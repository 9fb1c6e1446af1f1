"""`MooncakeDistributedStore`: a client of a Slackwater pool with the calls of Mooncake's.

Results are numbers: at least 0 for success, and negative for a code of `slackwater.errors.ErrorCode`. Nothing touches a
caller's memory after a call has returned, whatever it returned.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from slackwater._native import BufferHandle, RawClient
from slackwater.compat.mooncake import opening
from slackwater.compat.mooncake.client_http import HOST, ClientHttp, Figure
from slackwater.compat.mooncake.kinds import ReplicaStatus
from slackwater.compat.mooncake.opening import NOT_SUPPORTED, log, tell
from slackwater.compat.mooncake.parallel import ParallelTensors
from slackwater.compat.mooncake.replicas import Descriptor, MemoryDescriptor, ReplicaDescriptor
from slackwater.compat.mooncake.replicate import CREATE, CREATE_NEAR, DEFAULT, UPSERT, ReplicateConfig, plan_of
from slackwater.compat.mooncake.segments import Segments
from slackwater.compat.mooncake.tasks import Tasks
from slackwater.compat.mooncake.thin import Thin

_INVALID_PARAMS = -600
_LISTS = (list, tuple)


class MooncakeDistributedStore(ParallelTensors, Segments, Tasks, Thin):
    """A client of a pool. Calls may be made from any thread."""

    def __init__(self) -> None:
        self._raw = RawClient(tell)
        self._setup: opening.Arguments | None = None
        self._hostname = ""
        self._told = set()
        self._mounted = {}
        self._attached, self._memories = None, []
        self._http: ClientHttp | None = None
        self._lock = threading.Lock()

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Opens the client: 0 or a negative code.

        setup(local_hostname: str, metadata_server: str, global_segment_size: int, local_buffer_size: int,
        protocol: str, rdma_devices: str, master_server_addr: str, engine: object = None,
        enable_ssd_offload: bool = False, ssd_offload_path: str = '', tenant_id: str = 'default',
        enable_client_http_server: bool = False, client_http_port: int = 9300) -> int

        setup(config: dict) -> int

        Up to `engine`, arguments may be given by position. The dictionary has the same names as keys, of which
        `local_hostname` and `metadata_server` are needed, and may have texts such as "512MB" as values; `ipc_socket_path`
        is taken too, and `master_server_address` and `device_name` for `master_server_addr` and `rdma_devices`.
        """
        config = args[0] if len(args) == 1 and not kwargs else None if args else kwargs.get("config")
        if isinstance(config, dict) and len(args) + len(kwargs) == 1:
            read = opening.from_dict(config)
            if read is None:
                return _INVALID_PARAMS
            arguments = read
        else:
            arguments = opening.from_call(args, kwargs)
        if self._raw.state() == NOT_SUPPORTED:
            # Nor is the lock taken, which another thread may have held at the fork.
            log.error("setup: this client belongs to the parent of this process: make one here")
            return NOT_SUPPORTED
        with self._lock:
            if self._setup is not None:
                if self._setup == arguments:
                    return 0
                log.error("setup: the client is open with other arguments: close it first")
                return opening.OTHER_SETUP
            code = opening.checked(arguments)
            if code == 0:
                code, self._hostname = opening.opened(self._raw, arguments)
            if code == 0:
                self._setup = arguments
                if arguments.enable_client_http_server:
                    self._serve_http(arguments.client_http_port)
            return code

    def _serve_http(self, port: int) -> None:
        # The service does not keep the client.
        client, raw = weakref.ref(self), self._raw

        def health() -> int:
            found = client()
            return 1 if found is None else found.health_check()

        def figures() -> list[Figure]:
            reads = "Reads of this client that asked for values on SSD."
            return [Figure("slackwater_client_ssd_reads_total", "counter", reads, raw.record_reads())]

        try:
            self._http = ClientHttp(self, port, health, figures)
        except (OSError, OverflowError) as error:
            log.warning("setup: no HTTP at %s:%d: %s", HOST, port, error)

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int, /) -> int:
        """Opens the client on this host with the master of this host."""
        buffer = 16 << 20
        return self.setup(
            "localhost", "P2PHANDSHAKE", mount_segment_size, buffer, protocol, device_name, "127.0.0.1:50051"
        )

    def close(self) -> int:
        """Ends the client and takes back what it lends: 0, also when it is closed. `setup` may be called again.

        In a fork of the process that set it up, it stays as it is.
        """
        if self._raw.state() == NOT_SUPPORTED:
            return 0
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None
            self._await_calls()
            self._raw.close()
            self._detach()
            self._forget_segments()
            self._setup, self._hostname = None, ""
        return 0

    def health_check(self) -> int:
        """0 when the master answers, 1 before `setup` and after `close`, 2 when the master does not answer, or the
        stand-alone client of a thin one is gone."""
        state = self._raw.state()
        if state:
            return state if state == NOT_SUPPORTED else 1
        return 2 if self._is_alone() or self._raw.ping() < 0 else 0

    def get_offload_rpc_read_count(self) -> int:
        """How often reads of this client asked for what is on SSD only, those of one batch together; 0 before `setup`."""
        return self._raw.record_reads()

    def get_hostname(self) -> str:
        """The name of this client, `host:port`; empty before `setup`."""
        return self._hostname

    # Values in bytes.

    def put(self, key: str, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores a value: 0, also when the key exists, whose value then stays."""
        plan = plan_of(config, CREATE)
        return plan if plan.__class__ is int else self._raw.put(key, [value], plan)

    def upsert(self, key: str, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores a value in the place of one that is there."""
        plan = plan_of(config, UPSERT)
        return plan if plan.__class__ is int else self._raw.put(key, [value], plan)

    def put_parts(self, key: str, *buffers: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores the concatenation of buffers; of no bytes nothing, which is no error."""
        return self._put_parts(key, buffers, plan_of(config, CREATE))

    def upsert_parts(self, key: str, *buffers: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `put_parts`, in the place of a value that is there."""
        return self._put_parts(key, buffers, plan_of(config, UPSERT))

    def _put_parts(self, key: str, buffers: tuple[Any, ...], plan: Any) -> int:
        if plan.__class__ is int or (state := self._raw.state()):
            return plan if plan.__class__ is int else state
        if not any(memoryview(buffer).nbytes for buffer in buffers):
            return 0
        return self._raw.put(key, list(buffers), plan)

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT) -> int:
        """Stores values: 0, or the first code of one that was not stored."""
        plan = plan_of(config, CREATE)
        return plan if plan.__class__ is int else self._raw.put_batch(keys, values, plan)

    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT) -> int:
        """As `put_batch`, in the place of values that are there."""
        plan = plan_of(config, UPSERT)
        return plan if plan.__class__ is int else self._raw.put_batch(keys, values, plan)

    def get(self, key: str) -> bytes:
        """The value; empty when there is none, or it cannot be read."""
        return self._raw.get(key)

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """The values, empty for those that are not there."""
        return self._raw.get_batch(keys)

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value in memory of its own; None when there is none."""
        return self._raw.get_buffers([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """The values in memory of their own, None for those that are not there."""
        return self._raw.get_buffers(keys)

    # What is there.

    def is_exist(self, key: str) -> int:
        """1 when the key is there, 0 when not, or a negative code."""
        return self._raw.exists([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """The same for each key."""
        return self._raw.exists(keys)

    def get_size(self, key: str) -> int:
        """Length of the value; negative when there is none."""
        return self._raw.size(key)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The replicas of a key; none when it is not there."""
        return self._describe([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """The replicas of the keys that are there."""
        return self._describe(keys)

    def _describe(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        found = {}
        for key, described in zip(keys, self._raw.describe(keys), strict=True):
            if described is None:
                continue
            size, replicas = described
            found[key] = [
                ReplicaDescriptor(
                    ReplicaStatus(state),
                    MemoryDescriptor(Descriptor(size, offset, name)) if in_memory else None,
                )
                for in_memory, state, name, offset in replicas
            ]
        return found

    # Values in the caller's memory.

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Says that values will be read into, or put from, this memory: 0, or a code when it overlaps other such memory."""
        return self._raw.register(buffer_ptr, size)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets registered memory by its first address; returns when no call uses it any more."""
        return self._raw.unregister(buffer_ptr)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT) -> int:
        """Stores a value from memory; of no bytes nothing, which is no error."""
        return self._put_from(key, buffer_ptr, size, plan_of(config, CREATE))

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT) -> int:
        """As `put_from`, in the place of a value that is there."""
        return self._put_from(key, buffer_ptr, size, plan_of(config, UPSERT))

    def _put_from(self, key: str, buffer_ptr: int, size: int, plan: Any) -> int:
        if plan.__class__ is int:
            return plan
        stored = self._raw.put_from([key], [buffer_ptr], [size], plan)[0]
        return stored if size or self._raw.state() else 0

    def batch_put_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """Stores values from memory: 0 or a code for each key."""
        plan = plan_of(config, CREATE)
        return [plan] * len(keys) if plan.__class__ is int else self._raw.put_from(keys, buffer_ptrs, sizes, plan)

    def batch_upsert_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """As `batch_put_from`, in the place of values that are there."""
        plan = plan_of(config, UPSERT)
        return [plan] * len(keys) if plan.__class__ is int else self._raw.put_from(keys, buffer_ptrs, sizes, plan)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Stores values that lie in several pieces of memory: 0 or a code for each key."""
        plan = plan_of(config, CREATE_NEAR)
        if plan.__class__ is int:
            return [plan] * len(keys)
        return self._raw.put_from_many(keys, all_buffer_ptrs, all_sizes, plan)

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = DEFAULT,
    ) -> int:
        """Stores metadata and the data after it as one value; without data nothing, which is no error."""
        plan = plan_of(config, CREATE_NEAR)
        if plan.__class__ is int:
            return plan
        if not size:
            return self._raw.state()
        pieces = [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]]
        return self._raw.put_from_many([key], *pieces, plan)[0]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads a value into memory: its length, or a code."""
        return self._raw.get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Reads values into memory: the length or a code for each key."""
        return self._raw.get_into(keys, buffer_ptrs, sizes)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads values into several pieces of memory each, which have the length of the value: that, or a code."""
        return self._raw.get_into_many(keys, all_buffer_ptrs, all_sizes)

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Copies parts of values into registered memory: for each buffer and key the length or a code of each part."""
        lists = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        if any(len(one) != len(buffer_ptrs) for one in lists):
            return [[[_INVALID_PARAMS] for _ in keys] for keys in list(all_keys)[: len(buffer_ptrs)]]
        return [self._raw.get_parts(*each) for each in zip(buffer_ptrs, *lists, strict=True)]

    # Sessions.

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Opens sessions in which parts of values are read: 0 or a code for each key."""
        return self._raw.start_reads(keys)

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Reads parts of the values of sessions: the sum of their lengths or a code for each key."""
        return self._raw.read_parts(keys, all_buffer_ptrs, all_sizes, all_src_offsets)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Ends sessions: 0, also for keys without one."""
        return self._raw.end_reads(keys)

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """Opens sessions in which values of these lengths are written a part at a time: 0 or a code for each key."""
        plan = plan_of(config, CREATE)
        return [plan] * len(keys) if plan.__class__ is int else self._raw.start_writes(keys, sizes, plan)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Writes parts of the values of sessions: the sum of their lengths or a code for each key."""
        return self._raw.write_parts(keys, all_buffer_ptrs, all_sizes, all_dst_offsets)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Stores the values of sessions: 0 or a code for each key. One that was not stored can be ended again."""
        return self._raw.end_writes(keys)

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Drops sessions and what was written in them: 0 or a code for each key."""
        return self._raw.revoke_writes(keys)

    # Removal.

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a key: 0 or a code. Without `force` one that a reader holds a lease on stays."""
        return self._raw.remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Removes keys: 0 or a code for each."""
        return self._raw.remove(keys, force)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the keys in which a regular expression is found: how many, or a code."""
        return self._raw.remove_matching(regex_pattern, force)

    def remove_all(self, force: bool = False) -> int:
        """Removes every key: how many, or a code."""
        return self._raw.remove_all(force)

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Removes keys that this client put and that nobody reads, or what one segment has of them: those it removed."""
        cleared = self._raw.replica_clear(keys, segment_name or None)
        return [key for key, code in zip(keys, cleared, strict=True) if code == 0]
