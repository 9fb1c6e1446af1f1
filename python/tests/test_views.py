"""Values are shown where they lie, and their memory stays for as long as anything refers to it."""

import gc
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import slackwater
from slackwater import Store


def views_of(store: Store) -> tuple[int, int]:
    views = store.stats()["views"]
    return views["open"], views["open_bytes"]


def shown(store: Store, key: str) -> slackwater.View:
    view = store.view(key)
    assert view is not None
    return view


def test_a_view_gives_a_memoryview_that_ends_with_its_block(store: Store) -> None:
    value = bytes(range(256)) * 40
    store.put("k", value)
    with shown(store, "k") as memory:
        assert memory == value and memory.nbytes == len(value)
        assert memory.readonly and memory.format == "B"
        with pytest.raises(TypeError, match="read-only"):
            memory[0] = 1
        assert views_of(store) == (1, len(value))
    assert views_of(store) == (0, 0)
    with pytest.raises(ValueError, match="released"):
        memory.tobytes()
    assert store.view("other") is None
    view = store.view("k", verify=True)
    assert view is not None and bytes(view) == value
    assert (len(view), view.tier, view.closed) == (len(value), "memory", False)
    assert repr(view) == f"<slackwater.View of {len(value)} bytes from memory>"
    view.close()
    view.close()
    assert view.closed and views_of(store) == (0, 0)
    for use in (bytes, type(view).__enter__):
        with pytest.raises(ValueError, match="the view is closed"):
            use(view)


def test_two_views_are_the_same_memory_and_can_be_put_and_not_written(store: Store) -> None:
    store.put("k", bytes(5000))
    first = numpy.frombuffer(shown(store, "k"), dtype=numpy.uint8)
    second = numpy.frombuffer(shown(store, "k"), dtype=numpy.uint8)
    assert first.__array_interface__["data"] == second.__array_interface__["data"]
    assert not first.flags.writeable
    store.put("copy", first)
    assert store.get("copy") == bytes(5000)
    with pytest.raises(ValueError, match="read-only"):
        store.get_into("copy", first)


def test_a_view_that_is_forgotten_is_closed(store: Store) -> None:
    store.put("k", b"value")
    view = shown(store, "k")
    assert views_of(store) == (1, 5)
    del view
    assert views_of(store) == (0, 0)
    cycle: list[object] = [shown(store, "k"), shown(store, "k").__enter__()]
    cycle.append(cycle)
    assert views_of(store) == (2, 10)
    del cycle
    gc.collect()
    assert views_of(store) == (0, 0)


class Borrower:
    """Keeps an address and a reference to the object that it was given, and no buffer: as `torch.frombuffer` does."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


def test_memory_stays_as_long_as_anything_refers_to_it(store: Store) -> None:
    value = numpy.arange(1000, dtype=numpy.int64)

    def check(use: Callable[[memoryview], object], read: Callable[[Any], bytes]) -> None:
        store.put("k", value, upsert=True)
        with shown(store, "k") as memory:
            user = use(memory)
        del memory
        assert views_of(store) == (1, 8000)
        store.put("k", numpy.zeros(1000), upsert=True)
        store.remove("k", force=True)
        for turn in range(10):
            store.put("other", bytes([turn]) * (4 << 20), upsert=True)
        assert read(user) == value.tobytes()
        del user
        assert views_of(store) == (0, 0)

    check(lambda memory: numpy.frombuffer(memory, dtype=numpy.int64), lambda array: array.tobytes())
    check(lambda memory: memory[:], lambda part: part.tobytes())
    check(lambda memory: struct.iter_unpack("8s", memory), lambda parts: b"".join(part for (part,) in parts))
    check(Borrower, lambda borrower: borrower.memory.tobytes())


def test_a_tensor_over_a_view_keeps_its_memory(store: Store) -> None:
    # It holds the memoryview that it was given and no buffer of it: after the block it showed other values.
    why = "PyTorch is not installed: `pip install torch` into .venv runs this"
    torch = pytest.importorskip("torch", reason=why, exc_type=ImportError)
    store.put("k", bytes(range(256)) * 16)
    with shown(store, "k") as memory:
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
    del memory
    store.remove("k", force=True)
    for turn in range(10):
        store.put("other", bytes([turn]) * (4 << 20), upsert=True)
    assert tensor.numpy().tobytes() == bytes(range(256)) * 16
    del tensor
    assert views_of(store) == (0, 0)


def test_a_view_outlives_its_store(open_tiered: Callable[[], Store]) -> None:
    value = bytes(range(251)) * 1000
    store = open_tiered()
    store.put("k", value, durable=True)
    store.close()
    store = open_tiered()
    assert store.stats()["memory"]["used_bytes"] == 0
    from_ssd = shown(store, "k")
    assert store.stats()["ssd_reads"] == 1 and from_ssd.tier == "ssd"
    store.put("new", value)
    from_memory = shown(store, "new")
    store.close()
    with open_tiered() as again:
        assert bytes(from_ssd) == value and bytes(from_memory) == value
        with shown(again, "k") as memory:
            assert memory == value
    del store, again
    gc.collect()
    assert bytes(from_ssd) == value and bytes(from_memory) == value


def test_a_batch_of_views_ends_together(store: Store) -> None:
    keys = [f"k{turn}" for turn in range(10)]
    values = [key.encode() * 1000 for key in keys]
    store.put_batch(keys, values)
    views = store.view_batch([*keys[:5], "missing", "", *keys[5:]])
    assert isinstance(views, slackwater.Views) and views[5] is None
    with views as given:
        assert [memory for memory in given if isinstance(memory, memoryview)] == values
        assert given[5] is None and isinstance(given[6], slackwater.RefusedError)
        assert views_of(store)[0] == 10
        for memory in given:
            pass
    assert views_of(store) == (0, 0)
    prefix = store.view_batch(["k0", "missing", "k1"], prefix_only=True, verify=True)
    assert [view is not None for view in prefix] == [True, False, False]
    assert views_of(store)[0] == 1
    prefix.close()
    assert views_of(store) == (0, 0)


def test_views_are_bounded() -> None:
    with Store(memory="8MiB", log="off", views_limit=2) as store:
        store.put("k", b"value")
        with store.view_batch(["k", "k"]):
            with pytest.raises(slackwater.RetryError, match="2 views are open, of 2 at most"):
                store.view("k")
        assert bytes(shown(store, "k")) == b"value"


def test_a_child_of_fork_sees_the_bytes_and_leaves_the_views_of_its_parent_alone() -> None:
    script = (
        "import os, slackwater\n"
        "store = slackwater.Store(memory='8MiB', log='off')\n"
        "store.put('k', b'v' * 5000)\n"
        "view, other = store.view('k').__enter__(), store.view('k')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = view == b'v' * 5000\n"
        "    view.release()\n"
        "    del other\n"
        "    os._exit(0 if same else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert store.stats()['views']['open'] == 2\n"
        "other.close()\n"
        "assert store.stats()['views']['open'] == 1 and view == b'v' * 5000\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
