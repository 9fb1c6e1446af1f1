"""A secondary tier of vLLM's offloading of KV cache: chunks of the CPU tier in a store.

`docs/guide/vllm.md` has the configuration. vLLM moves chunks between the GPU and its CPU tier; this tier moves them between
the CPU tier's memory and the store, without a copy in between, on threads of its own. What vLLM calls returns at once.
"""

import hashlib
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import Chain
from .._native import Cancelling
from .cache import Cache
from .chains import UNPLACED
from .opening import open_store, quoted

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import canonical_format_id
    from vllm.v1.kv_offload.base import (
        Locality,
        LookupResult,
        Medium,
        OffloadingEvent,
        RequestOffloadingContext,
        get_offload_block_hash,
        get_offload_group_idx,
    )
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
except ImportError as error:
    raise ImportError(
        f"slackwater.integrations.vllm is loaded by vLLM 0.33 or newer, whose SecondaryTierManager is not here: {error}"
    ) from error

log = logging.getLogger(__name__)

THREADS = 4
"""Loads under way at a time, and stores besides, unless another number is given; the others wait in line."""

Runs = list[tuple[list[int], Chain]]
Moves = list[tuple[bool, bool]]
"""Of each chunk whether it is there now, and whether it was moved."""

PREFIX_BYTES_MAX = 800
"""Longest beginning that all keys may have; the rest of a key is the hash and group of its chunk."""


