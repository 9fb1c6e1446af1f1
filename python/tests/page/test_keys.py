"""Nodes and the keys that their links proved."""

import json
from pathlib import Path

import pytest
from browser import Browser
from servers import started
from test_page import WIDTHS, check

KEY = "0123456789abcdef" * 4
PRINT = "6668-7aad-f862-bd77"
SEGMENT = {"tier": "memory", "capacity_bytes": 4096, "used_bytes": 1024, "status": "OK", "high_watermark": 0.95, "low_watermark": 0.9, "presence": "here"}
SAMPLE = {
    "segments": [SEGMENT | {"id": node, "node": node, "name": f"memory-{node}", "endpoint": f"10.0.0.{node}:9"} for node in (1, 2)],
    "stats": {"nodes": {"nodes": [{"node": 1, "data_address": "10.0.0.1:9", "public_key": KEY, "fingerprint": PRINT}, {"node": 2, "data_address": "10.0.0.2:9", "public_key": None, "fingerprint": None}]}},
}
NODES = """
import("/page/tables.js").then(({ nodes }) => {
    nodes(%s);
    const shown = (it) => (it.hidden ? null : [it.textContent, it.title]);
    return [...document.querySelectorAll("#nodes .address")].map((it) => shown(it.lastElementChild));
})
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_key_of_a_node_is_shown_where_it_has_one(command: Path, browser: Browser, width: int) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, width) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        assert page.run(NODES % json.dumps(SAMPLE)) == [[f"key {PRINT}", KEY], None]
        check(page, f"keys-{width}")
