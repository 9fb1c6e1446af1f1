"""Opening, closing, failing, and living with threads and forks."""

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import slackwater
from slackwater import ErrorCode, Store, _native


def test_codes_are_those_of_the_core() -> None:
    assert {code.name: int(code) for code in ErrorCode} == _native.error_codes()


def test_errors_have_a_class_and_a_code(store: Store) -> None:
    with pytest.raises(slackwater.RefusedError, match="must not be empty") as caught:
        store.put("", b"v")
    assert caught.value.code is ErrorCode.INVALID_PARAMS
    with pytest.raises(slackwater.RefusedError) as caught:
        store.put("k" * 1025, b"v")
    assert caught.value.code is ErrorCode.INVALID_KEY
    with pytest.raises(slackwater.RefusedError, match="is empty"):
        store.put("k", b"")
    error = copy.copy(caught.value)
    assert (type(error), error.code, str(error)) == (slackwater.RefusedError, caught.value.code, str(caught.value))


def test_wrong_types_are_type_errors(store: Store) -> None:
    with pytest.raises(TypeError, match="not str"):
        store.put("k", "text")
    with pytest.raises(TypeError, match="bytes or str, not int"):
        store.get(7)
    with pytest.raises(TypeError, match="colour"):
        Store(memory="16MiB", colour="red")
    with pytest.raises(TypeError):
        store.put("k", b"v", colour="red")


def test_every_problem_of_a_configuration_is_reported_at_once() -> None:
    with pytest.raises(slackwater.RefusedError) as caught:
        Store(memory="12cats", policy="lur")
    assert "12cats" in str(caught.value) and "did you mean `lru`" in str(caught.value)


def test_what_is_not_text_in_the_environment_or_a_path_is_no_panic(tmp_path: Path) -> None:
    # The environment was read as text: a variable of another program that was not ended every `Store()` in a panic. And
    # a path that was not became the path of another directory.
    code = "import slackwater; slackwater.Store(memory='1MiB', log='off').close()"
    environment = {**os.environb, b"LS_COLORS": b"\xff"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    with pytest.raises(ValueError, match="not UTF-8"):
        Store(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), memory="8MiB", ssd="64MiB", log="off")
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_numbers_or_texts() -> None:
    with Store(memory=16 << 20, log="off") as store:
        assert store.stats()["memory"]["capacity_bytes"] == 16 << 20
    with pytest.raises(TypeError, match="memory"):
        Store(memory=True)


def test_a_closed_store_says_so_and_closes_twice() -> None:
    store = Store(memory="16MiB", log="off")
    assert not store.closed
    store.close()
    store.close()
    assert store.closed and repr(store) == "<slackwater.Store, closed>"
    with pytest.raises(slackwater.RefusedError) as caught:
        store.get("k")
    assert caught.value.code is ErrorCode.SHUTTING_DOWN


def test_values_on_ssd_outlive_the_process(open_tiered: Callable[[], Store]) -> None:
    values = {f"k{i}": os.urandom(64 << 10) for i in range(64)}
    with open_tiered() as store:
        for key, value in values.items():
            store.put(key, value)
        store.flush()
    with open_tiered() as store:
        assert store.stats()["ssd"]["recovered"] == len(values)
        assert all(store.get(key) == value for key, value in values.items())
        assert store.stats()["ssd_reads"] > 0


def test_a_durable_put_is_on_ssd_when_it_returns(directory: Path, open_tiered: Callable[[], Store]) -> None:
    script = (
        "import os, slackwater, sys\n"
        "store = slackwater.Store(sys.argv[1], memory='8MiB', ssd='64MiB', file_bytes='4MiB', log='off')\n"
        "store.put('k', b'v' * 5000, durable=True)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, timeout=60)
    with open_tiered() as store:
        assert store.get("k") == b"v" * 5000


def test_a_directory_has_one_holder(open_tiered: Callable[[], Store]) -> None:
    with open_tiered():
        with pytest.raises(slackwater.SlackwaterError, match="held by another") as caught:
            open_tiered()
        assert caught.value.code is ErrorCode.FILE_LOCK_FAIL


def test_other_threads_run_while_a_call_waits(store: Store) -> None:
    """A put that waits for space holds no lock of the interpreter: the thread that makes the space gets to run."""
    free = store.stats()["memory"]["capacity_bytes"]
    store.put("big", bytes(free // 2 + (1 << 20)), pin="hard")
    waiting = threading.Event()
    done: list[object] = []

    def put() -> None:
        waiting.set()
        done.append(store.put("next", bytes(free // 2 + (1 << 20)), wait=60.0))

    thread = threading.Thread(target=put)
    thread.start()
    waiting.wait()
    assert store.remove("big", force=True) is True
    thread.join(timeout=60)
    assert done == [True]


def test_many_threads_read_and_write_at_once(store: Store) -> None:
    failures: list[object] = []

    def work(worker: int) -> None:
        for turn in range(200):
            key, value = f"{worker}/{turn % 7}", bytes([worker, turn % 251]) * 500
            store.put(key, value, upsert=True)
            if store.get(key) != value:
                failures.append((worker, turn))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_fork_is_told_to_open_its_own() -> None:
    script = (
        "import os, slackwater\n"
        "store = slackwater.Store(memory='8MiB', log='off')\n"
        "store.put('k', b'v')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        store.get('k')\n"
        "    except slackwater.SlackwaterError as error:\n"
        "        store.close()\n"
        "        own = slackwater.Store(memory='8MiB', log='off')\n"
        "        own.put('k', b'child')\n"
        "        os._exit(0 if error.code == slackwater.ErrorCode.NOT_SUPPORTED and own.get('k') == b'child' else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert store.get('k') == b'v'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_store_that_is_forgotten_gives_its_directory_back(open_tiered: Callable[[], Store]) -> None:
    open_tiered()
    with open_tiered() as store:
        assert store.put("k", b"v") is True


def test_figures_are_dictionaries_and_text(store: Store) -> None:
    store.put("k", b"v")
    store.get("k")
    store.get("none")
    stats = store.stats()
    assert stats["objects"] == 1
    assert (stats["reads"]["memory_hits"], stats["reads"]["misses"]) == (1, 1)
    assert "slackwater_" in store.metrics()


def test_a_configured_ssd_is_not_overridden_by_the_default_of_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A path without `ssd` used to push 16 GiB over the file and the environment, and shrank larger logs.
    monkeypatch.setenv("SLACKWATER_SSD", "64MiB")
    with Store(tmp_path / "store", memory="4MiB") as store:
        assert store.stats()["ssd"]["capacity_bytes"] < 64 << 20


def test_a_value_is_explained(store: Store) -> None:
    store.put("k", b"v")
    store.get("k")
    reasons = store.explain("k")
    assert reasons is not None
    memory = reasons[0]
    assert (memory["tier"], memory["held"], memory["policy"]) == ("memory", True, "adaptive")
    assert memory["words"].startswith("in memory, ")
    learned = memory["learned"]
    assert learned["reuses"] == 1
    assert learned["index"] >= 0
    assert learned["age_s"] >= 0
    chances = [point["chance"] for point in learned["returns"]]
    assert chances == sorted(chances)
    assert all(0 <= chance <= 1 for chance in chances)
    assert store.explain("nothing") is None
