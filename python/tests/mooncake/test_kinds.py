"""Classes beside the store: configurations, enumerations, handles, replicas, and which package is active."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import mooncake
import mooncake.store as store
import pytest
import slackwater.compat
from mooncake.store import ReplicateConfig, SoftPinAction

ASSIGNED: list[tuple[str, Any, Any]] = [
    ("replica_num", 3, 3),
    ("replica_num", True, 1),
    ("replica_num", -1, TypeError),
    ("replica_num", "1", TypeError),
    ("replica_num", 1.5, TypeError),
    ("nof_replica_num", 1, 1),
    ("dfs_replica_num", 1, 1),
    ("soft_pin_action", SoftPinAction.ENABLE, SoftPinAction.ENABLE),
    ("soft_pin_action", 1, TypeError),
    ("soft_pin_ttl_ms", 5, 5),
    ("soft_pin_ttl_ms", None, None),
    ("soft_pin_ttl_ms", -1, TypeError),
    ("soft_pin_ttl_ms", 1 << 64, TypeError),
    ("with_hard_pin", 1, True),
    ("with_hard_pin", None, False),
    ("with_hard_pin", "x", TypeError),
    ("with_soft_pin", True, True),
    ("with_soft_pin", "x", TypeError),
    ("preferred_segment", "a", "a"),
    ("preferred_segment", 3, TypeError),
    ("preferred_segments", ("a", "b"), ["a", "b"]),
    ("preferred_segments", "ab", TypeError),
    ("preferred_nof_segments", ["a"], ["a"]),
    ("prefer_alloc_in_same_node", 1, True),
    ("data_type", store.ObjectDataType.KVCACHE, store.ObjectDataType.KVCACHE),
    ("data_type", 1, TypeError),
    ("group_ids", ["a"], ["a"]),
    ("group_ids", None, None),
    ("group_ids", "a", TypeError),
    ("session_ids", ["a"], ["a"]),
]


@pytest.mark.parametrize(("name", "value", "expected"), ASSIGNED)
def test_configurations_check_what_they_are_given(name: str, value: Any, expected: Any) -> None:
    config = ReplicateConfig()
    assert hasattr(ReplicateConfig, name) and hasattr(config, name)
    if expected is TypeError:
        with pytest.raises(TypeError, match=name):
            setattr(config, name, value)
        return
    setattr(config, name, value)
    assert getattr(config, name) == expected
    assert getattr(ReplicateConfig(), name) != expected or expected in (None, False, 1)


def test_configurations_are_closed_and_shown() -> None:
    config = ReplicateConfig()
    with pytest.raises(AttributeError):
        config.nothing = 1  # type: ignore[attr-defined]
    assert str(config).startswith("ReplicateConfig: { replica_num: 1, ")
    config.with_soft_pin = True
    assert config.soft_pin_action is SoftPinAction.ENABLE
    config.preferred_segments = ["a"]
    config.preferred_segments.append("b")
    assert config.preferred_segments == ["a"]
    config.with_soft_pin = False
    assert config.soft_pin_action is SoftPinAction.PRESERVE


def test_members_are_no_numbers_and_stand_in_the_module() -> None:
    assert store.ReplicaStatus.COMPLETE != 3 and int(store.ReplicaStatus.COMPLETE) == 3  # type: ignore[comparison-overlap]
    assert store.COMPLETE is store.ReplicaStatus.COMPLETE and store.KVCACHE is store.ObjectDataType.KVCACHE
    assert store.FAILED is store.TaskStatus.FAILED and store.PROCESSING is store.TaskStatus.PROCESSING
    assert store.REPLICA_MOVE.value == 1 and store.ENABLE is SoftPinAction.ENABLE
    assert repr(store.SUCCESS) == "<TaskStatus.SUCCESS: 3>" and str(store.SUCCESS) == "TaskStatus.SUCCESS"


def test_handles_keep_their_memory(player: Any) -> None:
    player.store.put("k", b"value")
    handle = player.store.get_buffer("k")
    view = memoryview(handle)
    assert (view.format, view.itemsize, view.ndim, view.readonly, view.nbytes) == ("b", 1, 1, False, 5)
    assert player.store.get_buffer("k").ptr() != handle.ptr() and handle.size() == 5 == len(handle)
    view.cast("B")[0] = ord("V")
    del handle
    assert bytes(view) == b"Value"
    assert player.store.get("k") == b"value"


def test_replicas_say_where_they_are(player: Any) -> None:
    player.store.put("k", b"value")
    (replica,) = player.store.get_replica_desc("k")
    assert replica.status is store.COMPLETE and not replica.is_local_disk_replica()
    descriptor = replica.get_memory_descriptor().buffer_descriptor
    assert descriptor.size == 5 and descriptor.transport_endpoint and descriptor.buffer_address >= 0
    assert repr(descriptor).startswith("<Descriptor size=5 buffer_address=")
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    on_disk = store.ReplicaDescriptor(store.COMPLETE, None)
    assert on_disk.is_local_disk_replica() and not on_disk.is_memory_replica()
    with pytest.raises(RuntimeError):
        on_disk.get_memory_descriptor()


def test_the_active_package_is_named() -> None:
    assert slackwater.compat.active() == "slackwater"
    assert sys.modules["mooncake.store"].__name__ == "slackwater.compat.mooncake.store"
    assert slackwater.compat.install(over=True) is mooncake


def run(code: str, *paths: Path) -> str:
    """What a fresh interpreter prints that finds modules in these folders first."""
    lines = [f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}", code]
    ran = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    return ran.stdout + ran.stderr


def test_another_mooncake_stays_the_active_one(tmp_path: Path) -> None:
    """A package that is installed is never replaced unasked, and what is loaded never."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("mark = 'theirs'\n")
    assert "another mooncake is loaded" in run(
        "import mooncake, slackwater.compat\nslackwater.compat.install(over=True)", tmp_path
    )
    info = tmp_path / "mooncake_transfer_engine-0.3.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mooncake-transfer-engine\nVersion: 0.3.13\n")
    code = "import slackwater.compat as c\nprint(c.active())\n"
    assert "mooncake-transfer-engine 0.3.13" in run(code, tmp_path)
    assert "stays the active mooncake" in run(code + "c.install()", tmp_path)
    assert "slackwater" in run(code + "c.install(over=True); print(c.active())", tmp_path).splitlines()
