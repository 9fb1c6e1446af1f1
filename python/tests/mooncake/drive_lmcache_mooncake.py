"""Drives the drop-in by LMCache's own connector `mooncakestore`, under its remote backend, and by its look-up client for it.

Run by an interpreter that has LMCache, with the address of a master and its process, which is killed in the end. Prints the version
of LMCache when all is right. Nothing of LMCache is replaced.
"""

import asyncio
import importlib.metadata
import os
import signal
import sys
import threading
import time
from pathlib import Path

import slackwater.compat

slackwater.compat.install(over=True)
sys.path.append(str(Path(__file__).parents[1] / "integrations"))

import mooncake.store
import torch
from drive_lmcache import METADATA, SHAPE, TYPE, chunks_of, give_back
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client.mooncake_lookup_client import MooncakeLookupClient
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.mooncakestore_connector import MooncakestoreConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from lmcache.v1.token_database import ChunkedTokenDatabase

TOKENS = SHAPE[2]


def config_of(address: str, **options) -> LMCacheEngineConfig:
    """As an operator writes it, with texts for numbers."""
    extra = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp"}
    extra |= {"master_server_address": address, "global_segment_size": "64MB", "local_buffer_size": "33554432"}
    return LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        remote_url=f"mooncakestore://{address}/",
        extra_config=extra | options,
        remote_serde="naive",
        blocking_timeout_secs=20,
        pre_caching_hash_algorithm="sha256_cbor",
    )


class Engine:
    """LMCache's storage inside an engine, as far as it is remote."""

    def __init__(self, config: LMCacheEngineConfig, *, paged: bool = False) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        pages = {"shapes": [SHAPE], "dtypes": [TYPE], "fmt": MemoryFormat.KV_2LTD}
        self.memory = MixedMemoryAllocator(64 << 20, use_paging=paged, **pages)
        local = LocalCPUBackend(config, METADATA, memory_allocator=self.memory)
        self.backend = RemoteBackend(config, METADATA, self.loop, local, "cpu")
        # The audit and the statistics of LMCache may stand before it.
        connection = self.backend.connection
        while not isinstance(connection, MooncakestoreConnector):
            connection = vars(connection).get("real_connector") or vars(connection)["_connector"]
        self.connector = connection
        assert type(connection.store) is mooncake.store.MooncakeDistributedStore
        assert connection.registered_buffer_ptr, "its memory is not registered"

    def put(self, keys, chunks) -> None:
        """Stores chunks, and waits until LMCache says that all are."""
        left, done = set(keys), threading.Event()

        def ended(key: CacheEngineKey) -> None:
            left.discard(key)
            if not left:
                done.set()

        self.backend.batched_submit_put_task(keys, chunks, on_complete_callback=ended)
        assert done.wait(60)

    def asked(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def keys_of(first: int, count: int):
    return [CacheEngineKey("org/model", 1, 0, number, TYPE) for number in range(first, first + count)]


def write_and_read(address: str, first: int, **options) -> None:
    """Ten chunks, of which the last one has fewer tokens, and two that are missing."""
    engine = Engine(config_of(address, **options))
    backend, keys = engine.backend, keys_of(first, 12)
    assert backend.batched_contains(keys) == 0 and not backend.contains(keys[0])
    assert backend.batched_get_blocking(keys[:2]) == [None, None]
    stored = chunks_of(engine.memory, 9, 100)
    short = engine.memory.allocate(torch.Size([2, 4, 100, 64]), TYPE, MemoryFormat.KV_2LTD)
    short.tensor.copy_(torch.randn(2, 4, 100, 64))
    stored.append(short)
    engine.put(keys[:10], stored)
    assert backend.batched_contains(keys) == 10 and backend.contains(keys[9]) and not backend.contains(keys[10])
    assert engine.asked(backend.batched_async_contains("lookup", keys)) == 10
    # What is there is put again by engines that share chunks, and stays.
    engine.put(keys[:1], stored[1:2])
    loaded = backend.batched_get_blocking(keys)
    assert loaded[10:] == [None, None]
    for one, other in zip(loaded[:10], stored, strict=True):
        assert one.tensor.shape == other.tensor.shape and torch.equal(one.tensor, other.tensor)
    # One alone, by a call of its own.
    done = threading.Event()
    backend.submit_put_task(keys[11], stored[3], on_complete_callback=lambda _: done.set())
    assert done.wait(60) and backend.contains(keys[11])
    again = backend.batched_get_blocking([keys[11], keys[10]])
    assert torch.equal(again[0].tensor, stored[3].tensor) and again[1] is None
    give_back(*stored, *loaded, *again)
    engine.connector.store.remove_all(True)
    assert backend.batched_contains(keys) == 0
    engine.close()


def look_up(address: str) -> None:
    """LMCache's look-up client, by the keys that its own token database makes: how many tokens are there from the beginning."""
    config = config_of(address, save_chunk_meta=False)
    engine = Engine(config)
    client = MooncakeLookupClient(config, METADATA, address)
    tokens = list(range(TOKENS * 5))
    found = [(end, key) for _, end, key in ChunkedTokenDatabase(config, METADATA).process_tokens(tokens)]
    assert client.lookup(tokens) == 0 and client.lookup([]) == 0
    chunks = chunks_of(engine.memory, 5, 7)
    engine.put([key for _, key in found[:3]], chunks[:3])
    assert client.lookup(tokens) == found[2][0] == 3 * TOKENS
    # Behind a gap nothing counts.
    engine.put([found[4][1]], chunks[4:])
    assert client.lookup(tokens) == 3 * TOKENS
    engine.put([found[3][1]], chunks[3:4])
    assert client.lookup(tokens) == 5 * TOKENS
    give_back(*chunks)
    client.store.close()
    engine.close()


def no_server(address: str, process: int) -> None:
    """A master that is killed: every call ends soon, nothing that was not read is told as read, and no memory of LMCache is
    touched once it is given back."""
    engine = Engine(config_of(address, save_chunk_meta=False), paged=True)
    backend, keys = engine.backend, keys_of(500, 6)
    chunks = chunks_of(engine.memory, 6, 3)
    engine.put(keys[:2], chunks[:2])
    loaded = backend.batched_get_blocking(keys[:3])
    assert loaded[2] is None and all(torch.equal(a.tensor, b.tensor) for a, b in zip(loaded[:2], chunks[:2], strict=True))
    give_back(*loaded)
    os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    assert backend.batched_get_blocking(keys[3:]) == [None] * 3
    engine.put(keys[3:], chunks[3:])
    assert backend.batched_get_blocking(keys[3:]) == [None] * 3
    # Each look is an error, which LMCache takes for a chunk that is there; its reads then miss, as above.
    codes = engine.connector.store.batch_is_exist([key.to_string() for key in keys[3:]])
    assert all(code < 0 for code in codes), codes
    assert time.monotonic() - began < 30
    give_back(*chunks)
    engine.close()


def main(address: str, process: str, _folder: str) -> None:
    write_and_read(address, 1, save_chunk_meta=False)
    write_and_read(address, 101, save_chunk_meta=True, mooncake_prefer_local_alloc=True)
    look_up(address)
    no_server(address, int(process))
    try:
        print("LMCache", importlib.metadata.version("lmcache"))
    except importlib.metadata.PackageNotFoundError:
        print("LMCache of a folder")


main(*sys.argv[1:])
