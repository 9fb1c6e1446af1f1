"""vLLM's secondary tier, driven as its tiering manager drives one."""

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import slackwater
import vllm_double as engine
from driven import driven
from slackwater.integrations.chains import UNPLACED
from vllm_double import key_of

Open = Callable[..., Any]
HIT, MISS, RETRY = engine.LookupResult.HIT, engine.LookupResult.MISS, engine.LookupResult.RETRY


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The module of the tier, over the double of vLLM."""
    with mock.patch.dict("sys.modules"):
        yield engine.loaded()


@pytest.fixture
def opened(module: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes tiers of one deployment, with keys of the test's own."""
    tiers: list[Any] = []

    def tier(memory: engine.Memory | None = None, spec: Any = None, **options: Any) -> Any:
        settings = {} if {"store", "address"} & set(options) else {"address": address}
        view = (memory or engine.Memory()).view
        given = {"offloading_spec": spec or engine.spec(), "primary_kv_view": view, "tier_type": "SlackwaterTier"}
        made = module.SlackwaterTier(**given, backpressure_detector=None, tag=request.node.name, **settings, **options)
        tiers.append(made)
        return made

    yield tier
    for made in tiers:
        made.shutdown()


NUMBERS = itertools.count(1)


def request_of(keys: list[bytes], name: str = "request") -> engine.ReqContext:
    """A request of which these are the chunks of each group, in order."""
    ends: dict[bytes, int] = {}
    for group in (0, 1):
        for at, key in enumerate(key for key in keys if key[-1] == group):
            ends[key] = (at + 1) * engine.TOKENS * engine.BLOCKS_PER_CHUNK
    return engine.ReqContext(name, ends)


def job_of(keys: Any, slots: list[int], *, load: bool, context: Any = None) -> engine.TransferJob:
    context = context or request_of(list(keys))
    return engine.TransferJob(next(NUMBERS), keys, np.array(slots, np.int32), load, context)


def waited(tier: Any, count: int = 1) -> None:
    """Returns when so many jobs have ended of which vLLM has no result yet."""
    with tier._jobs._changed:
        assert tier._jobs._changed.wait_for(lambda: len(tier._jobs._ended) >= count, 60)


def moved(tier: Any, keys: Any, slots: list[int], *, load: bool, context: Any = None) -> engine.JobResult:
    """The result of one job, where no other is under way."""
    job = job_of(keys, slots, load=load, context=context)
    (tier.submit_load if load else tier.submit_store)(job)
    waited(tier)
    (result,) = tier.get_finished_jobs()
    assert result.job_id == job.job_id
    return result


def answered(tier: Any) -> None:
    """Returns when the question that is under way has its answer."""
    if tier._lookups._asking is not None:
        tier._lookups._asking.result(60)


def found(tier: Any, keys: list[bytes], request: str = "asks") -> list[Any]:
    """What the tier says of chunks once the store has answered."""
    context = engine.ReqContext(request)
    first = [tier.lookup(key, context) for key in keys]
    assert first == [RETRY] * len(keys) or request != "asks"
    tier.on_schedule_end(None)
    answered(tier)
    answers = [tier.lookup(key, context) for key in keys]
    tier.on_request_finished(context)
    return answers


@pytest.mark.parametrize("count", [1, 5, 16])
def test_chunks_come_back(opened: Open, count: int) -> None:
    memory, keys = engine.Memory(), [key_of(number) for number in range(count)]
    tier, slots, others = opened(memory), list(range(count)), list(range(16, 16 + count))
    memory.fill(count, slots)
    wanted = memory.taken(slots)
    assert found(tier, keys) == [MISS] * count
    stored = moved(tier, keys, slots, load=False)
    assert (stored.success, stored.successful_keys, stored.transfer_bytes) == (True, None, count * 4096)
    assert stored.transfer_time > 0
    assert found(tier, [*keys, key_of(99)]) == [HIT] * count + [MISS]
    loaded = moved(tier, tuple(keys), others, load=True)
    assert loaded.success and memory.taken(others) == wanted and memory.taken(slots) == wanted
    assert "failures" not in tier.counts and not tier.has_pending_work()


