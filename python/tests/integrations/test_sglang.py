"""HiCache's backend, driven as SGLang's cache controller drives it."""

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sglang_double as engine
import slackwater
from driven import driven
from slackwater.integrations.chains import UNPLACED

Backend = Any
Open = Callable[..., Backend]


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The module of the backend, over the double of SGLang."""
    with mock.patch.dict("sys.modules"):
        yield engine.loaded()


@pytest.fixture
def opened(module: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens backends of one deployment, with keys of the test's own."""
    backends: list[Backend] = []

    def backend(pool: Any = None, *, extra: dict[str, Any] | None = None, v1: int = 1, **ranks: Any) -> Backend:
        settings = {"slackwater": {"address": address}, "interface_v1": v1, "extra_backend_tag": request.node.name}
        made = module.HiCacheSlackwater(engine.Config(extra_config={**settings, **(extra or {})}, **ranks), {})
        backends.append(made)
        made.register_mem_pool_host(engine.Pool() if pool is None else pool)
        made.on_host_pools_registered()
        return made

    yield backend
    for made in backends:
        made.close()


def hashes(count: int, start: int = 0) -> list[str]:
    """Page hashes as SGLang makes them."""
    return [f"{start + number:064x}" for number in range(count)]


# Pages of the KV pool.


@pytest.mark.parametrize(
    ("pool", "mla"),
    [
        (engine.Pool("page_first"), False),
        (engine.Pool("page_first_direct", parts=1), True),
        (engine.Pool("layer_first"), False),
        (engine.DeepPool("layer_first"), False),
        (engine.DeepPool("layer_first", parts=1), True),
        (engine.Pool("page_first", tokens=1), False),
    ],
    ids=["page first", "MLA", "layer first", "copied", "copied MLA", "pages of one token"],
)
@pytest.mark.parametrize("count", [1, 5, 32])
def test_pages_come_back_in_every_layout(opened: Open, pool: Any, mla: bool, count: int) -> None:
    backend, keys = opened(pool, is_mla_model=mla), hashes(count)
    pages, others = list(range(count)), list(range(32, 32 + count))
    pool.wipe()
    pool.fill(count, pages)
    wanted = pool.taken(pages)
    assert backend.batch_exists(keys) == 0
    # A miss leaves the pool as it is.
    pool.fill(99, others)
    before = pool.taken(others)
    assert backend.batch_get_v1(keys, pool.indices(others)) == [False] * count and pool.taken(others) == before
    assert backend.batch_set_v1(keys, pool.indices(pages), engine.ExtraInfo([])) == [True] * count
    assert backend.batch_exists([*keys, "none"]) == count
    pool.wipe()
    assert backend.batch_get_v1(keys, pool.indices(others), engine.ExtraInfo([])) == [True] * count
    assert pool.taken(others) == wanted
    assert not any(pool.taken(pages))
    assert "failures" not in backend.counts


def test_what_is_there_is_not_written_again(opened: Open) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(3)
    pool.fill(1, [0, 1, 2])
    assert backend.batch_set_v1(keys[:2], pool.indices([0, 1])) == [True, True]
    wanted = pool.taken([0, 1, 2])
    before = backend.counts["write_new"]
    pool.fill(2, [0, 1])
    assert backend.batch_set_v1(keys, pool.indices([0, 1, 2])) == [True] * 3
    assert backend.counts["write_new"] - before == 2
    pool.wipe()
    assert backend.batch_get_v1(keys, pool.indices([0, 1, 2])) == [True] * 3
    assert pool.taken([0, 1, 2]) == wanted


def test_a_hole_is_a_miss_and_the_pages_after_it_are_not(opened: Open, address: str) -> None:
    """Of the keys and values of a page, one may be evicted before the other."""
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(4)
    pool.fill(1, [0, 1, 2, 3])
    wanted = [pool.taken([page]) for page in range(4)]
    backend.batch_set_v1(keys, pool.indices([0, 1, 2, 3]))
    with slackwater.connect(address) as client:
        assert client.remove_batch(client.list(pattern=f"test_a_hole_is_a_miss.*:0:{keys[1]}"), force=True) == [True]
    assert backend.batch_exists(keys) == 1
    assert backend.batch_exists(keys[2:]) == 2
    pool.wipe()
    assert backend.batch_get_v1(keys, pool.indices([4, 5, 6, 7])) == [True, False, True, True]
    assert [pool.taken([page]) for page in (4, 6, 7)] == [wanted[0], wanted[2], wanted[3]]


