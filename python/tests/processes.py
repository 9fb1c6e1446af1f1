"""Processes that tests stop."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def stop(process: "subprocess.Popen[Any]") -> None:
    """Stops a process, and returns when none of its threads runs any more: the signal takes effect after the call that sends it,
    and at some threads before others."""
    os.kill(process.pid, signal.SIGSTOP)
    until = time.monotonic() + 60
    while not all(state(thread) == "T" for thread in Path(f"/proc/{process.pid}/task").iterdir()):
        assert time.monotonic() < until, "it goes on"


def state(thread: Path) -> str:
    """What the system says of a thread; one that has just ended does nothing either."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "T"