def test_what_was_there_already_is_no_transfer(opened: Open) -> None:
    """Bytes that no job moved were counted as moved in no time, by which vLLM judges how much the tier bears."""
    memory, keys = engine.Memory(), [key_of(number) for number in range(3)]
    tier = opened(memory)
    memory.fill(1, [0, 1, 2])
    assert moved(tier, keys[:2], [0, 1], load=False).transfer_bytes == 8192
    again = moved(tier, keys, [0, 1, 2], load=False)
    assert (again.success, again.transfer_bytes) == (True, 4096)
    assert moved(tier, keys, [0, 1, 2], load=False).transfer_bytes == 0


def test_a_load_of_which_some_is_gone_says_what_came(opened: Open) -> None:
    memory, keys = engine.Memory(), [key_of(number) for number in range(4)]
    tier = opened(memory)
    memory.fill(1, [0, 1])
    moved(tier, [keys[0], keys[2]], [0, 1], load=False)
    result = moved(tier, keys, [4, 5, 6, 7], load=True)
    assert (result.success, result.successful_keys, result.transfer_bytes) == (False, (keys[0], keys[2]), 8192)
    assert memory.taken([4, 6]) == memory.taken([0, 1])
    assert moved(tier, keys[3:], [4], load=True).successful_keys is None


def test_a_chunk_that_could_not_be_loaded_is_not_found_again(opened: Open, address: str) -> None:
    """A request that finds a chunk, and again each time that its load fails, never ends."""
    memory, key = engine.Memory(), key_of(1)
    tier, context = opened(memory), engine.ReqContext("request")
    moved(tier, [key], [0], load=False)
    assert tier.lookup(key, context) is RETRY
    tier.on_schedule_end(None)
    answered(tier)
    assert tier.lookup(key, context) is HIT
    with slackwater.connect(address) as client:
        client.remove_batch(client.list(pattern="test_a_chunk_that_could_not"), force=True)
    assert not moved(tier, [key], [1], load=True, context=context).success
    assert tier.lookup(key, context) is MISS
    # The next request asks anew.
    tier.on_request_finished(context)
    moved(tier, [key], [0], load=False)
    assert found(tier, [key]) == [HIT]


def test_an_answer_is_each_requests_until_it_ends(opened: Open) -> None:
    tier, key = opened(), key_of(1)
    first, second = engine.ReqContext("first"), engine.ReqContext("second")
    assert tier.lookup(key, first) is RETRY and tier.lookup(key, second) is RETRY and tier.has_pending_work()
    tier.on_request_finished(first)
    tier.on_schedule_end(None)
    answered(tier)
    assert tier.lookup(key, second) is MISS and not tier.has_pending_work()
    tier.on_request_finished(second)
    assert tier._lookups._questions == {} and tier._orders._known == {}
    # One that is not asked for any more is not put to the store.
    before = tier.counts["exists_misses"]
    tier.lookup(key_of(2), first)
    tier.on_request_finished(first)
    tier.on_schedule_end(None)
    assert tier.counts["exists_misses"] == before and not tier.has_pending_work()


def test_a_step_asks_the_store_once(opened: Open) -> None:
    tier = opened()
    store = tier._cache._store = mock.Mock(wraps=tier._cache._store, closed=False)
    assert found(tier, [key_of(number) for number in range(5000)]) == [MISS] * 5000
    assert store.exists_batch.call_count == 1


def test_groups_are_not_mixed(opened: Open) -> None:
    memory = engine.Memory()
    tier = opened(memory)
    memory.fill(1, [0, 1])
    moved(tier, [key_of(5, 0), key_of(5, 1)], [0, 1], load=False)
    assert moved(tier, [key_of(5, 1), key_of(5, 0)], [2, 3], load=True).success
    assert memory.taken([3, 2]) == memory.taken([0, 1])


