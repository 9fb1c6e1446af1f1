"""The golden batches of KV events, read as engines and routers read them."""

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

GOLDEN = Path(__file__).parents[2] / "crates" / "wire" / "golden" / "kv-events.txt"
LINES = {line.split()[0]: line.split()[1:] for line in GOLDEN.read_text(encoding="utf-8").splitlines()}
MOMENT = datetime.datetime(2025, 10, 9, 8, 53, 20, 250_000, tzinfo=datetime.UTC).timestamp()


def body(name: str) -> bytes:
    return bytes.fromhex(LINES[name][2])


def declared(array_like: bool) -> Any:
    """The declarations of vLLM's `distributed/kv_events.py`, with maps as of 0.33 or arrays as before."""

    class Event(msgspec.Struct, array_like=array_like, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    class BlockRemoved(Event):
        block_hashes: list[bytes | int]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return Batch


@pytest.mark.parametrize(("name", "array_like", "size", "rank"), [("map", False, 0, None), ("legacy-array", True, 0, None), ("map-of-rank", False, 256, 1)])
def test_engines_read_batches_by_their_own_declarations(name: str, array_like: bool, size: int, rank: int | None) -> None:
    batch = msgspec.msgpack.decode(body(name), type=declared(array_like))
    assert (batch.ts, batch.data_parallel_rank) == (MOMENT, rank)
    cleared, stored, removed = batch.events
    assert type(cleared).__name__ == "AllBlocksCleared"
    assert (type(stored).__name__, stored.block_hashes, stored.medium, stored.block_size) == ("BlockStored", [255], "cpu", size)
    assert (stored.parent_block_hash, stored.token_ids, stored.lora_id, stored.lora_name) == (None, [], None, None)
    assert (type(removed).__name__, removed.block_hashes, removed.medium) == ("BlockRemoved", [-123], "STORAGE")


def test_maps_have_the_names_that_routers_look_for() -> None:
    _, events, rank = msgspec.msgpack.decode(body("map"))
    assert rank is None
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored", "BlockRemoved"]


def test_rfc_1527_has_its_fields_and_those_of_engines_beside_them() -> None:
    _, (cleared, stored, unparsed, removed, raw), _ = msgspec.msgpack.decode(body("rfc1527"))
    assert (cleared["event_type"], cleared["type"]) == ("cleared", "AllBlocksCleared")
    assert [event["event_id"] for event in (cleared, stored, unparsed, removed, raw)] == [41, 42, 43, 44, 45]
    assert (stored["event_type"], stored["type"], stored["timestamp"]) == ("stored", "BlockStored", round(MOMENT * 1000))
    assert (stored["tenant_id"], stored["medium"], stored["object_key"]) == ("acme", "cpu", "255")
    assert stored["seq_hashes"] == stored["block_hashes"] == [255]
    assert (unparsed["object_key"], unparsed["seq_hashes"]) == ("no hash", [])
    assert (removed["event_type"], removed["medium"], removed["block_hashes"]) == ("removed", "disk", [-123])
    assert raw["object_key"] == b"\xff"


def test_rfc_1527_leaves_out_what_is_turned_off() -> None:
    _, events, rank = msgspec.msgpack.decode(body("rfc1527-bare"))
    assert (rank, [event["event_type"] for event in events]) == (3, ["cleared", "stored", "removed"])
    for event in events:
        assert (event["backend_id"], event["model_name"], event["dp_rank"]) == ("pool-7", "qwen", 3)
        assert not {"type", "object_key", "token_ids", "parent_block_hash"} & set(event)
    assert events[1]["block_size"] == 16