class SlackwaterTier(SecondaryTierManager):
    """Chunks in a store. Nothing raises after the start: what fails is a miss, logged and counted."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        tag: str = "",
        threads: int = THREADS,
        enable_kv_events: bool = False,
        locality: str | None = None,
        **options: Any,
    ) -> None:
        """Connects to the store of `opening.OPTIONS`. `tag` parts the keys of deployments that must not share chunks."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
            raise ValueError(f"slackwater: threads: {threads!r}: at least one is needed")
        if primary_kv_view.readonly or not primary_kv_view.c_contiguous:
            raise ValueError("slackwater: the memory of vLLM's CPU tier is read-only or not contiguous")
        if enable_kv_events and not offloading_spec.kv_events_config.enable_kv_cache_events:
            raise ValueError("slackwater: enable_kv_events: vLLM's own KV cache events are off: set kv_events_config")
        self.locality = Locality(locality) if locality is not None else None
        self._prefix = prefix_of(offloading_spec, tag, self.block_size_bytes)
        replicas = offloading_spec.config.parallel.data_parallel_size
        self._memory = primary_kv_view.cast("B")
        self._lookups, self._orders = Lookups(self._there), Orders(offloading_spec)
        self._jobs = Jobs(threads)
        self._events: list[Any] | None = [] if enable_kv_events else None
        self._cache = Cache(open_store(options, processes=replicas), log, options.get("tenant"))

    # Asking.

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """HIT or MISS, or RETRY until the store has answered."""
        self._orders.add(key, req_context)
        found = self._lookups.ask(key, req_context.req_id)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Asks the store for all that this step wanted to know, in one call."""
        self._lookups.flush()

    def on_new_request(self, req_context: Any) -> Any:
        """Chunks are offloaded as they come."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what was asked for the request."""
        self._lookups.finished(req_context.req_id)
        self._orders.finished(req_context.req_id)

    # Moving.

    def submit_store(self, job_metadata: Any) -> None:
        """Writes chunks that lie in slots of the CPU tier."""
        self._submit(job_metadata, self._stored)

    def submit_load(self, job_metadata: Any) -> None:
        """Reads chunks into slots of the CPU tier."""
        self._submit(job_metadata, self._loaded)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that have ended since the last call."""
        results = []
        for job in self._jobs.finished():
            missing = [key for key, there in zip(job.keys, job.there, strict=True) if not there]
            moved = [key for key, there in zip(job.keys, job.there, strict=True) if there]
            if job.load:
                # Otherwise vLLM would find the same chunks again, for the same request.
                self._lookups.missing(missing)
            else:
                self._lookups.stored(moved)
                if self._events is not None and moved:
                    self._events.append(OffloadingEvent(moved, self.medium, removed=False, locality=self.locality))
            results.append(
                JobResult(
                    job_id=job.number,
                    success=not missing,
                    successful_keys=tuple(moved) if job.load and missing and moved else None,
                    transfer_time=job.seconds,
                    # What was there already took no time, by which vLLM judges how much the tier bears.
                    transfer_bytes=job.moved * self.block_size_bytes,
                )
            )
        return results

    def has_pending_work(self) -> bool:
        """Whether a job or a question is under way, so that vLLM goes on asking for results."""
        return self._jobs.busy() or self._lookups.busy()

    def drain_jobs(self) -> None:
        """Returns when no job is under way, after which nothing touches the memory of the CPU tier.

        Jobs that have not begun fail: vLLM holds its locks meanwhile.
        """
        self._jobs.drain()

    def take_events(self) -> Iterable[Any]:
        """The chunks that were stored since the last call, where events are on."""
        if self._events:
            taken, self._events = self._events, []
            return taken
        return ()

    def shutdown(self) -> None:
        """Ends the jobs, lets go of the CPU tier's memory and closes the store. Again, it does nothing."""
        self._lookups.close()
        self._jobs.close()
        self._memory.release()
        self._cache.close()

    @property
    def counts(self) -> dict[str, int]:
        """What the calls did since the start."""
        return self._cache.counts

    def _name(self, key: bytes) -> str:
        return f"{self._prefix}{get_offload_group_idx(key)}:{get_offload_block_hash(key).hex()}"

    def _there(self, keys: list[bytes]) -> list[bool]:
        return self._cache.exists([self._name(key) for key in keys])

    def _stored(self, *given: Any) -> "Moves":
        return [(one is not None, one is True) for one in self._cache.put(*given)]

    def _loaded(self, *given: Any) -> "Moves":
        return [(one, one) for one in self._cache.read(*given)]

    def _submit(self, given: Any, call: "Callable[..., Moves]") -> None:
        keys, slots = list(given.keys), [int(slot) for slot in given.chunk_ids]
        for key in keys:
            self._orders.add(key, given.req_context)
        # Taken now: the request may be finished when the job begins.
        runs = self._orders.runs(keys, given.req_context, self._name)
        job = Job(given.job_id, keys, given.is_promotion)
        self._jobs.submit(job, lambda: self._move(call, job, slots, runs))

    def _move(self, call: "Callable[..., Moves]", job: "Job", slots: list[int], runs: "Runs") -> list[bool]:
        keys, size = job.keys, self.block_size_bytes
        there = [False] * len(keys)
        chunks = len(self._memory) // size
        if len(slots) != len(keys) or not all(0 <= slot < chunks for slot in slots):
            self._cache.failed("job", ValueError(f"{len(keys)} keys, and slots {slots} of {chunks}"))
            return there
        for places, chain in runs:
            names = [self._name(keys[at]) for at in places]
            buffers = [self._memory[slots[at] * size : (slots[at] + 1) * size] for at in places]
            for at, (one, moved) in zip(places, call(names, buffers, [size] * len(names), chain), strict=True):
                there[at] = one
                job.moved += moved
            for buffer in buffers:
                buffer.release()
        return there


@dataclass
class Job:
    """Chunks that are moved together."""

    number: int
    keys: list[bytes]
    load: bool
    there: list[bool] = field(default_factory=list)
    moved: int = 0
    seconds: float = 0.0


