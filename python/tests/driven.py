"""Runs a script of these tests by an interpreter that has an engine."""

import os
import subprocess
from pathlib import Path

import pytest
import slackwater


def driven(engine: str, script: Path, *arguments: str) -> str:
    """The output of a script, run by the interpreter that an environment variable names for this engine."""
    variable = f"{engine.upper()}_PYTHON"
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} names no interpreter with {engine}: its own code has driven nothing")
    paths = [str(Path(slackwater.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [interpreter, str(script), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ran.returncode == 0, f"{engine}: {ran.stderr[-4000:]}"
    return ran.stdout
