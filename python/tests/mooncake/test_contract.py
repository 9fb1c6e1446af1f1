"""Every method, with a call that succeeds, one about what is not there, one that is wrong, and one that fails.

The methods are those of the lists that the guide is made of. Where one of the four cannot be, the reason stands in its place.
"""

import ctypes
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mooncake.store
import numpy
import pytest
import slackwater.compat
import standin
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism
from test_engine import NOBODY, Side
from test_life import setup

from conftest import Starter

NAMES = json.loads((Path(slackwater.compat.__file__).parent / "mooncake" / "names.json").read_text())
BYTES, VALUE = 1 << 20, b"0123456789"
HERE = 4096
"""Where a tensor lies behind its header, in the memory of a stage."""


class Stage:
    """A pool of two clients that lend memory, and what calls are made with."""

    def __init__(self, master: str, torch: Any, files: Path) -> None:
        self.master, self.torch = master, torch
        self.store, self.other = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert setup(self.store, master, global_segment_size=16 << 20, local_buffer_size=BYTES) == 0
        assert setup(self.other, master, global_segment_size=16 << 20, local_buffer_size=BYTES) == 0
        self.memory = bytearray(BYTES)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.files = files

    def prepared(self) -> "Stage":
        """With these keys, and nothing else: k and r of ten bytes, t and f of a tensor, p of one in two parts, q of one with
        a manifest; a session that reads r, and one that writes w."""
        self.store.batch_get_session_end(["r", "k"])
        self.store.batch_put_session_revoke(["w", "y"])
        self.store.unregister_buffer(self.at)
        self.store.remove_all(True)
        self.memory[:] = bytes(BYTES)
        header, address, size, _keep = mooncake.store._serialize_tensor(self.tensor())
        self.memory[HERE : HERE + len(header)] = header
        self.memory[HERE + len(header) : HERE + len(header) + size] = ctypes.string_at(address, size)
        self.tensor_at, self.tensor_bytes = self.at + HERE, len(header) + size
        assert self.store.put_batch(["k", "r"], [VALUE] * 2) == 0
        assert self.store.batch_put_tensor(["t", "f"], [self.tensor()] * 2) == [0, 0]
        assert self.store.put_tensor_with_tp("p", self.tensor(), 0, 2, 0) == 0
        assert self.store.put_tensor_with_parallelism("q", self.tensor(), self.cut()) == 0
        assert self.store.register_buffer(self.at, BYTES) == 0
        assert self.store.batch_get_session_start(["r"]) == [0] == self.store.batch_put_session_start(["w"], [10])
        return self

    def tensor(self) -> Any:
        """Four rows of six."""
        return self.torch.from_numpy(numpy.arange(24, dtype="float32").reshape(4, 6))

    @staticmethod
    def cut() -> TensorParallelism:
        """The whole, as the part of one rank."""
        axis, made = ParallelAxis(), TensorParallelism()
        axis.kind, axis.split_dim = "tp", 0
        made.axes = [axis]
        return made

    def whole(self) -> ReadTarget:
        """A target that asks for it."""
        target = ReadTarget()
        target.mode, target.parallelism = "full", self.cut()
        return target

    def close(self) -> None:
        """Ends both."""
        self.store.close()
        self.other.close()


Call = Callable[[Any], Any]
Case = tuple[Call, Any] | str
"""A call and its result, or why there is none."""


@dataclass(frozen=True)
class Contract:
    """The four calls of a method. One that fails is the one that succeeds, without a master or a peer; its result is known by
    that of success unless it is given."""

    success: tuple[Call, Any]
    miss: Case
    misuse: Case
    failure: Any = ...


CREATES = "a call that stores is about no key that must be there"
LOCAL = "asks nobody"
NO_ARGUMENTS = "takes no arguments"
LEAVES = "a put of no bytes stores nothing, and is no misuse"


def raises(kind: type[Exception], call: Call) -> Case:
    """A call that raises."""

    def made(stage: Any) -> Any:
        try:
            return call(stage)
        except kind as error:
            return type(error)

    return made, kind


def stores(call: Callable[[MooncakeDistributedStore, Stage, str], Any], wrong: Any = -600, result: Any = 0) -> Contract:
    """A call that stores a value for a key."""
    return Contract((lambda s: call(s.store, s, "n"), result), CREATES, (lambda s: call(s.store, s, ""), wrong))


def reads(
    call: Callable[[MooncakeDistributedStore, Stage, str], Any], found: Any, missing: Any, key: str, wrong: Case, failure: Any = ...
) -> Contract:
    """A call that is about a key."""
    return Contract((lambda s: call(s.store, s, key), found), (lambda s: call(s.store, s, "none"), missing), wrong, failure)


