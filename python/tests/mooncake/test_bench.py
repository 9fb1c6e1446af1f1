"""`transfer_engine_bench`: its flags, what it measures, its end."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from slackwater.compat.mooncake import transfer_engine_bench
from slackwater.compat.mooncake.master import FlagError
from slackwater.compat.mooncake.transfer_engine_bench import UNITS, Failed, Measured, Settings, Times, measure, settings
from test_directory import Server, server

__all__ = ["server"]

SMALL = ["--buffer_size=1048576", "--threads=2", "--batch_size=4", "--block_size=4096", "--duration=1"]
COMMAND = [sys.executable, "-m", "slackwater.compat.mooncake.transfer_engine_bench"]
DONE = re.compile(
    r"Test completed: duration (\d+\.\d\d), batch count (\d+), throughput (\d+\.\d{3}) MiB/s, "
    r"batch time p50 (\d+) us, p99 (\d+) us, CPU of this side (\d+\.\d{3}) s/GB\n"
)


@contextmanager
def target(*flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A target: its name, and its process."""
    words = [*COMMAND, "--mode=target", "--buffer_size=1048576", *flags]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "segment_id=" in line)
            yield said.rpartition("=")[2].strip(), process
        finally:
            process.kill()


def ran(*flags: str) -> "subprocess.CompletedProcess[str]":
    """An initiator."""
    return subprocess.run([*COMMAND, *SMALL, *flags], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_an_initiator_measures_what_it_moves(operation: str) -> None:
    with target() as (name, process):
        done = ran(f"--segment_id={name}", f"--operation={operation}", "--report_unit=MiB", "-report_precision", "3")
        found = DONE.fullmatch(done.stdout)
        assert done.returncode == 0 and found is not None, (done.stdout, done.stderr)
        seconds, batches, speed, middle, late, _ = map(float, found.groups())
        assert 1 <= seconds < 60 and batches >= 2 and middle <= late
        assert speed == pytest.approx(batches * 4 * 4096 / 2**20 / seconds, rel=0.02)
        process.send_signal(signal.SIGINT if operation == "read" else signal.SIGTERM)
        assert process.wait(60) == 0


def test_they_meet_by_a_metadata_server(server: Server) -> None:
    with target("--local_server_name=here", f"--metadata_server={server.url}") as (name, process):
        assert name == "here"
        done = ran("--segment_id=here", "--local_server_name=there", f"--metadata_server={server.url}")
        assert done.returncode == 0 and "throughput" in done.stdout, done.stderr
        process.terminate()
        assert process.wait(60) == 0
    assert server.texts == {}


def test_what_cannot_be_measured_is_said() -> None:
    with target() as (name, _):
        for flags, reason in [
            (["--segment_id=127.0.0.1:1"], "there is no target 127.0.0.1:1"),
            ([f"--segment_id={name}", "--local_server_name=192.0.2.1"], "the engine does not start"),
            # Its memory is as long as that of the target.
            ([f"--segment_id={name}", "--buffer_size=4194304", "--block_size=262144"], "is its --buffer_size at least 4194304?"),
            ([f"--segment_id={name}", "--thread=3"], "did you mean --threads?"),
        ]:
            done = ran(*flags)
            assert done.returncode == 1 and reason in done.stderr and not done.stdout, (flags, done.stderr)


def test_an_interrupt_ends_it_soon() -> None:
    with target() as (name, _):
        words = [*COMMAND, *SMALL, "--duration=3600", f"--segment_id={name}"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 1 and said.endswith("transfer_engine_bench: stopped\n")


def test_threads_that_cannot_be_started_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before them waited for all to begin, and the program never ended."""
    start, running = threading.Thread.start, []

    def refused(thread: threading.Thread) -> None:
        if thread.name.endswith("(run)"):
            if running:
                raise RuntimeError("can't start new thread")
            running.append(thread)
        start(thread)

    with target() as (name, _):
        given = settings([*SMALL, f"--segment_id={name}"])[0]
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(Failed, match="--threads: can't start new thread"):
            measure(given)
        running[0].join(60)
        assert not running[0].is_alive()


def test_flags_are_those_of_mooncake() -> None:
    given, warnings = settings(["--segment_id", "x", "-use_vram=false", "--backend=tent", "--device_name=eth0", "--minloglevel=2"])
    assert (given.batch_size, given.block_size, given.threads, given.duration, given.buffer_size) == (128, 65536, 12, 10, 1 << 30)
    assert (given.mode, given.operation, given.report_unit, given.report_precision) == ("initiator", "read", "GB", 2)
    assert [line.split(" has no effect")[0] for line in warnings] == ["--use_vram", "--backend", "--minloglevel"]
    assert settings(["--mode=target", "--buffer_size=1"])[0].buffer_size == 1
    for words, reason in [
        ([], "--segment_id is needed"),
        (["--segment_id=x", "--mode=both"], "none of initiator, target"),
        (["--segment_id=x", "--operation=move"], "none of read, write"),
        (["--segment_id=x", "--report_unit=GBps"], "none of KB, KiB, Kb, MB"),
        (["--segment_id=x", "--threads=0"], "not from 1 to 1024"),
        (["--segment_id=x", "--duration=-1"], "not from 1 to 86400"),
        (["--segment_id=x", "--report_precision=10"], "not from 0 to 9"),
        (["--segment_id=x", "--block_size=1048576"], "a batch of every thread has 1610612736 bytes"),
        (["--segment_id=x", "--buffer_size=9223372036854775808"], "is not from 1 to"),
    ]:
        with pytest.raises(FlagError, match=reason):
            settings(words)


def test_figures_are_those_of_what_was_measured() -> None:
    assert [UNITS[name] for name in ("GB", "GiB", "Gb", "MB", "Kb")] == [1e9, 1 << 30, 1.25e8, 1e6, 125]
    times = Times()
    assert times.quantile(0.5) == 0
    for number in range(1, 101):
        times.add(number / 1000)
    assert times.quantile(0.5) == pytest.approx(0.05, rel=0.1) and times.quantile(0.99) == pytest.approx(0.099, rel=0.1)
    assert times.quantile(0.5) >= 0.05 and times.quantile(1) >= 0.1
    text = Measured(2.0, 100, 4 * 10**9, times, 1.0).text("GB", 1)
    assert "duration 2.00, batch count 100, throughput 2.0 GB/s" in text and "CPU of this side 0.250 s/GB" in text


def test_memory_that_is_not_there_is_said() -> None:
    given = settings(["--segment_id=x", "--buffer_size=4611686018427387904"])[0]
    assert isinstance(given, Settings)
    with pytest.raises(Failed, match="there are no 4611686018427387904 bytes"):
        measure(given)


class _Engine:
    """Stands in for an engine, with memory at 1000 and that of its peer at 5000. What is moved is up to the test."""

    def initialize(self, *_given: str) -> int:
        return 0

    def allocate_managed_buffer(self, length: int) -> int:
        return 1000

    def get_first_buffer_address(self, peer: str) -> int:
        return 5000


def test_threads_move_blocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: set[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = set()

    class Engine(_Engine):
        def batch_transfer_sync_write(self, peer: str, mine: list[int], theirs: list[int], lengths: list[int]) -> int:
            moved.add((peer, tuple(mine), tuple(theirs), tuple(lengths)))
            return 0

    monkeypatch.setattr(transfer_engine_bench, "TransferEngine", Engine)
    words = ["--segment_id=x", "--operation=write", "--threads=2", "--batch_size=3", "--block_size=10", "--duration=1"]
    measured = measure(settings(words)[0])
    assert moved == {
        ("x", (1000, 1020, 1040), (5000, 5020, 5040), (10, 10, 10)),
        ("x", (1010, 1030, 1050), (5010, 5030, 5050), (10, 10, 10)),
    }
    assert measured.bytes == measured.batches * 30 and sum(measured.times.counts.values()) == measured.batches


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_by_an_error_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others went on, and the run ended as if that one had moved its share."""

    class Engine(_Engine):
        def batch_transfer_sync_read(self, peer: str, mine: list[int], theirs: list[int], lengths: list[int]) -> int:
            raise MemoryError

    monkeypatch.setattr(transfer_engine_bench, "TransferEngine", Engine)
    words = ["--segment_id=x", "--operation=read", "--threads=2", "--batch_size=1", "--block_size=10", "--duration=1"]
    with pytest.raises(Failed, match="a transfer with x failed"):
        measure(settings(words)[0])
