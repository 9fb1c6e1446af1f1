"""Drives the plug-ins by LMCache's own code: its factory of L2 adapters and their demultiplexer, and its remote backend.

Run by an interpreter that has LMCache, with the address of a store. Prints the version of LMCache when all is right.
"""

import asyncio
import importlib.metadata
import select
import sys
import threading

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

SHAPE, TYPE = torch.Size([2, 4, 256, 64]), torch.bfloat16
MODULE = "slackwater.integrations.lmcache"
METADATA = LMCacheMetadata(
    model_name="org/model",
    world_size=1,
    local_world_size=1,
    worker_id=0,
    local_worker_id=0,
    kv_dtype=TYPE,
    kv_shape=(4, 2, SHAPE[2], 1, 64),
)


def ready(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(60_000), "nothing ended"


def until(descriptor: int, result):
    """What a query gives, once LMCache's own event says that something has ended."""
    while (value := result()) is None or value == {}:
        ready(descriptor)
    return value


def chunks_of(allocator, count: int, seed: int | None):
    chunks = [allocator.allocate(SHAPE, TYPE, MemoryFormat.KV_2LTD) for _ in range(count)]
    for at, chunk in enumerate(chunks):
        generator = torch.Generator().manual_seed(0 if seed is None else seed + at)
        chunk.tensor.copy_(torch.zeros(SHAPE) if seed is None else torch.randn(SHAPE, generator=generator))
    return chunks


def give_back(*chunks) -> None:
    """Ends the use of chunks: one that LMCache finds by garbage collection can stop its allocator for good."""
    for chunk in chunks:
        if chunk is not None:
            chunk.ref_count_down()


def multi_process_mode(address: str) -> None:
    """What LMCache's server does: look up, load, store and delete, by its adapter of type `native_plugin`."""
    wanted = {"module_path": MODULE, "class_name": "NativeSlackwater", "max_capacity_gb": 1}
    wanted["adapter_params"] = {"address": address, "tag": "driven"}
    config = get_l2_adapter_config_class("native_plugin").from_dict(wanted)
    adapter = create_l2_adapter_from_registry(config, None)
    allocator = HostMemoryAllocator(256 << 20)
    count = 40
    keys = [ObjectKey(number.to_bytes(32, "big"), "org/model", 0, number % 2) for number in range(count)]
    layout = {group: MemoryLayoutDesc([SHAPE], [TYPE]) for group in (0, 1)}

    def found():
        task = adapter.submit_lookup_and_lock_task(keys, layout)
        bits = until(adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task))
        adapter.submit_unlock([key for at, key in enumerate(keys) if bits.test(at)])
        return [bits.test(at) for at in range(count)]

    assert found() == [False] * count
    stored = chunks_of(allocator, 30, 1)
    task = adapter.submit_store_task(keys[:30], stored)
    results = until(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
    assert results[task].is_successful() and results[task].bytes_transferred() == 30 * stored[0].get_size()
    assert found() == [True] * 30 + [False] * 10
    loaded = chunks_of(allocator, count, None)
    task = adapter.submit_load_task(keys, loaded)
    bits = until(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    assert [bits.test(at) for at in range(count)] == [True] * 30 + [False] * 10
    assert all(torch.equal(one.tensor, other.tensor) for one, other in zip(loaded[:30], stored, strict=True))
    adapter.delete(keys[:10])
    assert found() == [False] * 10 + [True] * 20 + [False] * 10
    assert adapter.get_usage().total_bytes_used == 20 * stored[0].get_size(), adapter.get_usage()
    adapter.close()
    give_back(*stored, *loaded)


def remote_storage(address: str) -> None:
    """What LMCache does inside an engine, by its remote backend."""
    begin = "remote_storage_plugin.slackwater"
    extra = {f"{begin}.module_path": MODULE, f"{begin}.class_name": "SlackwaterConnectorAdapter"}
    extra |= {f"{begin}.address": address, f"{begin}.tag": "driven"}
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=256, remote_storage_plugins=["slackwater"], extra_config=extra, remote_serde="naive"
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    memory = HostMemoryAllocator(256 << 20)
    local = LocalCPUBackend(config, METADATA, memory_allocator=memory)
    backend = RemoteBackend(config, METADATA, loop, local, "cpu", plugin_name="slackwater")
    assert backend.connection is not None, "no connection"
    keys = [CacheEngineKey("org/model", 1, 0, number + 1, TYPE) for number in range(12)]
    assert backend.batched_contains(keys) == 0 and backend.get_blocking(keys[0]) is None
    stored = chunks_of(memory, 9, 100)
    # The last chunk of a prompt has fewer tokens.
    short = memory.allocate(torch.Size([2, 4, 100, 64]), TYPE, MemoryFormat.KV_2LTD)
    short.tensor.copy_(torch.randn(2, 4, 100, 64))
    stored.append(short)
    written = threading.Event()
    left = set(range(10))

    def done(key: CacheEngineKey) -> None:
        left.discard(key.chunk_hash - 1)
        if not left:
            written.set()

    backend.batched_submit_put_task(keys[:10], stored, on_complete_callback=done)
    assert written.wait(60)
    assert backend.batched_contains(keys) == 10 and backend.contains(keys[9]) and not backend.contains(keys[10])
    loaded = backend.batched_get_blocking(keys)
    assert loaded[10:] == [None, None]
    for one, other in zip(loaded[:10], stored, strict=True):
        assert one.tensor.shape == other.tensor.shape and torch.equal(one.tensor, other.tensor)
    found = asyncio.run_coroutine_threadsafe(backend.batched_async_contains("lookup", keys), loop).result(60)
    assert found == 10
    some = asyncio.run_coroutine_threadsafe(backend.batched_get_non_blocking("lookup", keys), loop).result(60)
    assert len(some) == 10
    give_back(*stored, *loaded, *some)
    assert backend.remove(keys[0]) and backend.batched_contains(keys) == 0
    backend.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def main(address: str) -> None:
    multi_process_mode(address)
    remote_storage(address)
    try:
        print("LMCache", importlib.metadata.version("lmcache"))
    except importlib.metadata.PackageNotFoundError:
        print("LMCache of a folder")


if __name__ == "__main__":
    main(sys.argv[1])