def both(one: dict[str, Contract], *others: dict[str, Contract]) -> dict[str, Contract]:
    """Contracts of several tables, in none of which a name is twice."""
    for other in others:
        assert not one.keys() & other.keys()
        one = one | other
    return one


def misused(call: Call) -> Case:
    """A call with an argument of another kind."""
    return raises(TypeError, call)


TENSOR, HALF = "tensor", "its first half"
"""In the place of a tensor with the elements of the stage's, and of a part of it."""

VALUES = {
    "put": stores(lambda c, s, key: c.put(key, b"v")),
    "upsert": stores(lambda c, s, key: c.upsert(key, b"v")),
    "put_batch": stores(lambda c, s, key: c.put_batch([key], [b"v"])),
    "upsert_batch": stores(lambda c, s, key: c.upsert_batch([key], [b"v"])),
    "put_parts": stores(lambda c, s, key: c.put_parts(key, b"v", b"w")),
    "upsert_parts": stores(lambda c, s, key: c.upsert_parts(key, b"v", b"w")),
    "put_from": stores(lambda c, s, key: c.put_from(key, s.at, 10)),
    "upsert_from": stores(lambda c, s, key: c.upsert_from(key, s.at, 10)),
    "batch_put_from": stores(lambda c, s, key: c.batch_put_from([key], [s.at], [10]), [-600], [0]),
    "batch_upsert_from": stores(lambda c, s, key: c.batch_upsert_from([key], [s.at], [10]), [-600], [0]),
    "put_from_with_metadata": stores(lambda c, s, key: c.put_from_with_metadata(key, s.at, s.at, 10, 4)),
    "batch_put_from_multi_buffers": stores(
        lambda c, s, key: c.batch_put_from_multi_buffers([key], [[s.at, s.at + 50]], [[5, 5]]), [-600], [0]
    ),
    "batch_put_session_start": stores(lambda c, s, key: c.batch_put_session_start([key and "y"], [10]), [-600], [0]),
    "get": reads(lambda c, s, key: c.get(key), VALUE, b"", "k", misused(lambda s: s.store.get(7)), b""),
    "get_batch": reads(lambda c, s, key: c.get_batch([key]), [VALUE], [b""], "k", misused(lambda s: s.store.get_batch("k")), [b""]),
    "get_buffer": reads(lambda c, s, key: c.get_buffer(key), VALUE, None, "k", misused(lambda s: s.store.get_buffer(7)), None),
    "batch_get_buffer": reads(
        lambda c, s, key: c.batch_get_buffer([key]), [VALUE], [None], "k", misused(lambda s: s.store.batch_get_buffer("k")), [None],
    ),
    "get_into": reads(
        lambda c, s, key: c.get_into(key, s.at, 10), 10, -704, "k", (lambda s: s.store.get_into("k", s.at, 9), -600)
    ),
    "batch_get_into": reads(
        lambda c, s, key: c.batch_get_into([key], [s.at], [10]), [10], [-704], "k",
        (lambda s: s.store.batch_get_into(["k"], [s.at], []), [-600]),
    ),
    "batch_get_into_multi_buffers": reads(
        lambda c, s, key: c.batch_get_into_multi_buffers([key], [[s.at, s.at + 50]], [[5, 5]]), [10], [-704], "k",
        (lambda s: s.store.batch_get_into_multi_buffers(["k"], [[s.at]], [[9]]), [-600]),
    ),
    "get_into_ranges": reads(
        lambda c, s, key: c.get_into_ranges([s.at], [[key]], [[[0, 50]]], [[[2, 0]]], [[[5, 5]]]), [[[5, 5]]], [[[-704] * 2]], "k",
        (lambda s: s.store.get_into_ranges([s.at], [["k"]], [[[0]]], [[[8]]], [[[5]]]), [[[-600]]]),
    ),
    "is_exist": reads(lambda c, s, key: c.is_exist(key), 1, 0, "k", misused(lambda s: s.store.is_exist(7))),
    "batch_is_exist": reads(lambda c, s, key: c.batch_is_exist([key]), [1], [0], "k", misused(lambda s: s.store.batch_is_exist("k"))),
    "get_size": reads(lambda c, s, key: c.get_size(key), 10, -704, "k", misused(lambda s: s.store.get_size(None))),
    "remove": reads(lambda c, s, key: c.remove(key, True), 0, -704, "k", misused(lambda s: s.store.remove(7))),
    "batch_remove": reads(
        lambda c, s, key: c.batch_remove([key], True), [0], [-704], "k", misused(lambda s: s.store.batch_remove("k"))
    ),
    "remove_by_regex": reads(
        lambda c, s, key: c.remove_by_regex(f"^{key}", True), 1, 0, "k", (lambda s: s.store.remove_by_regex("("), -600)
    ),
    "remove_all": Contract(
        (lambda s: s.store.remove_all(True) >= 4, True), (lambda s: [s.store.remove_all(True), s.store.remove_all(True)][1], 0),
        misused(lambda s: s.store.remove_all(True, True)), failure=False,
    ),
    "batch_replica_clear": reads(
        lambda c, s, key: c.batch_replica_clear([key]), ["k"], [], "k", misused(lambda s: s.store.batch_replica_clear("k")), [],
    ),
    "get_replica_desc": reads(
        lambda c, s, key: [one.status.name for one in c.get_replica_desc(key)], ["COMPLETE"], [], "k",
        misused(lambda s: s.store.get_replica_desc(7)), [],
    ),
    "batch_get_replica_desc": reads(
        lambda c, s, key: [*c.batch_get_replica_desc([key])], ["k"], [], "k", misused(lambda s: s.store.batch_get_replica_desc("k")), [],
    ),
    "register_buffer": Contract(
        (lambda s: [s.store.unregister_buffer(s.at), s.store.register_buffer(s.at, BYTES)], [0, 0]), CREATES,
        (lambda s: s.store.register_buffer(s.at + 5, 10), -600), LOCAL,
    ),
    "unregister_buffer": Contract(
        (lambda s: s.store.unregister_buffer(s.at), 0), (lambda s: s.store.unregister_buffer(s.at + 5), -600),
        misused(lambda s: s.store.unregister_buffer(-1)), LOCAL,
    ),
}  # fmt: skip

