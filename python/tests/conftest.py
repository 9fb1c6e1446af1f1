"""What the tests of the package share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import slackwater

sys.path.append(str(Path(__file__).parent))

from callers import Package

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def command() -> Path:
    """The `slackwater` command: the one that is named by `TESTED_COMMAND`, or that of this folder, built if it is not current."""
    if named := os.environ.get("TESTED_COMMAND"):
        return Path(named)
    if shutil.which("cargo") is None:
        pytest.skip("no cargo: the command that serves a store cannot be built")
    build = ["cargo", "build", "--quiet", "--locked", "--package", "slackwater-cli"]
    features = ["--features", "slackwater-cli/otel"] if exports_traces() else []
    subprocess.run([*build, *features], cwd=ROOT, check=True, timeout=1200)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "slackwater"


def exports_traces() -> bool:
    """Whether the module was built with the feature `otel`, as the command then is."""
    try:
        slackwater.export_traces("http://127.0.0.1")
    except slackwater.RefusedError:
        return False
    slackwater.export_traces(None)
    return True


@pytest.fixture(scope="session")
def traced_command(command: Path) -> Path:
    """The command with OpenTelemetry, where the module has it too."""
    if not exports_traces():
        assert "TESTED_COMMAND" not in os.environ, "the module that is tested was built without the feature otel"
        pytest.skip("the module was built without the feature otel")
    return command


@pytest.fixture(scope="session")
def untraced_command(command: Path) -> Path:
    """The command without OpenTelemetry, where the module has none either."""
    if exports_traces():
        pytest.skip("the module and the command were built with the feature otel")
    return command


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """The package `opentelemetry`, as if the caller had loaded it."""
    package = Package()
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", package)
    return package


@pytest.fixture
def store() -> Iterator[slackwater.Store]:
    """A store in memory alone."""
    with slackwater.Store(memory="16MiB", log="off") as store:
        yield store


class Opener(Protocol):
    """Opens a store with little memory over an SSD tier, the same directory each time."""

    def __call__(self, **options: str | int | bool) -> slackwater.Store: ...


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where an SSD tier may live."""
    return tmp_path / "kv"


@pytest.fixture
def open_tiered(directory: Path) -> Opener:
    """See `Opener`."""

    def opened(**options: str | int | bool) -> slackwater.Store:
        settings: dict[str, str | int | bool] = {"file_bytes": "4MiB", "log": "off", **options}
        return slackwater.Store(directory, memory="8MiB", ssd="64MiB", **settings)

    return opened
