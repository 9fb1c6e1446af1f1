"""Drives the backend by SGLang's own code: its factory, its controller's transfers and queries, and its pools on the CPU.

Run by an interpreter that has SGLang, with the address of a store. Prints the version of SGLang when all is right.
"""

import importlib.metadata
import itertools
import os
import queue
import random
import sys

import torch
from sglang.srt.managers.cache_controller import HiCacheController, PrefetchOperation, StorageOperation
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    count_pool_hits,
)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGE, PAGES, LAYERS, HEADS, DIM = 4, 512, 3, 2, 8


def pool_of(kind: type, layout: str):
    """A pool of SGLang with memory of the CPU; its constructor needs the pool of a device."""
    pool = kind.__new__(kind)
    vars(pool).update(layout=layout, page_size=PAGE, size=PAGE * PAGES, layer_num=LAYERS, head_num=HEADS, head_dim=DIM)
    vars(pool).update(dtype=torch.bfloat16, device="cpu", pin_memory=False, dcp_size=1, dcp_rank=0, page_num=PAGES)
    vars(pool).update(v_head_dim=DIM, _size_per_token=LAYERS * DIM * 2)
    tokens = PAGE * PAGES
    if kind is MLATokenToKVPoolHost:
        pool.kv_cache_dim = DIM
        shapes = {
            "layer_first": (LAYERS, tokens, 1, DIM),
            "page_first": (tokens, LAYERS, 1, DIM),
            "page_first_direct": (PAGES, LAYERS, PAGE, 1, DIM),
        }
    else:
        shapes = {
            "layer_first": (2, LAYERS, tokens, HEADS, DIM),
            "page_first": (2, tokens, LAYERS, HEADS, DIM),
            "page_first_direct": (2, PAGES, LAYERS, PAGE, HEADS, DIM),
            "page_head": (2, PAGES, HEADS, PAGE, LAYERS, DIM),
        }
    pool.kv_buffer = torch.randn(shapes[layout]).to(torch.bfloat16)
    return pool


def config_of(pool, extra: dict, rank: int, ranks: int) -> HiCacheStorageConfig:
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=isinstance(pool, MLATokenToKVPoolHost),
        enable_storage_metrics=True,
        is_page_first_layout=pool.layout.startswith("page_first"),
        model_name="org/model",
        extra_config=extra,
    )


def backend_of(pool, address: str, tag: str, v1: int, rank: int = 0, ranks: int = 1):
    extra = {
        "backend_name": "slackwater",
        "module_path": "slackwater.integrations.sglang",
        "class_name": "HiCacheSlackwater",
        "interface_v1": v1,
        "extra_backend_tag": tag,
        "slackwater": {"address": address},
    }
    backend = StorageBackendFactory.create_backend("dynamic", config_of(pool, extra, rank, ranks), pool)
    backend.register_mem_pool_host(pool)
    backend.register_mem_host_pool_v2(pool, PoolName.KV)
    backend.on_host_pools_registered()
    return backend


def controller_of(pool, backend, v1: int):
    """SGLang's controller, as far as it moves pages between a pool and a backend."""
    controller = HiCacheController.__new__(HiCacheController)
    controller.storage_backend, controller.storage_host_pool, controller.page_size = backend, pool, PAGE
    controller.prefetch_sync_queue = queue.Queue()
    controller.page_get_func = controller._page_get_zero_copy if v1 else controller._generic_page_get
    controller.page_set_func = controller._page_set_zero_copy if v1 else controller._generic_page_set
    return controller


def rows(pages):
    return torch.cat([torch.arange(PAGE, dtype=torch.int64) + page * PAGE for page in pages])


def pages_of(pool, pages):
    return [pool.get_data_page(page * PAGE).clone() for page in pages]