class Jobs:
    """Jobs on threads. Loads do not wait for stores."""

    def __init__(self, threads: int) -> None:
        self._loads = ThreadPoolExecutor(threads, thread_name_prefix="slackwater-load")
        self._stores = ThreadPoolExecutor(threads, thread_name_prefix="slackwater-store")
        self._cancelling = Cancelling()
        self._changed = threading.Condition()
        self._under_way: dict[int, tuple[Job, Future[None]]] = {}
        self._ended: list[Job] = []
        self._closed = False

    def submit(self, job: Job, work: Callable[[], list[bool]]) -> None:
        """Runs a job. One that is submitted after `close` fails."""
        with self._changed:
            if not self._closed:
                pool = self._loads if job.load else self._stores
                self._under_way[job.number] = job, pool.submit(self._run, job, work)
                return
        self._end(job, [False] * len(job.keys))

    def finished(self) -> list[Job]:
        """The jobs that have ended since the last call."""
        with self._changed:
            ended, self._ended = self._ended, []
        return ended

    def busy(self) -> bool:
        """Whether a job is under way, or has ended without being asked for."""
        with self._changed:
            return bool(self._under_way or self._ended)

    def drain(self) -> None:
        """Returns when no job is under way: those that have not begun fail."""
        self._cancel_waiting()
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def close(self) -> None:
        """Ends the jobs: those that have not begun fail, and the calls of the others are ended."""
        with self._changed:
            self._closed = True
        self._cancel_waiting()
        self._cancelling.cancel()
        self._loads.shutdown()
        self._stores.shutdown()

    def _cancel_waiting(self) -> None:
        with self._changed:
            waiting = list(self._under_way.values())
        for job, future in waiting:
            if future.cancel():
                self._end(job, [False] * len(job.keys))

    def _run(self, job: Job, work: Callable[[], list[bool]]) -> None:
        began = time.monotonic()
        try:
            there = self._cancelling.run(work, (), {})
        except BaseException:
            # vLLM waits for the result of every job, also where the store panics, which is no Exception.
            log.exception("job %d failed", job.number)
            there = [False] * len(job.keys)
        job.seconds = time.monotonic() - began
        self._end(job, there)

    def _end(self, job: Job, there: list[bool]) -> None:
        job.there = there
        with self._changed:
            self._under_way.pop(job.number, None)
            self._ended.append(job)
            self._changed.notify_all()


@dataclass
class Question:
    """A chunk that requests want to know of."""

    requests: set[str] = field(default_factory=set)
    found: bool | None = None
    asked: bool = False
    missed: set[str] = field(default_factory=set)
    """Those of the requests that were told that it is not there, and are told so until it is stored."""


class Lookups:
    """Questions of requests, which are put to the store together and answered later."""

    def __init__(self, there: Callable[[list[bytes]], list[bool]]) -> None:
        self._there = there
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slackwater-lookup")
        self._questions: dict[bytes, Question] = {}
        self._of_request: dict[str, set[bytes]] = defaultdict(set)
        self._new: list[bytes] = []
        self._asking: Future[None] | None = None
        self._cancelling = Cancelling()
        self._closed = False

    def ask(self, key: bytes, request: str) -> bool | None:
        """Whether the chunk is there; None until the store has answered. The answer stays while a request wants it."""
        if self._closed:
            return False
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = Question()
            self._new.append(key)
        elif question.found is False and request not in question.requests:
            # It may be there by now. The requests before keep their answer, which may be that it cannot be loaded.
            question.missed |= question.requests
            question.found, question.asked = None, False
            self._new.append(key)
        question.requests.add(request)
        self._of_request[request].add(key)
        return False if request in question.missed else question.found

    def flush(self) -> None:
        """Puts the new questions to the store, on a thread. While it has not answered, they wait for a later step."""
        if self._asking is not None and not self._asking.done():
            return
        keys, self._new = self._new, []
        wanted = {key: self._questions[key] for key in keys if key in self._questions and not self._questions[key].asked}
        for question in wanted.values():
            question.asked = True
        if wanted and not self._closed:
            self._asking = self._thread.submit(self._answer, wanted)

    def missing(self, keys: Collection[bytes]) -> None:
        """Takes chunks for missing that could not be loaded; a question that has no answer yet keeps waiting for it."""
        for key in keys:
            question = self._questions.get(key)
            if question is not None and question.found is not None:
                question.found = False

    def stored(self, keys: Collection[bytes]) -> None:
        """Takes chunks for present that were stored."""
        for key in keys:
            question = self._questions.get(key)
            if question is not None:
                question.found = True
                question.missed.clear()

    def finished(self, request: str) -> None:
        """Forgets what only this request wanted to know."""
        for key in self._of_request.pop(request, ()):
            question = self._questions[key]
            question.requests.discard(request)
            question.missed.discard(request)
            if not question.requests:
                # An answer that comes later goes to a question that nobody has.
                del self._questions[key]

    def busy(self) -> bool:
        """Whether questions have no answer yet."""
        return bool(self._new) or (self._asking is not None and not self._asking.done())

    def close(self) -> None:
        """Ends the thread and its call; from now on nothing is there."""
        self._closed = True
        self._cancelling.cancel()
        self._thread.shutdown(cancel_futures=True)

    def _answer(self, wanted: dict[bytes, Question]) -> None:
        try:
            there = self._cancelling.run(self._there, (list(wanted),), {})
        except BaseException:
            # vLLM asks until it has an answer, also where the store panics, which is no Exception.
            log.exception("a question for %d chunks failed", len(wanted))
            there = [False] * len(wanted)
        for question, found in zip(wanted.values(), there, strict=True):
            if question.found is None:
                question.found = found


