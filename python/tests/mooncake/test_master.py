"""`mooncake_master`, the distribution with its name, and the guide that is made of the tables."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mooncake.store
import pytest
from mooncake.store import MooncakeDistributedStore
from slackwater.compat.mooncake import guide
from slackwater.compat.mooncake.master import FLAGS, FlagError, command_line

ROOT = Path(__file__).parents[3]
DEFAULT = ["master", "--listen=127.0.0.1:50051", "--admin=127.0.0.1:9003"]

TAKEN: list[tuple[list[str], list[str]]] = [
    ([], DEFAULT),
    (["--rpc_port=1", "--port=2"], ["master", "--listen=127.0.0.1:1", *DEFAULT[2:]]),
    (["-port", "2"], ["master", "--listen=127.0.0.1:2", *DEFAULT[2:]]),
    (["--rpc-address=::1", "--metrics_port", "5"], ["master", "--listen=[::1]:50051", "--admin=127.0.0.1:5"]),
    (["--metrics_host=localhost"], DEFAULT),
    (["--default_kv_lease_ttl=5000"], [*DEFAULT, "--lease-ttl=5000ms"]),
    (["--default_kv_soft_pin_ttl=5m"], [*DEFAULT, "--soft-pin-ttl=5m"]),
    (["--eviction_high_watermark_ratio=0.8"], [*DEFAULT, "--evict-high=0.8", "--evict-low=0.75"]),
    (["--eviction_ratio=0.1"], [*DEFAULT, "--evict-high=0.9", "--evict-low=0.8"]),
    (["--enable_multi_tenants"], [*DEFAULT, "--tenants=true"]),
    (["--nopromotion_on_hit"], [*DEFAULT, "--promotion-enabled=false"]),
    (["--promotion_on_hit", "true", "--offload_on_evict"], [*DEFAULT, "--promotion-enabled=true", "--offload=on-evict"]),
    (["--offload_on_evict=false"], [*DEFAULT, "--offload=eager"]),
    (["--dynamic_replication_mode=enforce"], [*DEFAULT, "--replication-mode=enforce"]),
    (["--dynamic_replication_heat_window_seconds=60"], [*DEFAULT, "--replication-window=60s", "--replication-reads=48"]),
    (["--dynamic_replication_admission_qps_threshold=2.05"], [*DEFAULT, "--replication-window=10s", "--replication-reads=21"]),
    (["--dynamic_replication_max_memory_replicas=1"], [*DEFAULT, "--replication-replicas=2"]),
    (["--promotion_admission_threshold=300"], [*DEFAULT, "--promotion-threshold=255"]),
    (["--promotion_queue_limit=9"], [*DEFAULT, "--promotion-limit=9"]),
    (["--minloglevel=3"], [*DEFAULT, "--log=error"]),
    (["--enable_ha=true", "--pod_name=x"], DEFAULT),
    (["--enable_kv_events"], [*DEFAULT, "--kv-events", "--kv-events-dialect=rfc1527"]),
    (["--kv_events_bind_endpoint=tcp://127.0.0.1:7", "--kv_events_block_size=16"], DEFAULT),
    (
        ["--enable_kv_events", "--kv_events_bind_endpoint=tcp://*:7", "--kv_events_backend_id=b", "--kv_events_model_name=M/x"],
        [*DEFAULT, "--kv-events=tcp://*:7", "--kv-events-dialect=rfc1527", "--kv-events-backend=b", "--kv-events-model=M/x"],
    ),
    (
        ["--enable_kv_events", "--nokv_events_emit_legacy_compat", "--kv_events_emit_object_key=true", "--kv_events_queue_capacity=0"],
        [*DEFAULT, "--kv-events", "--kv-events-dialect=rfc1527", "--kv-events-type=false", "--kv-events-key=true", "--kv-events-queue=16777216"],
    ),
    (
        ["--enable_kv_events", "--kv_events_queue_capacity=5", "--kv_events_block_size=16", "--kv_events_dp_rank=0"],
        [*DEFAULT, "--kv-events", "--kv-events-dialect=rfc1527", "--kv-events-queue=5", "--kv-events-block-size=16", "--kv-events-dp-rank=0"],
    ),
]

REFUSED: list[tuple[list[str], str]] = [
    (["--rpc_prot=1"], "did you mean --rpc_port?"),
    (["--noport"], "there is no flag --noport"),
    (["port"], "`port` is no flag"),
    (["--port"], "needs a value"),
    (["--port=x"], "`x` is no int"),
    (["--eviction_ratio=x"], "`x` is no float"),
    (["--enable_ha=perhaps"], "`perhaps` is no bool"),
    (["--default_kv_lease_ttl=soon"], "`soon` is no duration"),
    (["--rpc_address=here"], "no address"),
    (["--dynamic_replication_mode=on"], "none of off, observe, enforce"),
    (["--dynamic_replication_heat_window_seconds=0"], "not from 1 to 3600"),
    (["--dynamic_replication_admission_qps_threshold=nan"], "not from 1 to 1000000 reads"),
    (["--dynamic_replication_admission_qps_threshold=0"], "not from 1 to 1000000 reads"),
    (["--enable_kv_events", "--kv_events_dp_rank=-1"], "not from 0 to 4294967295"),
    (["--config_path=/nowhere"], "No such file"),
]


@pytest.mark.parametrize(("words", "expected"), TAKEN)
def test_flags_become_options(words: list[str], expected: list[str]) -> None:
    assert command_line(words, has_keys=False)[0] == expected


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_flags_that_are_none_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(FlagError) as raised:
        command_line(words, has_keys=False)
    assert reason in str(raised.value)


def test_what_has_no_effect_is_said_once() -> None:
    words = ["--enable_ha=true", "--enable_snapshot=false", "--max_threads=16", "--max_threads=8"]
    _, warnings = command_line(words, has_keys=True)
    assert warnings == [
        "--enable_ha has no effect: there is one master",
        "--max_threads has no effect: threads are chosen by the machine",
    ]
    _, warnings = command_line(["--kv_events_block_size=16", "--kv_events_queue_capacity=65536", "--kv_events_lora_name=a"], has_keys=True)
    assert warnings == [
        "--kv_events_lora_name has no effect: blocks of all adapters are in one store",
        "--kv_events_block_size has no effect without --enable_kv_events",
    ]
    arguments, warnings = command_line([], has_keys=True)
    assert arguments[1] == "--listen=0.0.0.0:50051" and not warnings
    assert "only this machine" in command_line([], has_keys=False)[1][0]


FILES: list[tuple[str, list[str] | str]] = [
    ('{"rpc_port": 7, "enable_multi_tenants": true}', ["--listen=127.0.0.1:7", "--tenants=true"]),
    ("---\n# ports\nrpc_port: 7  # here\n\ndefault_kv_lease_ttl: '5s'\n", ["--listen=127.0.0.1:7", "--lease-ttl=5s"]),
    ("rpc_port: 7\nnested:\n  a: 1\n", "line 2: expected `name: value`"),
    ("rpc_prot: 7\n", "did you mean --rpc_port?"),
    ('{"rpc_port": }', "not JSON"),
]


@pytest.mark.parametrize(("text", "expected"), FILES)
def test_files_have_flags_too(text: str, expected: list[str] | str, tmp_path: Path) -> None:
    file = tmp_path / "master.conf"
    file.write_text(text)
    words = [f"--config_path={file}"]
    if isinstance(expected, str):
        with pytest.raises(FlagError) as raised:
            command_line(words, has_keys=False)
        assert expected in str(raised.value)
        return
    assert set(expected) <= set(command_line(words, has_keys=False)[0])
    assert "--listen=127.0.0.1:8" in command_line([*words, "--rpc_port=8"], has_keys=False)[0]


def environment(command: Path, **named: str) -> dict[str, str]:
    """The environment, with the command on the path."""
    return os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"} | named


def test_the_launcher_becomes_the_master(command: Path) -> None:
    events = ["--enable_kv_events", "--kv_events_bind_endpoint=tcp://127.0.0.1:50473", "--kv_events_model_name=m"]
    words = ["--rpc_address=127.0.0.1", "--rpc_port=50471", "--metrics_port=50472", "--enable_ha", *events]
    launch = [sys.executable, "-m", "slackwater.compat.mooncake.master", *words]
    with subprocess.Popen(
        launch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(command)
    ) as master:
        assert master.stdout is not None and master.stderr is not None
        assert master.stdout.readline().strip() == "serving at tcp://127.0.0.1:50471"
        assert Path(f"/proc/{master.pid}/comm").read_text().strip() == "slackwater"
        assert master.stdout.readline().strip() == "admin at http://127.0.0.1:50472"
        assert master.stdout.readline().strip() == "KV events at tcp://127.0.0.1:50473"
        assert "--enable_ha has no effect" in master.stderr.readline()
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", "127.0.0.1:50471") == 0
        assert store.put("k", b"v") == 0 and store.get("k") == b"v"
        assert store.close() == 0
        master.terminate()
        assert master.wait(20) == 0


def test_the_distribution_gives_the_package_and_refuses_beside_another(command: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(ROOT / "python" / "mooncake", source)
    build = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*build, str(target), str(source)], check=True, timeout=300, capture_output=True)
    code = "import mooncake.store as s, mooncake; print(s.__name__, mooncake.__name__, s.MooncakeDistributedStore)"
    paths = [str(target), os.environ.get("PYTHONPATH", "")]
    path = environment(command, PYTHONPATH=os.pathsep.join(paths))
    ran = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("slackwater.compat.mooncake.store slackwater.compat.mooncake <class"), ran.stderr
    script = (target / "bin" / "mooncake_master").read_text()
    assert "slackwater.compat.mooncake.master" in script
    assert "slackwater.compat.mooncake.standalone" in (target / "bin" / "mooncake_client").read_text()
    # Where the interpreter itself finds a Mooncake, nothing is built.
    site = tmp_path / "site"
    info = site / "mooncake_transfer_engine-0.3.13.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mooncake-transfer-engine\nVersion: 0.3.13\n")
    backend = f"import sys; sys.path.insert(0, {str(source)!r})\nimport backend\n"
    found = f"import sys; sys.path.insert(0, {str(site)!r})"
    backend += f"backend._FIND = {found!r} + backend._FIND\n"
    backend += f"print(backend.build_sdist({str(tmp_path)!r}))\nbackend.build_wheel({str(tmp_path)!r})"
    ran = subprocess.run([sys.executable, "-c", backend], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "slackwater_mooncake-0.1.0.tar.gz"
    assert "mooncake-transfer-engine 0.3.13 is installed and stays the active mooncake" in ran.stderr
    # Another Mooncake in the same place has a folder of the name, which goes before the module.
    (target / "mooncake").mkdir()
    (target / "mooncake" / "__init__.py").write_text("")
    ran = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, timeout=60)
    assert "No module named 'mooncake.store'" in ran.stderr


def test_every_known_name_is_there_or_said_to_be_missing() -> None:
    names: dict[str, Any] = json.loads((Path(guide.__file__).parent / "names.json").read_text())
    beside = {"ENABLE", "DISABLE", "PRESERVE", "client"}
    assert set(mooncake.store.__all__) - beside <= set(names["mooncake.store"])
    methods = {name for name in dir(MooncakeDistributedStore) if name[0] != "_"}
    assert methods <= set(names["MooncakeDistributedStore"])
    assert {"setup", "put", "batch_get_into", "batch_put_session_end"} <= methods


def test_the_guide_is_what_the_tables_say() -> None:
    file = ROOT / "docs" / "guide" / "migrate-from-mooncake.md"
    made = "python -m slackwater.compat.mooncake.guide > docs/guide/migrate-from-mooncake.md makes it anew"
    assert file.read_text() == guide.text(), made
    assert all(f"`--{name}`" in guide.text() for name in FLAGS)


def test_variables_without_effect_are_said_once(
    monkeypatch: pytest.MonkeyPatch, master: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MC_STORE_REPLICA_SCORING", "1")
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "soon")
    monkeypatch.setattr("slackwater.compat.mooncake.variables._told", set())
    for _ in range(2):
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
        store.close()
    assert len([line for line in caplog.messages if "MC_STORE_REPLICA_SCORING has no effect" in line]) == 1