SESSIONS = {
    "batch_get_session_start": reads(
        lambda c, s, key: c.batch_get_session_start([key]), [0], [-704], "k", misused(lambda s: s.store.batch_get_session_start("k"))
    ),
    "batch_get_into_multi_buffer_ranges": Contract(
        (lambda s: s.store.batch_get_into_multi_buffer_ranges(["r"], [[s.at]], [[4]], [[6]]), [4]),
        (lambda s: s.store.batch_get_into_multi_buffer_ranges(["k"], [[s.at]], [[4]], [[6]]), [-600]),
        (lambda s: s.store.batch_get_into_multi_buffer_ranges(["r"], [[s.at]], [[4]], [[7]]), [-600]),
        "a session reads on where its value is known to be, until its lease ends",
    ),
    "batch_get_session_end": Contract(
        (lambda s: s.store.batch_get_session_end(["r"]), 0), (lambda s: s.store.batch_get_session_end(["none"]), 0),
        misused(lambda s: s.store.batch_get_session_end("r")), "leases that are not given back run out: 0",
    ),
    "batch_put_from_multi_buffer_ranges": Contract(
        (lambda s: s.store.batch_put_from_multi_buffer_ranges(["w"], [[s.at]], [[4]], [[6]]), [4]),
        (lambda s: s.store.batch_put_from_multi_buffer_ranges(["none"], [[s.at]], [[4]], [[6]]), [-600]),
        (lambda s: s.store.batch_put_from_multi_buffer_ranges(["w"], [[s.at]], [[4]], [[7]]), [-600]),
        "a session writes on to memory of its own process: its end fails",
    ),
    "batch_put_session_end": reads(
        lambda c, s, key: c.batch_put_session_end([key]), [0], [-600], "w", misused(lambda s: s.store.batch_put_session_end("w"))
    ),
    "batch_put_session_revoke": Contract(
        (lambda s: s.store.batch_put_session_revoke(["w"]), [0]), (lambda s: s.store.batch_put_session_revoke(["none"]), [-600]),
        misused(lambda s: s.store.batch_put_session_revoke("w")), "room that is not given back is fenced with its writer",
    ),
}  # fmt: skip


