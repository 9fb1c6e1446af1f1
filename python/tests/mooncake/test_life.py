"""Setting up, closing, and every call before, after and in between."""

import gc
import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import calls
import mooncake.store
import pytest
from facts import counted, leaves_nothing
from mooncake.store import MooncakeDistributedStore
from test_calls import TABLE

from conftest import Starter, in_child
from processes import stop


def setup(store: MooncakeDistributedStore, master: str, **named: Any) -> int:
    """As most programs call it."""
    given: dict[str, Any] = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
    given |= {"global_segment_size": 0, "local_buffer_size": 1 << 20, "protocol": "tcp", "rdma_devices": ""}
    return store.setup(**(given | {"master_server_addr": master} | named))


def empty_or_refused(result: Any) -> bool:
    """Whether a call that cannot be made says so: a negative number, a list of them, or nothing."""
    match result:
        case int():
            return result < 0
        case [[0, 0], int(code)] | [None, int(code)]:
            return code < 0
        case list():
            return all(one is None or one == {"bytes": ""} or empty_or_refused(one) for one in result)
        case None | {} | {"bytes": ""} | {"raises": "TypeError"}:
            return True
    return False




@pytest.mark.parametrize("name", TABLE)
def test_calls_before_setup_and_after_close_are_refused(name: str, master: str) -> None:
    player = calls.Player(mooncake.store, MooncakeDistributedStore())
    for _ in range(2):
        for call, _expected in TABLE[name]:
            result = player.play(call)
            assert empty_or_refused(result), (call, result)
        assert player.store.health_check() == 1 and player.store.get_hostname() == ""
        assert setup(player.store, master) == 0
        assert player.store.close() == 0 == player.store.close()


def test_a_client_is_set_up_by_position_by_name_and_by_dictionary(master: str) -> None:
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master, None) == 0
    assert store.health_check() == 0
    host, port = store.get_hostname().split(":")
    assert host == "localhost" and 12300 <= int(port) <= 14300
    assert store.put("life", b"x") == 0
    assert store.close() == 0
    texts = {"local_hostname": "localhost:12345", "metadata_server": "http://127.0.0.1:1/metadata", "protocol": "tcp"}
    texts |= {"global_segment_size": "0", "local_buffer_size": "16 MB", "tenant_id": "default", "ipc_socket_path": "x"}
    assert store.setup(texts | {"master_server_address": master, "device_name": "", "enable_ssd_offload": "no"}) == 0
    assert store.get_hostname() == "localhost:12345"
    assert store.get("life") == b"x"
    assert store.remove_all(True) >= 1
    assert store.close() == 0


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("protocol", {"protocol": "TCP"}, -1),
    ("protocol", {"protocol": "pigeon"}, -1),
    ("metadata server", {"metadata_server": "somewhere"}, -1),
    ("tcp://127.0.0.1:1", {"master_server_addr": "127.0.0.1:1"}, -900),
    ("etcd", {"master_server_addr": "etcd://127.0.0.1:1"}, -600),
    ("port", {"master_server_addr": "nowhere"}, -600),
    ("host name", {"local_hostname": ""}, -600),
    # Numbers that are too large, and paths that are none, escaped as other errors.
    ("more than any memory", {"global_segment_size": 1 << 70}, -600),
    ("more than any memory", {"local_buffer_size": 1 << 63}, -600),
    ("'99999' is no port", {"local_hostname": "localhost:99999", "global_segment_size": 1 << 20}, -600),
    ("'x' is no port", {"local_hostname": "[::1]:x"}, -600),
    ("null", {"global_segment_size": 1 << 20, "enable_ssd_offload": True, "ssd_offload_path": "/\0"}, -600),
    ("no directory", {"global_segment_size": 1 << 20, "enable_ssd_offload": True, "ssd_offload_path": "here"}, -600),
]


