"""Slackwater under LMCache: `NativeSlackwater` in multi-process mode, `SlackwaterConnectorAdapter` in the engine's process.

`docs/guide/lmcache.md` has the configurations. The first is an L2 adapter of type `native_plugin`: its calls return at once,
and one event file descriptor tells that some have ended. The second is a plug-in of remote storage, for which alone LMCache
is imported.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._native import Cancelling
from .cache import Cache
from .chains import Chains
from .opening import open_store

if TYPE_CHECKING:
    from .lmcache_connector import SlackwaterConnector, SlackwaterConnectorAdapter

__all__ = ["NativeSlackwater", "SlackwaterConnector", "SlackwaterConnectorAdapter"]

log = logging.getLogger(__name__)

THREADS = 8
"""Reads and questions under way at a time, and writes besides, unless another number is given; the others wait in line."""

TAG_BYTES_MAX = 200

Completion = tuple[int, bool, str, list[bool] | None]
Work = Callable[..., tuple[str, list[bool]]]


def __getattr__(name: str) -> Any:
    if name in ("SlackwaterConnector", "SlackwaterConnectorAdapter"):
        return getattr(importlib.import_module(".lmcache_connector", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class NativeSlackwater:
    """A native connector, as LMCache 0.5.6 wants one. Any thread may call.

    Keys and buffers are LMCache's, and bytes go straight between the buffers and the store.
    """

    def __init__(self, *, tag: str = "", threads: int = THREADS, **options: Any) -> None:
        """Connects to the store of `opening.OPTIONS`. `tag` parts the keys of deployments that must not share values."""
        self._prefix, threads = prefix_of(tag), count_of(threads)
        # LMCache stores what several requests wrote in one batch.
        self._chains = Chains(family, ordered=False)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="slackwater-lmcache")
        # What changes the store does not let questions and reads wait.
        self._changes = ThreadPoolExecutor(threads, thread_name_prefix="slackwater-lmcache-set")
        self._cancelling = Cancelling()
        self._lock = threading.Lock()
        self._closed, self._last = False, 0
        self._under_way: dict[int, tuple[Future[None], int]] = {}
        self._completions: list[Completion] = []
        self._cache = Cache(open_store(options), log, options.get("tenant"))
        try:
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._cache.close()
            raise

    def event_fd(self) -> int:
        """The file descriptor that is readable while completions wait to be drained."""
        return self._event

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        """Reads values into buffers; the completion tells which filled theirs."""
        return self._submit(self._pool, self._read, keys, memoryviews)

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        """Writes values; the completion is a success when all are there then."""
        return self._submit(self._changes, self._write, keys, memoryviews)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Asks which values are there. LMCache asks for the keys of a request in order, which tells their chain."""
        return self._submit(self._pool, self._exists, keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes values; the completion tells which are gone."""
        return self._submit(self._changes, self._delete, keys)

    def drain_completions(self) -> list[Completion]:
        """The batches that have ended since the last call: number, success, reason, and the result of each key."""
        with self._lock:
            if self._event >= 0 and self._completions:
                os.eventfd_read(self._event)
            drained, self._completions = self._completions, []
        return drained

    @property
    def counts(self) -> dict[str, int]:
        """What the calls did since the start."""
        return self._cache.counts

    def close(self) -> None:
        """Ends the batches that are under way, and returns once nothing touches their buffers. Again, it does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            under_way = list(self._under_way.items())
        for number, (future, keys) in under_way:
            if future.cancel():
                self._end(number, False, "closed", [False] * keys)
        self._cancelling.cancel()
        self._pool.shutdown()
        self._changes.shutdown()
        self._cache.close()
        with self._lock:
            event, self._event = self._event, -1
        os.close(event)

    def _submit(self, pool: ThreadPoolExecutor, work: Work, keys: Sequence[str], *buffers: Sequence[Any]) -> int:
        with self._lock:
            self._last += 1
            number = self._last
            closed = self._closed
            if not closed:
                ran = pool.submit(self._run, number, work, list(keys), *buffers)
                self._under_way[number] = ran, len(keys)
        if closed:
            self._end(number, False, "closed", [False] * len(keys))
        return number

    def _run(self, number: int, work: Work, keys: list[str], *buffers: Sequence[Any]) -> None:
        try:
            reason, results = self._cancelling.run(work, ([self._prefix + key for key in keys], *buffers), {})
        except BaseException as error:
            # LMCache waits for a completion of every batch, also where the store panics, which is no Exception.
            self._cache.failed("batch", error)
            reason, results = str(error), [False] * len(keys)
        self._end(number, not reason, reason, results)

    def _end(self, number: int, success: bool, reason: str, results: list[bool]) -> None:
        with self._lock:
            self._under_way.pop(number, None)
            self._completions.append((number, success, reason, results))
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def _read(self, keys: list[str], buffers: Sequence[Any]) -> tuple[str, list[bool]]:
        return "", self._by_chain(self._cache.read, keys, buffers)

    def _write(self, keys: list[str], buffers: Sequence[Any]) -> tuple[str, list[bool]]:
        there = self._by_chain(self._cache.write, keys, buffers)
        missing = there.count(False)
        return f"{missing} of {len(keys)} values were not stored" if missing else "", there

    def _exists(self, keys: list[str]) -> tuple[str, list[bool]]:
        self._chains.learn(keys)
        return "", self._cache.exists(keys)

    def _delete(self, keys: list[str]) -> tuple[str, list[bool]]:
        return "", self._cache.remove(keys)

    def _by_chain(self, call: Callable[..., list[bool]], keys: list[str], buffers: Sequence[Any]) -> list[bool]:
        if len(buffers) != len(keys):
            raise ValueError(f"{len(keys)} keys and {len(buffers)} buffers: one each is needed")
        return by_chain(self._chains, call, keys, buffers)


def by_chain(chains: Chains, call: Callable[..., list[bool]], keys: Sequence[str], buffers: Sequence[Any]) -> list[bool]:
    """The results of reading or writing values, one call of the store for each chain."""
    results = [False] * len(keys)
    for places, chain in chains.runs(keys):
        held = [buffers[at] for at in places]
        sizes = [memoryview(buffer).nbytes for buffer in held]
        for at, one in zip(places, call([keys[at] for at in places], held, sizes, chain), strict=True):
            results[at] = one
    return results


def family(key: str) -> tuple[str, ...]:
    """All of a key of LMCache but its fourth part, which is the hash of the chunk."""
    parts = key.split("@")
    return (*parts[:3], *parts[4:])


def prefix_of(tag: str) -> str:
    """What keys begin with in the store. Raises ValueError for a tag that is none."""
    if not isinstance(tag, str) or len(tag.encode()) > TAG_BYTES_MAX or "@" in tag:
        raise ValueError(f"slackwater: tag: {tag!r} is no text of at most {TAG_BYTES_MAX} bytes without @")
    return f"lmcache:{tag}:"


def count_of(threads: int) -> int:
    """A number of threads. Raises ValueError for one that is none."""
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ValueError(f"slackwater: threads: {threads!r}: at least one is needed")
    return threads
