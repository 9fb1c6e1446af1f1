"""Modules of Mooncake's wheel that are layers of Python over its store: they run on ours, put beside it as they are.

`MOONCAKE_PYTHON` names an interpreter that has `mooncake-transfer-engine-non-cuda`; the layers need msgpack and numpy here.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slackwater
from conftest import Starter

LAYERS = ("structured_object_store.py", "dataproto_catalog.py")
SCRIPT = """
import sys
import numpy as np
import slackwater.compat
slackwater.compat.install(over=True)
import mooncake.store
from mooncake import dataproto_catalog, structured_object_store

store = mooncake.store.MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
assert "slackwater" in type(store).__module__
for pool in (None, mooncake.store.BufferPool(store)):
    transfer = structured_object_store.MooncakeBundleTransfer(store, buffer_pool=pool)
    for value in ({"a": np.arange(1000), "c": b"bytes"}, {"big": np.arange(3_000_000, dtype=np.int32)}):
        ref = transfer.put_object(value)
        got = transfer.get_object(ref)
        assert got.keys() == value.keys() and all(np.array_equal(got[name], value[name]) for name in value if name != "c")
        transfer.release_result(got)
        del got
        transfer.remove_bundle(ref)
    batch = {
        "batch": {"ids": np.arange(12).reshape(4, 3)},
        "non_tensor_batch": {"text": np.array(["a", "bb", "ccc", "d"], dtype=object)},
        "meta_info": {"step": 3},
    }
    ref = structured_object_store.import_dataproto_ref(
        structured_object_store.export_dataproto_ref(transfer.put_dataproto(batch))
    )
    got = transfer.get_dataproto(ref)
    assert np.array_equal(got["batch"]["ids"], batch["batch"]["ids"]) and got["meta_info"] == {"step": 3}
    assert list(got["non_tensor_batch"]["text"]) == ["a", "bb", "ccc", "d"]
    transfer.cleanup_dataproto(ref)
assert store.remove_all(True) == 0, "the layers leave nothing behind"
"""


def test_structured_objects_of_mooncake_run_on_ours(started: Starter, tmp_path: Path) -> None:
    interpreter = os.environ.get("MOONCAKE_PYTHON")
    if not interpreter:
        pytest.skip("MOONCAKE_PYTHON names no interpreter with Mooncake: its layers have run on nothing")
    if importlib.util.find_spec("msgpack") is None:
        pytest.skip("no msgpack, which the layers of Mooncake need")
    find = "import sysconfig; print(sysconfig.get_path('platlib'))"
    found = subprocess.run([interpreter, "-c", find], capture_output=True, text=True, check=True, timeout=60)
    (tmp_path / "mooncake").mkdir()
    for layer in LAYERS:
        shutil.copy(Path(found.stdout.strip()) / "mooncake" / layer, tmp_path / "mooncake")
    with started("master") as (address, _):
        paths = [str(Path(slackwater.__file__).parents[1]), str(tmp_path), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        words = [sys.executable, "-c", SCRIPT, address]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
