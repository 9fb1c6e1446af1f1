"""LMCache's remote connector, driven as its remote backend drives one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

import lmcache_double as engine
import pytest
import slackwater
from slackwater import Chain
from slackwater.integrations.chains import UNPLACED

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The module of the connector, over the double of LMCache."""
    with mock.patch.dict("sys.modules"):
        yield engine.loaded()


class Loop:
    """The event loop of LMCache, on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(60)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end()


@pytest.fixture
def opened(module: Any, address: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes connectors as LMCache does, with keys of the test's own."""
    connectors: list[Any] = []

    def connector(*, limit: int = 1000, layerwise: bool = False, serde: str = "naive", **options: Any) -> Any:
        settings = {"address": address, "tag": request.node.name, **options}
        extra = {f"remote_storage_plugin.slackwater.{name}": value for name, value in settings.items()}
        extra["remote_storage_plugin.slackwater.module_path"] = "slackwater.integrations.lmcache"
        config = engine.Config(extra, layerwise, serde)
        context = engine.Context("plugin://slackwater", engine.LocalCPUBackend(limit), config, plugin_name="slackwater")
        adapter = module.SlackwaterConnectorAdapter()
        assert adapter.can_parse(context.url)
        connectors.append(adapter.create_connector(context))
        return connectors[-1]

    yield connector
    for made in connectors:
        loop.run(made.close())


def chunk_of(seed: int, tokens: int = engine.CHUNK_TOKENS) -> engine.Chunk:
    """A chunk with bytes that tell it apart."""
    chunk = engine.Chunk([(2, 3, tokens)], list(engine.DTYPES), engine.FORMAT)
    chunk.byte_array[:] = bytes((seed * 17 + at) % 251 for at in range(len(chunk.byte_array)))
    return chunk


def keys_of(count: int) -> list[engine.Key]:
    return [engine.Key(number + 1) for number in range(count)]


@pytest.mark.parametrize("count", [1, 5, 60])
def test_chunks_come_back(opened: Open, loop: Loop, count: int) -> None:
    connector, keys = opened(), keys_of(count)
    assert connector.batched_contains(keys) == 0 and loop.run(connector.batched_get(keys)) == [None] * count
    chunks = [chunk_of(seed) for seed in range(count)]
    loop.run(connector.batched_put(keys, chunks))
    assert loop.run(connector.batched_async_contains("lookup", [*keys, engine.Key(999)])) == count
    read = loop.run(connector.batched_get([*keys, engine.Key(999)]))
    assert read[-1] is None
    assert [bytes(one.byte_array) for one in read[:-1]] == [bytes(one.byte_array) for one in chunks]
    # Each chunk that was read has one holder, and the misses none; the caller still holds what it put.
    assert connector._memory.held() == count and all(one.holders == 1 for one in [*read[:-1], *chunks])
    assert "failures" not in connector.counts


def test_single_calls(opened: Open, loop: Loop) -> None:
    connector, key = opened(), engine.Key(7)
    assert not connector.exists_sync(key) and not loop.run(connector.exists(key)) and loop.run(connector.get(key)) is None
    loop.run(connector.put(key, chunk_of(1)))
    assert connector.exists_sync(key) and loop.run(connector.exists(key))
    assert bytes(loop.run(connector.get(key)).byte_array) == bytes(chunk_of(1).byte_array)
    assert not connector.exists_sync(engine.Key(7, worker_id=1))
    assert connector.remove_sync(key) is True and not connector.exists_sync(key)
    assert connector.support_ping() and loop.run(connector.ping()) == 0


@pytest.mark.parametrize("layerwise", [False, True])
def test_chunks_of_other_shapes_keep_theirs(opened: Open, loop: Loop, layerwise: bool) -> None:
    """The last chunk of a prompt is shorter, and a codec makes chunks of any shape."""
    connector, keys = opened(layerwise=layerwise), keys_of(3)
    chunks = [chunk_of(1), chunk_of(2, tokens=9), engine.Chunk([(1, 1, 7)], ["uint8"], "BINARY")]
    chunks[2].byte_array[:] = b"c" * len(chunks[2].byte_array)
    loop.run(connector.batched_put(keys, chunks))
    assert connector.batched_contains(keys) == 3
    for one, wanted in zip(loop.run(connector.batched_get(keys)), chunks, strict=True):
        assert bytes(one.byte_array) == bytes(wanted.byte_array)
        assert (one.form, one.dtypes, [tuple(shape) for shape in one.shapes]) == (wanted.form, wanted.dtypes, wanted.shapes)
    assert connector._memory.held() == 3
    assert connector.remove_sync(keys[1]) and connector.batched_contains(keys) == 1
    assert loop.run(connector.list()) == sorted(key.to_string() for key in (keys[0], keys[2]))


