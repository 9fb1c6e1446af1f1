"""Drives the drop-in by vLLM's own connectors to Mooncake's store: `MooncakeStoreConnector`, of which a worker moves blocks and a
scheduler looks them up, and the store of its encoders' embeddings.

Run by an interpreter that has vLLM, with the address of a master, its process, which is killed in the end, and an empty folder.
Prints the version of vLLM when all is right. The caches are memory of the CPU. Two things stand in for others: CUDA's event, which
is passed at once as no kernel runs, and the part of vLLM's configuration that describes a model, as none is loaded.
"""

import hashlib
import importlib.metadata
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import slackwater.compat

slackwater.compat.install(over=True)

import mooncake.store
import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding import store_client
from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding.backend import MooncakeEmbeddingStoreBackend
from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding.data import TensorSpec
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
    LoadSpec,
    MooncakeStoreConnectorMetadata,
    ReqMeta,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.scheduler import MooncakeStoreScheduler
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCK, BLOCKS, HEADS, DIM, LAYERS = 16, 64, 2, 8, 3


class PassedEvent:
    """CUDA's event, where no kernel runs that it would stand behind."""

    def record(self) -> None:
        """Nothing is awaited."""

    def synchronize(self) -> None:
        """Nothing is awaited."""


def configured(folder: str, address: str, **changes) -> None:
    """The file that vLLM's operators write, and the variable that names it."""
    written = {"metadata_server": "P2PHANDSHAKE", "master_server_address": address, "protocol": "tcp"}
    written |= {"mode": "embedded", "global_segment_size": "64MB", "local_buffer_size": "16MB"} | changes
    file = Path(folder, "mooncake.json")
    file.write_text(json.dumps(written))
    os.environ["MOONCAKE_CONFIG_PATH"] = str(file)


class Side:
    """An engine of one rank: its caches, and both halves of the connector."""

    def __init__(self, name: str, **options) -> None:
        extra = {"lookup_rpc_port": name, **options}
        transfer = KVTransferConfig(
            kv_connector="MooncakeStoreConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
        cache = CacheConfig(block_size=BLOCK)
        cache.num_gpu_blocks = BLOCKS
        model = SimpleNamespace(
            model="org/model",
            max_model_len=4096,
            enable_sleep_mode=False,
            enable_cumem_allocator=False,
            get_num_layers=lambda _: LAYERS,
            get_total_num_kv_heads=lambda: HEADS,
        )
        config = SimpleNamespace(
            model_config=model,
            parallel_config=ParallelConfig(),
            cache_config=cache,
            kv_transfer_config=transfer,
            kv_events_config=None,
            speculative_config=None,
        )
        names = [f"layer{number}" for number in range(LAYERS)]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
        caches = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(names, spec)])
        self.caches = {name: torch.randn(BLOCKS, HEADS, BLOCK, 2 * DIM).to(torch.bfloat16) for name in names}
        self.connector = MooncakeStoreConnector(config, KVConnectorRole.WORKER, caches)
        self.worker = self.connector.connector_worker
        assert type(self.worker.store) is mooncake.store.MooncakeDistributedStore
        self.connector.register_kv_caches(self.caches)
        self.scheduler = MooncakeStoreScheduler(config, caches)
        self.jobs = 0

    def found(self, hashes) -> int:
        """Blocks that the scheduler finds for a prompt of these and a token more."""
        request = SimpleNamespace(request_id="look", num_tokens=len(hashes) * BLOCK + 1, block_hashes=hashes)
        tokens, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        assert tokens % BLOCK == 0
        return tokens // BLOCK

    def step(self, request: ReqMeta) -> None:
        """What the worker is told in a step of the scheduler."""
        told = MooncakeStoreConnectorMetadata({request.req_id}, set())
        told.add_request(request)
        self.connector.bind_connector_metadata(told)
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        self.connector.clear_connector_metadata()

    def save(self, name: str, blocks, hashes):
        """Stores blocks, and waits until the worker says that it has done with them; what it counted."""
        self.jobs += 1
        self.step(
            ReqMeta(name, len(blocks) * BLOCK, (blocks,), hashes, can_save=True, store_job_id=self.jobs,
                    prefill_end_tokens=len(blocks) * BLOCK)
        )  # fmt: skip
        until(lambda: self.connector.build_connector_worker_meta(), lambda told: told.completed_saves == {self.jobs: 1})
        return self.counted()

    def load(self, name: str, blocks, hashes) -> set[int]:
        """Loads blocks, and waits until the worker says that it has done so; those that it could not load."""
        spec = LoadSpec(vllm_cached_tokens=0, kvpool_cached_tokens=len(blocks) * BLOCK, can_load=True)
        self.step(ReqMeta(name, len(blocks) * BLOCK, (blocks,), hashes, can_save=False, load_spec=spec))
        nothing = MooncakeStoreConnectorMetadata(set(), set())
        until(lambda: self.worker.get_transfer_results(set(), nothing).finished_recving, lambda names: names == {name})
        return self.connector.get_block_ids_with_load_errors()

    def counted(self):
        """Keys that each operation failed with, since the last time."""
        stats = self.connector.get_kv_connector_stats()
        return {} if stats is None else stats.data

    def blocks(self, which):
        return torch.stack([cache[which] for cache in self.caches.values()])


