"""`transfer_engine_bench`: how fast a `TransferEngine` moves bytes between two processes, of two machines where they have keys.

A target lends memory and says its name; an initiator, given that name as `--segment_id`, keeps one batch of requests under way
in each of its threads, and says how long it took, the batches, the bytes a second, the time of a batch, and its own CPU time.
"""

import json
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.compat import installed_mooncake
from slackwater.compat.mooncake.engine import TransferEngine
from slackwater.compat.mooncake.master import FlagError, given_flags, help_if_asked
from slackwater.compat.mooncake.opening import BYTES_LIMIT, log

FLAGS: dict[str, dict[str, Any]] = {
    flag["name"]: flag for flag in json.loads((Path(__file__).parent / "bench_flags.json").read_text(encoding="utf-8"))
}
UNITS = {
    f"{prefix}{unit}": base**power / (8 if unit == "b" else 1)
    for power, prefix in enumerate("KMG", 1)
    for unit, base in (("B", 1000), ("iB", 1024), ("b", 1000))
}
"""Bytes of a unit, by its name."""
_MODES, _OPERATIONS = ("initiator", "target"), ("read", "write")
_THREADS_MAX, _DURATION_MAX, _PRECISION_MAX = 1024, 86_400, 9
# Times are counted in steps of about 9 %.
_STEPS = 8


@dataclass(frozen=True)
class Settings:
    """What the flags say."""

    mode: str
    metadata_server: str
    local_server_name: str
    segment_id: str
    protocol: str
    device_name: str
    operation: str
    batch_size: int
    block_size: int
    threads: int
    duration: int
    buffer_size: int
    report_unit: str
    report_precision: int