def tensors() -> dict[str, Contract]:
    """The calls about tensors."""
    made: dict[str, Contract] = {}

    def both_of(name: str, arguments: Callable[[Stage], list[Any]], more: Callable[[Stage], list[Any]] = lambda s: []) -> None:
        """A call that stores a tensor, and the one that stores a list of them: arguments after the key are lists there."""
        one = {"batch_" + name: None, name: None}
        for method in one:
            listed = method.startswith("batch_")

            def call(s: Stage, key: Any, given: list[Any], method: str = method, listed: bool = listed) -> Any:
                first = [[key], *([each] for each in given)] if listed else [key, *given]
                return getattr(s.store, method)(*first, *more(s))

            wrong = [7] * len(arguments(NO_STAGE))
            code: Any = [-600] if listed else -600
            made[method] = Contract(
                (lambda s, call=call, listed=listed: call(s, "n", arguments(s)), [0] if listed else 0), CREATES,
                (lambda s, call=call, wrong=wrong: call(s, "n", wrong if len(wrong) == 1 else [s.at, 7]), code),
            )  # fmt: skip

    def value(s: Stage) -> list[Any]:
        return [s.tensor()]

    def laid(s: Stage) -> list[Any]:
        return [s.tensor_at, s.tensor_bytes]

    for begin in ("put", "upsert"):
        both_of(f"{begin}_tensor", value)
        both_of(f"{begin}_tensor_from", laid)
        both_of(f"{begin}_tensor_with_parallelism", value, lambda s: [])
        both_of(f"{begin}_tensor_with_parallelism_from", laid, lambda s: [])
    for name in ("pub_tensor", "upsert_pub_tensor"):
        both_of(name, value, lambda s: [ReplicateConfig()])
    both_of("put_tensor_with_tp", value, lambda s: [0, 2, 0])
    both_of("put_tensor_with_tp_from", laid, lambda s: [0, 2, 0])
    both_of("pub_tensor_with_tp", value, lambda s: [ReplicateConfig(), 0, 2, 0])

    reading: list[tuple[str, str, Callable[[Stage], list[Any]]]] = [
        ("tensor", "t", lambda s: []),
        ("tensor_with_tp", "p", lambda s: [0, 2]),
        ("tensor_with_parallelism", "q", lambda s: [s.whole()]),
    ]
    for name, key, more in reading:
        targets, found = name.endswith("parallelism"), HALF if key == "p" else TENSOR

        def read(s: Stage, method: str, key: str, more: Any = more, targets: bool = targets) -> Any:
            listed, into = method.startswith("batch_"), method.endswith("_into")
            given: list[Any] = [key, *([s.at + HERE, 2000] if into else [])]
            if listed:
                given = [[one] for one in given]
            rest = more(s)
            return getattr(s.store, method)(*given, *([rest] if listed and targets else rest))

        for method in (f"get_{name}", f"batch_get_{name}", f"get_{name}_into", f"batch_get_{name}_into"):
            listed = method.startswith("batch_")
            made[method] = Contract(
                (lambda s, read=read, method=method, key=key: read(s, method, key), [found] if listed else found),
                (lambda s, read=read, method=method: read(s, method, "none"), [None] if listed else None),
                (lambda s, read=read, method=method: read(s, method, "k"), [None] if listed else None),
            )
    for method in ("get_tensor_into_cuda", "batch_get_tensor_into_cuda"):
        listed = method.startswith("batch_")

        def into(s: Stage, key: str, method: str = method, listed: bool = listed) -> Any:
            return getattr(s.store, method)(*([[key], [s.tensor()]] if listed else [key, s.tensor()]))

        code = [-600] if listed else -600
        # Without a GPU, every tensor is one of another place, which is a misuse.
        made[method] = Contract((lambda s, into=into: into(s, "t"), code), (lambda s, into=into: into(s, "none"), code),
                                (lambda s, into=into: into(s, "k"), code), "a tensor of this host is refused first")  # fmt: skip
    made["save_tensor_to_safetensor"] = Contract(
        (lambda s: s.store.save_tensor_to_safetensor("f", str(s.files / "contract.safetensors")), 0),
        (lambda s: s.store.save_tensor_to_safetensor("none", str(s.files / "none.safetensors")) < 0, True),
        (lambda s: s.store.save_tensor_to_safetensor("t", "/nowhere/at/all") < 0, True),
        failure=-1100,
    )
    made["load_tensor_from_safetensor"] = Contract(
        (lambda s: [s.store.save_tensor_to_safetensor("f", str(s.files / "contract.safetensors")),
                    s.store.load_tensor_from_safetensor("n", str(s.files / "contract.safetensors"))][1], TENSOR),
        (lambda s: s.store.load_tensor_from_safetensor("n", str(s.files / "none.safetensors")), None),
        (lambda s: s.store.load_tensor_from_safetensor("n", "/dev/null"), None),
        failure=None,
    )  # fmt: skip
    return made


class _NoStage:
    """What tells how many arguments there are."""

    tensor_at = tensor_bytes = 0

    def tensor(self) -> None: ...


NO_STAGE: Any = _NoStage()


def piece(stage: Stage) -> str:
    """A file that can be lent."""
    path = stage.files / "contract-segment"
    with open(path, "wb") as file:
        file.truncate(4 << 20)
    return str(path)