def test_half_a_page_is_no_page(opened: Open, address: str) -> None:
    pool = engine.Pool()
    backend, key = opened(pool), hashes(1)
    pool.fill(1, [0])
    backend.batch_set_v1(key, pool.indices([0]))
    with slackwater.connect(address) as client:
        halves = client.list(pattern=f"test_half_a_page.*{key[0]}")
        assert len(halves) == 2
        client.remove(halves[1], force=True)
    assert backend.batch_exists(key) == 0
    assert backend.batch_get_v1(key, pool.indices([1])) == [False]
    assert backend.batch_set_v1(key, pool.indices([0])) == [True]
    assert backend.batch_exists(key) == 1


def test_ranks_have_bytes_of_their_own(opened: Open) -> None:
    pools = [engine.Pool() for _ in range(4)]
    backends = [opened(pool, tp_rank=rank, tp_size=4) for rank, pool in enumerate(pools)]
    keys = hashes(3)
    for rank, (pool, backend) in enumerate(zip(pools[:3], backends[:3], strict=True)):
        pool.fill(rank, [0, 1, 2])
        assert backend.batch_set_v1(keys, pool.indices([0, 1, 2])) == [True] * 3
    assert [backend.batch_exists(keys) for backend in backends] == [3, 3, 3, 0]
    for pool, backend in zip(pools[:3], backends[:3], strict=True):
        wanted = pool.taken([0, 1, 2])
        pool.wipe()
        assert backend.batch_get_v1(keys, pool.indices([0, 1, 2])) == [True] * 3
        assert pool.taken([0, 1, 2]) == wanted


def test_replicated_pages_are_written_once_for_all_ranks(opened: Open) -> None:
    writer, reader = engine.Pool(parts=1), engine.Pool(parts=1)
    writing = opened(writer, is_mla_model=True, tp_rank=0, tp_size=2)
    reading = opened(reader, is_mla_model=True, tp_rank=1, tp_size=2)
    writer.fill(3, [0, 1])
    writing.batch_set_v1(hashes(2), writer.indices([0, 1]))
    assert reading.batch_exists(hashes(2)) == 2
    assert reading.batch_get_v1(hashes(2), reader.indices([5, 6])) == [True, True]
    assert reader.taken([5, 6]) == writer.taken([0, 1])


@pytest.mark.parametrize(
    "other",
    [
        {"pp_rank": 1, "pp_size": 2},
        {"attn_cp_rank": 1, "attn_cp_size": 2},
        {"tp_size": 2},
        {"model_name": "org/other"},
        {"extra": {"extra_backend_tag": "other"}},
        {"pool": engine.Pool("page_first_direct")},
        {"pool": engine.Pool(tokens=8)},
    ],
    ids=str,
)
def test_bytes_of_other_deployments_are_not_taken(opened: Open, other: dict[str, Any]) -> None:
    pool = engine.Pool()
    pool.fill(1, [0])
    opened(pool).batch_set_v1(hashes(1), pool.indices([0]))
    assert opened().batch_exists(hashes(1)) == 1
    ranks = {name: value for name, value in other.items() if name not in ("pool", "extra")}
    assert opened(other.get("pool"), extra=other.get("extra"), **ranks).batch_exists(hashes(1)) == 0


def test_deployments_of_other_sizes_share_split_heads(opened: Open) -> None:
    """With heads split by the least common multiple, two ranks read what one wrote."""
    whole = engine.Pool("page_head")
    halves = [engine.Pool("page_head") for _ in range(2)]
    for half in halves:
        half.heads = 2
        half.kv_buffer = np.zeros((2, half.size, half.layers, 2, half.dim), half.dtype)
    writer = opened(whole, tp_size=1, tp_lcm_size=2, should_split_heads=True)
    readers = [
        opened(half, tp_rank=rank, tp_size=2, tp_lcm_size=2, should_split_heads=True) for rank, half in enumerate(halves)
    ]
    # In this layout a page has its heads one after another.
    memory = whole.kv_buffer.reshape(2, -1)
    memory[:] = np.arange(memory.size).reshape(memory.shape) % 65521
    assert writer.batch_set_v1(hashes(2), whole.indices([0, 1])) == [True, True]
    for rank, (half, reader) in enumerate(zip(halves, readers, strict=True)):
        assert reader.batch_exists(hashes(2)) == 2
        assert reader.batch_get_v1(hashes(2), half.indices([0, 1])) == [True, True]
        page = half.page_size * half.layers * half.dim * 2
        for part in range(2):
            for at in range(2):
                wanted = memory[part, at * 2 * page + rank * page :][:page]
                assert (half.kv_buffer.reshape(2, -1)[part, at * page :][:page] == wanted).all()


