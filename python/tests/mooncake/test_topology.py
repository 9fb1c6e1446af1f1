"""`get_local_topology` and `transfer_engine_topology_dump`: which network interfaces are near which memory."""

import ctypes
import json
from pathlib import Path

import pytest
from slackwater.compat.mooncake import transfer_engine_topology_dump
from slackwater.compat.mooncake.engine import TransferEngine

VARIABLE = "SLACKWATER_TCP_TOPOLOGY"


def test_interfaces_are_told_by_location(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(TransferEngine().get_local_topology())
    nodes = [name for name in told if name.startswith("cpu:")]
    assert nodes and all(len(ranked) == 2 for ranked in told.values())
    transfer_engine_topology_dump.main([])
    assert json.loads(capsys.readouterr().out) == told


def test_a_list_of_names_keeps_those_alone() -> None:
    engine = TransferEngine()
    told = json.loads(engine.get_local_topology(""))
    near, rest = told["cpu:0"]
    names = near + rest
    assert json.loads(engine.get_local_topology(", ".join(["none", *names]))) == told
    assert json.loads(engine.get_local_topology("none")) == {location: [[], []] for location in told}


def test_a_file_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    near, rest = json.loads(TransferEngine().get_local_topology())["cpu:0"]
    file = tmp_path / "ranked.json"
    file.write_text(json.dumps({"cuda:7": [[], near + rest]}))
    monkeypatch.setenv(VARIABLE, str(file))
    assert json.loads(TransferEngine().get_local_topology())["cuda:7"] == [[], near + rest]
    transfer_engine_topology_dump.main([])
    assert json.loads(capsys.readouterr().out)["cuda:7"] == [[], near + rest]

    file.write_text('{"cpu:0": [["none-such"], []]}')
    # It was `{}`, in which callers did not find the location that is always there.
    assert TransferEngine().get_local_topology() == '{"cpu:0": [[], []]}'
    assert "this machine has no interface `none-such`" in caplog.text
    with pytest.raises(SystemExit, match="no interface `none-such`"):
        transfer_engine_topology_dump.main([])
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0
    assert caplog.text.count("none-such") == 2


@pytest.mark.parametrize("location", ["*", "cpu:0", "cpu:7", "cuda:0", "anything"])
def test_memory_of_any_location_is_moved(location: str) -> None:
    """What a location says changes which address bytes leave from, and nothing else."""
    one, other = TransferEngine(), TransferEngine()
    for engine in (one, other):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    here, there = ctypes.create_string_buffer(b"abcd", 4), ctypes.create_string_buffer(4)
    assert one.register_memory(ctypes.addressof(here), 4, location) == 0
    assert other.batch_register_memory([ctypes.addressof(there)], [4], location) == 0
    peer = f"127.0.0.1:{other.get_rpc_port()}"
    assert one.transfer_sync_write(peer, ctypes.addressof(here), ctypes.addressof(there), 4) == 0
    assert there.raw == b"abcd"
    assert one.unregister_memory(ctypes.addressof(here)) == 0
    assert other.unregister_memory(ctypes.addressof(there)) == 0
