"""The wheel: one file that gives the Python module and the command, with nothing compiled where it is installed."""

import contextlib
import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A process of its own: what the module and the server of the wheel do with nothing else in reach.
ROUND_TRIP = """
import sys, slackwater
assert slackwater.__file__.startswith(sys.prefix), slackwater.__file__
value = bytes(range(256)) * 1000
with slackwater.connect(sys.argv[1], timeout=30.0) as client:
    assert client.get("k") is None
    assert client.put("k", value)
    assert client.get("k") == value
with slackwater.Store(memory="8MiB", log="off") as store:
    store.put("k", value)
    assert store.get("k") == value
"""


@pytest.fixture(scope="module")
def wheel(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made as for a release, of what the other tests have built, for this machine alone."""
    maturin = Path(sysconfig.get_path("scripts")) / "maturin"
    if not maturin.exists():
        pytest.skip("no maturin: wheels cannot be built (make test makes an environment that has it)")
    raw = tmp_path_factory.mktemp("raw")
    build = [maturin, "build", "--quiet", "--profile", "dev", "--locked", "--auditwheel", "skip"]
    subprocess.run([*build, "--out", raw], cwd=ROOT, check=True, timeout=1200)
    (built,) = raw.glob("*.whl")
    out = tmp_path_factory.mktemp("dist")
    pack = ["cargo", "xtask", "wheel", "--binary", command, "--wheel", built, "--python", sys.executable, "--out", out]
    subprocess.run(pack, cwd=ROOT, check=True, timeout=600)
    (made,) = out.glob("*.whl")
    return made


def install(wheel: Path, place: Path) -> None:
    """Makes a clean environment with the wheel: no registry, no other package, no compiler."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=300)
    pip = [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel]
    subprocess.run(pip, check=True, timeout=300, env=alone(place))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing else."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    install(wheel, place)
    return place


def alone(place: Path) -> dict[str, str]:
    """An environment in which only what the wheel brought can be found."""
    return {"PATH": str(place / "bin"), "HOME": str(place)}


@contextlib.contextmanager
def served(place: Path) -> Iterator[tuple[str, str]]:
    """Where the server of the wheel is, and its page."""
    free = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    line = ["slackwater", "serve", *free, "--memory", "16MiB", "--log", "warn"]
    binary = place / "bin" / "slackwater"
    with subprocess.Popen(line, executable=binary, env=alone(place), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip().removeprefix("serving at ")
            yield address, server.stdout.readline().strip().removeprefix("admin at ")
        finally:
            server.kill()


@pytest.fixture
def address(installed: Path) -> Iterator[str]:
    """Where the server of the wheel is."""
    with served(installed) as (address, _):
        yield address


def round_trip(place: Path, address: str) -> None:
    """Puts and gets from Python, isolated: without the folder that it is called in, and without what variables name."""
    assert shutil.which("cargo", path=alone(place)["PATH"]) is None
    python = place / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", ROUND_TRIP, address], env=alone(place), cwd="/", timeout=120, check=False)
    assert done.returncode == 0


# What a file of the page names that belongs to it.
NAMED = re.compile(r'(?:src|href)="([^"#]+)"|(?:from|import) "(\./[^"]+)"')


def opened(page: str) -> list[str]:
    """The files of the page, as a browser asks for them: what each names is asked for too, and each has the policy."""
    found, asked = ["/"], set()
    for path in found:
        if path in asked:
            continue
        asked.add(path)
        with urllib.request.urlopen(page + path, timeout=30) as answer:
            assert answer.status == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy, f"{path}: {policy}"
            text = answer.read().decode()
        for names in NAMED.findall(text):
            found += [urllib.parse.urljoin(path, name) for name in names if name]
    return sorted(asked)


def test_from_nothing_but_python_to_a_value_and_a_page(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    place = tmp_path / "venv"
    install(wheel, place)
    with served(place) as (address, page):
        files = opened(page)
        round_trip(place, address)
    took = time.monotonic() - began
    assert "/page/main.js" in files and "/page/page.css" in files and "/page/uplot/uPlot.esm.js" in files, files
    with capsys.disabled():
        print(f"\nfrom nothing but Python to a value and a page of {len(files)} files: {took:.1f} s")


def test_the_module_and_the_command_of_a_clean_environment_work_together(installed: Path, address: str) -> None:
    round_trip(installed, address)
    line = ["slackwater", "get", "k", "--connect", address]
    got = subprocess.run(line, executable=installed / "bin" / "slackwater", env=alone(installed), capture_output=True, timeout=60, check=True)
    assert got.stdout == bytes(range(256)) * 1000


def test_the_manual_and_the_completions_lie_where_they_are_looked_for(installed: Path) -> None:
    share = installed / "share"
    assert (share / "man/man1/slackwater.1").read_text().startswith(".")
    assert (share / "man/man1/slackwater-serve.1").is_file()
    for script in ("bash-completion/completions/slackwater", "zsh/site-functions/_slackwater", "fish/vendor_completions.d/slackwater.fish"):
        assert "replay" in (share / script).read_text()
    script = share / "bash-completion/completions/slackwater"
    # Bash itself completes the beginning of a command by it.
    words = f"source {script}; COMP_WORDS=(slackwater rep); COMP_CWORD=1; _slackwater slackwater rep slackwater; echo ${{COMPREPLY[*]}}"
    if (bash := shutil.which("bash")) is not None:
        told = subprocess.run([bash, "--norc", "-c", words], capture_output=True, text=True, timeout=60, check=True)
        assert told.stdout.strip() == "replay", told.stderr


def test_licences_and_the_bill_of_materials_are_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        files = metadata.get_all("License-File")
        assert files == ["LICENSE", "THIRD-PARTY-LICENSES.txt"]
        for file in files:
            assert f"{info}/licenses/{file}" in names
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()
        bill = json.loads(archive.read(f"{info}/sboms/slackwater.cdx.json"))
        texts = archive.read(f"{info}/licenses/THIRD-PARTY-LICENSES.txt").decode()
        assert metadata["Version"] == bill["metadata"]["component"]["version"]
        others = [component for component in bill["components"] if not component["name"].startswith("slackwater")]
        listed = set(re.findall(r"^(\S+ \d\S*): ", texts, flags=re.MULTILINE))
        assert {f"{component['name']} {component['version']}" for component in others} == listed
        # One wheel is for every CPython from 3.11 on.
        assert "-cp311-abi3-" in wheel.name
        mode = archive.getinfo(f"{info.removesuffix('.dist-info')}.data/scripts/slackwater").external_attr >> 16
        assert mode & 0o111 == 0o111, oct(mode)
        assert os.stat(wheel).st_size < 64 << 20
