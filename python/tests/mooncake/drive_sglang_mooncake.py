"""Drives the drop-in by SGLang's own backend `mooncake` of its hierarchical cache: its factory, its controller's transfers and
queries, its pools on the CPU, and the tests that its package brings for the backend; and by its transfer engine.

Run by an interpreter that has SGLang, with the address of a master, its process, which is killed in the end, and a folder for an
SSD tier. Prints the version of SGLang when all is right. Nothing of SGLang is replaced: what needs a GPU is not touched.
"""

import gc
import importlib.metadata
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import slackwater.compat

slackwater.compat.install(over=True)
sys.path.append(str(Path(__file__).parents[1] / "integrations"))

import drive_sglang as native
import mooncake.store
import torch
from drive_sglang import PAGES, controller_of, pages_of, pool_of, rows
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine
from sglang.srt.managers.cache_controller import PrefetchOperation, StorageOperation
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.storage.mooncake_store import test_mooncake_store as own
from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

SEGMENT, PEER_BYTES = 32 << 20, 1 << 20


def backend_of(pool, address: str, tag: str, rank: int = 0, ranks: int = 1, **options):
    """SGLang's backend, made and told of a pool as its controller does."""
    extra = {"master_server_address": address, "protocol": "tcp", "global_segment_size": SEGMENT * ranks}
    config = native.config_of(pool, extra | {"extra_backend_tag": tag} | options, rank, ranks)
    backend = StorageBackendFactory.create_backend("mooncake", config, pool)
    assert type(backend) is MooncakeStore and type(backend.store) is mooncake.store.MooncakeDistributedStore
    backend.register_mem_pool_host(pool)
    return backend


def own_tests(address: str) -> None:
    """The tests in SGLang's package, which take the environment."""
    os.environ.update(MOONCAKE_MASTER=address, MOONCAKE_PROTOCOL="tcp", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(8 * SEGMENT))
    own.test_single_operation()
    for is_mla, rank, ranks in ((False, 0, 1), (True, 0, 1), (False, 1, 4), (True, 3, 8)):
        config = own.make_hicache_storage_config(is_mla_model=is_mla, tp_rank=rank, tp_size=ranks)
        own.test_batch_operation(config)
    del os.environ["MOONCAKE_MASTER"]


