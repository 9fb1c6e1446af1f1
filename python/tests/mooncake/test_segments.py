"""Files that clients lend: while they are read and written, when they are taken back, and when others spoil them."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lendings
import mooncake.store
import pytest
from facts import comes_true
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from slackwater.compat.mooncake import node_keys
from test_differential import mooncake_master
from test_life import setup

from conftest import Starter, in_child
from processes import stop

MIB = 1 << 20
BAD = {"ret": -1, "segment_ids": []}
# What a call says whose value was on a node that is gone: a miss, or a call to make again.
GONE = (0, -200, -702, -704, -900, -901)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A file of shared memory, of 64 MiB."""
    path = Path(f"/dev/shm/slackwater-{os.getpid()}-{tmp_path.name}")
    with open(path, "wb") as file:
        file.truncate(64 * MIB)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def pool(started: Starter, soon: None) -> Iterator[str]:
    """A master without any memory."""
    with started("master", "--put-wait", "100ms") as (address, _):
        yield address


@contextmanager
def client(address: str, **named: Any) -> Iterator[MooncakeDistributedStore]:
    """A client that lends nothing by itself."""
    store = MooncakeDistributedStore()
    assert setup(store, address, local_buffer_size=16 * MIB, **named) == 0
    try:
        yield store
    finally:
        store.close()


def put(store: MooncakeDistributedStore, key: str, value: bytes) -> bool:
    """Puts, when the memory that was lent has told what it holds, which is nothing."""
    return comes_true(lambda: store.put(key, value) == 0)


def test_mooncake_does_the_same(started: Starter, shared: Path) -> None:
    interpreter = os.environ.get("MOONCAKE_PYTHON")
    if not interpreter:
        pytest.skip("MOONCAKE_PYTHON names no interpreter with Mooncake: compared with nothing")

    def played(by: str, package: str, address: str) -> dict[str, Any]:
        words = [by, lendings.__file__, package, address, str(shared)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))

    with mooncake_master(interpreter) as address:
        theirs = played(interpreter, "mooncake", address)
    with started("master", "--put-wait", "5s") as (address, _):
        ours = played(sys.executable, "slackwater", address)
    assert list(ours) == list(theirs)
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


def test_values_lie_in_the_file_that_is_lent(pool: str, shared: Path) -> None:
    with client(pool) as store, client(pool) as other:
        assert store.put("k", b"v") == -200
        mounted = store.mount_segment(path=str(shared), size=32 * MIB, offset=16 * MIB, protocol="tcp", location="")
        assert mounted["ret"] == 0
        (identity,) = mounted["segment_ids"]
        assert all(part.isdigit() for part in identity.split("-"))
        value = os.urandom(MIB)
        assert put(store, "k", value) and other.get("k") == value
        name = other.get_replica_desc("k")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint
        assert name == store.get_hostname()
        held = shared.read_bytes()
        assert value in held[16 * MIB : 48 * MIB] and not any(held[: 16 * MIB]) and not any(held[48 * MIB :])
        # Room is there for all of it.
        assert shared.stat().st_blocks * 512 >= 32 * MIB
        assert store.unmount_segment([identity]) == 0
        # The master hears of it by the end of a link.
        assert comes_true(lambda: other.is_exist("k") == 0) and other.get("k") == b"" and store.put("k", b"v") == -200
        assert shared.stat().st_size == 64 * MIB
        # A descriptor that is passed on names a file too.
        with open(shared, "r+b") as file:
            again = store.mount_segment(f"/proc/self/fd/{file.fileno()}", 16 * MIB)
        assert again["ret"] == 0 and put(store, "k", b"v") and store.unmount_segment(again["segment_ids"]) == 0


REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("no such file", ("/nowhere/x", 16 * MIB), "No such file"),
    ("an empty name", ("", 16 * MIB), "No such file"),
    ("a name that is too long", ("/tmp/" + "x" * 5000, 16 * MIB), "too long"),
    ("a name with a null", ("/tmp/a\0b", 16 * MIB), ""),
    ("a directory", ("/dev/shm", 16 * MIB), "no regular file"),
    ("a device", ("/dev/zero", 16 * MIB), "no regular file"),
    ("more than the file", ("{}", 64 * MIB + 1), "67108864 bytes"),
    ("behind its end", ("{}", MIB, 64 * MIB), "67108864 bytes"),
    ("more than there are", ("{}", 1 << 62, 1 << 62), ""),
    ("more than any", ("{}", 1 << 80), "cannot be lent"),
    ("an offset beyond all", ("{}", 4096, 1 << 80), "cannot be lent"),
    ("a page in the middle", ("{}", 16 * MIB, 1), "no whole pages"),
    ("too little", ("{}", 4096), "memory"),
    ("a protocol that there is not", ("{}", 16 * MIB, 0, "pigeon"), "cannot be lent"),
]


@pytest.mark.parametrize(("arguments", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_lent_is_refused_with_the_reason(
    arguments: tuple[Any, ...], reason: str, player: Any, kind: str, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, *rest = arguments
    assert player.store.mount_segment(path.format(shared) if path == "{}" else path, *rest) == BAD
    assert reason in caplog.text


def test_a_file_larger_than_memory_is_refused_before_its_memory_is_taken(
    pool: str, tmp_path: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pages of a file without contents are given when they are touched: without room for one, that is a SIGBUS."""
    with open(shared, "r+b") as file:
        file.truncate(1 << 42)
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as file:
        file.truncate(1 << 42)
    with client(pool) as store:
        for path in (shared, sparse):
            assert store.mount_segment(str(path), 1 << 42) == BAD
            assert path.stat().st_blocks == 0
        assert caplog.text.count("no room for 4398046511104 bytes") == 2
        assert store.allocate_and_mount_segment(1 << 42) == BAD | {"allocated_size": 0}
        assert "this machine has no 4398046511104 bytes of memory" in caplog.text


def test_arguments_of_other_kinds_are_type_errors(player: Any, shared: Path) -> None:
    store, path = player.store, str(shared)
    for wrong in ((), (path,), (path, "1"), (path, 1.0), (path, -1), (path, MIB, -1), (path, MIB, 0, 5), (path, MIB, 0, "", 5), (5, MIB)):
        with pytest.raises(TypeError):
            store.mount_segment(*wrong)
    with pytest.raises(TypeError, match="page"):
        store.mount_segment(path, MIB, page=1)
    for wrong in (("1-2",), ([5],), ([], -1), ([], 1 << 40), (["1-2"], "1")):
        with pytest.raises(TypeError):
            store.unmount_segment(*wrong)


def test_nothing_is_lent_for_no_bytes(player: Any, shared: Path) -> None:
    assert player.store.mount_segment(str(shared), 0) == {"ret": 0, "segment_ids": []}
    for path, offset in (("/nowhere", 0), ("", 0), ("a\0b", 0), ("/tmp", 0), (str(shared), 128 * MIB)):
        assert player.store.mount_segment(path, 0, offset) == BAD


def test_only_what_this_client_lends_is_taken_back_and_once(pool: str, shared: Path) -> None:
    with client(pool) as store, client(pool) as other:
        files = [store.mount_segment(str(shared), 16 * MIB, place * 16 * MIB)["segment_ids"][0] for place in range(3)]
        own = store.allocate_and_mount_segment(1)["segment_ids"][0]
        assert len({*files, own}) == 4 and put(store, "k", b"v")
        for ids in ([files[0]], ["1-2"], ["1-2-3"], ["x"], [""]):
            assert other.unmount_segment(ids) == -1 == other.unmount_and_free_segment(ids)
        assert store.unmount_and_free_segment([files[0]]) == -1 == store.unmount_segment([own])
        assert store.unmount_segment([]) == 0 == store.unmount_segment([files[0]])
        assert store.unmount_segment([files[0]]) == -1
        # Those that are right are taken back all the same.
        assert store.unmount_segment(["x", files[1]]) == -1 == store.unmount_segment([files[1]])
        assert store.unmount_segment([files[2], files[2]]) == -600
        assert store.unmount_segment([files[2]]) == -1
        assert store.unmount_and_free_segment((own,)) == 0


def test_values_go_to_other_memory_in_the_grace(pool: str, shared: Path) -> None:
    with client(pool) as store:
        first = store.mount_segment(str(shared), 16 * MIB)["segment_ids"]
        values = {f"k{number}": os.urandom(100_000) for number in range(40)}
        assert all(put(store, key, value) for key, value in values.items())
        second = store.mount_segment(str(shared), 32 * MIB, 32 * MIB)["segment_ids"]
        assert store.unmount_segment(first, 30) == 0
        assert store.get_batch(list(values)) == list(values.values())
        assert store.unmount_segment(second) == 0


def test_a_segment_that_is_taken_back_is_read_until_its_time_and_neither_lent_nor_taken_twice(
    started: Starter, soon: None, shared: Path
) -> None:
    with started("master", "--put-wait", "100ms") as (address, master), client(address) as store, client(address) as other:
        (identity,) = store.mount_segment(str(shared), 16 * MIB)["segment_ids"]
        assert put(store, "k", b"v") and other.get("k") == b"v"
        stop(master)
        codes: list[int] = []
        taking = threading.Thread(target=lambda: codes.append(store.unmount_segment([identity], 3)))
        taking.start()
        # While the master is asked, which does not answer yet.
        assert comes_true(lambda: store._mounted[identity].leaves) and store.unmount_segment([identity]) == -600
        os.kill(master.pid, signal.SIGCONT)
        taking.join()
        assert codes == [0] and store.unmount_segment([identity]) == -1
        assert other.get("k") == b"" and store.put("k", b"v") == -200


def test_reads_and_writes_under_way_end_with_the_value_or_a_miss(pool: str, shared: Path) -> None:
    """Never with other bytes, and never without an end."""
    with client(pool) as store, client(pool) as reader, client(pool) as writer:
        values = {f"k{number}": bytes([number]) * MIB for number in range(8)}
        wrong: list[Any] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                for key, found in zip(values, reader.get_batch(list(values)), strict=True):
                    wrong.extend([(key, found[:8])] if found not in (b"", values[key]) else [])

        def write() -> None:
            while not stop.is_set():
                for key, value in values.items():
                    code = writer.upsert(key, value)
                    # The last is to be made again: the old value was being removed where memory was taken back.
                    wrong.extend([(key, code)] if code not in (*GONE, -1010) else [])

        threads = [threading.Thread(target=one) for one in (read, read, write)]
        for thread in threads:
            thread.start()
        for place in range(6):
            (identity,) = store.mount_segment(str(shared), 16 * MIB, place % 4 * 16 * MIB)["segment_ids"]
            assert comes_true(lambda: store.is_exist("k7") == 1)
            assert store.unmount_segment([identity], place % 2) == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[:5]


def test_a_file_that_becomes_shorter_leaves_the_pool(pool: str, shared: Path) -> None:
    """An access behind the end of a file is a SIGBUS, which ended the process of who lent it."""
    with client(pool) as store, client(pool) as reader:
        (identity,) = store.mount_segment(str(shared), 32 * MIB)["segment_ids"]
        values = {f"k{number}": os.urandom(MIB) for number in range(16)}
        assert all(put(store, key, value) for key, value in values.items())
        assert reader.get_batch(list(values)) == list(values.values())
        os.truncate(shared, 8 * MIB)
        for key, value in values.items():
            assert reader.get(key) in (b"", value) and store.get(key) in (b"", value)
        # The segment is gone by itself, and other memory takes its place.
        assert comes_true(lambda: not any(reader.batch_is_exist(list(values))) and reader.put("new", b"v") == -200)
        assert store.allocate_and_mount_segment(1)["ret"] == 0 and put(reader, "new", b"v")
        assert reader.get("new") == b"v" and store.unmount_segment([identity]) == 0


def test_bytes_that_others_write_into_the_file_are_a_miss(pool: str, shared: Path) -> None:
    with client(pool) as store, client(pool) as reader:
        assert store.mount_segment(str(shared), 16 * MIB)["ret"] == 0
        assert put(store, "k", b"\xaa" * MIB) and reader.get("k") == b"\xaa" * MIB
        with open(shared, "r+b") as file:
            file.write(b"\x55" * (16 * MIB))
        assert reader.get("k") == b"" and store.get("k") == b""
        assert comes_true(lambda: store.upsert("k", b"\xbb" * MIB) == 0) and reader.get("k") == b"\xbb" * MIB


LENDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import slackwater.compat
slackwater.compat.install(over=True)
import mooncake.store
store = mooncake.store.MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[2]) == 0
assert store.mount_segment(sys.argv[3], 16 << 20)["ret"] == 0
while store.put("there", b"0123456789"):
    time.sleep(0.01)
print("stored", flush=True)
time.sleep(600)
"""


def test_the_file_of_a_client_that_is_killed_can_be_lent_again(pool: str, shared: Path) -> None:
    words = [sys.executable, "-c", LENDER, str(Path(__file__).parent), pool, str(shared)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as lender, client(pool) as store:
        assert lender.stdout is not None and lender.stdout.readline() == "stored\n"
        assert store.get("there") == b"0123456789"
        lender.kill()
        lender.wait()
        # The kernel ends a process before it hangs up its links: until that is told, what is mapped here is read.
        assert comes_true(lambda: store.get("there") == b"") and store.get_size("there") in (*GONE, 10)
        assert store.mount_segment(str(shared), 16 * MIB)["ret"] == 0
        assert put(store, "here", b"v") and store.get("here") == b"v"
        # What the dead one held misses once its time is over.
        assert comes_true(lambda: store.is_exist("there") == 0)


def test_calls_before_setup_after_close_and_in_a_fork(master: str, shared: Path) -> None:
    store = MooncakeDistributedStore()
    mount = (str(shared), 16 * MIB)
    assert store.mount_segment(*mount) == {"ret": -600, "segment_ids": []} and store.unmount_segment(["1-2"]) == -600
    assert setup(store, master) == 0
    refused = {"ret": -1012, "segment_ids": []}
    with store._lock:
        assert in_child(lambda: store.mount_segment(*mount) == refused and store.unmount_segment([]) == -1012)
    assert store.close() == 0
    assert store.mount_segment(*mount) == {"ret": -600, "segment_ids": []} and store.unmount_segment([]) == -600


def test_a_client_that_closes_takes_its_files_back(pool: str, shared: Path) -> None:
    with client(pool) as reader:
        for _ in range(3):
            with client(pool) as store:
                assert store.mount_segment(str(shared), 16 * MIB)["ret"] == 0
                assert put(store, "k", b"v")
            assert reader.is_exist("k") == 0 and reader.put("k", b"v") == -200
        descriptors = len(os.listdir("/proc/self/fd"))
        with client(pool) as store:
            for _ in range(5):
                assert store.unmount_segment(store.mount_segment(str(shared), 16 * MIB)["segment_ids"]) == 0
        assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert shared.name not in Path("/proc/self/maps").read_text()


def test_memory_is_lent_with_keys(
    command: Path, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The key of a client lends nothing: what is lent needs keys of its own, one a segment."""

    def keys(*words: str) -> str:
        made = subprocess.run([command, "keys", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return made.stdout.splitlines()[0].split()[-1] if words[0] == "new" else ""

    public, own, first, second = (keys("new", f"{name}.key") for name in ("master", "client", "first", "second"))
    keys("allow", "allowed", own)
    keys("allow", "clients", own)
    for node in (first, second):
        keys("allow", "allowed", node, "--level", "node")
        keys("allow", "clients", node, "--level", "node")
    words = [command, "master", "--log=error", "--admin=none", "--listen=127.0.0.1:0", "--put-wait=100ms"]
    words += ["--key-file=master.key", "--allow=allowed"]
    for name, value in (("KEY_FILE", "client.key"), ("ALLOW", "clients")):
        monkeypatch.setenv(f"SLACKWATER_{name}", str(tmp_path / value))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as master:
        assert master.stdout is not None
        port = master.stdout.readline().partition("127.0.0.1:")[2].split("/")[0]
        where = f"curve://127.0.0.1:{port}/{public}"
        try:
            with client(where) as store:
                assert store.mount_segment(str(shared), 16 * MIB) == BAD
                assert "takes no memory of this process" in caplog.text
            named = [str(tmp_path / "first.key"), str(tmp_path / "second.key")]
            monkeypatch.setenv(node_keys.VARIABLE, os.pathsep.join(named))
            with client(where, global_segment_size=16 * MIB) as store, client(where) as other:
                assert put(store, "k", b"v") and other.get("k") == b"v"
                mounted = other.mount_segment(str(shared), 16 * MIB)
                assert mounted["ret"] == 0
                assert store.mount_segment(str(shared), 16 * MIB, 32 * MIB) == BAD
                assert "each segment needs a key of its own: the 2" in caplog.text
                assert other.unmount_segment(mounted["segment_ids"]) == 0
                again = store.mount_segment(str(shared), 16 * MIB, 32 * MIB)
                assert again["ret"] == 0 and store.unmount_segment(again["segment_ids"], 5) == 0
                assert other.get("k") == b"v"
            # Both are free again, after a close and after a setup that failed.
            with client(where, global_segment_size=16 * MIB) as store:
                assert store.allocate_and_mount_segment(1)["ret"] == 0
            monkeypatch.delenv("SLACKWATER_ALLOW")
            assert setup(MooncakeDistributedStore(), where, global_segment_size=MIB) == -600
            assert "SLACKWATER_ALLOW names the keys whose transfers" in caplog.text
        finally:
            master.kill()


def test_host_memory_is_allocated_by_address() -> None:
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(mooncake.store.get_alloc_func_addr())
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(mooncake.store.get_free_func_addr())
    sizes = [1, 4096, (2 << 20) + 1, 64 << 20]
    starts = [allocate(size) for size in sizes]
    assert len(set(starts)) == 4 and all(start and start % 4096 == 0 for start in starts)
    for start, size in zip(starts, sizes, strict=True):
        assert ctypes.string_at(start, min(size, 8)) == bytes(min(size, 8))
        ctypes.memset(start, 7, size)
    assert allocate(0) is None and allocate(1 << 62) is None
    free(starts[0])
    # Again, what was never given, and nothing.
    for other in (starts[0], starts[1] + 1, 0xDEAD000, 0):
        free(other)
    assert ctypes.string_at(starts[1], 4096) == b"\7" * 4096
    maps = Path("/proc/self/maps").read_text()
    assert f"{starts[3]:x}" in maps
    for start in starts[1:]:
        free(start)
    threads = [threading.Thread(target=lambda: [free(allocate(MIB)) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_pools_of_gpu_memory_say_that_there_are_none() -> None:
    """Where no GPU is, and without PyTorch, imports work."""
    from mooncake.allocator import BarexAllocator, MemoryBackend, NVLinkAllocator

    assert NVLinkAllocator.detect_mem_backend() is MemoryBackend.UNSUPPORTED == -2
    for pools in (NVLinkAllocator, BarexAllocator):
        with pytest.raises(RuntimeError, match=f"{pools.__name__}: no pool of memory of cuda:0"):
            pools.get_allocator("cuda:0")


def test_values_prefer_the_segment_of_a_file_by_the_name_of_its_client(pool: str, shared: Path) -> None:
    with client(pool) as store, client(pool) as other:
        assert store.mount_segment(str(shared), 16 * MIB)["ret"] == 0 == other.allocate_and_mount_segment(1)["ret"]
        config = ReplicateConfig()
        config.preferred_segment = store.get_hostname()

        def place() -> str:
            assert other.upsert("k", b"v", config) == 0
            return other.get_replica_desc("k")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint

        assert put(other, "any", b"v") and comes_true(lambda: place() == store.get_hostname())
