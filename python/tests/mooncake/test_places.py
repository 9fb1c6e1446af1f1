"""Values in the memory that callers name, and their way from one to another."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import calls
import mooncake.store
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, TaskStatus, TaskType

from conftest import Starter
from test_life import setup

MIB = 1 << 20


@pytest.fixture
def pool(started: Starter) -> Iterator[tuple[str, list[MooncakeDistributedStore]]]:
    """The address of a master, and three clients that lend it memory under names of their own."""
    with started("master", "--put-wait", "100ms") as (address, _):
        stores = [MooncakeDistributedStore() for _ in range(3)]
        for store in stores:
            assert setup(store, address, global_segment_size=16 * MIB) == 0
        yield address, stores
        for store in stores:
            store.close()


def preferring(*names: str, **more: Any) -> ReplicateConfig:
    """A configuration that prefers these segments."""
    config = ReplicateConfig()
    if len(names) == 1:
        config.preferred_segment = names[0]
    else:
        config.preferred_segments = list(names)
    for name, value in more.items():
        setattr(config, name, value)
    return config


def places(store: MooncakeDistributedStore, key: str) -> list[str]:
    """The names of the segments that have a value in memory."""
    memory = [one for one in store.get_replica_desc(key) if one.is_memory_replica()]
    return sorted(one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in memory)


def ended(store: MooncakeDistributedStore, begun: tuple[tuple[int, int], int]) -> Any:
    """A task when it is over."""
    task_id, code = begun
    assert code == 0
    until = time.monotonic() + 30
    while time.monotonic() < until:
        task, code = store.query_task(task_id)
        assert code == 0 and task.id == task_id
        if task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
            return task
    raise AssertionError("the task did not end")


def test_values_go_to_the_segments_that_are_preferred(pool: Any) -> None:
    _, stores = pool
    names = [store.get_hostname() for store in stores]
    assert len(set(names)) == 3
    for name in names:
        assert stores[0].put(f"at {name}", b"v", preferring(name)) == 0
        assert places(stores[1], f"at {name}") == [name]
    both = preferring(names[2], names[1], replica_num=2)
    assert stores[0].put("two", b"v", both) == 0 and places(stores[0], "two") == sorted(names[1:])
    # The single form wins, and an unknown name is only a wish.
    single = preferring(names[0], preferred_segments=[names[1]])
    assert stores[0].put("single", b"v", single) == 0 and places(stores[0], "single") == [names[0]]
    assert stores[0].put("nowhere", b"v", preferring("nowhere")) == 0 and len(places(stores[0], "nowhere")) == 1
    # A segment without room is not waited for.
    for number in range(3):
        assert stores[0].put(f"large {number}", bytes(MIB), preferring(names[0], with_hard_pin=True)) == 0
    assert stores[0].put("rest", bytes(MIB), preferring(names[0])) == 0


def test_memory_that_one_client_lends_has_one_name(pool: Any) -> None:
    _, stores = pool
    name = stores[0].get_hostname()
    assert stores[0].allocate_and_mount_segment(16 * MIB)["ret"] == 0
    found: list[str] = []
    until = time.monotonic() + 30
    # It takes values once it has told what it holds, which is nothing.
    while found != [name, name] and time.monotonic() < until:
        assert stores[0].upsert("k", b"v", preferring(name, replica_num=2)) == 0
        found = places(stores[1], "k")
    assert found == [name, name]
    assert stores[0].batch_replica_clear(["k"], name) == ["k"] and stores[1].is_exist("k") == 0


def test_the_values_of_a_batch_are_wished_to_be_on_one_node(pool: Any) -> None:
    address, stores = pool
    own = calls.Player(mooncake.store, stores[1])
    near = preferring(prefer_alloc_in_same_node=True)
    keys = [f"k{number}" for number in range(12)]

    def put(player: calls.Player, keys: list[str], config: ReplicateConfig) -> list[str]:
        at = [[player.base, player.base + 100] for _ in keys]
        codes = player.store.batch_put_from_multi_buffers(keys, at, [[10, 10]] * len(keys), config)
        assert codes == [0] * len(keys)
        found = sorted({place for key in keys for place in places(player.store, key)})
        assert player.store.batch_remove(keys, True) == [0] * len(keys)
        return found

    assert put(own, keys, near) == [stores[1].get_hostname()]
    wished = preferring(stores[2].get_hostname(), prefer_alloc_in_same_node=True)
    assert put(own, keys, wished) == [stores[2].get_hostname()]
    # A client that lends nothing has no node of its own: the first decides.
    with_none = MooncakeDistributedStore()
    assert setup(with_none, address) == 0
    none = calls.Player(mooncake.store, with_none)
    assert all(len(put(none, keys, near)) == 1 for _ in range(4))
    assert len(put(none, keys, ReplicateConfig())) > 1
    grouped = preferring(prefer_alloc_in_same_node=True, group_ids=["a"] * 5 + [""] * 3 + ["b"] * 4)
    assert len(put(none, keys, grouped)) == 1
    at = [[none.base]] * 2
    assert with_none.batch_put_from_multi_buffers(["", "j"], at, [[5], [5]], near) == [-600, 0]
    assert with_none.batch_put_from_multi_buffers([], [], [], near) == []
    with_none.close()


def test_what_a_segment_has_is_cleared_by_its_name(pool: Any) -> None:
    _, stores = pool
    names = [store.get_hostname() for store in stores]
    assert stores[0].put("two", b"v", preferring(names[0], names[1], replica_num=2)) == 0
    assert stores[0].batch_replica_clear(["two", "none"], "nowhere") == []
    assert stores[1].batch_replica_clear(["two"], names[0]) == [], "another client put it"
    assert stores[0].batch_replica_clear(["two", "none"], names[0]) == ["two"]
    assert places(stores[0], "two") == [names[1]] and stores[2].get("two") == b"v"
    assert stores[0].batch_replica_clear(["two"], names[0]) == [], "it is there no more"


def test_values_are_copied_and_moved(pool: Any) -> None:
    _, stores = pool
    names = [store.get_hostname() for store in stores]
    assert stores[0].put("k", bytes(MIB), preferring(names[0])) == 0
    before = time.time_ns() // 1_000_000
    copied = ended(stores[1], stores[0].create_copy_task("k", [names[1]]))
    assert (copied.type, copied.status, copied.message) == (TaskType.REPLICA_COPY, TaskStatus.SUCCESS, "")
    assert before - 100 <= copied.created_at_ms_epoch <= copied.last_updated_at_ms_epoch <= time.time_ns() // 1_000_000
    assert copied.assigned_client == (0, 0)
    assert places(stores[0], "k") == sorted(names[:2])
    moved = ended(stores[0], stores[2].create_move_task("k", names[0], names[2]))
    assert (moved.type, moved.status) == (TaskType.REPLICA_MOVE, TaskStatus.SUCCESS)
    assert places(stores[0], "k") == sorted(names[1:]) and stores[0].get("k") == bytes(MIB)
    # A copy to where it is already is a task too.
    again = ended(stores[0], stores[0].create_copy_task("k", [names[1]]))
    assert again.status is TaskStatus.FAILED and "REPLICA_ALREADY_EXISTS" in again.message
    later = ended(stores[0], stores[0].create_copy_task("k", (names[0], names[1])))
    assert later.status is TaskStatus.FAILED and places(stores[0], "k") == sorted(names)
    assert later.id > copied.id


def test_tasks_that_make_no_sense_are_refused(pool: Any) -> None:
    _, (store, other, _third) = pool
    here, there = store.get_hostname(), other.get_hostname()
    assert store.put("k", b"v", preferring(here)) == 0
    refused = (0, 0)
    for key, targets, code in [("k", [], -600), ("k", ["nowhere"], -600), ("k", [there, "nowhere"], -600),
                               ("none", [there], -704), ("", [there], -704)]:  # fmt: skip
        assert store.create_copy_task(key, targets) == (refused, code), (key, targets)
    for key, source, target, code in [("k", "nowhere", there, -600), ("k", here, "nowhere", -600),
                                      ("none", here, there, -704), ("k", there, here, -710)]:  # fmt: skip
        assert store.create_move_task(key, source, target) == (refused, code), (key, source, target)
    for task_id in [(1, 2), (0, 0), (1, 0), (2**64 - 1, 0)]:
        assert store.query_task(task_id) == (None, -1400)
    done, code = store.create_copy_task("k", [there])
    assert code == 0 and store.query_task((done[0], 1)) == (None, -1400)
    for wrong in [(1,), (1, 2, 3), (-1, 0), ("1", 0), 7, (2**64, 0)]:
        with pytest.raises(TypeError):
            store.query_task(wrong)
    with pytest.raises(TypeError):
        store.create_copy_task("k", there)


def test_a_task_says_when_it_began_and_changed() -> None:
    store = MooncakeDistributedStore()
    store._raw = SimpleNamespace(query_task=lambda number: ((number, True, 1, 5000, 2000, "why"), 0))
    task, code = store.query_task((7, 0))
    assert code == 0 and (task.id, task.type, task.status) == ((7, 0), TaskType.REPLICA_MOVE, TaskStatus.PROCESSING)
    now = time.time_ns() // 1_000_000
    assert task.last_updated_at_ms_epoch - task.created_at_ms_epoch == 3000 and task.message == "why"
    assert now - 6000 <= task.created_at_ms_epoch <= now - 5000


def test_a_target_that_has_gone_is_refused(started: Starter) -> None:
    with started("master") as (address, _):
        one, other = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert setup(one, address, global_segment_size=16 * MIB) == 0
        assert setup(other, address, global_segment_size=16 * MIB) == 0
        target = other.get_hostname()
        assert one.put("k", bytes(MIB), preferring(one.get_hostname())) == 0
        assert other.close() == 0
        assert one.create_copy_task("k", [target]) == ((0, 0), -600)
        assert one.get("k") == bytes(MIB)
        one.close()


def test_names_of_nodes_are_shown_and_checked(started: Starter, caplog: pytest.LogCaptureFixture) -> None:
    with started("master") as (address, _):
        store = MooncakeDistributedStore()
        assert setup(store, address, local_hostname="one,two:7", global_segment_size=MIB) == -600
        assert "no ','" in caplog.text
        assert setup(store, address, local_hostname="a" * 300 + ":7", global_segment_size=MIB) == -600
        assert setup(store, address, local_hostname="localhost:0", global_segment_size=MIB) == 0
        assert json.dumps(store.get_hostname()).startswith('"localhost:')
        store.close()