def settings(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """What the flags say, and what is to be warned of."""
    found = given_flags(words, FLAGS)
    values = {name: found.get(name, FLAGS[name]["default"]) for name in Settings.__dataclass_fields__}
    given = Settings(**values)
    for name, among in (("mode", _MODES), ("operation", _OPERATIONS), ("report_unit", tuple(UNITS))):
        if values[name] not in among:
            raise FlagError(f"--{name}: `{values[name]}` is none of {', '.join(among)}")
    most = {"threads": _THREADS_MAX, "duration": _DURATION_MAX, "report_precision": _PRECISION_MAX}
    for name in ("batch_size", "block_size", "threads", "duration", "buffer_size", "report_precision"):
        least, limit = 0 if name == "report_precision" else 1, most.get(name, BYTES_LIMIT - 1)
        if not least <= values[name] <= limit:
            raise FlagError(f"--{name}: {values[name]} is not from {least} to {limit}")
    needed = given.threads * given.batch_size * given.block_size
    if given.mode == "initiator" and needed > given.buffer_size:
        raise FlagError(f"--buffer_size: {given.buffer_size}: a batch of every thread has {needed} bytes")
    if given.mode == "initiator" and not given.segment_id:
        raise FlagError("--segment_id is needed: the name that a target says at its start")
    warnings = [
        f"--{name} has no effect: {FLAGS[name]['meaning']}"
        for name, value in found.items()
        if FLAGS[name]["option"] is None and value != FLAGS[name]["default"]
    ]
    return given, warnings


class Times:
    """How often something took how long, in steps of about 9 %."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Counts one."""
        step = math.ceil(math.log2(max(seconds, 1e-9)) * _STEPS)
        self.counts[step] = self.counts.get(step, 0) + 1

    def join(self, other: "Times") -> None:
        """Counts those of another."""
        for step, count in other.counts.items():
            self.counts[step] = self.counts.get(step, 0) + count

    def quantile(self, share: float) -> float:
        """The seconds that this share of all took at most; 0 of none."""
        left = share * sum(self.counts.values())
        for step in sorted(self.counts):
            left -= self.counts[step]
            if left <= 0:
                return 2.0 ** (step / _STEPS)
        return 0.0


@dataclass(frozen=True)
class Measured:
    """What an initiator saw."""

    seconds: float
    batches: int
    bytes: int
    times: Times
    cpu_seconds: float

    def text(self, unit: str, digits: int) -> str:
        """A line, whose first half is that of Mooncake's benchmark."""
        speed = self.bytes / UNITS[unit] / self.seconds
        middle, late = (self.times.quantile(share) * 1e6 for share in (0.5, 0.99))
        per_gigabyte = self.cpu_seconds / max(self.bytes / 1e9, 1e-9)
        return (
            f"Test completed: duration {self.seconds:.2f}, batch count {self.batches}, "
            f"throughput {speed:.{digits}f} {unit}/s, batch time p50 {middle:.0f} us, p99 {late:.0f} us, "
            f"CPU of this side {per_gigabyte:.3f} s/GB"
        )


class Failed(Exception):
    """A transfer that failed, or an engine that is not there."""


def engine_of(given: Settings) -> tuple[TransferEngine, int]:
    """An engine, and the address of its memory."""
    engine = TransferEngine()
    if engine.initialize(given.local_server_name, given.metadata_server, given.protocol, given.device_name):
        raise Failed("the engine does not start")
    address = engine.allocate_managed_buffer(given.buffer_size)
    if not address:
        raise Failed(f"--buffer_size: there are no {given.buffer_size} bytes")
    return engine, address


def measure(given: Settings, now: Callable[[], float] = time.monotonic) -> Measured:
    """Moves bytes for as long as is said. Raises `Failed` at the first transfer that does."""
    engine, here = engine_of(given)
    peer = given.segment_id
    there = engine.get_first_buffer_address(peer)
    if not there:
        raise Failed(f"there is no target {peer} with memory")
    write = given.operation == "write"
    move = engine.batch_transfer_sync_write if write else engine.batch_transfer_sync_read
    lengths = [given.block_size] * given.batch_size
    counts, all_times = [0] * given.threads, [Times() for _ in range(given.threads)]
    failed, stopped = threading.Event(), threading.Event()
    begin = threading.Barrier(given.threads + 1)

    def run(thread: int) -> None:
        offsets = [given.block_size * (at * given.threads + thread) for at in range(given.batch_size)]
        mine, theirs = [here + offset for offset in offsets], [there + offset for offset in offsets]
        try:
            begin.wait()
        except threading.BrokenBarrierError:
            return
        until = last = now()
        until += given.duration
        while last < until and not stopped.is_set():
            try:
                code = move(peer, mine, theirs, lengths)
            except Exception:
                # A thread ends alone; the run must not end as if it had moved its share.
                failed.set()
                stopped.set()
                raise
            if code:
                failed.set()
                stopped.set()
                return
            ended = now()
            all_times[thread].add(ended - last)
            counts[thread] += 1
            last = ended

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(given.threads)]
    try:
        for thread in threads:
            thread.start()
        begin.wait()
        began, cpu = now(), time.process_time()
        for thread in threads:
            thread.join()
    except RuntimeError as error:
        raise Failed(f"--threads: {error}") from None
    finally:
        # By Ctrl-C, too.
        stopped.set()
        begin.abort()
        # The memory goes with the engine, and must not go from under a transfer.
        for thread in threads:
            if thread.is_alive():
                thread.join()
    seconds, cpu = now() - began, time.process_time() - cpu
    if failed.is_set():
        raise Failed(f"a transfer with {peer} failed: is its --buffer_size at least {given.buffer_size}?")
    times = Times()
    for one in all_times:
        times.join(one)
    batches = sum(counts)
    return Measured(seconds, batches, batches * given.batch_size * given.block_size, times, cpu)


def lend(given: Settings) -> None:
    """Lends memory until SIGINT or SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    engine, address = engine_of(given)
    name = given.local_server_name
    if given.metadata_server == "P2PHANDSHAKE":
        host = name.rpartition(":")[0] if ":" in name and not name.endswith("]") else name
        name = f"{host}:{engine.get_rpc_port()}"
    print(f"transfer_engine_bench: target, give --segment_id={name}", file=sys.stderr, flush=True)
    signal.sigwait(_ENDINGS)
    engine.free_managed_buffer(address, given.buffer_size)


_ENDINGS = {signal.SIGINT, signal.SIGTERM}


def main(words: Sequence[str] | None = None) -> None:
    """Lends or measures."""
    words = sys.argv[1:] if words is None else words
    help_if_asked(words, __doc__, FLAGS)
    logging.basicConfig(level=logging.INFO)
    try:
        other = installed_mooncake()
        if other is not None:
            raise FlagError(f"{other} is installed beside slackwater-mooncake: uninstall one of them")
        given, warnings = settings(words)
        for warning in warnings:
            log.warning("transfer_engine_bench: %s", warning)
        if given.mode == "target":
            lend(given)
        else:
            print(measure(given).text(given.report_unit, given.report_precision))
    except (FlagError, Failed) as error:
        sys.exit(f"transfer_engine_bench: {error}")
    except KeyboardInterrupt:
        sys.exit("transfer_engine_bench: stopped")


if __name__ == "__main__":
    main()
