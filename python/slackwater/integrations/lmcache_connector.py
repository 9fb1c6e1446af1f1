"""The connector of LMCache's remote storage; `slackwater.integrations.lmcache` names it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ..driver import Driver
from .cache import Cache
from .chains import Chains
from .lmcache import THREADS, by_chain, count_of, family, prefix_of
from .opening import OPTIONS, open_store

try:
    from lmcache.v1.protocol import RemoteMetadata
    from lmcache.v1.storage_backend.connector import ConnectorAdapter, extract_plugin_type
    from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
except ImportError as error:
    raise ImportError(
        f"SlackwaterConnectorAdapter is loaded by LMCache 0.5.6 or newer, whose RemoteConnector is not here: {error}"
    ) from error

log = logging.getLogger(__name__)

PLUGIN, SCHEME = "slackwater", "slackwater://"

DESCRIBED = "#"
"""The end of the keys of values that begin with LMCache's description of them."""


class SlackwaterConnectorAdapter(ConnectorAdapter):
    """Makes connectors for `plugin://slackwater`, `plugin://slackwater.INSTANCE` and `slackwater://HOST:PORT`."""

    def __init__(self) -> None:
        super().__init__(SCHEME)

    def can_parse(self, url: str) -> bool:
        """Whether a URL is of this adapter."""
        plugin = url.removeprefix("plugin://")
        return url.startswith(SCHEME) or (plugin != url and extract_plugin_type(plugin) == PLUGIN)

    def create_connector(self, context: Any) -> "SlackwaterConnector":
        """Connects to the store of the options `remote_storage_plugin.INSTANCE.…`, or of the URL."""
        begin = f"remote_storage_plugin.{context.plugin_name or PLUGIN}."
        extra = (context.config.extra_config if context.config is not None else None) or {}
        options = {name.removeprefix(begin): value for name, value in extra.items() if name.startswith(begin)}
        options = {name: value for name, value in options.items() if name not in ("module_path", "class_name")}
        if context.url.startswith(SCHEME):
            options.setdefault("address", f"tcp://{context.url.removeprefix(SCHEME)}")
        return SlackwaterConnector(context.local_cpu_backend, context.config, context.metadata, **options)


