"""`EngramStore`: tables of rows, put and looked up; each step as Mooncake has it."""

import json
import os
import subprocess
import sys
import threading
from typing import Any

import mooncake.store
import numpy
import pytest
from mooncake.store import EngramStore, EngramStoreConfig, MooncakeDistributedStore

import calls
import engrams
from conftest import Starter
from test_differential import mooncake_master

LOOKED_UP = ["float32", [2, 2, 2, 4], numpy.stack([engrams.FIRST[engrams.ROWS[:, :, 0]], engrams.SECOND[engrams.ROWS[:, :, 1]]], 2).tolist()]
FAILED = ["RuntimeError", "EngramStore lookup failed"]
# What is told in other words, or not told apart, there.
WORDS = {
    "another name", "another store", "look up fractions", "look up a text", "look up two dimensions", "look up three heads",
}  # fmt: skip


@pytest.fixture(scope="module")
def results(started: Starter) -> Any:
    """What each step gives here."""
    with started("master") as (address, _):
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", address) == 0
        yield engrams.taken(engrams.steps(mooncake.store, store))
        store.close()


def test_rows_are_those_of_the_tables(results: dict[str, Any]) -> None:
    for name in ("numbers", "lists", "int32", "uint64", "float64", "by columns", "every second"):
        assert results[f"look up {name}"] == LOOKED_UP, name
    for name in ("float64", "int32", "by columns", "every second"):
        assert results[f"look up after {name}"] == LOOKED_UP and results[f"remove after {name}"] == 2, name
    assert results["their lengths"] == [160, 80] and results["their bytes"] is True
    assert results["its keys"] == ["engram:l7:h0", "engram:l7:h1"]


def test_what_is_wrong_is_refused(results: dict[str, Any]) -> None:
    for name in ("a row beyond", "a row before", "a row of another table", "no batch", "no length", "a spoilt one", "without it", "before", "when closed"):
        assert results[f"look up {name}"] == FAILED, name
    assert results["populate again"] == ["RuntimeError", "populate failed"] == results["populate with one there"]
    assert results["which are there"] == [0, 1] and results["remove what is there"] == 1
    assert results["remove what is read"] == ["RuntimeError", "remove_from_store failed, rc=-706"]
    assert [results[f"remove {name}"] for name in ("before", "with force", "again")] == [0, 2, 0]


def test_mooncake_does_the_same(results: dict[str, Any]) -> None:
    interpreter = os.environ.get("MOONCAKE_PYTHON")
    if not interpreter:
        pytest.skip("MOONCAKE_PYTHON names no interpreter with Mooncake: compared with nothing")
    with mooncake_master(interpreter) as address:
        ran = subprocess.run([interpreter, engrams.__file__, "mooncake", address], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    theirs = json.loads(ran.stdout.splitlines()[-1])
    assert list(theirs) == list(results)
    differing = {name: (results[name], theirs[name]) for name in results if results[name] != theirs[name]}
    assert {name for name, (ours, others) in differing.items() if ours[0] != others[0]} == set()
    assert set(differing) <= WORDS, differing


def test_a_layer_that_cannot_be_stored_leaves_nothing(started: Starter, soon: None) -> None:
    with started("master", "--put-wait", "100ms") as (address, _):
        player = calls.opened(mooncake.store, address, segment=16 << 20)
        config = EngramStoreConfig()
        config.table_vocab_sizes, config.embedding_dim = [1024, 1 << 20], 64
        layer = EngramStore(1, config, player.store)
        tables = [numpy.zeros((rows, 64), numpy.float32) for rows in config.table_vocab_sizes]
        with pytest.raises(RuntimeError, match="populate failed"):
            layer.populate(tables)
        assert player.store.batch_is_exist(layer.get_store_keys()) == [0, 0]
        with pytest.raises(RuntimeError, match="populate failed"):
            EngramStore(2, config, player.store).populate([numpy.full((1024, 64), "x"), tables[1]])
        player.store.close()


def test_layers_are_looked_up_by_threads_while_one_is_replaced(started: Starter) -> None:
    with started("master") as (address, _):
        player = calls.opened(mooncake.store, address, segment=64 << 20)
        config = EngramStoreConfig()
        config.table_vocab_sizes, config.embedding_dim = [1000, 1000], 16
        layer = EngramStore(3, config, player.store)
        rows = numpy.random.default_rng(1).integers(0, 1000, (4, 8, 2))
        wrong: list[Any] = []

        def look_up() -> None:
            for _ in range(50):
                try:
                    found = layer.lookup(rows)
                except RuntimeError as error:
                    wrong.extend([] if str(error) == FAILED[1] else [error])
                    continue
                # Each table is of one put.
                wrong.extend(found[:, :, head] for head in range(2) if len(numpy.unique(found[:, :, head])) != 1)

        threads = [threading.Thread(target=look_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(20):
            layer.populate([numpy.full((1000, 16), number, numpy.float32)] * 2)
            assert layer.remove_from_store(True) == 2
        for thread in threads:
            thread.join()
        assert not wrong, wrong[:3]
        player.store.close()


class Watched:
    """A store's inner one, which counts the bytes that lookups ask for."""

    def __init__(self, raw: Any) -> None:
        self.raw, self.bytes = raw, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def read_alone(self, keys: list[str], starts: Any, sizes: Any, offsets: Any) -> Any:
        self.bytes += sum(map(sum, sizes))
        return self.raw.read_alone(keys, starts, sizes, offsets)


def test_a_lookup_reads_what_it_asks_for(started: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lookup read all tables: of a few rows it took as long as of all."""
    with started("master") as (address, _):
        player = calls.opened(mooncake.store, address, segment=64 << 20)
        config = EngramStoreConfig()
        config.table_vocab_sizes, config.embedding_dim = [20_000, 7], 40
        layer = EngramStore(3, config, player.store)
        draw = numpy.random.default_rng(1)
        tables = [draw.random((rows, 40), numpy.float32) for rows in config.table_vocab_sizes]
        layer.populate(tables)
        watched = Watched(player.store._raw)
        monkeypatch.setattr(player.store, "_raw", watched)

        def check(ids: Any, most: int) -> None:
            rows = numpy.stack([ids, ids % 7], 2)
            watched.bytes = 0
            found = layer.lookup(rows)
            assert (found == numpy.stack([tables[0][rows[..., 0]], tables[1][rows[..., 1]]], 2)).all()
            # The other table is small, and read as a whole.
            assert watched.bytes <= (most + 7) * 160, ids

        check(numpy.array([[0]]), 1)
        check(numpy.array([[19_999, 0, 19_999]]), 2)
        check(numpy.array([[5, 6], [7, 5]]), 3)
        # What is in between is read with its neighbours, where that is less than another read.
        check(numpy.array([[100, 102, 110]]), 11)
        check(numpy.array([[100, 10_000]]), 2)
        for count in (10, 1_000, 30_000, 100_000):
            check(draw.integers(0, 20_000, (4, count // 4)), min(8 * count, 20_000))
        check(numpy.arange(20_000)[None], 20_000)
        player.store.close()


def test_it_needs_no_more_than_its_package_until_it_is_used() -> None:
    code = "import sys, slackwater.compat; slackwater.compat.install(over=True); import mooncake.store; print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
