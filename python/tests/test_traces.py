"""Gets within a span of OpenTelemetry, which the server that they reach hears of."""

import asyncio
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import slackwater
import slackwater.aio

from callers import Package, Span

OPEN = "application/openmetrics-text; version=1.0.0"


@dataclass
class Server:
    """A served store, and where it answers operators."""

    address: str
    admin: str

    def metrics(self, accept: str) -> str:
        request = urllib.request.Request(f"{self.admin}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def names(self, trace: int) -> bool:
        """Whether an exemplar names the trace."""
        return f'trace_id="{trace:032x}"' in self.metrics(OPEN)

    def comes_to_name(self, trace: int) -> bool:
        """The same of a look-up that was answered, and is counted after that."""
        until = time.monotonic() + 60
        while not (named := self.names(trace)) and time.monotonic() < until:
            pass
        return named


@pytest.fixture
def server(command: Path) -> Iterator[Server]:
    """A server for one test."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--memory", "16MiB", "--log", "warn"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().removeprefix("serving at ")
            admin = process.stdout.readline().strip().removeprefix("admin at ")
            yield Server(address, admin)
        finally:
            process.kill()


def test_a_get_belongs_to_the_span_of_its_caller(server: Server, package: Package) -> None:
    with slackwater.connect(server.address) as client:
        client.put("a", b"value")
        client.put("b", b"value")
        assert "trace_id" not in server.metrics(OPEN)
        token = package.span.set(Span(0xA1 << 64))
        assert client.get("a") == b"value"
        package.span.reset(token)
        assert server.comes_to_name(0xA1 << 64)
        assert "trace_id" not in server.metrics("text/plain")
        package.span.set(Span(0xA2 << 64, trace_flags=0))
        assert client.get_batch(["b"]) == [b"value"]
        assert not server.names(0xA2 << 64), "its caller does not record it"


def test_a_coroutine_is_in_its_own_trace(server: Server, package: Package) -> None:
    async def read(client: slackwater.aio.AsyncClient, trace: int) -> None:
        package.span.set(Span(trace))
        buffer = bytearray(5)
        assert await client.get_into(f"k{trace}", buffer) == 5

    async def run() -> None:
        async with await slackwater.aio.connect(server.address) as client:
            await asyncio.gather(*(client.put(f"k{trace}", b"value") for trace in (1, 2)))
            await read(client, 1)
            assert server.comes_to_name(1)
            await asyncio.create_task(read(client, 2))
            assert server.comes_to_name(2)

    asyncio.run(run())


def test_a_package_that_fails_does_not_fail_a_get(server: Server, package: Package) -> None:
    with slackwater.connect(server.address) as client:
        client.put("a", b"value")
        for wrong in (None, Span(-1), Span(1, 1 << 64), Span(1 << 128), object()):
            package.span.set(wrong)  # type: ignore[arg-type]
            assert client.get("a") == b"value"
        assert "trace_id" not in server.metrics(OPEN)


def test_an_interrupt_while_the_package_is_asked_is_not_lost(
    server: Server, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> Span:
        raise KeyboardInterrupt

    with slackwater.connect(server.address) as client:
        client.put("a", b"value")
        monkeypatch.setattr(package, "get_current_span", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.get("a")
            # It comes between two steps of the interpreter.
            for _ in range(1000):
                pass


def test_exports_are_refused_where_they_make_no_sense() -> None:
    with pytest.raises(ValueError, match="https is not spoken here"):
        slackwater.export_traces("https://collector")
    with pytest.raises(ValueError, match="no address of a collector"):
        slackwater.export_traces("collector:4318")
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share"):
            slackwater.export_traces("http://127.0.0.1", share=share)
    slackwater.export_traces(None)


def test_a_module_without_the_feature_says_how_to_build_it() -> None:
    try:
        slackwater.export_traces("http://127.0.0.1:9")
    except slackwater.RefusedError as error:
        assert "--features otel" in str(error)
        assert error.code is slackwater.ErrorCode.NOT_SUPPORTED
    else:
        slackwater.export_traces(None)
        pytest.skip("the module was built with the feature otel")


@pytest.mark.parametrize("process", [["serve", "--memory", "16MiB"], ["master"], ["node"]])
def test_a_command_without_the_feature_says_how_to_build_it(untraced_command: Path, process: list[str]) -> None:
    line = [untraced_command, *process, "--traces", "http://127.0.0.1:9"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "--features otel" in ended.stderr, ended.stderr
