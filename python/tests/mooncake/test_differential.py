"""The same calls on Mooncake and here: what differs is in the table of deviations, or a bug.

`MOONCAKE_PYTHON` names an interpreter that has the package `mooncake-transfer-engine-non-cuda`.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import calls
import mooncake.store
import pytest
import slackwater.compat

from conftest import Starter

Call = list[Any]
DEVIATIONS = json.loads((Path(slackwater.compat.__file__).parent / "mooncake" / "deviations.json").read_text())
PLAYED = [deviation for deviation in DEVIATIONS if "calls" in deviation]
SEED = int(os.environ.get("MOONCAKE_SEED", "14"))
SEQUENCES, LENGTH = 40, 40


@pytest.mark.parametrize("deviation", PLAYED, ids=[deviation["point"] for deviation in PLAYED])
def test_deviations_are_what_the_table_says(deviation: dict[str, Any], player: calls.Player) -> None:
    played = player.sequence(deviation["calls"])
    assert [result for result, _ in played] == deviation["ours"] != deviation["theirs"]


def test_mooncake_does_the_same(started: Starter, tmp_path: Path) -> None:
    interpreter = os.environ.get("MOONCAKE_PYTHON")
    if not interpreter:
        pytest.skip("MOONCAKE_PYTHON names no interpreter with Mooncake: compared with nothing")
    sequences = [drawn(random.Random(SEED + number)) for number in range(SEQUENCES)]
    wanted = sequences + [deviation["calls"] for deviation in PLAYED]
    with mooncake_master(interpreter) as address:
        theirs = played_by(interpreter, "mooncake", address, wanted, tmp_path)
    with started("master") as (address, _):
        ours = played_by(sys.executable, "slackwater", address, wanted, tmp_path)
    differing = []
    for number, sequence in enumerate(sequences):
        for place, call in enumerate(sequence):
            here, there = ours[number][place], [meant(call[0], theirs[number][place][0]), theirs[number][place][1]]
            if here != there:
                differing.append(f"seed {SEED + number}, call {place}: {call}: {here[0]} here, {there[0]} there")
                # What follows may differ for that reason alone.
                break
    assert not differing, "\n".join(differing)
    for deviation, played in zip(PLAYED, theirs[len(sequences) :], strict=True):
        assert [result for result, _ in played] == deviation["theirs"], deviation["point"]


def meant(method: str, result: Any) -> Any:
    """A result of the other package with the codes that the table of deviations has in its place."""
    if isinstance(result, list):
        return [meant(method, one) for one in result]
    for code in (deviation["code"] for deviation in DEVIATIONS if "code" in deviation):
        if code["method"] == method and code["theirs"] == result:
            return code["ours"]
    return result


def played_by(interpreter: str, package: str, address: str, wanted: list[list[Call]], folder: Path) -> list[Any]:
    """The results of sequences in another process."""
    given, results = folder / "calls.json", folder / "results.json"
    given.write_text(json.dumps(wanted))
    command = [interpreter, calls.__file__, package, address, str(given), str(results)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, f"{package}: {ran.stderr[-2000:]}"
    return json.loads(results.read_text())


@contextmanager
def mooncake_master(interpreter: str) -> Iterator[str]:
    """A master of the other package, and its address."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    command = [str(Path(interpreter).parent / "mooncake_master"), f"--rpc_port={ports[0]}", f"--metrics_port={ports[1]}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as master:
        try:
            until = time.monotonic() + 30
            while not connects(ports[0]):
                assert time.monotonic() < until and master.poll() is None, "no master of Mooncake"
            yield f"127.0.0.1:{ports[0]}"
        finally:
            master.kill()