def test_chains_are_the_places_that_vllm_tells(opened: Open) -> None:
    tier = opened()
    store = tier._cache._store = mock.Mock(wraps=tier._cache._store, closed=False)
    keys = [key_of(number, group) for group in (0, 1) for number in range(4)]
    context = request_of(keys)
    tier.lookup(keys[0], context)
    # A job may have the chunks of several groups, in any order.
    moved(tier, [keys[2], keys[1], keys[7], key_of(77)], [0, 1, 2, 3], load=False, context=context)
    calls = [(call.args[0], call.kwargs["chain"]) for call in store.put_batch.call_args_list]
    names = [[name.rsplit(":", 2)[1:] for name in names] for names, _ in calls]
    assert names == [
        [["0", keys[1][:-4].hex()], ["0", keys[2][:-4].hex()]],
        [["1", keys[7][:-4].hex()]],
        [["0", key_of(77)[:-4].hex()]],
    ]
    assert f":0:{keys[0][:-4].hex()}" in repr(calls[0][1]) and "position=1," in repr(calls[0][1])
    assert "parent=None" in repr(calls[1][1]) and "position=3," in repr(calls[1][1])
    assert calls[2][1] is UNPLACED
    # Chunks of which vLLM tells no place are no chain.
    store.put_batch.reset_mock()
    moved(tier, [key_of(78), key_of(79)], [0, 1], load=False, context=context)
    calls = [(len(call.args[0]), call.kwargs["chain"]) for call in store.put_batch.call_args_list]
    assert calls == [(1, UNPLACED), (1, UNPLACED)]


@pytest.mark.parametrize(
    "changes",
    [{"model": "org/other"}, {"dtype": "fp8"}, {"layers": ("a", "c")}, {"tp": 2}, {"layout": "HND"}, {"canonical": True}],
    ids=str,
)
def test_bytes_of_other_deployments_are_not_taken(opened: Open, changes: dict[str, Any]) -> None:
    moved(opened(), [key_of(1)], [0], load=False)
    assert found(opened(), [key_of(1)]) == [HIT]
    assert found(opened(spec=engine.spec(**changes)), [key_of(1)]) == [MISS]
    assert found(opened(engine.Memory(chunk_bytes=8192)), [key_of(1)]) == [MISS]


