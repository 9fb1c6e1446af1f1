"""What vLLM gives a secondary tier: the classes of its interface, and the memory of a CPU tier.

Written after the interface of vLLM 0.33.
"""

import enum
import importlib
import mmap
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOKENS, BLOCKS_PER_CHUNK = 16, 2


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class LookupResult(enum.Enum):
    MISS = enum.auto()
    HIT = enum.auto()
    HIT_PENDING = enum.auto()
    RETRY = enum.auto()


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


@dataclass
class OffloadingEvent:
    keys: list[bytes]
    medium: Medium
    removed: bool
    locality: Locality | None = None


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


@dataclass
class TransferJob:
    job_id: int
    keys: Any
    chunk_ids: Any
    is_promotion: bool
    req_context: Any


@dataclass
class ReqContext:
    """A request; `ends` has the last token of each of its chunks."""

    req_id: str
    ends: dict[bytes, int] = field(default_factory=dict)

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self.ends.get(key)


class SecondaryTierManager:
    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, detector: Any = None) -> None:
        assert primary_kv_view.strides is not None
        self._block_size_bytes, self.tier_type, self._bp_detector = primary_kv_view.strides[0], tier_type, detector
        self.locality: Locality | None = None

    @property
    def block_size_bytes(self) -> int:
        return self._block_size_bytes

    @property
    def bp_detector(self) -> Any:
        return self._bp_detector


class Memory:
    """The memory of a CPU tier, as so many chunks of one length."""

    def __init__(self, chunks: int = 32, chunk_bytes: int = 4096) -> None:
        # As in vLLM, the mapping cannot be closed while anything refers to it.
        self.mapping = mmap.mmap(-1, chunks * chunk_bytes)
        self.view = memoryview(self.mapping).cast("b", (chunks, chunk_bytes))
        self.array = np.asarray(self.view)

    def fill(self, seed: int, slots: list[int]) -> None:
        for at, slot in enumerate(slots):
            self.array[slot] = np.random.default_rng(seed * 1000 + at).integers(-128, 127, self.array.shape[1], np.int8)

    def taken(self, slots: list[int]) -> list[bytes]:
        return [self.array[slot].tobytes() for slot in slots]


def spec(**changes: Any) -> Any:
    """An offloading spec of two groups, with some of its facts changed."""
    facts: dict[str, Any] = {"model": "org/model", "dtype": "bfloat16", "layout": "NHD", "portable": False, "replicas": 1, "canonical": False}
    facts |= {"tp": 1, "layers": ("a", "b"), "events": False, **changes}
    name = types.SimpleNamespace
    groups = tuple(name(tokens_per_block=TOKENS, layer_names=(layer,)) for layer in facts["layers"])
    parallel = name(tp_size=facts["tp"], pp_size=1, pcp_size=1, dcp_size=1, data_parallel_size=facts["replicas"])
    parallel.is_parallelism_agnostic = facts["portable"]
    config = name(model=name(name=facts["model"], dtype=facts["dtype"]), groups=groups, parallel=parallel)
    config.cache = name(tokens_per_hash=TOKENS, blocks_per_chunk=BLOCKS_PER_CHUNK)
    config.replicated_layout, config.canonical_layout, config.kv_cache_layout = False, facts["canonical"], facts["layout"]
    events = name(enable_kv_cache_events=facts["events"])
    tokens = tuple(group.tokens_per_block for group in groups)
    return name(config=config, kv_events_config=events, tokens_per_block=tokens, blocks_per_chunk=BLOCKS_PER_CHUNK)


def key_of(number: int, group: int = 0) -> bytes:
    """A key: the hash of a chunk, and its group."""
    return number.to_bytes(32, "big") + group.to_bytes(4, "big")


def loaded() -> Any:
    """The module that vLLM loads. The caller restores `sys.modules`."""
    base = types.ModuleType("vllm.v1.kv_offload.base")
    for kind in (Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext):
        setattr(base, kind.__name__, kind)
    base.get_offload_block_hash = lambda key: key[:-4]  # type: ignore[attr-defined]
    base.get_offload_group_idx = lambda key: int.from_bytes(key[-4:], "big")  # type: ignore[attr-defined]
    tiering = types.ModuleType("vllm.v1.kv_offload.tiering.base")
    tiering.JobResult, tiering.SecondaryTierManager = JobResult, SecondaryTierManager  # type: ignore[attr-defined]
    canonical = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping")
    canonical.canonical_format_id = lambda layout: f"v{canonical.version}-{layout.lower()}"  # type: ignore[attr-defined]
    canonical.version = 1  # type: ignore[attr-defined]
    for module in (base, tiering, canonical):
        sys.modules[module.__name__] = module
    for module in (tiering, canonical):
        for at in (at for at, letter in enumerate(module.__name__) if letter == "."):
            sys.modules.setdefault(module.__name__[:at], types.ModuleType(module.__name__[:at]))
    sys.modules.pop("slackwater.integrations.vllm", None)
    return importlib.import_module("slackwater.integrations.vllm")
