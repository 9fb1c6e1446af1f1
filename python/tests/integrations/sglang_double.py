"""What SGLang gives a storage backend: the classes of its interface, and host pools with real memory.

Written after the interface of SGLang 0.5.23. Indices are arrays of numpy, which have what the interface uses of tensors.
"""

import enum
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BATCH_PAGES = 128


class HiCacheStorage:
    """The base class of backends."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}

    def on_host_pools_registered(self) -> None:
        pass


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"
    DRAFT = "draft"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


@dataclass
class ExtraInfo:
    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


@dataclass
class Config:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "org/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class Tensor(np.ndarray):
    """An array with what a backend uses of tensors."""

    def contiguous(self) -> "Tensor":
        return np.ascontiguousarray(self).view(Tensor)

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.itemsize


class Pool:
    """Pages of keys and values in host memory, in one of SGLang's layouts."""

    layers, heads, dim = 3, 4, 8

    def __init__(self, layout: str = "page_first", pages: int = 64, tokens: int = 4, parts: int = 2) -> None:
        self.layout, self.page_size, self.parts, self.size = layout, tokens, parts, pages * tokens
        self.dtype = np.dtype(np.uint16)
        first = (self.size, self.layers) if layout != "layer_first" else (self.layers, self.size)
        self.kv_buffer: Any = np.zeros((parts, *first, self.heads, self.dim), self.dtype)

    def row(self, part: int, token: int) -> Any:
        """What a row holds, whatever the layout."""
        return self.kv_buffer[part, token] if self.layout != "layer_first" else self.kv_buffer[part, :, token]

    def fill(self, seed: int, pages: list[int]) -> None:
        """Puts bytes that tell pages apart."""
        rows = self.indices(pages)
        for at, token in enumerate(rows):
            for part in range(self.parts):
                values = (np.arange(self.layers * self.heads * self.dim) + seed * 7919 + at * 31 + part * 13) % 65521
                self.row(part, token)[...] = values.reshape(self.layers, self.heads, self.dim)

    def taken(self, pages: list[int]) -> bytes:
        """The bytes of pages."""
        return b"".join(self.row(part, token).tobytes() for token in self.indices(pages) for part in range(self.parts))

    def wipe(self) -> None:
        self.kv_buffer[...] = 0

    def indices(self, pages: list[int]) -> Any:
        """Host indices of pages."""
        return np.concatenate([np.arange(self.page_size) + page * self.page_size for page in pages])

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        assert len(indices) % self.page_size == 0
        starts, at = indices.tolist()[:: self.page_size], self.kv_buffer.ctypes.data
        row, part = self.heads * self.dim * 2, self.kv_buffer.strides[0]
        if self.layout == "layer_first":
            places = [
                at + start * row + layer * self.size * row + half * part
                for start in starts
                for layer in range(self.layers)
                for half in range(self.parts)
            ]
            return places, [self.page_size * row] * len(places)
        places = [at + start * self.layers * row + half * part for start in starts for half in range(self.parts)]
        return places, [self.page_size * self.layers * row] * len(places)

    def get_split_heads_page_buffer_meta(self, indices: Any, split: int) -> tuple[list[int], list[int]]:
        assert self.layout == "page_head" and self.heads % split == 0
        page = self.page_size * self.layers * self.heads * self.dim * 2
        at, part = self.kv_buffer.ctypes.data, self.kv_buffer.strides[0]
        places = [
            at + start // self.page_size * page + head * page // split + half * part
            for start in indices.tolist()[:: self.page_size]
            for head in range(split)
            for half in range(self.parts)
        ]
        return places, [page // split] * len(places)

    def get_data_page(self, index: Any, flat: bool = True) -> Tensor:
        rows = [self.row(part, int(index) + token) for part in range(self.parts) for token in range(self.page_size)]
        page = np.stack(rows)
        return (page.reshape(-1) if flat else page).view(Tensor)

    def get_dummy_flat_data_page(self) -> Tensor:
        return np.zeros(self.parts * self.page_size * self.layers * self.heads * self.dim, self.dtype).view(Tensor)

    def set_from_flat_data_page(self, index: Any, data_page: Any) -> None:
        page = np.asarray(data_page).reshape(self.parts, self.page_size, self.layers, self.heads, self.dim)
        for part in range(self.parts):
            for token in range(self.page_size):
                self.row(part, int(index) + token)[...] = page[part, token]


class DeepPool(Pool):
    """So many layers that a page of layers first has more runs of memory than values are made of."""

    layers = 12


class LogicalPool:
    """Counts rows and has no memory."""

    kv_buffer, page_size, layout = None, 4, "page_first"


def modules() -> dict[str, types.ModuleType]:
    """The modules of SGLang and PyTorch that a backend imports."""
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    for kind in (HiCacheStorage, PoolName, PoolHitPolicy, PoolTransfer, PoolTransferResult):
        setattr(storage, kind.__name__, kind)
    metrics = types.ModuleType("sglang.srt.observability.metrics_collector")
    metrics.StorageMetrics = StorageMetrics  # type: ignore[attr-defined]
    torch = types.ModuleType("torch")
    torch.arange, torch.int64 = np.arange, np.int64  # type: ignore[attr-defined]
    named = {module.__name__: module for module in (storage, metrics, torch)}
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.observability"):
        named[name] = types.ModuleType(name)
    return named


def loaded() -> Any:
    """The backend as SGLang loads it: by the names of its configuration. The caller restores `sys.modules`."""
    import importlib

    sys.modules.update(modules())
    sys.modules.pop("slackwater.integrations.sglang", None)
    return importlib.import_module("slackwater.integrations.sglang")