def connects(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def drawn(draw: random.Random) -> list[Call]:
    """Calls at random, none of which the table of deviations has."""
    return [draw.choice(KINDS)(draw) for _ in range(LENGTH)]


def key(draw: random.Random) -> str:
    """One of few keys, seldom the empty one."""
    return draw.choice(["a", "b", "c", "d", "e", "f", "g", "h", "ab", "", "none"][: draw.choice([9, 9, 9, 11])])


def size(draw: random.Random, least: int = 0) -> int:
    """Mostly one of few lengths."""
    return max(least, draw.choice([0, 1, 5, 100, 4096, 4097, 70_000]))


def at(draw: random.Random) -> dict[str, int]:
    """Memory that every length fits into."""
    return {"@": draw.randrange(0, calls.MEMORY - 80_000)}


def some(draw: random.Random, of: Callable[[random.Random], Any], least: int = 0) -> list[Any]:
    """A few."""
    return [of(draw) for _ in range(draw.randint(least, 4))]


def value(draw: random.Random) -> dict[str, Any]:
    """Bytes."""
    return {"filled": [draw.randrange(256), size(draw)]}


def different(draw: random.Random, least: int = 0) -> list[str]:
    """A few keys, each once."""
    return list(dict.fromkeys(some(draw, key, least)))


def batch(method: str) -> Callable[[random.Random], Call]:
    """A call about runs of memory that do not overlap, seldom with lists that do not fit together."""

    def call(draw: random.Random) -> Call:
        keys = different(draw)
        places = [{"@": 80_000 * place} for place in range(len(keys))]
        sizes = [size(draw) for _ in keys]
        if sizes and draw.random() < 0.1:
            sizes.pop()
        return [method, [keys, places, sizes]]

    return call


def pieces(method: str) -> Callable[[random.Random], Call]:
    """A call about two pieces of memory for each key, whose lengths are together that of many values."""

    def call(draw: random.Random) -> Call:
        keys = different(draw)
        bytes_of = [draw.choice([5, 100, 4096]) for _ in keys]
        cuts = [draw.randint(1, length - 1) for length in bytes_of]
        places = [[{"@": 80_000 * place}, {"@": 80_000 * place + 40_000}] for place in range(len(keys))]
        return [method, [keys, places, [[cut, length - cut] for cut, length in zip(cuts, bytes_of, strict=True)]]]

    return call


def ranges(draw: random.Random) -> Call:
    """Parts of values, some of them beyond their end."""
    keys = some(draw, key, 1)
    counts = [draw.randint(0, 3) for _ in keys]
    to = [[1000 * place for place in range(count)] for count in counts]
    of = [[draw.choice([0, 1, 50]) for _ in range(count)] for count in counts]
    sizes = [[draw.choice([1, 4, 60]) for _ in range(count)] for count in counts]
    return ["get_into_ranges", [[at(draw)], [keys], [to], [of], [sizes]]]


def put_session(draw: random.Random) -> Call:
    """One step of a session, of a key that nothing else uses."""
    step = draw.randrange(4)
    keys = [draw.choice(["s", "t"])]
    if step == 0:
        return ["batch_put_session_start", [keys, [draw.choice([0, 10, 100])]]]
    if step == 1:
        offset, length = draw.choice([0, 5, 9, 95]), draw.choice([1, 5])
        return ["batch_put_from_multi_buffer_ranges", [keys, [[at(draw)]], [[length]], [[offset]]]]
    return [["batch_put_session_end", "batch_put_session_revoke"][step - 2], [keys]]


def get_session(draw: random.Random) -> Call:
    """One step of a session."""
    keys, step = some(draw, key, 1), draw.randrange(2)
    return [["batch_get_session_start", "batch_get_session_end"][step], [keys]]


KINDS: list[Callable[[random.Random], Call]] = [
    lambda draw: ["put", [key(draw), value(draw)]],
    lambda draw: ["put", [key(draw), value(draw)]],
    lambda draw: ["upsert", [key(draw), value(draw)]],
    lambda draw: ["get", [key(draw)]],
    lambda draw: ["get_batch", [different(draw, 1)]],
    lambda draw: ["get_buffer", [key(draw)]],
    lambda draw: ["batch_get_buffer", [different(draw)]],
    lambda draw: ["is_exist", [key(draw)]],
    lambda draw: ["batch_is_exist", [some(draw, key)]],
    lambda draw: ["get_size", [key(draw)]],
    lambda draw: ["put_parts", [key(draw), *some(draw, value)]],
    lambda draw: ["upsert_parts", [key(draw), *some(draw, value)]],
    lambda draw: ["put_batch", [different(draw), some(draw, value)]],
    lambda draw: ["upsert_batch", [different(draw), some(draw, value)]],
    lambda draw: ["put_from", [key(draw), at(draw), size(draw)]],
    lambda draw: ["put_from_with_metadata", [key(draw) or "a", at(draw), at(draw), size(draw), draw.choice([1, 9])]],
    lambda draw: ["upsert_from", [key(draw), at(draw), size(draw)]],
    lambda draw: ["get_into", [key(draw), at(draw), size(draw)]],
    lambda draw: ["remove", [key(draw), True]],
    lambda draw: ["batch_remove", [some(draw, key), True]],
    lambda draw: ["remove_by_regex", [draw.choice(["^a", "b", "x", "(", "^[a-c]$"]), True]],
    lambda draw: ["remove_all", [True]],
    lambda draw: ["get_replica_desc", [key(draw)]],
    lambda draw: ["batch_get_replica_desc", [some(draw, key)]],
    batch("batch_put_from"),
    batch("batch_upsert_from"),
    batch("batch_get_into"),
    pieces("batch_put_from_multi_buffers"),
    pieces("batch_get_into_multi_buffers"),
    ranges,
    put_session,
    get_session,
]