def taken_back(stage: Stage, method: str) -> int:
    """What it gives to take back what was lent just now."""
    lent = stage.store.mount_segment(piece(stage), 4 << 20) if method == "unmount_segment" else stage.store.allocate_and_mount_segment(1)
    return int(getattr(stage.store, method)(lent["segment_ids"]))


def fresh(call: Callable[[MooncakeDistributedStore], Any]) -> Call:
    """A call of a client that is not set up."""

    def made(_stage: Any) -> Any:
        store = MooncakeDistributedStore()
        try:
            return call(store)
        finally:
            store.close()

    return made


LIFE = {
    "setup": Contract(
        (lambda s: fresh(lambda c: setup(c, s.master))(s), 0), CREATES, (fresh(lambda c: setup(c, "x", protocol="TCP")), -1)
    ),
    "setup_dummy": Contract(
        ("elsewhere: test_thin", None), CREATES, misused(fresh(lambda c: c.setup_dummy("1", 0, "x"))),  # type: ignore[arg-type]
        (fresh(lambda c: c.setup_dummy(0, 0, NOBODY)), -900),
    ),
    "init_all": Contract(
        ("elsewhere: the port of the master is that of every machine", None), CREATES,  # type: ignore[arg-type]
        misused(fresh(lambda c: c.init_all("tcp", ""))), (fresh(lambda c: c.init_all("tcp", "", 0)), -900),
    ),
    "close": Contract((fresh(lambda c: c.close()), 0), "asks for nothing", NO_ARGUMENTS, LOCAL),
    "health_check": Contract((lambda s: s.store.health_check(), 0), (fresh(lambda c: c.health_check()), 1), NO_ARGUMENTS, 2),
    "get_hostname": Contract(
        (lambda s: s.store.get_hostname().partition(":")[0], "localhost"), (fresh(lambda c: c.get_hostname()), ""), NO_ARGUMENTS, LOCAL
    ),
    "get_offload_rpc_read_count": Contract(
        (lambda s: s.store.get_offload_rpc_read_count(), 0), (fresh(lambda c: c.get_offload_rpc_read_count()), 0), NO_ARGUMENTS, LOCAL
    ),
    "alloc_from_mem_pool": Contract(
        ("elsewhere: test_thin", None), (lambda s: s.store.alloc_from_mem_pool(1), 0),  # type: ignore[arg-type]
        "a size that there is none of is a miss", LOCAL,
    ),
    "create_copy_task": Contract(
        (lambda s: s.store.create_copy_task("k", [s.other.get_hostname()])[1], 0), (lambda s: s.store.create_copy_task("none", ["x"]), ((0, 0), -704)),
        (lambda s: s.store.create_copy_task("k", []), ((0, 0), -600)), (lambda s: failed(s.store.create_copy_task("k", ["x"])), True),
    ),
    "create_move_task": Contract(
        (lambda s: s.store.create_move_task("k", holder(s), elsewhere(s))[1], 0), (lambda s: s.store.create_move_task("none", "x", "y"), ((0, 0), -704)),
        (lambda s: s.store.create_move_task("k", "x", "y"), ((0, 0), -600)), (lambda s: failed(s.store.create_move_task("k", "x", "y")), True),
    ),
    "query_task": Contract(
        (lambda s: s.store.query_task(s.store.create_copy_task("k", [elsewhere(s)])[0])[1], 0),
        (lambda s: s.store.query_task((1, 2)), (None, -1400)), misused(lambda s: s.store.query_task("x")),
        (lambda s: failed(((0, 0), s.store.query_task((1, 2))[1])), True),
    ),
    "mount_segment": Contract(
        (lambda s: s.store.mount_segment(piece(s), 4 << 20)["ret"], 0), (lambda s: s.store.mount_segment("/none", 4 << 20)["ret"], -1),
        misused(lambda s: s.store.mount_segment(piece(s), "1")), failure=-1,
    ),
    "allocate_and_mount_segment": Contract(
        (lambda s: s.store.allocate_and_mount_segment(1)["ret"], 0), CREATES,
        (lambda s: s.store.allocate_and_mount_segment(0)["ret"], -1), failure=-1,
    ),
    "unmount_segment": Contract(
        (lambda s: taken_back(s, "unmount_segment"), 0), (lambda s: s.store.unmount_segment(["1-2"]), -1),
        misused(lambda s: s.store.unmount_segment("1-2")), "what was lent just now cannot be: see mount_segment",
    ),
    "unmount_and_free_segment": Contract(
        (lambda s: taken_back(s, "unmount_and_free_segment"), 0), (lambda s: s.store.unmount_and_free_segment(["1-2"]), -1),
        misused(lambda s: s.store.unmount_and_free_segment("1-2")), "what was lent just now cannot be: see allocate_and_mount_segment",
    ),
    "unmount_local_disk_segment": Contract(
        (lambda s: s.store.unmount_local_disk_segment(), 0), (fresh(lambda c: c.unmount_local_disk_segment()), -1),
        misused(lambda s: s.store.unmount_local_disk_segment("1")), LOCAL,
    ),
}  # fmt: skip