@pytest.mark.parametrize(("reason", "given", "code"), REFUSED)
def test_a_refused_setup_says_why(
    reason: str, given: dict[str, Any], code: int, master: str, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    store = MooncakeDistributedStore()
    assert setup(store, master, **given) == code
    assert reason in caplog.text
    assert store.health_check() == 1 and store.put("k", b"v") == -600
    assert setup(store, master) == 0 == store.close()


def test_a_setup_that_fails_late_leaves_nothing_open(
    master: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that no name server knew raised, and left a client that was open and not set up: calls went through, and a
    second `setup` was not told from the first."""

    def unknown(*_arguments: Any, **_named: Any) -> Any:
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "13000")
    store = MooncakeDistributedStore()
    assert setup(store, master, global_segment_size=1 << 20) == -600
    assert "no such host" in caplog.text
    assert store.health_check() == 1 and store.put("k", b"v") == -600 and store.get_hostname() == ""
    # Ports that are none are not bound.
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "99990")
    monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", "99999")
    assert setup(store, master) == -600
    assert "port" in caplog.text


DICTIONARIES: list[tuple[str, dict[str, Any], int]] = [
    ("needed and not given: local_hostname, metadata_server", {}, -600),
    ("global_segment_size", {"global_segment_size": "50%"}, -600),
    ("local_buffer_size", {"local_buffer_size": -1}, -600),
    ("infinity", {"local_buffer_size": "9" * 400}, -600),
    ("enable_ssd_offload", {"enable_ssd_offload": "perhaps"}, -600),
    ("enable_ssd_offload has no effect without a segment", {"enable_ssd_offload": "yes", "global_segment_size": 0}, 0),
    ("without effect: color, taste", {"taste": 1, "color": 2, "global_segment_size": "0KiB"}, 0),
    ("master_server_addr counts", {"master_server_address": "127.0.0.1:1"}, 0),
]


@pytest.mark.parametrize(("reason", "given", "code"), DICTIONARIES)
def test_dictionaries_are_read_with_care(
    reason: str, given: dict[str, Any], code: int, master: str, caplog: pytest.LogCaptureFixture
) -> None:
    needed = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master}
    config = (needed | {"global_segment_size": 0} | given) if given else {}
    store = MooncakeDistributedStore()
    assert store.setup(config) == code
    assert reason in caplog.text
    assert store.close() == 0
    # By its name it was taken for an unknown keyword.
    assert store.setup(config=config) == code
    store.close()


def test_wrong_arguments_of_setup_are_named_alone() -> None:
    """Callers take the keywords out that the text names, and try again: it must name no other."""
    store = MooncakeDistributedStore()
    known = [name for name in inspect.signature(setup).parameters if name != "store"]
    known += ["enable_ssd_offload", "tenant_id", "engine", "local_hostname", "client_http_port"]
    with pytest.raises(TypeError) as raised:
        setup(store, "x", shape=1, colour=2)
    assert "shape" in str(raised.value) and "colour" in str(raised.value)
    assert not [name for name in known if name in str(raised.value)]
    with pytest.raises(TypeError, match="global_segment_size") as raised:
        setup(store, "x", global_segment_size="1")
    assert "tenant_id" not in str(raised.value)
    for arguments in [(), ({}, 1), (1,) * 9, ("localhost",)]:
        with pytest.raises(TypeError):
            store.setup(*arguments)
    for named in [{"config": 1}, {"config": {}, "tenant_id": "x"}]:
        with pytest.raises(TypeError, match="config"):
            store.setup(**named)
    for name in ("enable_ssd_offload", "ssd_offload_path", "tenant_id", "rdma_devices", "client_http_port"):
        assert name in (MooncakeDistributedStore.setup.__doc__ or "")


def test_a_second_setup_is_the_first_or_refused(master: str) -> None:
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0 == setup(store, master)
    assert setup(store, master, local_buffer_size=5) == -1010
    assert store.close() == 0
    assert setup(store, master, local_buffer_size=0) == 0
    assert store.put("k", b"v") == -600 and store.get("k") == b"" and store.get_buffer("k") is None
    player = calls.Player(mooncake.store, store)
    assert player.play(["put_from", ["k", {"@": 0}, 10]]) == 0
    assert player.play(["get_into", ["k", {"@": 50}, 10]]) == 10
    assert store.remove("k", True) == 0
    store.close()


def test_init_all_is_called_by_position() -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError):
        store.init_all("tcp", "")  # type: ignore[call-arg]


def test_a_store_that_takes_no_nodes_is_used_without_lending(
    started: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    with started("serve") as (address, _):
        store = MooncakeDistributedStore()
        assert setup(store, address, global_segment_size=1 << 20) == 0
        assert "takes no memory" in caplog.text
        assert store.put("k", b"v") == 0 and store.get("k") == b"v"
        store.close()


def test_a_pool_has_the_memory_that_its_clients_lend(started: Starter, soon: None) -> None:
    with started("master", "--put-wait", "100ms") as (address, _):
        one, other = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert setup(one, address) == 0
        assert one.put("k", b"v") == -200
        assert setup(other, address, global_segment_size=32 << 20) == 0
        assert one.put("k", b"v") == 0 and other.get("k") == b"v"
        assert one.put("large", bytes(1 << 20)) == 0
        assert setup(third := MooncakeDistributedStore(), address, local_buffer_size=64 << 20) == 0
        assert third.put("longer than any segment", bytes(33 << 20)) == -200
        third.close()
        assert other.close() == 0
        # A closed client was taken for one whose link had broken: for ten seconds others waited for its memory.
        assert one.is_exist("k") == 0 and one.get("k") == b""


def test_memory_is_lent_for_a_time(started: Starter) -> None:
    with started("master", "--put-wait", "100ms") as (address, _):
        store = MooncakeDistributedStore()
        refused = {"ret": -600, "segment_ids": [], "allocated_size": 0}
        assert store.allocate_and_mount_segment(1) == refused and store.unmount_and_free_segment([]) == -600
        assert setup(store, address) == 0
        assert store.put("k", b"v") == -200
        lent = store.allocate_and_mount_segment((16 << 20) + 1)
        assert lent["ret"] == 0 and lent["allocated_size"] == 32 << 20
        (identity,) = lent["segment_ids"]
        assert all(part.isdigit() for part in identity.split("-"))
        assert store.put("k", b"v") == 0
        more = store.allocate_and_mount_segment(16 << 20, location="*")["segment_ids"]
        for ids in (["1-2"], ["x"], [""]):
            assert store.unmount_and_free_segment(ids) == -1
        assert store.get("k") == b"v"
        # What the one held goes to the other.
        assert store.unmount_and_free_segment([identity], grace_period_seconds=10) == 0
        assert store.get("k") == b"v"
        assert store.unmount_and_free_segment([identity]) == -1
        # Those that are right are taken back all the same.
        assert store.unmount_and_free_segment(["1-2", *more]) == -1 and store.unmount_and_free_segment([]) == 0
        assert store.get("k") == b"" and store.put("k", b"v") == -200
        bad = refused | {"ret": -1}
        assert store.allocate_and_mount_segment(0) == bad == store.allocate_and_mount_segment(1, "pigeon")
        assert store.allocate_and_mount_segment(1 << 80) == bad
        for given in (("x",), ([], -1), ([], 1 << 30)):
            with pytest.raises(TypeError):
                store.unmount_and_free_segment(*given)
        assert store.allocate_and_mount_segment(1)["ret"] == 0 == store.close()
    with started("serve") as (address, _):
        assert setup(store, address) == 0
        assert store.allocate_and_mount_segment(1) == bad
        store.close()


def test_reads_of_an_ssd_are_counted(started: Starter, tmp_path: Path) -> None:
    value = os.urandom(4 << 20)
    with started("serve", f"--dir={tmp_path}", "--ssd=256MiB", "--promotion-enabled=false") as (address, _):
        store = MooncakeDistributedStore()
        assert store.get_offload_rpc_read_count() == 0
        assert setup(store, address, local_buffer_size=16 << 20) == 0 == store.get_offload_rpc_read_count()
        keys = [f"k{number}" for number in range(30)]
        for key in keys:
            assert store.put(key, value) == 0
        assert store.get(keys[-1]) == value and store.get_offload_rpc_read_count() == 0
        assert store.get_batch(keys[:2]) == [value] * 2 and store.get_offload_rpc_read_count() == 1
        assert store.get(keys[0]) == value and store.get_offload_rpc_read_count() == 2
        assert store.close() == 0 == store.get_offload_rpc_read_count()


def test_an_ssd_is_not_taken_back_alone(started: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(64 << 20))
    with started("master") as (address, _):
        store = MooncakeDistributedStore()
        assert store.unmount_local_disk_segment() == -1
        assert setup(store, address) == 0 == store.unmount_local_disk_segment(5) == store.close()
        lent = {"global_segment_size": 16 << 20, "enable_ssd_offload": True, "ssd_offload_path": str(tmp_path)}
        assert setup(store, address, **lent) == 0 and store.unmount_local_disk_segment() == -1012
        for wrong in (-1, "1", 1.0, True):
            with pytest.raises(TypeError):
                store.unmount_local_disk_segment(wrong)
        assert store.close() == 0


def test_the_end_of_an_object_is_the_end_of_its_client(master: str) -> None:
    before = counted()
    for _ in range(20):
        store = MooncakeDistributedStore()
        assert setup(store, master) == 0
        del store
    gc.collect()
    assert leaves_nothing(before), (before, counted())


def test_a_fork_gets_a_code_and_the_parent_goes_on(master: str) -> None:
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0
    child = os.fork()
    if child == 0:
        refused = (store.put("k", b"v"), store.is_exist("k"), store.health_check(), store.batch_remove(["k"]))
        store.close()
        os._exit(0 if refused == (-1012, -1012, -1012, [-1012]) and store.get("k") == b"" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.put("forked", b"v") == 0 and store.remove("forked", True) == 0
    store.close()


def test_a_fork_can_neither_set_up_nor_close_what_its_parent_opened(master: str) -> None:
    """`setup` in a child answered 0, as the same client was open; and a child of a fork that another thread's `setup` or
    `close` was under way in waited for the lock of that thread for ever."""
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0
    assert in_child(lambda: setup(store, master) == -1012)
    assert in_child(lambda: setup(store, master, local_buffer_size=5) == -1012)
    with store._lock:
        assert in_child(lambda: store.close() == 0 and setup(store, master) == -1012)
    assert store.put("forked", b"v") == 0 and store.remove("forked", True) == 0
    store.close()
    assert in_child(lambda: setup(store, master) == -1012)
    assert in_child(lambda: setup(own := MooncakeDistributedStore(), master) == 0 == own.close())


def test_a_fork_neither_lends_nor_takes_back_memory(master: str) -> None:
    """A child of a fork that another thread lent memory in waited for the lock of that thread for ever."""
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0

    def refused() -> bool:
        refused = {"ret": -1012, "segment_ids": [], "allocated_size": 0}
        return store.allocate_and_mount_segment(1 << 24) == refused and store.unmount_and_free_segment([]) == -1012

    with store._lock:
        assert in_child(refused)
    assert store.unmount_and_free_segment([]) == 0 == store.close()
    assert store.allocate_and_mount_segment(1 << 24)["ret"] == -600 == store.unmount_and_free_segment([])


def test_calls_end_when_the_server_is_gone(started: Starter, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    """Each with a code that callers take for a call that failed, and with the reason in the log."""
    with started("serve") as (address, server):
        store = MooncakeDistributedStore()
        assert setup(store, address) == 0
        player = calls.Player(mooncake.store, store)
        assert store.put("k", b"v") == 0
        server.kill()
        server.wait()
        begun = time.monotonic()
        at = {"@": 0}
        failed = [
            player.play(call)
            for call in (
                ["put", ["k", {"bytes": "v"}]],
                ["put_from", ["k", at, 10]],
                ["get_into", ["k", at, 10]],
                ["is_exist", ["k"]],
                ["get_size", ["k"]],
                ["remove", ["k"]],
                ["remove_all", []],
                ["upsert", ["k", {"bytes": "v"}]],
            )
        ]
        assert set(failed) <= {-900, -901}, failed
        assert store.get("k") == b"" and store.get_replica_desc("k") == []
        assert store.health_check() == 2
        assert time.monotonic() - begun < 30
        assert "was not answered within" in caplog.text
        assert len([line for line in caplog.messages if line.startswith("put:")]) == 1
        store.close()


def test_nothing_touches_memory_after_a_call(started: Starter, soon: None) -> None:
    """A server that is killed while it is read from fails the call, and not the memory after it."""
    with started("serve") as (address, server):
        store = MooncakeDistributedStore()
        assert setup(store, address, local_buffer_size=64 << 20) == 0
        player = calls.Player(mooncake.store, store)
        assert store.put("k", b"\xaa" * calls.MEMORY) == 0
        killer = threading.Timer(0.02, server.kill)
        killer.start()
        code = 0
        while code >= 0:
            code = player.play(["get_into", ["k", {"@": 0}, calls.MEMORY]])
        player.memory[:] = bytes(calls.MEMORY)
        killer.join()
        store.close()
        assert player.memory == bytes(calls.MEMORY)


def test_unregister_waits_for_the_calls_that_began_before(
    started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of it could not fail: a call was over before there was anything to wait for. Here the server is stopped,
    and with it the call."""
    with started("serve") as (address, server):
        store = MooncakeDistributedStore()
        assert setup(store, address) == 0
        player = calls.Player(mooncake.store, store)
        assert player.play(["put_from", ["k", {"@": 0}, 4096]]) == 0
        assert store.register_buffer(player.base, calls.MEMORY) == 0
        stop(server)
        ended: list[str] = []
        begun = threading.Event()

        def read() -> None:
            begun.set()
            ended.append(f"read {store.get_into('k', player.base, 4096)}")

        def unregister() -> None:
            ended.append(f"unregistered {store.unregister_buffer(player.base)}")

        # A thread gives the interpreter back only where it waits: the call, once it has begun.
        switch = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            reader = threading.Thread(target=read)
            reader.start()
            begun.wait()
            until_asleep(reader)
        finally:
            sys.setswitchinterval(switch)
        waiting = threading.Thread(target=unregister)
        waiting.start()
        waiting.join(0.3)
        assert ended == []
        os.kill(server.pid, signal.SIGCONT)
        reader.join()
        waiting.join()
        assert sorted(ended) == ["read 4096", "unregistered 0"]
        store.close()


def until_asleep(thread: threading.Thread) -> None:
    """Returns when the system has nothing to run of a thread, or it has ended."""
    while thread.is_alive():
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] == "S":
            return


LENDER = """
import sys
sys.path.insert(0, sys.argv[1])
import slackwater.compat
slackwater.compat.install(over=True)
import calls, mooncake.store
lender = calls.opened(mooncake.store, sys.argv[2], segment=16 << 20)
assert lender.store.put("there", b"0123456789") == 0
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_one_key_that_cannot_be_read_fails_alone(started: Starter, soon: None, end: signal.Signals) -> None:
    """A session whose value could not be read failed every key of the call; and where it took all of the call's time, every key
    that went to the same memory after it."""
    with started("master") as (address, _):
        lending = [sys.executable, "-c", LENDER, str(Path(__file__).parent), address]
        with subprocess.Popen(lending, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as lender:
            try:
                assert lender.stdout is not None and lender.stdout.readline() == "stored\n"
                store = MooncakeDistributedStore()
                assert setup(store, address, global_segment_size=16 << 20) == 0
                player = calls.Player(mooncake.store, store)
                lender.send_signal(end)
                here = [key for key in "abcdef" if store.put(key, b"0123456789") == 0]
                assert here
                keys = ["there", *here]
                assert store.batch_get_session_start(keys) == [0] * len(keys)
                lists = [[[one] for _ in keys] for one in ({"@": 0}, 5, 0)]
                read = player.play(["batch_get_into_multi_buffer_ranges", [keys, *lists]])
                assert read[0] in (-900, -901) and read[1:] == [5] * len(here)
            finally:
                lender.kill()
        store.close()


def test_threads_share_a_client(master: str) -> None:
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0
    player = calls.Player(mooncake.store, store)
    assert player.play(["put_from", ["k", {"@": 0}, 4096]]) == 0
    assert store.register_buffer(player.base, calls.MEMORY) == 0
    wrong: list[int] = []

    def read(place: int) -> None:
        for _ in range(50):
            code = store.get_into("k", player.base + place * 4096, 4096)
            wrong.extend([code] if code != 4096 else [])

    threads = [threading.Thread(target=read, args=(place,)) for place in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.unregister_buffer(player.base) == 0
    assert store.remove("k", True) == 0
    store.close()


def test_reasons_are_logged_once(master: str, caplog: pytest.LogCaptureFixture) -> None:
    store = MooncakeDistributedStore()
    assert setup(store, master) == 0
    with caplog.at_level(logging.WARNING, "slackwater.mooncake"):
        for _ in range(3):
            assert store.put("", b"v") == -600
            assert store.get_size("none") == -704
    assert [line for line in caplog.messages if "a key must not be empty" in line] == caplog.messages
    assert len(caplog.messages) == 1
    store.close()