def until(ask, right) -> None:
    """Asks until there is an answer, which is the right one."""
    deadline = time.monotonic() + 60
    while not (answer := ask()):
        assert time.monotonic() < deadline, "nothing ended"
        time.sleep(0.01)
    assert right(answer), answer


def hashes_of(seed: str, count: int):
    """Hashes of a chain of blocks."""
    hashes, before = [], seed.encode()
    for _ in range(count):
        before = hashlib.sha256(before).digest()
        hashes.append(BlockHash(before))
    return hashes


def blocks_of_a_pool(address: str, folder: str):
    """Two engines, of which one lends memory and the other has none."""
    configured(folder, address)
    first = Side("first", enable_group_semantics="true")
    hashes, blocks = hashes_of("prompt", 12), [5, 9, 2, 40, 41, 7, 13, 60]
    assert first.found(hashes) == 0
    saved = first.save("writes", blocks, hashes)
    assert saved, "the worker counted nothing"
    assert first.found(hashes) == 8 and first.found(hashes[:3]) == 3 and first.found(hashes_of("other", 4)) == 0
    targets = list(range(20, 28))
    assert not torch.equal(first.blocks(targets), first.blocks(blocks))
    assert first.load("reads", targets, hashes) == set()
    assert torch.equal(first.blocks(targets), first.blocks(blocks))

    configured(folder, address, mode="standalone-store", global_segment_size=0)
    second = Side("second")
    assert second.found(hashes) == 8
    targets = list(range(30, 42))
    before = second.blocks(targets[8:])
    # Four of them nobody has stored: they are told, and the memory of no other block is touched.
    assert second.load("some", targets, hashes) == set(targets[8:])
    assert torch.equal(second.blocks(targets[:8]), first.blocks(blocks))
    assert torch.equal(second.blocks(targets[8:]), before)
    # A prompt that goes on stores what is new alone.
    second.save("goes on", list(range(50, 62)), hashes)
    assert first.found(hashes) == 12
    targets = [1, 3, 4, 6]
    assert first.load("rest", targets, hashes[8:]) == set()
    assert torch.equal(first.blocks(targets), second.blocks(list(range(58, 62))))
    assert first.scheduler.reset_store() is True and second.found(hashes) == 0
    return first, second


def embeddings(address: str, folder: str):
    """The store of encoders' outputs, whose reader is the strictest of all."""
    configured(folder, address)
    client = store_client.create_mooncake_embedding_store_client(1 << 20)
    backend = MooncakeEmbeddingStoreBackend(client, "space", max_pending_items=16, max_pending_bytes=16 << 20)
    outputs = {f"image{number}": torch.randn(50 + number, 64) for number in range(10)}
    specs = {name: TensorSpec(tuple(one.shape), str(one.dtype), one.nbytes) for name, one in outputs.items()}

    def resolved():
        cache: dict[str, torch.Tensor] = {}
        found = backend.resolve_inputs(specs, cache, "cpu")
        assert found == set(cache) and all(torch.equal(cache[name], outputs[name]) for name in cache)
        return found

    def saved(names) -> None:
        for name in names:
            backend.save_output(name, outputs[name])
        deadline = time.monotonic() + 60
        while backend._pending:
            assert time.monotonic() < deadline, "nothing ended"
            time.sleep(0.01)
            backend.reap()

    assert resolved() == set()
    saved(list(outputs)[:7])
    assert resolved() == set(list(outputs)[:7])
    # What is there has another shape than the one that is asked for: it is encoded anew.
    name = next(iter(outputs))
    other = {name: TensorSpec((51, 64), "torch.float32", 51 * 64 * 4)}
    assert backend.resolve_inputs(other, {}, "cpu") == set()
    assert backend.resolve_inputs(specs, {}, "cpu")
    return client, backend, specs, saved


def no_server(process: int, first: Side, second: Side, embedded) -> None:
    """A master that is killed: what was under way ends, is told as failed or missing, and poisons nothing."""
    hashes = hashes_of("late", 4)
    first.save("before", [1, 2, 3, 4], hashes)
    os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    new = hashes_of("new", 4)
    second.save("after", [1, 2, 3, 4], new)
    assert second.found(new) == 0
    assert second.load("none", [8, 9, 10, 11], new) == {8, 9, 10, 11}
    client, backend, specs, saved = embedded
    assert backend.resolve_inputs(specs, {}, "cpu") == set()
    saved(list(specs)[7:8])
    assert client._poisoned is False and not store_client._UNSAFE_CLIENTS
    assert time.monotonic() - began < 60
    backend.shutdown()
    for side in (first, second):
        side.connector.shutdown()


def main(address: str, process: str, folder: str) -> None:
    torch.manual_seed(7)
    torch.cuda.Event = PassedEvent
    os.environ["VLLM_RPC_BASE_PATH"] = folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        initialize_model_parallel()
    sides = blocks_of_a_pool(address, folder)
    embedded = embeddings(address, folder)
    no_server(int(process), *sides, embedded)
    try:
        print("vLLM", importlib.metadata.version("vllm"))
    except importlib.metadata.PackageNotFoundError:
        print("vLLM of a folder")


main(*sys.argv[1:])
