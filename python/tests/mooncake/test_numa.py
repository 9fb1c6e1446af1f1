"""Threads that are bound to a NUMA node."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from mooncake.store import bind_to_numa_node
from slackwater.compat.mooncake import numa


def in_thread(check: Callable[[], object]) -> object:
    """What a check finds in a thread of its own, which alone is bound."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(check()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has one of our processors in node 0, none in node 1, and numbers that are none in node 2."""
    usable = sorted(os.sched_getaffinity(0))
    for node, cpus in enumerate([f"{usable[0]},4000-4003\n", "4000-4003\n", "none\n"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    monkeypatch.setattr(numa, "NODES", tmp_path)
    return tmp_path


def test_a_thread_runs_and_takes_memory_where_it_is_bound(nodes: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)

    def bound() -> tuple[object, set[int], str]:
        result = bind_to_numa_node(0)
        policy = Path(f"/proc/self/task/{threading.get_native_id()}/numa_maps")
        return result, os.sched_getaffinity(0), policy.read_text() if policy.exists() else " prefer"

    result, affinity, policy = in_thread(bound)
    assert result is None and affinity == {min(before)} and " prefer" in policy and caplog.messages == []
    assert os.sched_getaffinity(0) == before, "other threads are where they were"


@pytest.mark.parametrize(("node", "reason"), [(1, "none of its CPUs"), (2, "invalid literal"), (3, "No such file"), (-1, "No such file")])
def test_a_node_that_is_not_there_changes_nothing(
    node: int, reason: str, nodes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.sched_getaffinity(0)

    def bound() -> set[int]:
        bind_to_numa_node(node)
        return os.sched_getaffinity(0)

    assert in_thread(bound) == before
    assert f"node {node}: " in caplog.text and reason in caplog.text


def test_a_node_is_a_number() -> None:
    with pytest.raises(TypeError, match="node: expected a whole number"):
        bind_to_numa_node("0")