def failed(begun: tuple[tuple[int, int], int]) -> bool:
    """Whether no task was begun, as the master does not answer."""
    return begun[0] == (0, 0) and is_failure(0, begun[1])


def holder(stage: Stage) -> str:
    """The name of the client that has k."""
    return str(stage.store.get_replica_desc("k")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint)


def elsewhere(stage: Stage) -> str:
    """The name of the other one."""
    return next(one.get_hostname() for one in (stage.store, stage.other) if one.get_hostname() != holder(stage))


STORE = both(VALUES, SESSIONS, tensors(), LIFE)


class Engines:
    """Two engines, of which the first calls."""

    def __init__(self) -> None:
        self.here, self.there = Side(1), Side(0)
        self.engine, self.peer = self.here.engine, self.there.name
        self.x, self.y = self.here.at, self.there.at


def moved(method: str, *, listed: bool, more: tuple[Any, ...] = (), begun: bool = False) -> Contract:
    """A call that moves bytes."""

    def call(s: Engines, peer: str, address: int, length: int) -> Any:
        given = (s.x, address, length)
        result = getattr(s.engine, method)(peer, *([[one] for one in given] if listed else given), *more)
        return (s.engine.get_batch_transfer_status([result]) if result > 0 else "none") if begun else result

    refused = "none" if begun else -1
    return Contract(
        (lambda s: call(s, s.peer, s.y, 100), 0), (lambda s: call(s, NOBODY, s.y, 100), refused),
        misused(lambda s: call(s, s.peer, -1, 100)), (lambda s: call(s, s.peer, s.y + (1 << 30), 100), refused),
    )  # fmt: skip


NOT_STARTED = TransferEngine()
WITHOUT = {"get_engine_ptr"}
"""There is no engine of Mooncake that a pointer could be of."""

