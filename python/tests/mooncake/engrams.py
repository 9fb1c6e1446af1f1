"""Calls of an `EngramStore` as a list of steps: what each gives, in any package `mooncake`.

As a program it prints that for an interpreter of its own: `engrams.py PACKAGE MASTER`, where PACKAGE is `mooncake` or
`slackwater`. It needs that package and numpy.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy

FIRST = numpy.arange(40, dtype=numpy.float32).reshape(10, 4)
SECOND = 100 + numpy.arange(20, dtype=numpy.float32).reshape(5, 4)
ROWS = numpy.array([[[1, 2], [9, 4]], [[0, 0], [3, 3]]], numpy.int64)


def steps(module: Any, store: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Each with what it does. The last ones close the store."""
    config = module.EngramStoreConfig()
    config.table_vocab_sizes, config.embedding_dim = [10, 5], 4
    layer = module.EngramStore(7, config, store)

    def configured(sizes: Any, dimension: Any) -> Any:
        other = module.EngramStoreConfig()
        other.table_vocab_sizes, other.embedding_dim = sizes, dimension
        return module.EngramStore(1, other, store).get_store_keys()

    def spoil() -> Any:
        return [store.remove(layer.get_store_keys()[1], True), store.put(layer.get_store_keys()[1], b"short")]

    tables = [FIRST, SECOND]
    of_kinds = [
        ("float64", [FIRST.astype(numpy.float64), SECOND]),
        ("int32", [FIRST.astype(numpy.int32), SECOND.astype(numpy.int64)]),
        ("by columns", [numpy.asfortranarray(FIRST), SECOND]),
        ("every second", [numpy.repeat(FIRST, 2, 0)[::2], SECOND]),
    ]
    populated = [
        step
        for name, given in of_kinds
        for step in (
            (f"populate with {name}", lambda given=given: layer.populate(given)),
            (f"look up after {name}", lambda: layer.lookup(ROWS)),
            (f"remove after {name}", lambda: layer.remove_from_store(True)),
        )
    ]
    refused = [
        ("too few", [FIRST]), ("too many", [FIRST, SECOND, SECOND]), ("a tuple", (FIRST, SECOND)), ("none", []),
        ("other rows", [SECOND, FIRST]), ("flat", [FIRST.ravel(), SECOND]), ("bytes", [FIRST.tobytes(), SECOND.tobytes()]),
        ("lists", [FIRST.tolist(), SECOND.tolist()]), ("addresses", [1, 2]), ("more rows", [numpy.zeros((11, 4)), SECOND]),
        ("longer rows", [numpy.zeros((10, 5)), SECOND]), ("nothing", None),
    ]  # fmt: skip
    asked = [
        ("numbers", ROWS), ("lists", ROWS.tolist()), ("int32", ROWS.astype(numpy.int32)), ("uint64", ROWS.astype(numpy.uint64)),
        ("float64", ROWS.astype(numpy.float64)), ("by columns", numpy.asfortranarray(ROWS)),
        ("every second", numpy.repeat(ROWS, 2, 1)[:, ::2]), ("a row beyond", numpy.array([[[10, 0]]])),
        ("a row before", numpy.array([[[-1, 0]]])), ("a row of another table", numpy.array([[[0, 5]]])),
        ("two dimensions", numpy.array([[1, 2]])), ("three heads", numpy.zeros((1, 1, 3), numpy.int64)),
        ("no batch", numpy.zeros((0, 1, 2), numpy.int64)), ("no length", numpy.zeros((1, 0, 2), numpy.int64)),
        ("an empty list", []), ("lists of different lengths", [[[1, 2], [1]]]), ("fractions", [[[1.5, 2.0]]]), ("a text", "x"),
    ]  # fmt: skip
    return [
        ("a configuration", lambda: [module.EngramStoreConfig().table_vocab_sizes, module.EngramStoreConfig().embedding_dim]),
        ("a tuple of sizes", lambda: configured((3, 4), 5)),
        ("no sizes", lambda: configured([], 4)),
        ("a negative size", lambda: configured([-3, 4], 4)),
        ("a size of 0", lambda: configured([0, 4], 4)),
        ("a size that is a text", lambda: configured(["a"], 4)),
        ("sizes that are a number", lambda: configured(5, 4)),
        ("no dimension", lambda: configured([3], 0)),
        ("a negative dimension", lambda: configured([3], -1)),
        ("a dimension that is a text", lambda: configured([3], "a")),
        ("half a dimension", lambda: configured([3], 1.5)),
        ("another name", lambda: setattr(config, "x", 1)),
        ("a layer that is a text", lambda: module.EngramStore("1", config, store)),
        ("a negative layer", lambda: module.EngramStore(-1, config, store).get_store_keys()),
        ("a large layer", lambda: module.EngramStore(1 << 31, config, store)),
        ("another configuration", lambda: module.EngramStore(1, 5, store)),
        ("another store", lambda: module.EngramStore(1, config, 5)),
        ("by name", lambda: module.EngramStore(layer_id=1, config=config, store=store).get_num_heads()),
        ("no store, populate", lambda: module.EngramStore(1, config).populate(tables)),
        ("no store, lookup", lambda: module.EngramStore(1, config).lookup(ROWS)),
        ("no store, remove", lambda: module.EngramStore(1, config).remove_from_store()),
        ("a changed configuration", lambda: [setattr(config, "embedding_dim", 9), layer.get_embedding_dim()]),
        ("what it is", lambda: [layer.get_embedding_dim(), layer.get_num_heads(), layer.get_table_vocab_sizes()]),
        ("its keys", layer.get_store_keys),
        ("look up before", lambda: layer.lookup(ROWS)),
        ("remove before", layer.remove_from_store),
        *[(f"populate with {name}", lambda given=given: layer.populate(given)) for name, given in refused],
        *populated,
        ("one is there", lambda: store.put(layer.get_store_keys()[1], b"xx")),
        ("populate with one there", lambda: layer.populate(tables)),
        ("which are there", lambda: store.batch_is_exist(layer.get_store_keys())),
        ("remove what is there", lambda: layer.remove_from_store(True)),
        ("populate", lambda: layer.populate(tables)),
        ("populate again", lambda: layer.populate(tables)),
        ("their lengths", lambda: [store.get_size(key) for key in layer.get_store_keys()]),
        ("their bytes", lambda: store.get(layer.get_store_keys()[1]) == SECOND.tobytes()),
        *[(f"look up {name}", lambda given=given: layer.lookup(given)) for name, given in asked],
        ("remove what is read", layer.remove_from_store),
        ("remove with force", lambda: layer.remove_from_store(True)),
        ("remove again", lambda: layer.remove_from_store(force=True)),
        ("populate once more", lambda: layer.populate(tables)),
        ("spoil one", spoil),
        ("look up a spoilt one", lambda: layer.lookup(ROWS)),
        ("remove one", lambda: store.remove(layer.get_store_keys()[1], True)),
        ("look up without it", lambda: layer.lookup(ROWS)),
        ("remove the rest", lambda: layer.remove_from_store(True)),
        ("close", store.close),
        ("populate when closed", lambda: layer.populate(tables)),
        ("look up when closed", lambda: layer.lookup(ROWS)),
        ("remove when closed", layer.remove_from_store),
    ]


def taken(of: list[tuple[str, Callable[[], Any]]]) -> dict[str, Any]:
    """The result of each step, or the kind of its exception and, where it is our own choice of words, its text."""
    results: dict[str, Any] = {}
    for name, step in of:
        assert name not in results
        try:
            result = step()
        except Exception as error:
            results[name] = [type(error).__name__, "" if isinstance(error, TypeError) else str(error)]
            continue
        if isinstance(result, numpy.ndarray):
            result = [str(result.dtype), list(result.shape), result.tolist()]
        results[name] = result
    return results


def main(package: str, master: str) -> None:
    """See the module."""
    if package == "slackwater":
        import slackwater.compat

        slackwater.compat.install(over=True)
    import mooncake.store as module

    store = module.MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
    print(json.dumps(taken(steps(module, store))))


if __name__ == "__main__":
    main(*sys.argv[1:])