class Orders:
    """The places of chunks in their requests, by group: vLLM tells at which token each chunk ends."""

    def __init__(self, spec: Any) -> None:
        self._tokens = [tokens * spec.blocks_per_chunk for tokens in spec.tokens_per_block]
        self._known: dict[str, dict[tuple[int, int], bytes]] = defaultdict(dict)

    def add(self, key: bytes, req_context: Any) -> None:
        """Remembers the place of a chunk, while its request lasts."""
        place = self._place(key, req_context)
        if place is not None:
            self._known[req_context.req_id][place] = key

    def runs(self, keys: Sequence[bytes], req_context: Any, name: Callable[[bytes], str]) -> Runs:
        """The chunks of a job as pieces of chains: places in the job, and what precedes them."""
        known = self._known.get(req_context.req_id, {})
        placed: list[tuple[tuple[int, int], int]] = []
        others: list[int] = []
        for at, key in enumerate(keys):
            place = self._place(key, req_context)
            if place is None:
                others.append(at)
            else:
                placed.append((place, at))
        runs: Runs = []
        before = None
        for (group, index), at in sorted(placed):
            if before == (group, index - 1):
                runs[-1][0].append(at)
            else:
                parent = known.get((group, index - 1))
                runs.append(([at], Chain(parent=None if parent is None else name(parent), position=index)))
            before = group, index
        # In one call they would be a chain, which they are not.
        return [*runs, *(([at], UNPLACED) for at in others)]

    def finished(self, request: str) -> None:
        """Forgets a request."""
        self._known.pop(request, None)

    def _place(self, key: bytes, req_context: Any) -> tuple[int, int] | None:
        group = get_offload_group_idx(key)
        end = req_context.get_offload_key_position(key)
        if end is None or group >= len(self._tokens):
            return None
        return group, max(0, end // self._tokens[group] - 1)


def prefix_of(spec: Any, tag: str, chunk_bytes: int) -> str:
    """What all keys of a deployment begin with: all that the bytes of a chunk depend on but its tokens.

    Raises ValueError where it is too long for keys.
    """
    config, parallel = spec.config, spec.config.parallel
    # The bytes of a canonical layout change with the version that vLLM gives them.
    canonical = canonical_format_id(config.kv_cache_layout) if config.canonical_layout else False
    ranks = [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    depends = {
        "tokens": [config.cache.tokens_per_hash, config.cache.blocks_per_chunk],
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "dtype": config.model.dtype,
        "bytes": chunk_bytes,
        # Chunks that are the same under any number of ranks are shared by deployments of different sizes.
        "ranks": "any" if parallel.is_parallelism_agnostic or config.replicated_layout else ranks,
        "layout": [config.replicated_layout, canonical, config.kv_cache_layout],
    }
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    prefix = f"vllm:{quoted(str(tag))}:{quoted(config.model.name)}:{digest}:"
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise ValueError(f"slackwater: model and tag: {len(prefix.encode())} of at most {PREFIX_BYTES_MAX} bytes")
    return prefix