ENGINE = {
    **{f"transfer_sync_{kind}": moved(f"transfer_sync_{kind}", listed=False) for kind in ("read", "write")},
    **{f"batch_transfer_sync_{kind}": moved(f"batch_transfer_sync_{kind}", listed=True) for kind in ("read", "write")},
    **{f"batch_transfer_async_{kind}": moved(f"batch_transfer_async_{kind}", listed=True, begun=True) for kind in ("read", "write")},
    "transfer_sync": moved("transfer_sync", listed=False, more=(TransferOpcode.Write, TransferNotify("a", "b"))),
    "batch_transfer_sync": moved("batch_transfer_sync", listed=True, more=(TransferOpcode.Read,)),
    "batch_transfer_async": moved("batch_transfer_async", listed=True, more=(TransferOpcode.Read,), begun=True),
    "transfer_submit_write": moved("transfer_submit_write", listed=False, begun=True),
    "initialize": Contract(
        (lambda s: TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0), CREATES,
        misused(lambda s: TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", 5)),
        (lambda s: TransferEngine().initialize("127.0.0.1", "http://127.0.0.1:1/metadata", "tcp", ""), -1),
    ),
    "initialize_ext": Contract(
        (lambda s: TransferEngine().initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", ""), 0), CREATES,
        misused(lambda s: TransferEngine().initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "")),
        (lambda s: TransferEngine().initialize_ext("127.0.0.1", "http://127.0.0.1:1/metadata", "tcp", "", ""), -1),
    ),
    "get_rpc_port": Contract((lambda s: s.engine.get_rpc_port() > 0, True), (lambda s: NOT_STARTED.get_rpc_port(), 0), NO_ARGUMENTS, LOCAL),
    "get_engine": Contract(
        (lambda s: type(s.engine.get_engine()).__name__, "InnerTransferEngine"), "there is always one", NO_ARGUMENTS, LOCAL
    ),
    "register_memory": Contract(
        (lambda s: [s.engine.unregister_memory(s.x), s.engine.register_memory(s.x, 10)], [0, 0]), CREATES,
        (lambda s: s.engine.register_memory(s.x, 10), -7), (lambda s: NOT_STARTED.register_memory(s.x, 10), -1),
    ),
    "unregister_memory": Contract(
        (lambda s: s.engine.unregister_memory(s.x), 0), (lambda s: s.engine.unregister_memory(s.x + 1), -3),
        misused(lambda s: s.engine.unregister_memory("x")), (lambda s: NOT_STARTED.unregister_memory(s.x), -1),
    ),
    "batch_register_memory": Contract(
        (lambda s: [s.engine.unregister_memory(s.x), s.engine.batch_register_memory([s.x, s.x + 10], [10, 10])], [0, 0]), CREATES,
        (lambda s: s.engine.batch_register_memory([s.x], []), -1), (lambda s: s.engine.batch_register_memory([s.x], [10]), -7),
    ),
    "batch_unregister_memory": Contract(
        (lambda s: s.engine.batch_unregister_memory([s.x]), 0), (lambda s: s.engine.batch_unregister_memory([s.x + 1]), -3),
        misused(lambda s: s.engine.batch_unregister_memory(5)), (lambda s: NOT_STARTED.batch_unregister_memory([]), -1),
    ),
    "get_batch_transfer_status": Contract(
        (lambda s: s.engine.get_batch_transfer_status([]), 0), (lambda s: s.engine.get_batch_transfer_status([1 << 40]), -1),
        misused(lambda s: s.engine.get_batch_transfer_status(5)), (lambda s: NOT_STARTED.get_batch_transfer_status([]), -1),
    ),
    "transfer_check_status": Contract(
        (lambda s: watched(s), 1), (lambda s: s.engine.transfer_check_status(1 << 40), -1),
        misused(lambda s: s.engine.transfer_check_status("x")), (lambda s: NOT_STARTED.transfer_check_status(1), -1),
    ),
    "send_probe": Contract(
        (lambda s: s.engine.send_probe(s.peer), 0), (lambda s: s.engine.send_probe(NOBODY), -102),
        misused(lambda s: s.engine.send_probe(5)), (lambda s: NOT_STARTED.send_probe(s.peer), -1),
    ),
    "get_notifies": Contract(
        (lambda s: [s.there.engine.transfer_sync(s.here.name, s.y, s.x, 1, TransferOpcode.Write, TransferNotify("a", "b")),
                    [(one.name, one.msg) for one in s.engine.get_notifies()]], [0, [("a", "b")]]),
        (lambda s: s.engine.get_notifies(), []), NO_ARGUMENTS, (lambda s: NOT_STARTED.get_notifies(), []),
    ),
    "get_first_buffer_address": Contract(
        (lambda s: s.engine.get_first_buffer_address(s.peer) == s.y, True), (lambda s: s.engine.get_first_buffer_address(NOBODY), 0),
        misused(lambda s: s.engine.get_first_buffer_address(5)), (lambda s: NOT_STARTED.get_first_buffer_address(s.peer), 0),
    ),
    "allocate_managed_buffer": Contract(
        (lambda s: s.engine.allocate_managed_buffer(10) > 0, True), "there is always more", (lambda s: s.engine.allocate_managed_buffer(-1), 0),
        (lambda s: NOT_STARTED.allocate_managed_buffer(10), 0),
    ),
    "free_managed_buffer": Contract(
        (lambda s: s.engine.free_managed_buffer(s.engine.allocate_managed_buffer(10), 10), 0), (lambda s: s.engine.free_managed_buffer(s.x, 10), -1),
        misused(lambda s: s.engine.free_managed_buffer()), (lambda s: NOT_STARTED.free_managed_buffer(s.x, 10), -1),
    ),
    "write_bytes_to_buffer": Contract(
        (lambda s: s.engine.write_bytes_to_buffer(s.x, b"ab", 2), 0), (lambda s: s.engine.write_bytes_to_buffer(s.y + (1 << 30), b"ab", 2), -1),
        (lambda s: s.engine.write_bytes_to_buffer(s.x, b"ab", 3), -1), (lambda s: NOT_STARTED.write_bytes_to_buffer(s.x, b"ab", 2), -1),
    ),
    "read_bytes_from_buffer": Contract(
        (lambda s: s.engine.read_bytes_from_buffer(s.x, 2), b"\1\1"), (lambda s: s.engine.read_bytes_from_buffer(s.y + (1 << 30), 2), b""),
        misused(lambda s: s.engine.read_bytes_from_buffer(s.x, "2")), (lambda s: NOT_STARTED.read_bytes_from_buffer(s.x, 2), b""),
    ),
    "get_local_topology": Contract(
        (lambda s: len(json.loads(s.engine.get_local_topology("none-such"))["cpu:0"]), 2), "there is always one",
        misused(lambda s: s.engine.get_local_topology("", "")), LOCAL,
    ),
    "warmup_efa_segment": Contract((lambda s: s.engine.warmup_efa_segment("x"), 0), "nothing is looked for",
                                   misused(lambda s: s.engine.warmup_efa_segment()), LOCAL),
}  # fmt: skip


def watched(stage: Engines) -> int:
    """How a transfer is at its end."""
    begun = stage.engine.transfer_submit_write(stage.peer, stage.x, stage.y, 100)
    while (status := stage.engine.transfer_check_status(begun)) == 0:
        pass
    return status


def shown(stage: Any, result: Any) -> Any:
    """What can be compared: bytes of handles, and words for tensors."""
    if isinstance(result, (list, tuple)):
        return type(result)(shown(stage, one) for one in result)
    if hasattr(result, "data_ptr"):
        elements = result.numpy().reshape(-1).tolist()
        return TENSOR if elements == [*range(24)] else HALF if elements == [*range(12)] else "another tensor"
    if isinstance(result, mooncake.store.BufferHandle):
        return bytes(memoryview(result))
    return result


def is_failure(success: Any, result: Any) -> bool:
    """Whether a call that gives `success` gave what a failed one of its kind does."""
    if isinstance(success, bool):
        return False
    if isinstance(success, int):
        return result in (-900, -901)
    if success in (TENSOR, HALF):
        return result is None
    assert isinstance(success, list) and success, success
    return len(result) == len(success) and all(is_failure(one, got) for one, got in zip(success, result, strict=True))


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    """PyTorch, or what stands in for it where it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is None:
            patch.setitem(sys.modules, "torch", standin)
        yield importlib.import_module("torch")


@pytest.fixture(scope="module")
def stage(started: Starter, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with started("master") as (address, _):
        made = Stage(address, torch, tmp_path_factory.mktemp("files"))
        yield made
        made.close()


@pytest.fixture(scope="module")
def stage_without_master(started: Starter, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage whose master was killed."""
    with pytest.MonkeyPatch.context() as patch, started("master") as (address, master):
        patch.setenv("MC_RPC_TIMEOUT_MS", "1000")
        made = Stage(address, torch, tmp_path_factory.mktemp("files"))
        made.prepared()
        patch.setenv("MC_RPC_CONNECT_TIMEOUT_MS", "100")
        master.kill()
        master.wait()
        yield made
        made.close()


def case_of(contract: Contract, kind: str) -> Case:
    """A call and its result; skips where there is none for a reason."""
    case: Case = getattr(contract, kind)
    if isinstance(case, str):
        pytest.skip(case)
    if isinstance(case[0], str):
        pytest.skip(case[0])
    return case


def methods_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name)) and name != "TransferOpcode"}