# Values of pages that SGLang copies.


def test_pages_that_sglang_copies(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    pool = engine.Pool("layer_first")
    backend, keys = opened(pool, v1=0), hashes(3)
    assert "interface_v1 is not set" in caplog.text
    pool.fill(1, [0, 1, 2])
    pages = [pool.get_data_page(page * pool.page_size) for page in range(3)]
    assert not backend.exists(keys[0]) and backend.get(keys[0], pool.get_dummy_flat_data_page()) is None
    assert backend.set(keys[0], pages[0]) and backend.batch_set(keys, pages)
    assert backend.exists(keys[0]) and backend.batch_exists([*keys, "none"]) == 3
    targets = [pool.get_dummy_flat_data_page() for _ in range(4)]
    read = backend.batch_get([*keys[:2], "none", keys[2]], targets)
    assert read[2] is None
    assert [page.tobytes() for page in (read[0], read[1], read[3])] == [page.tobytes() for page in pages]
    assert read[0] is targets[0]
    # A tensor that is not contiguous is laid out first.
    backend.set("turned", pool.kv_buffer[0, :, :4].transpose(1, 0, 2, 3).view(engine.Tensor))
    assert backend.exists("turned")


# Several pools.


def hybrid(opened: Open, kind: Any = engine.Pool) -> tuple[Backend, dict[Any, Any]]:
    pools = {
        engine.PoolName.KV: engine.Pool(),
        engine.PoolName.MAMBA: engine.Pool(tokens=1, parts=1),
        engine.PoolName.INDEXER: kind("layer_first", parts=1),
    }
    backend = opened(pools[engine.PoolName.KV])
    for name, pool in pools.items():
        backend.register_mem_host_pool_v2(pool, name)
    return backend, pools


def transfer(pools: dict[Any, Any], name: Any, keys: list[str], pages: list[int], **more: Any) -> engine.PoolTransfer:
    return engine.PoolTransfer(name, pools[name].indices(pages) if pages else None, keys, **more)


@pytest.mark.parametrize("kind", [engine.Pool, engine.DeepPool])
def test_each_pool_moves_its_pages(opened: Open, kind: Any) -> None:
    backend, pools = hybrid(opened, kind)
    keys, names = hashes(3), list(pools)
    for seed, pool in enumerate(pools.values()):
        pool.fill(seed, [0, 1, 2])
    moved = [transfer(pools, name, keys, [0, 1, 2]) for name in names]
    assert backend.batch_set_v2(moved) == {name: [True] * 3 for name in names}
    wanted = {name: pool.taken([0, 1, 2]) for name, pool in pools.items()}
    for pool in pools.values():
        pool.wipe()
    back = [transfer(pools, name, [*keys, "none"], [4, 5, 6, 7]) for name in names]
    assert backend.batch_get_v2(back, engine.ExtraInfo([])) == {name: [True] * 3 + [False] for name in names}
    assert {name: pool.taken([4, 5, 6]) for name, pool in pools.items()} == wanted


KV, MAMBA, INDEXER = engine.PoolName.KV, engine.PoolName.MAMBA, engine.PoolName.INDEXER
ALL, TRAILING, GROUPS = engine.PoolHitPolicy


@pytest.mark.parametrize(
    ("there", "asked", "usable", "hits"),
    [
        # KV pages, pages of the pools that are there; what is asked; usable prefixes and each pool's own reach.
        ({KV: [0, 1, 2, 3]}, [], [1, 2, 3, 4], {KV: 4}),
        ({KV: []}, [(INDEXER, ALL, 4)], [], {}),
        ({KV: [0, 1, 3], INDEXER: [0, 1, 2, 3]}, [(INDEXER, ALL, 4)], [1, 2], {KV: 2, INDEXER: 2}),
        ({KV: [0, 1, 2, 3], INDEXER: [0, 1, 3]}, [(INDEXER, ALL, 4)], [1, 2], {KV: 4, INDEXER: 2}),
        ({KV: [0, 1, 2, 3], INDEXER: [1, 2, 3]}, [(INDEXER, ALL, 4)], [], {KV: 4}),
        ({KV: [0, 1, 2, 3], MAMBA: [1, 3]}, [(MAMBA, TRAILING, 1)], [2, 4], {KV: 4, MAMBA: 4}),
        ({KV: [0, 1, 2], MAMBA: [1, 3]}, [(MAMBA, TRAILING, 1)], [2], {KV: 3, MAMBA: 2}),
        ({KV: [0, 1, 2, 3], MAMBA: [0, 2, 3]}, [(MAMBA, TRAILING, 2)], [1, 4], {KV: 4, MAMBA: 4}),
        (
            {KV: [0, 1, 2, 3], MAMBA: [1, 3], INDEXER: [0, 1, 2]},
            [(MAMBA, TRAILING, 1), (INDEXER, ALL, 4)],
            [2],
            {KV: 4, MAMBA: 4, INDEXER: 3},
        ),
        (
            {KV: [0, 1, 2, 3], MAMBA: [1], INDEXER: [0]},
            [(MAMBA, TRAILING, 1), (INDEXER, ALL, 4)],
            [],
            {KV: 4, MAMBA: 2, INDEXER: 1},
        ),
        # Blocks of three pages in groups of two keys.
        ({KV: [0, 1, 2, 3], INDEXER: [0, 1, 2]}, [(INDEXER, GROUPS, 4)], [1, 2, 3, 4], {KV: 4, INDEXER: 3}),
        ({KV: [0, 1, 2, 3], INDEXER: [0, 1, 2, 3]}, [(INDEXER, GROUPS, 4)], [1, 2, 3, 4], {KV: 4, INDEXER: 4}),
        ({KV: [0, 1], INDEXER: [0, 1, 2, 3]}, [(INDEXER, GROUPS, 1)], [1, 2], {KV: 2}),
        ({KV: [0, 1, 2, 3], INDEXER: [2, 3]}, [(INDEXER, GROUPS, 4)], [1, 2, 3, 4], {KV: 4}),
    ],
)
def test_prefixes_that_all_pools_serve(
    opened: Open, there: Any, asked: Any, usable: list[int], hits: dict[Any, int]
) -> None:
    backend, pools = hybrid(opened)
    keys = hashes(4)
    for name, pages in there.items():
        if pages:
            backend.batch_set_v2([transfer(pools, name, [keys[page] for page in pages], pages)])
    groups = {"block_pages": 3, "group_pages": 2}
    transfers = [transfer(pools, name, keys[:count], [], hit_policy=policy, **groups) for name, policy, count in asked]
    found = backend.batch_exists_v2(keys, transfers, engine.ExtraInfo([]))
    assert found.kv_hit_pages == (usable[-1] if usable else 0)
    assert found.restorable_prefix_pages == usable
    assert found.extra_pool_hit_pages == hits


def test_a_pool_without_memory_is_served_by_the_others(opened: Open) -> None:
    backend = opened(engine.LogicalPool())
    pool = engine.Pool(parts=1)
    backend.register_mem_host_pool_v2(pool, INDEXER)
    pools, keys = {INDEXER: pool}, hashes(3)
    backend.batch_set_v2([transfer(pools, INDEXER, keys[:2], [0, 1])])
    assert backend.batch_get_v1(keys, np.arange(12)) == backend.batch_set_v1(keys, np.arange(12)) == [True] * 3
    assert backend.batch_exists_v2(keys, [transfer(pools, INDEXER, keys, [])]).kv_hit_pages == 2
    assert backend.batch_exists_v2(keys).kv_hit_pages == backend.batch_exists(keys) == 0


def test_state_is_each_ranks_own_where_pages_are_replicated(opened: Open) -> None:
    pools, backends = [], []
    for rank in range(2):
        kinds = {MAMBA: engine.Pool(tokens=1, parts=1), INDEXER: engine.Pool(parts=1), engine.PoolName.DRAFT: engine.Pool()}
        pools.append(kinds)
        backends.append(opened(engine.Pool(parts=1), is_mla_model=True, tp_rank=rank, tp_size=2))
        for name, pool in pools[rank].items():
            pool.fill(rank, [0])
            backends[rank].register_mem_host_pool_v2(pool, name)
    backends[0].batch_set_v2([transfer(pools[0], name, hashes(1), [0]) for name in pools[0]])
    read = backends[1].batch_get_v2([transfer(pools[1], name, hashes(1), [0]) for name in pools[1]])
    assert read == {MAMBA: [False], INDEXER: [True], engine.PoolName.DRAFT: [False]}


# Chains.


def test_chains_are_what_sglang_tells(opened: Open) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(4)
    store = backend._cache._store = mock.Mock(wraps=backend._cache._store, closed=False)
    told = [(None, None), ([], (None, 0)), (keys[:3], (keys[2], 6))]
    for prefix, wanted in told:
        backend.batch_set_v1(keys[3:], pool.indices([3]), engine.ExtraInfo(prefix))
        backend.batch_get_v1(keys[3:], pool.indices([3]), engine.ExtraInfo(prefix))
        for call in (store.put_batch, store.get_batch_into):
            chain = call.call_args.kwargs["chain"]
            if wanted is None:
                assert chain is UNPLACED
                continue
            parent, position = wanted
            assert f"position={position}," in repr(chain)
            # The last value of the page before is the parent of the first of this one.
            assert "parent=None" in repr(chain) if parent is None else f":1:{parent}" in repr(chain)
            assert call.call_args.args[0][0].endswith(f":0:{keys[3]}")


def test_pages_that_sglang_copies_have_no_known_place(opened: Open) -> None:
    """The first page of each such call was told to the store as the root of a chain."""
    backend, keys, pages = opened(engine.Pool()), hashes(2), [np.zeros(64, np.int8) for _ in range(2)]
    store = backend._cache._store = mock.Mock(wraps=backend._cache._store, closed=False)
    assert backend.batch_set(keys, pages) and backend.set(keys[0], pages[0])
    assert [page is not None for page in backend.batch_get(keys, pages)] == [True, True]
    for call in (*store.put_batch.call_args_list, *store.get_batch_into.call_args_list):
        assert call.kwargs["chain"] is UNPLACED


# Misuse, failures, threads, the end.


def test_misuse_is_a_miss(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(3)
    rows = pool.indices([0, 1, 2])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert backend.batch_set_v1(keys, rows[:-1]) == [False] * 3
            assert backend.batch_get_v1(keys, None) == [False] * 3
        assert backend.batch_set_v1(["k" * 2000], rows[:4]) == [False]
        assert backend.batch_get_v1([keys[0], keys[0]], pool.indices([0, 0])) == [False, False]
        assert backend.batch_get_v2([engine.PoolTransfer(MAMBA, rows, keys)]) == {MAMBA: [False] * 3}
        assert backend.batch_exists_v2(keys, [engine.PoolTransfer(MAMBA, None, keys)]).kv_hit_pages == 0
        assert backend.batch_get(keys, [None] * 3) == [None] * 3 and backend.batch_get(keys) == [None] * 3
        assert backend.batch_set(keys) is False and backend.set(keys[0]) is False
        assert backend.batch_set_v1([], rows[:0]) == [] and backend.batch_exists([]) == 0
    told = [record for record in caplog.records if "rows are given" in record.getMessage()]
    assert len(told) == 1
    assert backend.counts["failures_move_ValueError"] == 7


def test_a_pool_that_fails_is_a_miss(opened: Open) -> None:
    pool = engine.Pool()
    backend = opened(pool)
    with mock.patch.object(pool, "get_page_buffer_meta", side_effect=AssertionError("not aligned")):
        assert backend.batch_set_v1(hashes(1), pool.indices([0])) == [False]
    assert backend.counts["failures_address_AssertionError"] == 1


def test_a_store_that_fails_is_a_miss_and_heals(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(2)
    backend.batch_set_v1(keys, pool.indices([0, 1]))
    whole = backend._cache._store
    refused = slackwater.RefusedError("not permitted", slackwater.ErrorCode.ROLE_NOT_PERMITTED)
    backend._cache._store = mock.Mock(closed=False)
    for call in ("exists_batch", "get_batch_into", "put_batch", "remove_batch", "list"):
        getattr(backend._cache._store, call).side_effect = refused
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert backend.batch_exists(keys) == 0
            assert backend.batch_get_v1(keys, pool.indices([0, 1])) == [False, False]
            assert backend.batch_set_v1(keys, pool.indices([0, 1])) == [False, False]
    assert len([record for record in caplog.records if "not permitted" in record.getMessage()]) == 3
    assert backend.counts["failures"] == 9 and backend.counts["failures_read_role_not_permitted"] == 3
    backend._cache._store = whole
    assert backend.batch_exists(keys) == 2


def test_a_value_of_another_length_is_a_miss(opened: Open, address: str) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(2)
    backend.batch_set_v1(keys, pool.indices([0, 1]))
    with slackwater.connect(address) as client:
        names = [name for key in keys for name in client.list(pattern=f"test_a_value_of_another.*{key}")]
        client.put(names[0], b"short", upsert=True)
        client.put(names[2], bytes(1 << 16), upsert=True)
    assert backend.batch_get_v1(keys, pool.indices([0, 1])) == [False, False]
    assert backend.counts["failures"] == 2


def test_threads_move_pages_at_once(opened: Open) -> None:
    pool = engine.Pool(pages=128)
    backend, wrong = opened(pool), []

    def work(number: int) -> None:
        pages, keys = list(range(number * 16, number * 16 + 8)), hashes(8, start=number * 100)
        others = [page + 8 for page in pages]
        pool.fill(number, pages)
        for _ in range(10):
            if backend.batch_set_v1(keys, pool.indices(pages)) != [True] * 8 or backend.batch_exists(keys) != 8:
                wrong.append(number)
            if backend.batch_get_v1(keys, pool.indices(others)) != [True] * 8 or pool.taken(others) != pool.taken(pages):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and "failures" not in backend.counts


def test_closed_in_the_middle(opened: Open) -> None:
    pool = engine.Pool()
    backend, keys = opened(pool), hashes(4)
    begun, done = threading.Event(), []

    def work() -> None:
        while not backend._cache.closed:
            done.append(backend.batch_set_v1(keys, pool.indices([0, 1, 2, 3])))
            done.append(backend.batch_get_v1(keys, pool.indices([0, 1, 2, 3])))
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    backend.close()
    backend.close()
    thread.join(60)
    assert not thread.is_alive() and all(len(one) == 4 for one in done)
    assert backend.batch_exists(keys) == 0 and backend.batch_exists_v2(keys).kv_hit_pages == 0
    assert backend.batch_get_v1(keys, pool.indices([0, 1, 2, 3])) == [False] * 4
    assert backend.clear() is False


def test_clear_removes_this_model_alone(opened: Open) -> None:
    pool = engine.Pool()
    pool.fill(1, [0, 1])
    ranks = [opened(pool, tp_rank=rank, tp_size=2) for rank in range(2)]
    other = opened(pool, model_name="org/other")
    for backend in (*ranks, other):
        backend.batch_set_v1(hashes(2), pool.indices([0, 1]))
        # A reader's lease must not keep what the engine gives up, such as pages of old weights.
        backend.batch_get_v1(hashes(2), pool.indices([2, 3]))
    assert ranks[0].clear() is True
    assert [backend.batch_exists(hashes(2)) for backend in (*ranks, other)] == [0, 0, 2]


def test_clear_removes_no_model_whose_name_goes_on_after_a_colon(opened: Open) -> None:
    """The pages of `m:v2` went with those of `m`."""
    pool = engine.Pool()
    models = [opened(pool, model_name=name) for name in ("m", "m:v2")]
    for backend in models:
        backend.batch_set_v1(hashes(1), pool.indices([0]))
    assert models[0].clear() is True
    assert [backend.batch_exists(hashes(1)) for backend in models] == [0, 1]


def test_metrics_have_the_transfers_since_the_last_call(opened: Open) -> None:
    pool = engine.Pool()
    backend = opened(pool, enable_storage_metrics=True)
    assert opened().get_stats() is None
    backend.batch_set_v1(hashes(2), pool.indices([0, 1]))
    backend.batch_get_v1(hashes(3), pool.indices([0, 1, 2]))
    stats = backend.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([2], [3])
    assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
    assert backend.get_stats().backup_pgs == []


def test_many_pages_in_one_question(opened: Open) -> None:
    assert opened().batch_exists(hashes(20_000)) == 0


# The start.


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"slackwater": {"adress": "tcp://127.0.0.1:1"}}, "no option 'adress'"),
        ({"slackwater": "tcp://127.0.0.1:1"}, "a table of options is needed"),
        ({"address": "tcp://127.0.0.1:1"}, "address: options of the store belong in"),
        ({"slackwater": {"address": "here"}}, "address:"),
        ({"slackwater": {"tenant": 5}}, "tenant: 5 is no name"),
        ({"slackwater": {"store": "8GiB"}}, "store: a table of arguments"),
        ({"slackwater": {"store": {"memory": "8MiB"}, "address": "tcp://127.0.0.1:1"}}, "address and store"),
        ({"slackwater": {"store": {"memory": "8MiB"}}}, "2 processes of the engine need one store"),
        ({"extra_backend_tag": "t" * 900}, "at most 800 bytes"),
    ],
    ids=str,
)
def test_a_wrong_configuration_ends_the_start(module: Any, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module.HiCacheSlackwater(engine.Config(extra_config=extra, tp_size=2), {})


def test_a_store_inside_the_process_is_not_each_replicas_own(module: Any) -> None:
    """With data-parallel attention each rank opened a store of its own, and found nothing of the others'."""
    extra = {"slackwater": {"store": {"memory": "8MiB", "log": "off"}}}
    with pytest.raises(ValueError, match="data-parallel ranks need one store"):
        module.HiCacheSlackwater(engine.Config(extra_config=extra, dp_rank=1), {})


def test_no_server_ends_the_start(module: Any) -> None:
    extra = {"slackwater": {"address": "tcp://127.0.0.1:9", "timeout": 0.2}}
    with pytest.raises(slackwater.RetryError, match="no server at tcp://127.0.0.1:9"):
        module.HiCacheSlackwater(engine.Config(extra_config=extra), {})


def test_a_pool_that_can_be_neither_addressed_nor_copied_ends_the_start(opened: Open) -> None:
    pool = mock.Mock(spec=["layout", "dtype", "kv_buffer", "page_size", "get_page_buffer_meta"], layout="odd", page_size=4)
    pool.get_page_buffer_meta.side_effect = ValueError("Unsupported layout: odd")
    with pytest.raises(ValueError, match="pool kv can be neither addressed nor copied: ValueError: Unsupported layout: odd"):
        opened(pool)
    # Heads are split in one layout alone.
    with pytest.raises(ValueError, match="pool kv can be neither addressed nor copied: AssertionError"):
        opened(engine.Pool("page_first"), tp_lcm_size=2, should_split_heads=True)


def test_a_store_inside_the_process_serves_one_rank(module: Any) -> None:
    pool = engine.Pool()
    extra = {"slackwater": {"store": {"memory": "8MiB", "log": "off"}}, "interface_v1": 1}
    backend = module.HiCacheSlackwater(engine.Config(extra_config=extra), {})
    backend.register_mem_pool_host(pool)
    pool.fill(1, [0])
    assert backend.batch_set_v1(hashes(1), pool.indices([0])) == [True]
    assert backend.batch_get_v1(hashes(1), pool.indices([1])) == [True]
    assert pool.taken([0]) == pool.taken([1])
    backend.close()


def test_without_sglang_the_import_says_what_is_missing() -> None:
    with mock.patch.dict("sys.modules", {"sglang.srt.mem_cache.hicache_storage": None}):
        sys.modules.pop("slackwater.integrations.sglang", None)
        with pytest.raises(ImportError, match="loaded by SGLang 0.5.23 or newer"):
            importlib.import_module("slackwater.integrations.sglang")


def test_sglangs_own_code_drives_the_backend(address: str) -> None:
    """`SGLANG_PYTHON` names an interpreter that has SGLang; no GPU is needed."""
    print(driven("sglang", Path(__file__).with_name("drive_sglang.py"), address))
