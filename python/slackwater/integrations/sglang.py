"""The storage backend of SGLang's hierarchical cache (HiCache), which SGLang loads as its backend `dynamic`.

`docs/guide/sglang.md` has the configuration. Pages go straight between the store and the memory of the host pool, as one
value for each run of memory of a page (mostly keys and values, so two); a pool whose pages lie in too many runs is copied
page by page. The keys of values name all that their bytes depend on: model, ranks, layout, type and length.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import Chain
from .cache import Cache, memory_at
from .chains import UNPLACED
from .opening import OPTIONS, open_store, quoted

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult
except ImportError as error:
    raise ImportError(
        f"slackwater.integrations.sglang is loaded by SGLang 0.5.23 or newer, whose HiCacheStorage is not here: {error}"
    ) from error

log = logging.getLogger(__name__)

RUNS_MAX = 8
"""A page of more runs of memory than this is copied into one value: a value each would be too small."""

PREFIX_BYTES_MAX = 800
"""Longest beginning that all keys may have; the rest of a key has its page's hash, ranks and pool."""

STATISTICS_MAX = 4096
"""Transfers remembered for `get_stats` when nothing asks for them."""


class HiCacheSlackwater(HiCacheStorage):
    """Pages of SGLang in a store. Nothing raises after the start: what fails is a miss, logged and counted."""

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        """Connects to the store of `extra_config["slackwater"]`, whose entries are those of `opening.OPTIONS`."""
        extra = storage_config.extra_config or {}
        options = extra.get("slackwater", {})
        if not isinstance(options, Mapping):
            raise ValueError("slackwater: a table of options is needed, such as {\"address\": \"tcp://127.0.0.1:50051\"}")
        astray = sorted(set(extra) & set(OPTIONS))
        if astray:
            raise ValueError(f"{astray[0]}: options of the store belong in \"slackwater\": {{…}}")
        self._zero_copy = bool(extra.get("interface_v1", 0))
        if not self._zero_copy:
            log.warning("interface_v1 is not set: every page is copied on its way; set it to 1 in the extra config")
        self._config = storage_config
        self._begin = beginning(storage_config, extra.get("extra_backend_tag"))
        if options.get("store") is not None and getattr(storage_config, "dp_rank", 0):
            # SGLang tells each replica its own number, and not how many there are.
            raise ValueError("slackwater: store: data-parallel ranks need one store: serve it, and give them its address")
        ranks = storage_config.tp_size * storage_config.pp_size * storage_config.attn_cp_size
        self._cache = Cache(open_store(options, processes=ranks), log, options.get("tenant"))
        self._anchor: Pages | None = None
        self._pools: dict[str, Pages] = {}
        self._statistics = Statistics() if storage_config.enable_storage_metrics else None

    # Pools.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the pool of KV pages."""
        super().register_mem_pool_host(mem_pool_host)
        self._anchor = Pages.of(mem_pool_host, "kv", self._config)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes the pool of another kind of pages."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        self._pools[name] = Pages.of(host_pool, name, self._config)

    # Pages of the KV pool.

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """The number of pages at the beginning that are there."""
        pages = self._anchor
        if self._zero_copy and pages is None:
            self._misused("batch_exists", "no pool is registered yet")
            return 0
        if not self._zero_copy:
            return leading(self._cache.exists([self._whole(key) for key in keys]))
        assert pages is not None
        if pages.logical:
            return 0
        return leading(self._pages_there(pages, keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Reads pages into the KV pool: for each whether it was there."""
        return self._move(self._anchor, keys, host_indices, extra_info, write=False)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Writes pages of the KV pool: for each whether it is there now."""
        return self._move(self._anchor, keys, host_indices, extra_info, write=True)

    # Pages of several pools.

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The prefixes that every pool can serve; a pool of block groups tells only how far it reaches itself."""
        transfers = list(pool_transfers or [])
        if self._anchor is not None and self._anchor.logical:
            # The pool has no memory of its own: the others decide.
            kv_pages = len(keys) if transfers else 0
        else:
            kv_pages = self.batch_exists(keys, extra_info)
        hits: dict[Any, int] = {"kv": kv_pages} if kv_pages else {}
        usable = set(range(1, kv_pages + 1))
        for transfer in transfers:
            pages = self._pools.get(str(transfer.name))
            if pages is None:
                self._misused("batch_exists_v2", f"pool {transfer.name} is not registered")
                usable.clear()
                continue
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                reached = self._groups_there(pages, transfer, kv_pages)
            else:
                served = self._served(pages, transfer, keys[:kv_pages])
                reached, usable = max(served, default=0), usable & served
            if reached:
                hits[transfer.name] = reached
        prefixes = sorted(usable)
        return PoolTransferResult(prefixes[-1] if prefixes else 0, hits, prefixes)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Reads pages into pools: for each pool and page whether it was there."""
        return self._move_all(transfers, extra_info, write=False)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Writes pages of pools: for each pool and page whether it is there now."""
        return self._move_all(transfers, extra_info, write=True)

    # Values of whole pages, which SGLang copies itself when `interface_v1` is not set.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads a page into the tensor given; None when it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Reads pages into the tensors given: each of them, or None."""
        targets = list(target_locations or [])
        if len(targets) != len(keys) or any(target is None for target in targets):
            self._misused("batch_get", f"{len(keys)} keys and {len(targets)} tensors: one each is needed")
            return [None] * len(keys)
        names = [self._whole(key) for key in keys]
        there = self._timed(False, len(keys), names, targets, [bytes_of(target) for target in targets], UNPLACED)
        return [target if one else None for target, one in zip(targets, there, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Writes a page that lies in a tensor: whether it is there now."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Writes pages that lie in tensors: whether all are there now."""
        given = list(values or [])
        if len(given) != len(keys) or any(value is None for value in given):
            self._misused("batch_set", f"{len(keys)} keys and {len(given)} tensors: one each is needed")
            return False
        laid = [value.contiguous() if hasattr(value, "contiguous") else value for value in given]
        names = [self._whole(key) for key in keys]
        return all(self._timed(True, len(keys), names, laid, [bytes_of(value) for value in laid], UNPLACED))

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    # The rest.

    def clear(self) -> bool:
        """Removes every value of this model and configuration: all ranks' and pools'. Others' values stay."""
        complete = True
        for keys in self._cache.list(self._begin):
            complete &= all(self._cache.remove(keys))
        return complete and not self._cache.closed

    def get_stats(self) -> Any:
        """Pages and rates of the transfers since the last call, in the form of SGLang's metrics; None when they are off."""
        return self._statistics.taken() if self._statistics is not None else None

    @property
    def counts(self) -> dict[str, int]:
        """What the calls did since the start."""
        return self._cache.counts

    def close(self) -> None:
        """Closes the store, after which nothing is found. Closing again does nothing."""
        self._cache.close()

    # How pages become values.

    def _misused(self, call: str, problem: str) -> None:
        self._cache.failed(call, ValueError(problem))

    def _whole(self, key: str) -> str:
        """The key of a page that SGLang copies."""
        shape = self._anchor.shape if self._anchor is not None else "page"
        return f"{self._begin}{ranks_of(self._config, sharded=not self._config.is_mla_model)}:page-{shape}:{key}"

    def _names(self, pages: "Pages", keys: Sequence[str]) -> list[str]:
        return [f"{self._begin}{place}:{key}" for key in keys for place in pages.places]

    def _pages_there(self, pages: "Pages", keys: Sequence[str]) -> list[bool]:
        there = self._cache.exists(self._names(pages, keys))
        count = len(pages.places)
        return [all(there[at : at + count]) for at in range(0, len(there), count)]

    def _served(self, pages: "Pages", transfer: Any, keys: list[str]) -> frozenset[int]:
        """The lengths of prefixes that a pool can serve."""
        there = self._pages_there(pages, keys)
        if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
            return frozenset(range(1, leading(there) + 1))
        window = max(1, len(transfer.keys or ()))
        return frozenset(end for end in range(1, len(keys) + 1) if all(there[max(0, end - window) : end]))

    def _groups_there(self, pages: "Pages", transfer: Any, kv_pages: int) -> int:
        """How many pages of the KV pool the complete groups at the beginning cover."""
        keys, each = list(transfer.keys or ()), transfer.group_pages
        if each < 1 or transfer.block_pages < 1:
            return 0
        there = self._pages_there(pages, keys)
        groups = [all(there[at : at + each]) for at in range(0, len(there) - each + 1, each)]
        return min(leading(groups) * transfer.block_pages, kv_pages)

    def _move_all(self, transfers: list[Any], extra_info: Any, *, write: bool) -> dict[Any, list[bool]]:
        moved = {}
        for transfer in transfers:
            pages, keys = self._pools.get(str(transfer.name)), list(transfer.keys or ())
            moved[transfer.name] = self._move(pages, keys, transfer.host_indices, extra_info, write=write)
        return moved

    def _move(
        self, pages: "Pages | None", keys: Sequence[str], host_indices: Any, extra_info: Any, *, write: bool
    ) -> list[bool]:
        """Moves pages between a pool and the store: for each whether all of its values were moved."""
        if not keys:
            return []
        if pages is None:
            self._misused("move", "the pool is not registered")
            return [False] * len(keys)
        if pages.logical:
            return [True] * len(keys)
        if host_indices is None or len(host_indices) != len(keys) * pages.tokens:
            rows = None if host_indices is None else len(host_indices)
            self._misused("move", f"pool {pages.name}: {len(keys)} pages of {pages.tokens} rows, but {rows} rows are given")
            return [False] * len(keys)
        chain = chain_of(extra_info, lambda key: self._names(pages, [key])[-1], len(pages.places))
        try:
            buffers, sizes = pages.buffers(host_indices, fill=write)
            there = self._timed(write, len(keys), self._names(pages, keys), buffers, sizes, chain)
            count = len(pages.places)
            moved = [all(there[at : at + count]) for at in range(0, len(there), count)]
            if not write and pages.copied:
                pages.spread(host_indices, buffers, moved)
        except Exception as error:
            # The pool is the engine's: what it raises must not end the thread that moves pages.
            self._cache.failed("address", error)
            return [False] * len(keys)
        return moved

    def _timed(
        self, write: bool, pages: int, names: list[str], buffers: Sequence[Any], sizes: list[int], chain: Chain | None
    ) -> list[bool]:
        began = time.perf_counter()
        there = (self._cache.write if write else self._cache.read)(names, buffers, sizes, chain)
        if self._statistics is not None:
            moved = sum(size for one, size in zip(there, sizes, strict=True) if one)
            self._statistics.add(write, pages, moved, time.perf_counter() - began)
        return there


@dataclass(frozen=True)
class Pages:
    """How the pages of one pool lie in memory, and the ends of the keys of their values."""

    name: str
    pool: Any
    places: tuple[str, ...]
    """For each value of a page what its key says before the page's hash: ranks, pool, layout and length."""
    shape: str
    """Layout and type."""
    tokens: int
    """Rows of a page in host indices."""
    copied: bool
    """Whether pages are copied to and from one value each, by the pool's own methods."""
    split: int
    """Into how many parts heads are split so that deployments of other sizes can read them; 1 when they are not."""
    logical: bool
    """Whether the pool only counts rows, and has no memory."""

    @classmethod
    def of(cls, pool: Any, name: str, config: Any) -> "Pages":
        """How pages of this pool lie. Raises ValueError where they can be neither addressed nor copied."""
        tokens = getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", None) or 1
        shape = f"{getattr(pool, 'layout', 'page')}-{str(getattr(pool, 'dtype', '')).removeprefix('torch.')}"
        if name == "kv" and getattr(pool, "kv_buffer", None) is None:
            return cls(name, pool, (), shape, tokens, False, 1, True)
        split = 1
        if name == "kv" and config.should_split_heads:
            split = config.tp_lcm_size // config.tp_size
        sharded = is_sharded(pool, name, config)
        lengths, refused = run_lengths(pool, tokens, split)
        if 0 < len(lengths) <= RUNS_MAX * split:
            of_rank = len(lengths) // split
            ranks = [ranks_of(config, sharded=sharded, split=split, part=part) for part in range(split)]
            places = tuple(
                f"{ranks[at // of_rank]}:{name}-{shape}-{length}:{at % of_rank}" for at, length in enumerate(lengths)
            )
            return cls(name, pool, places, shape, tokens, False, split, False)
        if split > 1 or not hasattr(pool, "get_data_page"):
            raise ValueError(f"slackwater: pages of pool {name} can be neither addressed nor copied: {refused}")
        page = pool.get_dummy_flat_data_page()
        place = f"{ranks_of(config, sharded=sharded)}:{name}-{shape}-{bytes_of(page)}:whole"
        return cls(name, pool, (place,), shape, tokens, True, 1, False)

    def buffers(self, host_indices: Any, *, fill: bool) -> tuple[list[Any], list[int]]:
        """The memory of the values of pages, and its lengths; copies of pages are filled when they will be written."""
        if not self.copied:
            addresses, sizes = runs(self.pool, host_indices, self.split)
            return [memory_at(address, size) for address, size in zip(addresses, sizes, strict=True)], list(sizes)
        firsts = range(0, len(host_indices), self.tokens)
        if fill:
            copies = [self.pool.get_data_page(host_indices[at], flat=True).contiguous() for at in firsts]
        else:
            copies = [self.pool.get_dummy_flat_data_page() for _ in firsts]
        return copies, [bytes_of(copy) for copy in copies]

    def spread(self, host_indices: Any, copies: list[Any], there: list[bool]) -> None:
        """Copies the pages that were read into the pool."""
        for page, (copy, one) in enumerate(zip(copies, there, strict=True)):
            if one:
                self.pool.set_from_flat_data_page(host_indices[page * self.tokens], copy)


class Statistics:
    """Pages and rates of transfers, for SGLang's metrics."""

    def __init__(self) -> None:
        self._transfers: deque[tuple[bool, int, float]] = deque(maxlen=STATISTICS_MAX)

    def add(self, write: bool, pages: int, moved_bytes: int, seconds: float) -> None:
        """Remembers one transfer. The oldest are forgotten when nothing asks."""
        self._transfers.append((write, pages, moved_bytes / max(seconds, 1e-9) / (1 << 30)))

    def taken(self) -> Any:
        """The transfers since the last call; rates in GiB/s."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        metrics = StorageMetrics()
        for _ in range(len(self._transfers)):
            write, pages, rate = self._transfers.popleft()
            (metrics.backup_pgs if write else metrics.prefetch_pgs).append(pages)
            (metrics.backup_bandwidth if write else metrics.prefetch_bandwidth).append(rate)
        return metrics


def beginning(config: Any, tag: Any) -> str:
    """What all keys of a model begin with. Raises ValueError where it is too long for keys."""
    begin = f"sglang:{quoted(str(tag or ''))}:{quoted(config.model_name or '')}:"
    if len(begin.encode()) > PREFIX_BYTES_MAX:
        length = len(begin.encode())
        raise ValueError(f"slackwater: model_name and extra_backend_tag: {length} of at most {PREFIX_BYTES_MAX} bytes")
    return begin


def ranks_of(config: Any, *, sharded: bool, split: int = 1, part: int = 0) -> str:
    """The part of a key that tells apart what ranks hold of the same page."""
    rank = ""
    if sharded:
        rank = f"tp{config.tp_rank * split + part}of{config.tp_size * split}"
    if config.pp_size > 1:
        rank += f"pp{config.pp_rank}of{config.pp_size}"
    if config.attn_cp_size > 1:
        rank += f"cp{config.attn_cp_rank}of{config.attn_cp_size}"
    if config.dcp_size > 1:
        rank += f"dcp{config.dcp_rank}of{config.dcp_size}page{config.logical_page_size}"
    return rank or "all"


def is_sharded(pool: Any, name: str, config: Any) -> bool:
    """Whether each tensor-parallel rank holds bytes of its own in a pool."""
    if not config.is_mla_model or name == "mamba":
        return True
    # A draft model may be of another kind than the model that it drafts for.
    kinds = {kind.__name__ for kind in type(pool).__mro__}
    return name in ("draft", "draft_swa") and not any("MLA" in kind or "DeepSeekV4" in kind for kind in kinds)


def runs(pool: Any, host_indices: Any, split: int) -> tuple[Sequence[int], Sequence[int]]:
    """Addresses and lengths of the runs of memory of pages, page by page."""
    if split > 1:
        return pool.get_split_heads_page_buffer_meta(host_indices, split)
    return pool.get_page_buffer_meta(host_indices)


def run_lengths(pool: Any, tokens: int, split: int) -> tuple[list[int], str]:
    """Lengths of the runs of one page; none, and the reason, when the pool does not address pages."""
    page = first_page(tokens)
    try:
        return list(runs(pool, page, split)[1]), "too many runs of memory"
    except Exception as error:
        # Pools say in many ways that they do not address pages of their layout.
        return [], f"{type(error).__name__}: {error}"


def first_page(tokens: int) -> Any:
    """Host indices of the first page, in the engine's own form."""
    import torch

    return torch.arange(tokens, dtype=torch.int64)


def chain_of(extra_info: Any, name: Any, values: int) -> Chain:
    """The chain that the pages of a call continue, of so many values a page, as far as SGLang tells."""
    before = getattr(extra_info, "prefix_keys", None)
    if before is None:
        return UNPLACED
    return Chain(parent=name(before[-1]) if before else None, position=len(before) * values)


def leading(there: Sequence[bool]) -> int:
    """The number of true values at the beginning."""
    return next((at for at, one in enumerate(there) if not one), len(there))


def bytes_of(value: Any) -> int:
    """The length of a tensor or buffer."""
    return value.numel() * value.element_size() if hasattr(value, "element_size") else memoryview(value).nbytes