def test_every_method_has_a_contract() -> None:
    """Of both classes, and of the list that the guide is made of."""
    assert set(STORE) == set(NAMES["MooncakeDistributedStore"]) == methods_of(MooncakeDistributedStore)
    assert set(ENGINE) == set(NAMES["TransferEngine"]) - WITHOUT == methods_of(TransferEngine)


def test_contracts_have_four_cases_or_say_why_not() -> None:
    for name, contract in (STORE | ENGINE).items():
        for kind in ("success", "miss", "misuse"):
            case = getattr(contract, kind)
            assert isinstance(case, str) and len(case) > 10 or callable(case[0]) or len(case[0]) > 10, (name, kind)


@pytest.mark.parametrize("kind", ["success", "miss", "misuse"])
@pytest.mark.parametrize("name", STORE)
def test_calls_of_a_store_give_what_they_promise(name: str, kind: str, stage: Stage) -> None:
    call, expected = case_of(STORE[name], kind)
    result = shown(stage, call(stage.prepared()))
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize("name", STORE)
def test_calls_of_a_store_fail_without_a_master(name: str, stage_without_master: Stage) -> None:
    contract = STORE[name]
    if isinstance(contract.failure, str):
        pytest.skip(contract.failure)
    if isinstance(contract.failure, tuple):
        call, expected = contract.failure
        assert call(stage_without_master) == expected
        return
    call, success = case_of(contract, "success")
    result = shown(stage_without_master, call(stage_without_master))
    assert (is_failure(success, result) if contract.failure is ... else result == contract.failure), result


@pytest.mark.parametrize("kind", ["success", "miss", "misuse", "failure"])
@pytest.mark.parametrize("name", ENGINE)
def test_calls_of_an_engine_give_what_they_promise(name: str, kind: str) -> None:
    call, expected = case_of(ENGINE[name], kind)
    assert call(Engines()) == expected
