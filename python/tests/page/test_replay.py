"""The page of a replay, which is that of its store."""

import subprocess
from pathlib import Path

import pytest
from browser import Browser
from test_page import WIDTHS, check, shown

TRAFFIC = ["--generate", "--requests", "1000000", "--block-bytes", "32KiB", "--memory", "16MiB", "--ssd", "64MiB", "--speed", "100x"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_replay_is_looked_at_while_it_runs(command: Path, browser: Browser, width: int, tmp_path: Path) -> None:
    arguments = [command, "replay", *TRAFFIC, "--live=127.0.0.1:0"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as replay:
        assert replay.stderr is not None
        address = replay.stderr.readline().strip().removeprefix("live at ")
        try:
            with browser.page(address, width) as page:
                page.until("document.querySelector('#latest').innerText", lambda text: "Evicted from memory" in str(text))
                page.until("document.querySelectorAll('#hottest tr').length", lambda count: count == 10)
                page.until("document.querySelectorAll('#phases tr').length", lambda count: int(str(count)) >= 1)
                assert shown(page, "#address") == "a replay in this process"
                page.click("#pause")
                check(page, f"replay-{width}")
                replay.kill()
                page.until("!document.querySelector('#trouble').hidden")
        finally:
            replay.kill()