def test_bytes_of_another_canonical_layout_are_not_taken(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a canonical layout were taken for those of the next version of it."""
    mapping = sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping"]
    canonical = engine.spec(canonical=True)
    moved(opened(spec=canonical), [key_of(1)], [0], load=False)
    assert found(opened(spec=canonical), [key_of(1)]) == [HIT]
    monkeypatch.setattr(mapping, "version", 2)
    assert found(opened(spec=canonical), [key_of(1)]) == [MISS]


def test_portable_chunks_are_shared_by_deployments_of_any_size(opened: Open) -> None:
    memory = engine.Memory()
    moved(opened(memory, engine.spec(portable=True, tp=4)), [key_of(1)], [0], load=False)
    assert found(opened(memory, engine.spec(portable=True, tp=2)), [key_of(1)]) == [HIT]


def test_events_tell_what_was_stored(opened: Open) -> None:
    tier = opened(spec=engine.spec(events=True), enable_kv_events=True, locality="REMOTE")
    keys = [key_of(1), key_of(2)]
    moved(tier, keys, [0, 1], load=False)
    moved(tier, keys, [2, 3], load=True)
    (event,) = tier.take_events()
    assert (event.keys, event.removed, event.medium) == (keys, False, engine.Medium.STORAGE)
    assert event.locality is engine.Locality.REMOTE and list(tier.take_events()) == []
    quiet = opened()
    moved(quiet, [key_of(3)], [0], load=False)
    assert list(quiet.take_events()) == []


def test_misuse_fails_the_job(opened: Open) -> None:
    tier = opened()
    assert not moved(tier, [key_of(1), key_of(2)], [0], load=False).success
    assert not moved(tier, [key_of(1)], [32], load=True).success
    assert not moved(tier, [key_of(1)], [-1], load=False).success
    assert not moved(tier, [key_of(1), key_of(2)], [3, 3], load=True).success
    assert moved(tier, [], [], load=True).success
    assert tier.counts["failures_job_ValueError"] == 3


def test_a_store_that_fails_is_misses(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    tier = opened()
    whole = tier._cache._store
    tier._cache._store = mock.Mock(closed=False)
    refused = slackwater.RefusedError("not permitted", slackwater.ErrorCode.ROLE_NOT_PERMITTED)
    for call in ("exists_batch", "get_batch_into", "put_batch"):
        getattr(tier._cache._store, call).side_effect = refused
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert found(tier, [key_of(1)]) == [MISS]
            assert not moved(tier, [key_of(1)], [0], load=True).success
            assert not moved(tier, [key_of(1)], [0], load=False).success
    assert len([record for record in caplog.records if "not permitted" in record.getMessage()]) == 3
    tier._cache._store = whole


def held(tier: Any) -> tuple[Any, threading.Event, threading.Event]:
    """A store whose writes wait: the patch, that one has begun, and that they may go on."""
    begun, go = threading.Event(), threading.Event()
    whole = tier._cache.put

    def slow(*arguments: Any) -> list[bool | None]:
        begun.set()
        go.wait(60)
        return whole(*arguments)

    return mock.patch.object(tier._cache, "put", slow), begun, go


def test_nothing_waits_for_a_store_that_is_slow_but_the_drain(opened: Open) -> None:
    tier = opened(threads=1)
    patch, begun, go = held(tier)
    moved(tier, [key_of(9)], [9], load=False)
    with patch:
        for number in range(3):
            tier.submit_store(job_of([key_of(number)], [number], load=False))
        assert begun.wait(60) and list(tier.get_finished_jobs()) == [] and tier.has_pending_work()
        # Loads and questions have threads of their own.
        tier.submit_load(job_of([key_of(9)], [20], load=True))
        waited(tier)
        assert [result.success for result in tier.get_finished_jobs()] == [True]
        assert found(tier, [key_of(9)]) == [HIT]
        order: list[str] = []
        drained = threading.Thread(target=lambda: order.extend([tier.drain_jobs() or "drained"]))
        drained.start()
        # The two that had not begun end at once; the drain waits for the one that writes.
        waited(tier, 2)
        drained.join(0.2)
        order.append("gone on")
        go.set()
        drained.join(60)
        assert order == ["gone on", "drained"]
    assert [result.success for result in tier.get_finished_jobs()] == [False, False, True]


def test_shut_down_in_the_middle_every_job_has_a_result(opened: Open) -> None:
    memory = engine.Memory()
    tier = opened(memory, threads=1)
    patch, begun, go = held(tier)
    with patch:
        jobs = [job_of([key_of(number)], [number], load=False) for number in range(3)]
        for job in jobs:
            tier.submit_store(job)
        assert begun.wait(60)
        ending = threading.Thread(target=tier.shutdown)
        ending.start()
        waited(tier, 2)
        assert ending.is_alive()
        go.set()
        ending.join(60)
        assert not ending.is_alive()
    results = {result.job_id: result.success for result in tier.get_finished_jobs()}
    assert set(results) == {job.job_id for job in jobs} and not results[jobs[1].job_id] and not results[jobs[2].job_id]
    # Nothing of the tier refers to the memory any more.
    del memory.array
    memory.view.release()
    memory.mapping.close()
    late = job_of([key_of(9)], [0], load=True)
    tier.submit_load(late)
    assert [(result.job_id, result.success) for result in tier.get_finished_jobs()] == [(late.job_id, False)]
    assert tier.lookup(key_of(1), engine.ReqContext("late")) is MISS
    tier.on_schedule_end(None)
    tier.drain_jobs()


def test_a_frozen_store_holds_nothing_of_vllm_for_long(opened: Open, frozen: Any) -> None:
    """A server stops: each job and each step's question waited for its deadline, and a drain for all of them in line."""
    tier = opened(address=frozen.address, timeout=0.5, threads=1)
    frozen.stop()
    begun = time.monotonic()
    for number in range(100):
        tier.submit_store(job_of([key_of(number), key_of(number + 500)], [0, 1], load=False))
        tier.lookup(key_of(number + 1000), engine.ReqContext("request"))
        tier.on_schedule_end(None)
    tier.drain_jobs()
    assert not any(result.success for result in tier.get_finished_jobs())
    while tier.has_pending_work():
        answered(tier)
        tier.on_schedule_end(None)
    assert tier.lookup(key_of(1099), engine.ReqContext("request")) is MISS
    tier.shutdown()
    assert time.monotonic() - begun < 10
    frozen.go_on()


def test_shutting_down_ends_the_question_that_is_under_way(opened: Open, frozen: Any) -> None:
    """The end of vLLM waited for the whole deadline of a question to a server that was stopped."""
    tier = opened(address=frozen.address, timeout=60)
    frozen.stop()
    tier.lookup(key_of(1), engine.ReqContext("request"))
    tier.on_schedule_end(None)
    begun = time.monotonic()
    tier.shutdown()
    assert time.monotonic() - begun < 10
    frozen.go_on()


def test_questions_of_later_steps_wait_for_the_answer_together(opened: Open) -> None:
    """A question was put in line for every step that had a new one, on one thread."""
    tier, context, go = opened(), engine.ReqContext("request"), threading.Event()
    asked: list[int] = []

    def slow(names: list[str]) -> list[bool]:
        asked.append(len(names))
        go.wait(60)
        return [True] * len(names)

    with mock.patch.object(tier._cache, "exists", slow):
        for number in range(10):
            assert tier.lookup(key_of(number), context) is RETRY
            tier.on_schedule_end(None)
        go.set()
        answered(tier)
        assert tier.has_pending_work()
        tier.on_schedule_end(None)
        answered(tier)
    assert asked == [1, 9] and not tier.has_pending_work()
    assert [tier.lookup(key_of(number), context) for number in range(10)] == [HIT] * 10


def test_what_is_stored_meanwhile_is_found(opened: Open, address: str) -> None:
    """Requests overlapped without end, and a chunk that the first had missed was missed by all."""
    tier, key, name = opened(), key_of(1), "test_what_is_stored_meanwhile"
    first, second, third = (engine.ReqContext(name) for name in ("first", "second", "third"))
    tier.lookup(key, first)
    tier.on_schedule_end(None)
    answered(tier)
    assert tier.lookup(key, first) is MISS
    # Another vLLM stores it: a new request asks anew, and who has an answer keeps it.
    with mock.patch.object(tier._cache, "exists", lambda names: [True] * len(names)):
        assert tier.lookup(key, second) is RETRY and tier.lookup(key, first) is MISS
        tier.on_schedule_end(None)
        answered(tier)
    assert tier.lookup(key, second) is HIT and tier.lookup(key, first) is MISS
    # It cannot be loaded: both miss, until this vLLM stores it.
    assert not moved(tier, [key], [1], load=True, context=second).success
    assert tier.lookup(key, second) is MISS and tier.lookup(key, first) is MISS
    assert moved(tier, [key], [0], load=False).success
    assert [tier.lookup(key, one) for one in (first, second, third)] == [HIT] * 3
    for one in (first, second, third):
        tier.on_request_finished(one)
    assert tier._lookups._questions == {}
    with slackwater.connect(address) as client:
        assert client.list(pattern=name)


def test_an_answer_that_is_late_does_not_hide_what_was_stored(opened: Open) -> None:
    """The store was asked before the chunk was written, and answered after."""
    tier, key, context, go = opened(), key_of(1), engine.ReqContext("request"), threading.Event()

    def slow(names: list[str]) -> list[bool]:
        go.wait(60)
        return [False] * len(names)

    with mock.patch.object(tier._cache, "exists", slow):
        tier.lookup(key, context)
        tier.on_schedule_end(None)
        assert moved(tier, [key], [0], load=False).success
        go.set()
        answered(tier)
    assert tier.lookup(key, context) is HIT


def test_a_request_that_comes_back_asks_anew(opened: Open) -> None:
    tier, key = opened(), key_of(1)
    first, second = engine.ReqContext("first"), engine.ReqContext("second")
    for request in (first, second):
        tier.lookup(key, request)
        tier.on_schedule_end(None)
        answered(tier)
    tier.on_request_finished(first)
    assert tier.lookup(key, first) is RETRY and tier.lookup(key, second) is MISS


class Panic(BaseException):
    """What Rust raises when it panics is no Exception either."""


def test_a_panic_ends_jobs_and_questions_too(opened: Open) -> None:
    """The job was lost, and a drain waited for it for ever."""
    tier = opened()
    cache = tier._cache
    with mock.patch.object(cache, "put", side_effect=Panic), mock.patch.object(cache, "exists", side_effect=Panic):
        assert not moved(tier, [key_of(1)], [0], load=False).success
        assert found(tier, [key_of(1)]) == [MISS]
    tier.drain_jobs()


def test_names_with_colons_do_not_mix(opened: Open) -> None:
    """The keys of tag `a` and model `b:c` began as those of tag `a:b` and model `c`."""
    module = sys.modules["slackwater.integrations.vllm"]
    names = [module.prefix_of(engine.spec(model=model), tag, 4096) for tag, model in (("a", "b:c"), ("a:b", "c"))]
    assert names[0] != names[1] and all(name.count(":") == 4 for name in names)
    assert len({module.prefix_of(engine.spec(), tag, 4096) for tag in ("a:b", "a%3Ab", "a%253Ab")}) == 3


def test_a_store_inside_the_process(opened: Open) -> None:
    memory = engine.Memory()
    tier = opened(memory, store={"memory": "8MiB", "log": "off"})
    memory.fill(1, [0])
    assert moved(tier, [key_of(1)], [0], load=False).success and moved(tier, [key_of(1)], [1], load=True).success
    assert memory.taken([0]) == memory.taken([1])


def read_only() -> memoryview:
    return memoryview(np.zeros((4, 64), np.int8)).toreadonly()


def strided() -> memoryview:
    return memoryview(np.zeros((4, 64), np.int8)[:, ::2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adress": "tcp://127.0.0.1:1"}, "no option 'adress'"),
        ({"threads": 0}, "threads: 0: at least one"),
        ({"primary_kv_view": read_only()}, "read-only or not contiguous"),
        ({"primary_kv_view": strided()}, "read-only or not contiguous"),
        ({"enable_kv_events": True}, "vLLM's own KV cache events are off"),
        ({"locality": "HERE"}, "HERE"),
        ({"tag": "t" * 900}, "at most 800 bytes"),
        ({"store": {"memory": "8MiB"}, "offloading_spec": engine.spec(replicas=2)}, "2 processes of the engine"),
    ],
    ids=str,
)
def test_a_wrong_configuration_ends_the_start(module: Any, changes: dict[str, Any], message: str) -> None:
    given = {"offloading_spec": engine.spec(), "primary_kv_view": engine.Memory().view, "tier_type": "SlackwaterTier"}
    with pytest.raises(ValueError, match=message):
        module.SlackwaterTier(**{**given, **changes})


def test_without_vllm_the_import_says_what_is_missing() -> None:
    with mock.patch.dict("sys.modules", {"vllm.v1.kv_offload.tiering.base": None}):
        sys.modules.pop("slackwater.integrations.vllm", None)
        with pytest.raises(ImportError, match="loaded by vLLM 0.33 or newer"):
            engine.importlib.import_module("slackwater.integrations.vllm")


def test_vllms_own_code_drives_the_tier(address: str) -> None:
    """`VLLM_PYTHON` names an interpreter that has vLLM; no GPU is needed."""
    print(driven("vllm", Path(__file__).with_name("drive_vllm.py"), address))
