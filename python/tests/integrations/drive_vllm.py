"""Drives the tier by vLLM's own code: its tiering spec, which makes the tier, and its manager, which moves chunks.

Run by an interpreter that has vLLM, with the address of a store. Prints the version of vLLM when all is right.
"""

import importlib.metadata
import os
import sys
import time

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

TOKENS, CHUNK_BYTES = 16, 64 << 10


def manager_of(address: str, chunks: int, name: str, **options):
    tier = {"type": "SlackwaterTier", "module_path": "slackwater.integrations.vllm", "address": address, **options}
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=TOKENS, layer_names=("a", "b"), group_id=0),),
        worker_kv_bytes_per_block=CHUNK_BYTES,
        enable_kv_cache_events=True,
        extra_config={"cpu_bytes_to_use": chunks * CHUNK_BYTES, "secondary_tiers": [tier]},
        engine_id=f"slackwater-{os.getpid()}-{name}",
        model=OffloadingModelConfig(name="org/model", dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    )
    return TieringOffloadingSpec(config).get_manager()


def step(manager) -> None:
    """The end of a step of the scheduler."""
    manager.on_schedule_end(ScheduleEndContext((), ()))


def settled(manager) -> None:
    """Steps until nothing is under way, as the engine does."""
    until = time.monotonic() + 60
    step(manager)
    while manager.has_pending_work():
        assert time.monotonic() < until
        step(manager)


def request_of(manager, name: str, keys):
    context = ReqContext(name)
    for at, key in enumerate(keys):
        context.set_offload_key_position(key, (at + 1) * TOKENS)
    manager.on_new_request(context)
    return context


def store(manager, context, keys, seed: int):
    """What the workers do between the scheduler's calls: they fill the slots. Returns what was filled."""
    prepared = manager.prepare_store(keys, context)
    filled = {}
    view = np.asarray(manager.primary_tier.get_kv_memoryview())
    for at, (key, slot) in enumerate(zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True)):
        view[slot] = np.random.default_rng(seed + at).integers(-128, 127, CHUNK_BYTES, np.int8)
        filled[key] = view[slot].tobytes()
    del view
    manager.complete_store(prepared.keys_to_store, context)
    return filled


def found(manager, context, keys):
    """What the manager says of chunks, once it says something definite of each."""
    until = time.monotonic() + 60
    while True:
        results = [manager.lookup(key, context) for key in keys]
        if not any(result in (LookupResult.RETRY, LookupResult.HIT_PENDING) for result in results):
            return results
        assert time.monotonic() < until
        step(manager)


def main(address: str) -> None:
    keys = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(24)]
    first = manager_of(address, 32, "first", tag="driven", enable_kv_events=True)
    context = request_of(first, "writes", keys)
    filled = store(first, context, keys[:20], 5)
    settled(first)
    stored = [key for event in first.take_events() if event.medium.value == "STORAGE" for key in event.keys]
    assert sorted(stored) == keys[:20], len(stored)
    first.on_request_finished(context)
    first.shutdown()

    # Another engine, whose CPU tier is empty and holds fewer chunks than the request has.
    second = manager_of(address, 16, "second", tag="driven")
    context = request_of(second, "reads", keys)
    results = found(second, context, [*keys[:10], *keys[20:22]])
    assert results == [LookupResult.HIT] * 10 + [LookupResult.MISS] * 2, results
    spec = second.prepare_load(keys[:10], context)
    view = np.asarray(second.primary_tier.get_kv_memoryview())
    for key, slot in zip(keys[:10], spec.chunk_ids, strict=True):
        assert view[slot].tobytes() == filled[key]
    del view
    second.complete_load(keys[:10], context)
    second.on_request_finished(context)
    # A reset waits for what is under way, and the store keeps what it has.
    context = request_of(second, "after", keys)
    store(second, context, [make_offload_key(b"\1" * 32, 0)], 9)
    second.reset_cache()
    second.on_reset_flushed()
    assert found(second, context, [keys[12]]) == [LookupResult.HIT]
    stats = second.get_stats()
    assert stats is not None
    second.on_request_finished(context)
    settled(second)
    tier = second.secondary_tiers[0]
    assert "failures" not in tier.counts and tier.counts["read_hits"] == 11, tier.counts
    second.shutdown()
    second.shutdown()


main(sys.argv[1])
try:
    print("vLLM", importlib.metadata.version("vllm"))
except importlib.metadata.PackageNotFoundError:
    print("vLLM of a folder")
