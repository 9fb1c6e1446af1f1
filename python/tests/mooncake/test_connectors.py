"""Engines' own connectors to Mooncake, which run on the drop-in as they are.

`SGLANG_PYTHON`, `LMCACHE_PYTHON` and `VLLM_PYTHON` name interpreters that have the engines; no GPU is needed.
"""

from pathlib import Path

import pytest
from driven import driven

from conftest import Starter


@pytest.mark.parametrize("engine", ["sglang", "lmcache", "vllm"])
def test_engines_own_connectors_drive_the_store(
    engine: str, started: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "1000")
    monkeypatch.setenv("MC_RPC_CONNECT_TIMEOUT_MS", "1000")
    with started("master", "--lease-ttl", "300ms") as (address, master):
        script = Path(__file__).with_name(f"drive_{engine}_mooncake.py")
        print(driven(engine, script, address, str(master.pid), str(tmp_path)))