def test_a_chunk_that_is_used_in_part_keeps_its_length(opened: Open, loop: Loop) -> None:
    connector, chunk = opened(), chunk_of(3)
    chunk.set_used_size(100)
    loop.run(connector.put(engine.Key(1), chunk))
    read = loop.run(connector.get(engine.Key(1)))
    assert bytes(read.byte_array) == bytes(chunk.byte_array) and "failures" not in connector.counts


def test_only_the_beginning_is_given(opened: Open, loop: Loop) -> None:
    connector, keys = opened(), keys_of(4)
    loop.run(connector.batched_put([keys[0], keys[2], keys[3]], [chunk_of(seed) for seed in (0, 2, 3)]))
    assert loop.run(connector.batched_async_contains("lookup", keys)) == 1
    read = loop.run(connector.batched_get_non_blocking("lookup", keys))
    assert [bytes(one.byte_array) for one in read] == [bytes(chunk_of(0).byte_array)]
    assert connector._memory.held() == 1


def test_no_memory_is_a_miss(opened: Open, loop: Loop) -> None:
    """LMCache's allocator waits for memory unless told not to: on its event loop, which alone gives memory back, for ever."""
    connector, keys = opened(limit=2), keys_of(3)
    loop.run(connector.batched_put(keys, [chunk_of(seed) for seed in range(3)]))
    read = loop.run(connector.batched_get(keys))
    assert [one is None for one in read] == [False, False, True]
    loop.run(connector.put(engine.Key(9), chunk_of(1, tokens=5)))
    assert loop.run(connector.get(engine.Key(9))) is None
    for one in read[:2]:
        one.ref_count_down()
    assert connector._memory.held() == 0


def test_a_broken_description_is_a_miss(opened: Open, loop: Loop, address: str, request: pytest.FixtureRequest) -> None:
    connector, keys = opened(), keys_of(2)
    names = [f"lmcache:{request.node.name}:{key.to_string()}#" for key in keys]
    with slackwater.connect(address) as client:
        client.put(names[0], b"not a description")
        client.put(names[1], engine.RemoteMetadata(5, [(2, 3, 5)], ["uint8"], "BINARY").serialize() + b"123456789")
    assert loop.run(connector.batched_get(keys)) == [None, None]
    assert connector.counts["failures"] == 2 and connector._memory.held() == 0


def test_chains_are_those_of_lookups(opened: Open, loop: Loop) -> None:
    connector, keys = opened(), keys_of(3)
    store = connector._cache._store = mock.Mock(wraps=connector._cache._store, closed=False)
    connector.batched_contains(keys)
    loop.run(connector.batched_put(keys[1:], [chunk_of(seed) for seed in (1, 2)]))
    chain = repr(store.put_batch.call_args.kwargs["chain"])
    assert keys[0].to_string() in chain and f"position={Chain.POSITION_UNKNOWN + 1}," in chain


def test_the_second_turn_tells_no_new_root(opened: Open, loop: Loop) -> None:
    """LMCache asks only for what its own memory lacks: the first chunk of each second turn became the root of a chain."""
    connector, keys = opened(), keys_of(4)
    store = connector._cache._store = mock.Mock(wraps=connector._cache._store, closed=False)
    connector.batched_contains(keys[:2])
    connector.batched_contains(keys[2:])
    loop.run(connector.batched_put(keys[2:], [chunk_of(seed) for seed in (2, 3)]))
    assert store.put_batch.call_count == 1 and store.put_batch.call_args.kwargs["chain"] is UNPLACED
    connector.batched_contains(keys)
    loop.run(connector.batched_get(keys[2:]))
    chain = repr(store.get_batch_into.call_args.kwargs["chain"])
    assert keys[1].to_string() in chain and f"position={Chain.POSITION_UNKNOWN + 2}," in chain


def test_described_chunks_have_no_known_place(opened: Open, loop: Loop) -> None:
    """Each chunk of a codec was told to the store as the root of a chain."""
    connector, keys = opened(serde="cachegen"), keys_of(2)
    store = connector._cache._store = mock.Mock(wraps=connector._cache._store, closed=False)
    loop.run(connector.batched_put(keys, [chunk_of(seed) for seed in (1, 2)]))
    loop.run(connector.batched_get(keys))
    calls = [*store.put_batch.call_args_list, *store.get_batch.call_args_list]
    assert len(calls) == 3 and all(call.kwargs["chain"] is UNPLACED for call in calls)


