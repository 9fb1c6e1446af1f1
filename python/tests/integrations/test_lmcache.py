"""LMCache's native connector, driven as its L2 adapter drives one."""

import ctypes
import importlib
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import slackwater
from driven import driven
from slackwater import Chain
from slackwater.integrations.chains import UNPLACED
from slackwater.integrations.lmcache import NativeSlackwater, family

Open = Callable[..., NativeSlackwater]
SIZE = 5000


@pytest.fixture
def opened(address: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens native connectors of one deployment, with keys of the test's own."""
    connectors: list[NativeSlackwater] = []

    def connector(**options: Any) -> NativeSlackwater:
        settings = {} if "store" in options else {"address": address}
        made = NativeSlackwater(**{"tag": request.node.name.replace("@", ""), **settings, **options})
        connectors.append(made)
        return made

    yield connector
    for made in connectors:
        made.close()


def ended(connector: NativeSlackwater, count: int = 1) -> dict[int, tuple[bool, str, list[bool] | None]]:
    """Waits on the event file descriptor until so many batches have ended, and drains them."""
    poller, done = select.poll(), {}
    poller.register(connector.event_fd(), select.POLLIN)
    while len(done) < count:
        assert poller.poll(60_000), "the event file descriptor is not readable"
        for number, success, reason, results in connector.drain_completions():
            assert number not in done
            done[number] = success, reason, results
    return done


def after(connector: NativeSlackwater, number: int) -> tuple[bool, str, list[bool] | None]:
    """How one batch ended, where no other is under way."""
    return ended(connector)[number]


def keys_of(count: int, *, rank: int = 0, salt: str = "", start: int = 0) -> list[str]:
    """Keys as LMCache writes them."""
    tail = f"@{salt}" if salt else ""
    return [f"org/model@{rank:08x}@0@{start + number:064x}{tail}" for number in range(count)]


class Memory:
    """Chunks in memory that is addressed, as LMCache gives it."""

    def __init__(self, count: int, seed: int | None = None) -> None:
        self.arrays = [(ctypes.c_ubyte * SIZE)() for _ in range(count)]
        self.views = [memoryview(array) for array in self.arrays]
        if seed is not None:
            for at, array in enumerate(self.arrays):
                ctypes.memset(array, (seed * 31 + at) % 251 + 1, SIZE)

    def content(self) -> list[bytes]:
        return [bytes(array) for array in self.arrays]


@pytest.mark.parametrize("count", [1, 7, 200])
def test_chunks_come_back(opened: Open, count: int) -> None:
    connector, keys, chunks, target = opened(), keys_of(count), Memory(count, 1), Memory(count + 1)
    assert after(connector, connector.submit_batch_exists(keys)) == (True, "", [False] * count)
    assert after(connector, connector.submit_batch_set(keys, chunks.views)) == (True, "", [True] * count)
    more = [*keys, "org/model@0@0@none"]
    assert after(connector, connector.submit_batch_exists(more)) == (True, "", [True] * count + [False])
    assert after(connector, connector.submit_batch_get(more, target.views)) == (True, "", [True] * count + [False])
    assert target.content() == [*chunks.content(), bytes(SIZE)]
    assert "failures" not in connector.counts


def test_what_is_there_stays(opened: Open) -> None:
    connector, keys, target = opened(), keys_of(2), Memory(2)
    after(connector, connector.submit_batch_set(keys[:1], Memory(1, 1).views))
    assert after(connector, connector.submit_batch_set(keys, Memory(2, 9).views)) == (True, "", [True, True])
    after(connector, connector.submit_batch_get(keys, target.views))
    assert target.content() == [Memory(1, 1).content()[0], Memory(2, 9).content()[1]]


def test_ranks_salts_and_tags_part_chunks(opened: Open) -> None:
    connector = opened()
    after(connector, connector.submit_batch_set(keys_of(1), Memory(1, 1).views))
    others = [*keys_of(1, rank=1), *keys_of(1, salt="user")]
    assert after(connector, connector.submit_batch_exists(others))[2] == [False, False]
    other = opened(tag="other")
    assert after(other, other.submit_batch_exists(keys_of(1)))[2] == [False]


def test_deleted_is_gone_also_when_it_was_not_there(opened: Open) -> None:
    """LMCache counts a chunk as used until a deletion succeeds: one that the store evicted must not count for good."""
    connector, keys = opened(), keys_of(3)
    after(connector, connector.submit_batch_set(keys, Memory(3, 1).views))
    after(connector, connector.submit_batch_get(keys, Memory(3).views))
    assert after(connector, connector.submit_batch_delete([*keys[:2], "org/model@0@0@none"])) == (True, "", [True] * 3)
    assert after(connector, connector.submit_batch_exists(keys))[2] == [False, False, True]


def test_a_chunk_of_another_length_is_a_miss(opened: Open) -> None:
    connector, keys = opened(), keys_of(2)
    after(connector, connector.submit_batch_set(keys[:1], [bytes(SIZE - 1)]))
    after(connector, connector.submit_batch_set(keys[1:], [bytes(SIZE + 1)]))
    assert after(connector, connector.submit_batch_get(keys, Memory(2).views)) == (True, "", [False, False])
    assert connector.counts["failures"] == 2


def test_chains_are_those_of_lookups(opened: Open) -> None:
    connector, keys, other = opened(), keys_of(3), keys_of(2, start=100)
    store = connector._cache._store = mock.Mock(wraps=connector._cache._store, closed=False)
    after(connector, connector.submit_batch_exists(keys))
    after(connector, connector.submit_batch_exists(other))
    # LMCache stores what several requests wrote in one batch.
    after(connector, connector.submit_batch_set([*keys[1:], *other], Memory(4, 1).views))
    calls = [(call.args[0], repr(call.kwargs["chain"])) for call in store.put_batch.call_args_list]
    assert [len(names) for names, _ in calls] == [2, 2]
    assert keys[0] in calls[0][1] and f"position={Chain.POSITION_UNKNOWN + 1}," in calls[0][1]
    assert calls[1][1] == repr(UNPLACED)
    after(connector, connector.submit_batch_get(keys, Memory(3).views))
    assert store.get_batch_into.call_args.kwargs["chain"] is UNPLACED


def test_keys_of_a_chain_differ_in_the_hash_alone() -> None:
    assert family("model@00000001@0@aa@salt") == family("model@00000001@0@bb@salt") == ("model", "00000001", "0", "salt")
    others = ["model@00000001@0@aa", "other@00000001@0@aa", "model@00000002@0@aa", "model@00000001@1@aa"]
    assert len({family(key) for key in others}) == 4


def test_misuse_is_told_by_the_completion(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    connector, keys = opened(), keys_of(2)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            success, reason, results = after(connector, connector.submit_batch_set(keys, Memory(1).views))
            assert not success and "2 keys and 1 buffers" in reason and results == [False, False]
        assert after(connector, connector.submit_batch_get(keys[:1], [b"read only" * 9])) == (True, "", [False])
        success, reason, _ = after(connector, connector.submit_batch_set(["k" * 2000], Memory(1).views))
        assert not success and reason == "1 of 1 values were not stored"
        assert after(connector, connector.submit_batch_exists([])) == (True, "", [])
    assert len([record for record in caplog.records if "2 keys and 1 buffers" in record.getMessage()]) == 1


def test_a_store_that_fails_is_misses(opened: Open) -> None:
    connector, keys = opened(), keys_of(2)
    whole = connector._cache._store
    connector._cache._store = mock.Mock(closed=False)
    refused = slackwater.RefusedError("not permitted", slackwater.ErrorCode.ROLE_NOT_PERMITTED)
    for call in ("exists_batch", "get_batch_into", "put_batch", "remove_batch"):
        getattr(connector._cache._store, call).side_effect = refused
    assert after(connector, connector.submit_batch_exists(keys)) == (True, "", [False, False])
    assert after(connector, connector.submit_batch_get(keys, Memory(2).views)) == (True, "", [False, False])
    assert after(connector, connector.submit_batch_set(keys, Memory(2).views))[0] is False
    assert after(connector, connector.submit_batch_delete(keys)) == (True, "", [False, False])
    connector._cache._store = whole


def test_threads_submit_at_once(opened: Open) -> None:
    connector = opened(threads=3)
    numbers, lock = [], threading.Lock()
    memories: dict[int, tuple[Memory, Memory]] = {}

    def work(worker: int) -> None:
        for round_ in range(5):
            keys, chunks = keys_of(4, start=worker * 1000 + round_ * 10), Memory(4, worker + round_)
            mine = [connector.submit_batch_set(keys, chunks.views), connector.submit_batch_exists(keys)]
            with lock:
                numbers.extend(mine)
                memories[mine[0]] = chunks, Memory(4)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = ended(connector, 60)
    assert sorted(numbers) == sorted(done) == list(range(1, 61))
    assert all(done[number][0] for number in memories)


def test_reads_and_questions_do_not_wait_for_writes(opened: Open) -> None:
    """A burst of writes had all threads, and a look-up waited until it was over."""
    connector, keys = opened(threads=1), keys_of(2)
    begun, go, whole = threading.Event(), threading.Event(), connector._cache.write

    def slow(*arguments: Any) -> list[bool]:
        begun.set()
        go.wait(60)
        return whole(*arguments)

    after(connector, connector.submit_batch_set(keys[:1], Memory(1, 1).views))
    with mock.patch.object(connector._cache, "write", slow):
        written = connector.submit_batch_set(keys[1:], Memory(1, 1).views)
        deleted = connector.submit_batch_delete(["org/model@0@0@none"])
        assert begun.wait(60)
        assert after(connector, connector.submit_batch_exists(keys)) == (True, "", [True, False])
        assert after(connector, connector.submit_batch_get(keys[:1], Memory(1).views)) == (True, "", [True])
        go.set()
        assert set(ended(connector, 2)) == {written, deleted}


class Panic(BaseException):
    """What Rust raises when it panics is no Exception either."""


def test_a_panic_is_a_completion_too(opened: Open) -> None:
    connector = opened()
    with mock.patch.object(connector._cache, "exists", side_effect=Panic("a panic")):
        assert after(connector, connector.submit_batch_exists(keys_of(2))) == (False, "a panic", [False, False])


def test_a_start_that_fails_leaves_no_store_open() -> None:
    """The store inside the process kept its directory, and the next start was refused."""
    opened_store = mock.Mock(closed=False)
    with (
        mock.patch("slackwater.integrations.lmcache.open_store", return_value=opened_store),
        mock.patch("os.eventfd", side_effect=OSError("too many open files")),
        pytest.raises(OSError, match="too many"),
    ):
        NativeSlackwater()
    opened_store.close.assert_called_once_with()


def test_no_completion_is_told_before_there_is_one(opened: Open) -> None:
    connector = opened()
    poller = select.poll()
    poller.register(connector.event_fd(), select.POLLIN)
    assert not poller.poll(0) and connector.drain_completions() == []
    after(connector, connector.submit_batch_exists(keys_of(1)))
    assert not poller.poll(0) and connector.drain_completions() == []


def test_closed_in_the_middle_every_batch_ends_and_nothing_touches_its_buffers(opened: Open) -> None:
    connector, keys = opened(threads=1), keys_of(3)
    begun, go, order = threading.Event(), threading.Event(), []
    whole, close = connector._cache.read, connector._cache.close

    def slow(*arguments: Any) -> list[bool]:
        begun.set()
        go.wait(60)
        order.append("read")
        return whole(*arguments)

    def closed() -> None:
        order.append("closed")
        close()

    # Asked for first, as LMCache does, so that each read is one call.
    after(connector, connector.submit_batch_exists(keys))
    after(connector, connector.submit_batch_set(keys, Memory(3, 1).views))
    with mock.patch.object(connector._cache, "read", slow), mock.patch.object(connector._cache, "close", closed):
        numbers = [connector.submit_batch_get(keys, Memory(3).views) for _ in range(4)]
        assert begun.wait(60)
        closing = threading.Thread(target=connector.close)
        closing.start()
        # The three that had not begun end at once; `close` waits for the one that reads.
        assert sorted(ended(connector, 3)) == numbers[1:]
        assert closing.is_alive()
        go.set()
        closing.join(60)
        assert not closing.is_alive() and order == ["read", "closed"]
    late = connector.submit_batch_get(keys, Memory(3).views)
    done = {number: rest for number, *rest in connector.drain_completions()}
    assert set(done) == {numbers[0], late}
    assert done[late] == [False, "closed", [False] * 3]
    connector.close()


def test_the_event_file_descriptor_is_closed_and_not_inherited(opened: Open) -> None:
    connector = opened()
    event = connector.event_fd()
    assert not os.get_inheritable(event)
    connector.close()
    with pytest.raises(OSError):
        os.fstat(event)


def test_a_store_inside_the_process(opened: Open) -> None:
    connector, chunks, target = opened(store={"memory": "8MiB", "log": "off"}), Memory(2, 3), Memory(2)
    after(connector, connector.submit_batch_set(keys_of(2), chunks.views))
    after(connector, connector.submit_batch_get(keys_of(2), target.views))
    assert target.content() == chunks.content()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adress": "tcp://127.0.0.1:1"}, "no option 'adress'"),
        ({"threads": 0}, "threads: 0: at least one"),
        ({"threads": "8"}, "threads: '8'"),
        ({"tag": "a@b"}, "tag: 'a@b'"),
        ({"address": "here"}, "address:"),
    ],
    ids=str,
)
def test_a_wrong_configuration_ends_the_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeSlackwater(**options)


def test_the_connector_needs_lmcache() -> None:
    module = importlib.import_module("slackwater.integrations.lmcache")
    sys.modules.pop("slackwater.integrations.lmcache_connector", None)
    with (
        mock.patch.dict("sys.modules", {"lmcache.v1.protocol": None}),
        pytest.raises(ImportError, match="loaded by LMCache 0.5.6 or newer"),
    ):
        module.SlackwaterConnectorAdapter
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        module.Other


def test_lmcaches_own_code_drives_it(address: str) -> None:
    """`LMCACHE_PYTHON` names an interpreter that has LMCache; no GPU is needed."""
    print(driven("lmcache", Path(__file__).with_name("drive_lmcache.py"), address))