def write_and_read(kind: type, layout: str, v1: int, address: str, tag: str) -> None:
    """300 pages, in three batches of the controller: half of them written, the rest missing."""
    pool = pool_of(kind, layout)
    backend = backend_of(pool, address, tag, v1)
    controller = controller_of(pool, backend, v1)
    tokens = [random.randrange(1 << 20) for _ in range(300 * PAGE)]
    query = PrefetchOperation("first", tokens, prefix_keys=[])
    assert controller._storage_hit_query(query) == ([], 0)
    hashes = query.all_hash_values
    places = random.sample(range(PAGES // 2), 200)
    write = StorageOperation(rows(places), tokens, hash_value=hashes[:200], prefix_keys=[])
    controller._page_backup(write)
    assert write.completed_tokens == 200 * PAGE, write.completed_tokens
    wanted = pages_of(pool, places)
    found, hit = controller._storage_hit_query(query)
    assert found == hashes[:200] and hit == 200 * PAGE
    read = PrefetchOperation("second", tokens, prefix_keys=[])
    read.hash_value, targets = hashes[:210], [PAGES // 2 + number for number in range(210)]
    read.host_indices = rows(targets)
    assert controller._page_transfer(read) == 200
    assert all(torch.equal(one, other) for one, other in zip(pages_of(pool, targets[:200]), wanted, strict=True))
    stats = backend.get_stats()
    assert stats.backup_pgs and stats.prefetch_pgs
    assert "failures" not in backend.counts, backend.counts
    backend.clear()
    assert controller._storage_hit_query(query) == ([], 0)
    backend.close()


def several_pools(address: str) -> None:
    """Pages of an MLA model on two ranks, and a pool of another layout beside them."""
    for rank in range(2):
        pool, side = pool_of(MLATokenToKVPoolHost, "page_first"), pool_of(MLATokenToKVPoolHost, "layer_first")
        backend = backend_of(pool, address, "several", 1, rank, 2)
        backend.register_mem_host_pool_v2(side, PoolName.INDEXER)
        keys = [f"{number:064x}" for number in range(10)]
        if rank == 0:
            written = [PoolTransfer(PoolName.KV, rows(range(10)), keys=keys)]
            written += [PoolTransfer(PoolName.INDEXER, rows(range(7)), keys=keys[:7])]
            assert count_pool_hits(backend.batch_set_v2(written)) == {PoolName.KV: 10, PoolName.INDEXER: 7}
            wanted = pages_of(side, range(7))
        asked = PoolTransfer(PoolName.INDEXER, keys=keys)
        found = backend.batch_exists_v2(keys, [asked])
        assert (found.kv_hit_pages, found.extra_pool_hit_pages[PoolName.KV]) == (7, 10), found
        asked.hit_policy = PoolHitPolicy.TRAILING_PAGES
        asked.keys = keys[:2]
        assert backend.batch_exists_v2(keys, [asked]).restorable_prefix_pages == list(range(1, 8))
        read = backend.batch_get_v2([PoolTransfer(PoolName.INDEXER, rows(range(20, 30)), keys=keys)])
        assert read == {PoolName.INDEXER: [True] * 7 + [False] * 3}
        assert all(torch.equal(one, other) for one, other in zip(pages_of(side, range(20, 27)), wanted, strict=True))
        backend.close()


def injected_failures(address: str) -> None:
    """SGLang's own injector of failures and delays: what is read is right, whatever fails."""
    os.environ.update(SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY="0.001", SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE="0.3")
    pool = pool_of(MHATokenToKVPoolHost, "page_first")
    backend = backend_of(pool, address, "injected", 1)
    assert type(backend).__name__ == "HiCacheStorageFailureInjector"
    keys = [f"{number:064x}" for number in range(8)]
    wanted, hits = pages_of(pool, range(8)), 0
    for _ in range(30):
        backend.batch_set_v1(keys, rows(range(8)))
        pool.kv_buffer[:, 64:128] = 0
        read = backend.batch_get_v1(keys, rows(range(16, 24)))
        for page, there in enumerate(read):
            hits += there
            assert not there or torch.equal(pages_of(pool, [16 + page])[0], wanted[page])
    assert hits > 0
    backend.close()


def main(address: str) -> None:
    random.seed(7)
    torch.manual_seed(7)
    cases = [(MHATokenToKVPoolHost, layout) for layout in ("layer_first", "page_first", "page_first_direct", "page_head")]
    cases += [(MLATokenToKVPoolHost, layout) for layout in ("layer_first", "page_first", "page_first_direct")]
    for number, ((kind, layout), v1) in enumerate(itertools.product(cases, (1, 0))):
        write_and_read(kind, layout, v1, address, f"case{number}")
    several_pools(address)
    injected_failures(address)
    try:
        print("SGLang", importlib.metadata.version("sglang"))
    except importlib.metadata.PackageNotFoundError:
        print("SGLang of a folder")


if __name__ == "__main__":
    main(sys.argv[1])