def write_and_read(kind: type, layout: str, address: str, **options) -> None:
    """300 pages, in three batches of the controller: 200 are written, the rest are missing."""
    pool = pool_of(kind, layout)
    backend = backend_of(pool, address, f"{kind.__name__}-{layout}-{len(options)}", **options)
    controller = controller_of(pool, backend, 1)
    tokens = [random.randrange(1 << 20) for _ in range(300 * native.PAGE)]
    query = PrefetchOperation("first", tokens, prefix_keys=[])
    assert controller._storage_hit_query(query) == ([], 0)
    hashes = query.all_hash_values
    places = random.sample(range(PAGES // 2), 200)
    write = StorageOperation(rows(places), tokens, hash_value=hashes[:200], prefix_keys=[])
    controller._page_backup(write)
    assert write.completed_tokens == 200 * native.PAGE, write.completed_tokens
    wanted = pages_of(pool, places)
    found, hit = controller._storage_hit_query(query)
    assert found == hashes[:200] and hit == 200 * native.PAGE
    # What is there is not stored again, and counts as stored.
    assert backend.batch_set_v1(hashes[:4], rows(places[:4])) == [True] * 4
    read = PrefetchOperation("second", tokens, prefix_keys=[])
    read.hash_value, targets = hashes[:210], [PAGES // 2 + number for number in range(210)]
    read.host_indices = rows(targets)
    assert controller._page_transfer(read) == 200
    assert all(torch.equal(one, other) for one, other in zip(pages_of(pool, targets[:200]), wanted, strict=True))
    # A page that is missing between others is missed alone.
    some = [hashes[0], hashes[250], hashes[1]]
    assert backend.batch_get_v1(some, rows(targets[:3])) == [True, False, True]
    stats = backend.get_stats()
    assert stats.backup_pgs and stats.prefetch_pgs
    backend.store.remove_all(True)
    assert controller._storage_hit_query(query) == ([], 0)
    # SGLang leaves that to the last reference: here the next backend's pages shall not lie in the memory of this one.
    backend.store.close()


def several_ranks(address: str) -> None:
    """An MLA model's pages are those of all ranks, a pool beside them too, and the pages of a draft's MHA pool its rank's own."""
    kept = []
    for rank in range(2):
        pool, side = pool_of(MLATokenToKVPoolHost, "page_first"), pool_of(MLATokenToKVPoolHost, "page_first")
        draft = pool_of(MHATokenToKVPoolHost, "page_first")
        backend = backend_of(pool, address, "several", rank, 2)
        kept.append(backend)
        backend.register_mem_host_pool_v2(side, PoolName.INDEXER)
        backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        keys = [f"{number:064x}" for number in range(10)]
        if rank == 0:
            assert backend.batch_set_v1(keys, rows(range(10))) == [True] * 10
            written = [PoolTransfer(PoolName.INDEXER, rows(range(7)), keys=keys[:7])]
            written += [PoolTransfer(PoolName.DRAFT, rows(range(10)), keys=keys)]
            assert backend.batch_set_v2(written) == {PoolName.INDEXER: [True] * 7, PoolName.DRAFT: [True] * 10}
            wanted = pages_of(side, range(7))
        asked = PoolTransfer(PoolName.INDEXER, keys=keys)
        found = backend.batch_exists_v2(keys, [asked])
        assert (found.kv_hit_pages, found.extra_pool_hit_pages[PoolName.KV]) == (7, 10), found
        asked.hit_policy = PoolHitPolicy.TRAILING_PAGES
        asked.keys = keys[:2]
        assert backend.batch_exists_v2(keys, [asked]).restorable_prefix_pages == list(range(1, 8))
        draft_hits = backend.batch_exists_v2(keys, [PoolTransfer(PoolName.DRAFT, keys=keys)]).kv_hit_pages
        assert draft_hits == (10 if rank == 0 else 0)
        read = backend.batch_get_v2([PoolTransfer(PoolName.INDEXER, rows(range(20, 30)), keys=keys)])
        assert read == {PoolName.INDEXER: [True] * 7 + [False] * 3}
        assert all(torch.equal(one, other) for one, other in zip(pages_of(side, range(20, 27)), wanted, strict=True))
    # SGLang has no other end for a backend than its last reference: what it lent leaves the pool with it, and is missed.
    keys = [f"{number:064x}" for number in range(200, 300)]
    assert all(kept[0].batch_set_v1(keys, rows(range(100))))
    lent = kept[0].store.get_hostname()
    owned = [key for key in keys if lent in _owners(kept[1], f"several_org-model_{key}__k")]
    del backend
    kept[0].store = None
    gc.collect()
    found = dict(zip(keys, kept[1].batch_get_v1(keys, rows(range(100, 200))), strict=True))
    assert owned and not any(found[key] for key in owned) and all(there for key, there in found.items() if key not in owned)
    kept[1].store.close()


def _owners(backend, key: str):
    """The segments that a value lies in."""
    described = backend.store.get_replica_desc(key)
    return [one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in described]


def no_server(address: str, process: int, pool, backend) -> None:
    """A master that is killed: every call ends soon, and what it says is a miss or a failure."""
    keys = [f"{number:064x}" for number in range(4)]
    assert backend.batch_set_v1(keys, rows(range(4))) == [True] * 4 and backend.batch_exists(keys) == 4
    os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    new = [f"{number:064x}" for number in range(100, 104)]
    assert backend.batch_set_v1(new, rows(range(4))) == [False] * 4
    assert backend.batch_exists(new) == 0 and not backend.exists(new[0])
    assert backend.batch_get_v1(new, rows(range(8, 12))) == [False] * 4
    location, size = pool.kv_buffer.data_ptr(), 64
    assert backend.set("new", target_location=location, target_sizes=size) is False
    assert backend.get("new", target_location=location, target_sizes=size) is False
    assert time.monotonic() - began < 30
    try:
        backend_of(pool, address, "none")
    except RuntimeError as error:
        assert "Failed to setup Mooncake store" in str(error), error
    else:
        raise AssertionError("a backend without a master was made")


def transfer_engine() -> None:
    """SGLang's transfer engine, which prefill, decode and encoders move pages by: to another process, which is killed then."""
    os.environ["MOONCAKE_PROTOCOL"] = "tcp"
    words = [sys.executable, __file__, "peer"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        try:
            assert peer.stdout is not None
            session, theirs = next(line.split()[1:] for line in peer.stdout if line.startswith("peer "))
            engine, there = MooncakeTransferEngine("127.0.0.1"), int(theirs)
            memory = torch.randint(0, 255, (PEER_BYTES,), dtype=torch.uint8)
            here = memory.data_ptr()
            assert engine.batch_register([here], [PEER_BYTES]) == 0 != engine.batch_register([here], [PEER_BYTES])
            assert engine.send_probe(session) == 0
            half, page = PEER_BYTES // 2, 4096
            assert engine.transfer_sync(session, here, there, page) == 0
            offsets = [page * number for number in random.sample(range(1, half // page), 64)]
            sources, targets = [here + at for at in offsets], [there + at for at in offsets]
            assert engine.batch_transfer_sync(session, sources, targets, [page] * 64) == 0
            # What the peer has of it, read back to elsewhere.
            backs = [here + half + at for at in offsets]
            assert engine.engine.batch_transfer_sync_read(session, backs, targets, [page] * 64) == 0
            for at in offsets:
                assert torch.equal(memory[half + at : half + at + page], memory[at : at + page])
            # Memory that the peer has not registered.
            assert engine.transfer_sync(session, here, there + PEER_BYTES, page) < 0
        finally:
            peer.kill()
    assert engine.transfer_sync(session, here, there, page) < 0
    assert engine.batch_transfer_sync(session, sources, targets, [page] * 64) < 0 and engine.send_probe(session) != 0
    assert engine.batch_deregister([here]) == 0 != engine.batch_deregister([here])


def be_a_peer() -> None:
    """An engine with memory, until its standard input ends."""
    engine, memory = MooncakeTransferEngine("127.0.0.1"), torch.zeros(PEER_BYTES, dtype=torch.uint8)
    engine.register(memory.data_ptr(), PEER_BYTES)
    print("peer", engine.get_session_id(), memory.data_ptr(), flush=True)
    sys.stdin.read()


def main(address: str, process: str, folder: str) -> None:
    random.seed(7)
    torch.manual_seed(7)
    own_tests(address)
    cases = [(MHATokenToKVPoolHost, layout) for layout in ("page_first", "page_first_direct", "page_head")]
    cases += [(MLATokenToKVPoolHost, layout) for layout in ("layer_first", "page_first", "page_first_direct")]
    for (kind, layout), groups in itertools.product(cases, (False, True)):
        write_and_read(kind, layout, address, **({"enable_group_semantics": True} if groups else {}))
    write_and_read(
        MHATokenToKVPoolHost, "page_first", address, enable_ssd_offload=True, ssd_offload_path=folder, tenant_id="default"
    )
    assert [path.name for path in Path(folder).iterdir()] == ["rank_0_0_0_0"]
    several_ranks(address)
    transfer_engine()
    pool = pool_of(MHATokenToKVPoolHost, "page_first")
    no_server(address, int(process), pool, backend_of(pool, address, "dead"))
    try:
        print("SGLang", importlib.metadata.version("sglang"))
    except importlib.metadata.PackageNotFoundError:
        print("SGLang of a folder")


if sys.argv[1:] == ["peer"]:
    be_a_peer()
else:
    main(*sys.argv[1:])