class SlackwaterConnector(RemoteConnector):
    """Chunks of one engine in a store.

    A chunk of the engine's usual shape is a value without anything added, which goes straight between the store and LMCache's
    memory. Any other is copied, behind LMCache's description of it.
    """

    def __init__(
        self,
        local_cpu_backend: Any,
        config: Any,
        metadata: Any,
        *,
        tag: str = "",
        threads: int = THREADS,
        **options: Any,
    ) -> None:
        super().__init__(config, metadata)
        self._prefix, threads = prefix_of(tag), count_of(threads)
        # LMCache's codecs and layers make chunks of other shapes.
        self._memory = local_cpu_backend
        self._usual = not config.use_layerwise and config.remote_serde in (None, "naive")
        # What is written does not let questions and reads wait.
        self._chains, self._driver, self._writer = Chains(family, ordered=True), Driver(threads), Driver(threads)
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise ValueError(f"slackwater: no option {unknown[0]!r}: there are tag, threads, {', '.join(OPTIONS)}")
        # Each worker has a connector, and the scheduler one more.
        self._cache = Cache(open_store(options, processes=metadata.world_size + 1), log, options.get("tenant"))

    # What is there.

    async def exists(self, key: Any) -> bool:
        """Whether a chunk is there."""
        return (await self._driver.call(self._there, [key]))[0]

    def exists_sync(self, key: Any) -> bool:
        """The same, for callers that wait."""
        return self._there([key])[0]

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """The number of chunks at the beginning that are there."""
        there = self._there(keys)
        return there.index(False) if False in there else len(there)

    def support_batched_async_contains(self) -> bool:
        """Yes."""
        return True

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        """The number of chunks at the beginning that are there."""
        return await self._driver.call(self.batched_contains, keys)

    # Reading.

    async def get(self, key: Any) -> Any:
        """A chunk in LMCache's memory, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    async def batched_get(self, keys: Sequence[Any]) -> list[Any]:
        """Chunks in LMCache's memory, None for those that are not there."""
        names = [self._name(key) for key in keys]
        chunks: list[Any] = [None] * len(names)
        if self._usual:
            await self._read_usual(names, chunks)
        left = [at for at, chunk in enumerate(chunks) if chunk is None]
        try:
            values = await self._driver.call(self._cache.get, [names[at] + DESCRIBED for at in left])
            for at, value in zip(left, values, strict=True):
                chunks[at] = self._described(value)
        except BaseException:
            release(chunks)
            raise
        return chunks

    def support_batched_get_non_blocking(self) -> bool:
        """Yes."""
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """The chunks at the beginning that are there."""
        chunks = await self.batched_get(keys)
        end = next((at for at, chunk in enumerate(chunks) if chunk is None), len(chunks))
        release(chunks[end:])
        return chunks[:end]

    # Writing.

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Writes a chunk; the caller keeps its memory until this ends."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Writes chunks; the caller keeps their memory until this ends."""
        await self._writer.call(self._write, [self._name(key) for key in keys], memory_objs)

    # The rest.

    async def list(self) -> list[str]:
        """The keys of all chunks, as LMCache writes them."""
        return await self._driver.call(self._listed)

    def remove_sync(self, key: Any) -> bool:
        """Removes a chunk: whether it is gone."""
        name = self._name(key)
        return all(self._cache.remove([name, name + DESCRIBED]))

    def support_ping(self) -> bool:
        """Yes."""
        return True

    async def ping(self) -> int:
        """0 when the store answers."""
        return await self._driver.call(self._cache.ping)

    async def close(self) -> None:
        """Ends the connector after the calls that have begun. Again, it does nothing."""
        await asyncio.to_thread(self._driver.close)
        await asyncio.to_thread(self._writer.close)
        self._cache.close()

    @property
    def counts(self) -> dict[str, int]:
        """What the calls did since the start."""
        return self._cache.counts

    def _name(self, key: Any) -> str:
        return self._prefix + key.to_string()

    def _there(self, keys: Sequence[Any]) -> "list[bool]":
        names = [self._name(key) for key in keys]
        self._chains.learn(names)
        there = self._cache.exists([*names, *(name + DESCRIBED for name in names)])
        return [usual or described for usual, described in zip(there[: len(names)], there[len(names) :], strict=True)]

    def _listed(self) -> "list[str]":
        keys = (key.decode() for some in self._cache.list(self._prefix) for key in some)
        return sorted({key.removeprefix(self._prefix).removesuffix(DESCRIBED) for key in keys})

    # Chunks as values.

    def _allocated(self, shapes: Any, dtypes: Any, form: Any) -> Any:
        """A chunk of LMCache's memory, or None when none is free."""
        # The event loop, which runs this, is also where puts give their memory back: waiting here would be for ever.
        return self._memory.allocate(shapes, dtypes, form, busy_loop=False)

    async def _read_usual(self, names: "list[str]", chunks: "list[Any]") -> None:
        """Reads the chunks of the usual shape into memory of LMCache."""
        places, taken = [], []
        try:
            for at in range(len(names)):
                chunk = self._allocated(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
                if chunk is None:
                    # No memory for more: the chunks after this one are misses.
                    break
                places.append(at)
                taken.append(chunk)
            there = await self._driver.call(
                by_chain, self._chains, self._cache.read, [names[at] for at in places], [bytes_of(one) for one in taken]
            )
        except BaseException:
            release(taken)
            raise
        for at, chunk, one in zip(places, taken, there, strict=True):
            if one:
                chunks[at] = chunk
            else:
                chunk.ref_count_down()

    def _described(self, value: bytes | None) -> Any:
        """A chunk of a value that begins with its description, or None."""
        if value is None:
            return None
        try:
            description = RemoteMetadata.deserialize(value)
            chunk = self._allocated(description.shapes, description.dtypes, description.fmt)
        except Exception as error:
            self._cache.failed("read", error)
            return None
        if chunk is None:
            return None
        content = memoryview(value)[self.remote_metadata_bytes :]
        memory = memoryview(bytes_of(chunk)).cast("B")
        if content.nbytes < memory.nbytes and hasattr(chunk, "set_used_size"):
            # A chunk of which LMCache used a part has the shape of a whole one.
            chunk.set_used_size(content.nbytes)
            memory = memory[: content.nbytes]
        if memory.nbytes != content.nbytes or description.length != content.nbytes:
            chunk.ref_count_down()
            self._cache.failed("read", ValueError(f"a chunk of {content.nbytes} bytes is described as {description.length}"))
            return None
        memory[:] = content
        return chunk

    def _write(self, names: "list[str]", chunks: Sequence[Any]) -> None:
        usual = [at for at, chunk in enumerate(chunks) if self._usual and self._is_usual(chunk)]
        by_chain(self._chains, self._cache.write, [names[at] for at in usual], [bytes_of(chunks[at]) for at in usual])
        for at in sorted(set(range(len(chunks))) - set(usual)):
            chunk = chunks[at]
            content = bytes_of(chunk)
            length = memoryview(content).nbytes
            shapes, dtypes, form = chunk.get_shapes(), chunk.get_dtypes(), chunk.get_memory_format()
            value = RemoteMetadata(length, shapes, dtypes, form).serialize() + bytes(content)
            self._cache.write([names[at] + DESCRIBED], [value], [len(value)])

    def _is_usual(self, chunk: Any) -> bool:
        return (
            memoryview(bytes_of(chunk)).nbytes == self.full_chunk_size_bytes
            and chunk.get_memory_format() == self.meta_fmt
            and list(chunk.get_shapes()) == list(self.meta_shapes)
            and list(chunk.get_dtypes()) == list(self.meta_dtypes)
        )


def bytes_of(chunk: Any) -> Any:
    """The memory of a chunk, of its own length."""
    return chunk.byte_array


def release(chunks: Sequence[Any]) -> None:
    """Gives back the memory of chunks that nobody will use."""
    for chunk in chunks:
        if chunk is not None:
            chunk.ref_count_down()
