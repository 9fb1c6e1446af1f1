"""`MooncakeConfig`, from files and from the environment."""

import json
from pathlib import Path
from typing import Any

import pytest
from mooncake.mooncake_config import MooncakeConfig

NEEDED = {"local_hostname": "here", "metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:50051"}

FILES: list[tuple[dict[str, Any], dict[str, Any] | str]] = [
    ({}, {"global_segment_size": 3_355_443_200, "local_buffer_size": 1 << 30, "protocol": "tcp", "tenant_id": "default"}),
    ({"global_segment_size": "1.5GB", "local_buffer_size": "64k"},
     {"global_segment_size": 3 << 29, "local_buffer_size": 65_536}),
    ({"global_segment_size": 0, "protocol": "RDMA", "device_name": "mlx5_0"},
     {"global_segment_size": 0, "protocol": "rdma", "device_name": "mlx5_0"}),
    ({"enable_ssd_offload": "yes", "ssd_offload_path": "/kv", "client_http_port": 5},
     {"enable_ssd_offload": True, "ssd_offload_path": "/kv", "client_http_port": 5}),
    ({"local_hostname": ""}, "local_hostname"),
    ({"master_server_address": None}, "master_server_address"),
    ({"global_segment_size": -1}, "global_segment_size"),
    ({"global_segment_size": "much"}, "global_segment_size"),
    ({"enable_ssd_offload": "perhaps"}, "enable_ssd_offload"),
]


@pytest.mark.parametrize(("given", "expected"), FILES)
def test_files_are_read(given: dict[str, Any], expected: dict[str, Any] | str, tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps(NEEDED | given))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            MooncakeConfig.from_file(str(file))
        return
    config = MooncakeConfig.from_file(str(file))
    assert {name: getattr(config, name) for name in NEEDED | expected} == NEEDED | expected


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER", "MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server, config.master_server_address) == (
        "localhost", "P2PHANDSHAKE", "127.0.0.1:1"
    )
    monkeypatch.setenv("LOCAL_HOSTNAME", "old")
    assert MooncakeConfig.load_from_env().local_hostname == "old"
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "new")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2gb")
    config = MooncakeConfig.load_from_env()
    assert config.local_hostname == "new" and config.global_segment_size == 2 << 30
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps(NEEDED))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    assert MooncakeConfig.load_from_env().local_hostname == "here"
    file.write_text("[]")
    with pytest.raises(ValueError, match="expected an object"):
        MooncakeConfig.load_from_env()


def test_an_unknown_protocol_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert MooncakeConfig("h", "P2PHANDSHAKE", 1, 1, "Pigeon", "", "m:1").protocol == "pigeon"
    assert "pigeon" in caplog.text