def test_a_codecs_chunks_are_read_by_one_call(opened: Open, loop: Loop) -> None:
    connector, keys = opened(serde="cachegen"), keys_of(2)
    loop.run(connector.batched_put(keys, [chunk_of(0), chunk_of(1)]))
    store = connector._cache._store = mock.Mock(wraps=connector._cache._store, closed=False)
    read = loop.run(connector.batched_get(keys))
    assert [bytes(one.byte_array) for one in read] == [bytes(chunk_of(seed).byte_array) for seed in (0, 1)]
    assert store.get_batch_into.call_count == 0 and len(connector._memory.given) == 2


def test_reads_and_pings_do_not_wait_for_writes(opened: Open, loop: Loop) -> None:
    """A burst of writes had all threads: LMCache's health check was late, and it gave the store up."""
    connector, keys = opened(threads=1), keys_of(2)
    begun, go, whole = threading.Event(), threading.Event(), connector._cache.write

    def slow(*arguments: Any) -> list[bool]:
        begun.set()
        go.wait(60)
        return whole(*arguments)

    loop.run(connector.put(keys[0], chunk_of(0)))
    with mock.patch.object(connector._cache, "write", slow):
        written = asyncio.run_coroutine_threadsafe(connector.put(keys[1], chunk_of(1)), loop.loop)
        assert begun.wait(60)
        assert loop.run(connector.ping()) == 0 and loop.run(connector.get(keys[0])) is not None
        assert not written.done()
        go.set()
        written.result(60)
    assert connector.batched_contains(keys) == 2


def test_a_cancelled_read_gives_its_memory_back(opened: Open, loop: Loop) -> None:
    """LMCache cancels a read that takes too long. Its memory is given back once nothing writes to it."""
    connector, keys = opened(), keys_of(2)
    begun, go, wrote = threading.Event(), threading.Event(), []
    whole = connector._cache.read

    def slow(*arguments: Any) -> list[bool]:
        begun.set()
        go.wait(60)
        wrote.append(connector._memory.held())
        return whole(*arguments)

    with mock.patch.object(connector._cache, "read", slow):
        read = asyncio.run_coroutine_threadsafe(connector.batched_get(keys), loop.loop)
        assert begun.wait(60)
        read.cancel()
        go.set()
        loop.run(connector.ping())
    loop.run(connector.close())
    assert wrote == [2] and connector._memory.held() == 0


def test_a_store_that_fails_is_misses(opened: Open, loop: Loop) -> None:
    connector, keys = opened(), keys_of(2)
    whole = connector._cache._store
    connector._cache._store = mock.Mock(closed=False)
    refused = slackwater.RefusedError("not permitted", slackwater.ErrorCode.ROLE_NOT_PERMITTED)
    for call in ("exists_batch", "get_batch_into", "get_batch", "put_batch", "remove_batch", "list"):
        getattr(connector._cache._store, call).side_effect = refused
    assert connector.batched_contains(keys) == 0 and loop.run(connector.batched_get(keys)) == [None, None]
    loop.run(connector.batched_put(keys, [chunk_of(0), chunk_of(1)]))
    assert connector.remove_sync(keys[0]) is False and loop.run(connector.list()) == []
    assert loop.run(connector.ping()) == 2007
    assert connector._memory.held() == 0
    connector._cache._store = whole


def test_urls(module: Any, address: str, loop: Loop) -> None:
    adapter = module.SlackwaterConnectorAdapter()
    urls = ["plugin://slackwater", "plugin://slackwater.b", "slackwater://h:1"]
    urls += ["plugin://slackwaters", "redis://h:1", "slackwater"]
    assert [adapter.can_parse(url) for url in urls] == [True, True, True, False, False, False]
    connector = adapter.create_connector(engine.Context(address.replace("tcp://", "slackwater://")))
    assert loop.run(connector.ping()) == 0
    loop.run(connector.close())
    loop.run(connector.close())
    assert connector.exists_sync(engine.Key(1)) is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adress": "tcp://127.0.0.1:1"}, "no option 'adress'"),
        ({"threads": -1}, "threads: -1"),
        ({"address": "here"}, "address:"),
        ({"address": None, "store": {"memory": "8MiB"}}, "2 processes of the engine need one store"),
    ],
    ids=str,
)
def test_a_wrong_configuration_ends_the_start(module: Any, options: dict[str, Any], message: str) -> None:
    extra = {f"remote_storage_plugin.slackwater.b.{name}": value for name, value in options.items()}
    context = engine.Context("plugin://slackwater.b", config=engine.Config(extra), plugin_name="slackwater.b")
    with pytest.raises(ValueError, match=message):
        module.SlackwaterConnectorAdapter().create_connector(context)
