"""Mooncake's benchmark of its engine, and a program of its store, with Mooncake's package and with Slackwater's, in turns.

    python python/bench/mooncake_turns.py THEIRS OURS [--seconds 5] [--rounds 3] [--only engine|store]

THEIRS and OURS are the `bin` folders of two environments of Python: one with `mooncake-transfer-engine-non-cuda`, one with
`slackwater` and `slackwater-mooncake`. Both run the same commands: `transfer_engine_bench` as target and initiator, and
`mooncake_master` with `mooncake_store.py`. Prints a table of each; a figure is the median of the rounds, and a ratio the median of
the ratios of rounds. CPU is that of all processes of a side, seconds for each GB.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STORE = Path(__file__).with_name("mooncake_store.py")
ENGINE_CELLS = [(block, threads, batch) for block in (64 << 10, 1 << 20) for threads in (1, 16) for batch in (1, 128)]
STORE_CELLS = [(operation, threads) for operation in ("get_into", "put_from") for threads in (1, 16)]
LENT = 1 << 30
PATIENCE = 60
TRIES = 3
_TICKS = os.sysconf("SC_CLK_TCK")
# What Mooncake's target says, and ours.
_NAME = re.compile(r"(?:listening on |--segment_id=)(\S+:\d+)")
_SPEED = re.compile(r"throughput ([\d.]+) GB/s")

Ran = dict[str, float]


class Ended(Exception):
    """A process that ended without saying what was awaited."""


class Group:
    """A process with those that it starts, some of which are scripts about programs."""

    def __init__(self, words: list[Any], folder: Path) -> None:
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        self.said: list[str] = []

    def hear(self, pattern: "re.Pattern[str] | str") -> "re.Match[str]":
        """The first line in which something is found."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(pattern, line):
                return found
        raise Ended(f"{self.process.args} ended: {''.join(self.said[-20:])}")

    def say(self, line: str) -> None:
        """A line for its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def cpu(self) -> float:
        """Seconds that its processes have used."""
        used = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.process.pid:
                    used += sum(map(int, fields[11:15]))
        return used / _TICKS

    def end(self) -> None:
        """Ends them."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()


@contextmanager
def started(words: list[Any], folder: Path) -> Iterator[Group]:
    """A process, ended at the end."""
    group = Group(words, folder)
    try:
        yield group
    finally:
        group.end()


def engine(folder: Path, block: int, threads: int, batch: int, seconds: int) -> dict[str, Ran]:
    """Two runs of `transfer_engine_bench` with one target, of which the first writes what the second reads."""
    bench = [folder / "transfer_engine_bench", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp"]
    bench += ["--local_server_name=127.0.0.1", f"--buffer_size={max(1 << 30, block * threads * batch)}"]
    found = {}
    with started([*bench, "--mode=target"], folder) as target:
        name = target.hear(_NAME)[1]
        for operation in ("write", "read"):
            # What is still beginning, or ending, is not of this run.
            time.sleep(1)
            words = [*bench, f"--segment_id={name}", f"--operation={operation}", f"--block_size={block}"]
            words += [f"--threads={threads}", f"--batch_size={batch}", f"--duration={seconds}"]
            used = target.cpu()
            with started(words, folder) as initiator:
                speed = float(initiator.hear(_SPEED)[1])
                found[operation] = {"gbps": speed, "cpu": (initiator.cpu() + target.cpu() - used) / (speed * seconds)}
    return found


@contextmanager
def pool(folder: Path) -> Iterator[tuple[str, list[Group]]]:
    """A master and memory that is lent to it: its address, and its processes."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    master = [folder / "mooncake_master", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
    with started([*master, f"--rpc_port={ports[0]}", f"--metrics_port={ports[1]}"], folder) as serving:
        until = time.monotonic() + PATIENCE
        while not listens(ports[0]):
            if time.monotonic() > until or serving.process.poll() is not None:
                raise Ended(f"{serving.process.args} does not listen")
            time.sleep(0.1)
        address = f"127.0.0.1:{ports[0]}"
        with started([folder / "python", STORE, "lend", address, LENT], folder) as lender:
            lender.hear("^ready")
            yield address, [serving, lender]


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def store(folder: Path, operation: str, threads: int, seconds: int) -> Ran:
    """One run of the program of the store."""
    with pool(folder) as (address, serving):
        with started([folder / "python", STORE, "run", address, operation, threads, seconds], folder) as client:
            client.hear("^ready")
            groups = [*serving, client]
            used = sum(group.cpu() for group in groups)
            client.say("go")
            ran = json.loads(client.hear(r"^\{.*\}")[0])
            used = sum(group.cpu() for group in groups) - used
    return {"gbps": ran["gbps"], "cpu": used / (ran["gbps"] * seconds), "p99": ran["p99_us"]}


def tried(run: Any, *what: Any) -> Any:
    """A run; again when a process of it ends, and nothing when that happens each time."""
    for _ in range(TRIES):
        try:
            return run(*what)
        except Ended as error:
            print(error, file=sys.stderr, flush=True)
    return None


def row(names: list[Any], theirs: list[Ran], ours: list[Ran]) -> str:
    """A line of a table."""
    if None in theirs or None in ours:
        said = ["fails" if None in runs else f"{statistics.median(run['gbps'] for run in runs):.2f}" for runs in (theirs, ours)]
        return f"| {' | '.join(map(str, [*names, *said, '–', '–', '–']))} |"
    middle = lambda runs, what: statistics.median(run[what] for run in runs)
    ratios = sorted(one["gbps"] / other["gbps"] for one, other in zip(ours, theirs, strict=True))
    cells = [*names, f"{middle(theirs, 'gbps'):.2f}", f"{middle(ours, 'gbps'):.2f}"]
    cells += [f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f} – {ratios[-1]:.2f})"]
    cells += [f"{middle(theirs, 'cpu'):.3f}", f"{middle(ours, 'cpu'):.3f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("theirs", type=Path)
    parser.add_argument("ours", type=Path)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["engine", "store"])
    given = parser.parse_args()
    sides = [given.theirs.absolute(), given.ours.absolute()]
    figures = ["its GB/s", "ours", "ours over it", "its CPU-s/GB", "ours"]

    def head(names: list[str]) -> None:
        print(f"\n| {' | '.join([*names, *figures])} |\n|{'---|' * (len(names) + len(figures))}", flush=True)

    def turns(run: Any, *what: Any) -> list[list[Any]]:
        rounds = [[tried(run, side, *what, given.seconds) for side in sides] for _ in range(given.rounds)]
        return [list(runs) for runs in zip(*rounds, strict=True)]

    if given.only != "store":
        head(["`transfer_engine_bench`", "block", "threads", "batch"])
        for block, threads, batch in ENGINE_CELLS:
            ran = turns(engine, block, threads, batch)
            for operation in ("read", "write"):
                each = [[one and one[operation] for one in runs] for runs in ran]
                print(row([operation, f"{block >> 10} KiB", threads, batch], *each), flush=True)
    if given.only != "engine":
        head(["1 MiB by", "threads"])
        for operation, threads in STORE_CELLS:
            print(row([f"`{operation}`", threads], *turns(store, operation, threads)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
