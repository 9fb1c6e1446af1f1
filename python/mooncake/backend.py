"""Builds the distribution, of one module and its scripts; refuses where a Mooncake is installed. Needs Python alone."""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_FILES = ("mooncake.py", "backend.py", "pyproject.toml", "README.md")
_FIND = """
import importlib.metadata as m
names = ((d.metadata["Name"] or "").lower().replace("_", "-") + " " + d.version for d in m.distributions())
print(next((name for name in names if name.startswith("mooncake-transfer-engine")), ""), end="")
"""


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Writes the wheel and gives its name."""
    # Apart from the isolated environment of the build, so that what is installed is seen.
    found = subprocess.run([sys.executable, "-I", "-c", _FIND], capture_output=True, text=True, check=True).stdout
    if found:
        sys.exit(f"{found} is installed and stays the active mooncake: uninstall it before slackwater-mooncake")
    project = _project()
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    scripts = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
    files = {
        "mooncake.py": (_HERE / "mooncake.py").read_text(encoding="utf-8"),
        f"{info}/METADATA": _metadata(project),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: slackwater\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}",
    }
    record = "".join(f"{name},{_hash(text)},{len(text.encode())}\n" for name, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            # A fixed time, so that a wheel depends on its contents alone.
            wheel.writestr(zipfile.ZipInfo(path), text)
    return name


def build_sdist(directory: str, settings: Any = None) -> str:
    """Writes the source distribution and gives its name."""
    project = _project()
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    with tarfile.open(Path(directory, f"{stem}.tar.gz"), "w:gz") as archive:
        for name in _FILES:
            archive.add(_HERE / name, f"{stem}/{name}")
        text = _metadata(project).encode()
        entry = tarfile.TarInfo(f"{stem}/PKG-INFO")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return f"{stem}.tar.gz"


def _project() -> dict[str, Any]:
    return tomllib.loads((_HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _metadata(project: dict[str, Any]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {name}" for name in project["dependencies"]),
        *(f"Classifier: {name}" for name in project["classifiers"]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (_HERE / "README.md").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
