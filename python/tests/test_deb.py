"""The Debian package: the command, its services, and nothing that starts by itself."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def package(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, made as for a release, but not compressed."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb: Debian packages cannot be built (apt-get install dpkg)")
    out = tmp_path_factory.mktemp("deb")
    pack = ["cargo", "xtask", "deb", "--binary", command, "--out", out]
    subprocess.run(pack, cwd=ROOT, check=True, timeout=600, env={**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"})
    (made,) = out.glob("slackwater_*.deb")
    return made


def members(package: Path, part: str) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The files of one of the package's archives, by name."""
    packed = subprocess.run(["dpkg-deb", part, package], capture_output=True, timeout=60, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        return {member.name.removeprefix("./"): (member, read.read()) for member in files if (read := archive.extractfile(member))}


def test_everything_has_its_place_and_belongs_to_root(package: Path) -> None:
    files = members(package, "--fsys-tarfile")
    for name in (
        "usr/bin/slackwater",
        "usr/lib/systemd/system/slackwater.service",
        "usr/lib/systemd/system/slackwater-master.service",
        "usr/lib/systemd/system/slackwater-node.service",
        "usr/lib/sysusers.d/slackwater.conf",
        "usr/share/man/man1/slackwater-node.1.gz",
        "usr/share/bash-completion/completions/slackwater",
        "usr/share/zsh/vendor-completions/_slackwater",
        "usr/share/doc/slackwater/copyright",
        "usr/share/doc/slackwater/slackwater.cdx.json",
    ):
        assert name in files, sorted(files)
    for name, (member, _) in files.items():
        assert (member.uid, member.gid) == (0, 0), name
        assert member.mode & 0o022 == 0, f"{name}: {member.mode:o}"
    assert files["usr/bin/slackwater"][0].mode == 0o755
    assert b"Apache License" in files["usr/share/doc/slackwater/copyright"][1]
    assert not any("wants" in name for name in files), "a unit is enabled by being installed"


def test_what_the_owner_may_change_is_kept_and_the_scripts_are_sound(package: Path) -> None:
    control = members(package, "--ctrl-tarfile")
    files = members(package, "--fsys-tarfile")
    settings = control["conffiles"][1].decode().split()
    assert settings == [f"/etc/slackwater/{name}.env" for name in ("serve", "master", "node")]
    assert all(name.removeprefix("/") in files for name in settings)
    for script in ("postinst", "prerm", "postrm"):
        member, text = control[script]
        assert member.mode == 0o755, script
        subprocess.run(["sh", "-n"], input=text, timeout=60, check=True)
    fields = dict(line.split(": ", 1) for line in control["control"][1].decode().splitlines() if ": " in line)
    assert fields["Package"] == "slackwater" and "libc6 (>= 2." in fields["Depends"]
