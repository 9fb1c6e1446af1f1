"""Single decisions on the page: what is told of each, and that the list waits for a reader."""

import json
from pathlib import Path

import pytest
from browser import Browser
from servers import started, traffic
from test_page import SAMPLES, WIDTHS, check, shown

LEARNED = {
    "class": "reused once",
    "reuses": 1,
    "age_s": 42.0,
    "index": 0.05,
    "lowest_index": 0.0005,
    "returns": [{"within_s": 60.0, "chance": 0.25}, {"within_s": 600.0, "chance": 0.5}, {"within_s": 3600.0, "chance": 0.75}],
    "rule": None,
    "rule_lead": 0.0,
}
MADE = [
    ("evicted", "memory", "room was needed; another copy stays", LEARNED),
    ("offloaded", "memory", "it is to leave memory", LEARNED | {"rule": "lru"}),
    ("not_offloaded", "memory", "the SSD would evict it first", None),
    ("promoted", "ssd", "read 2 times lately", None),
    ("not_promoted", "ssd", "memory is too full", None),
    ("evicted", "ssd", "its tenant is at its quota; this was the last copy", None),
]
KNOWN = "reused once; last read 42 s ago; returns with 50.0 % within 10 min; worth 180 hits an hour, what goes next 1.8"
ROWS = [
    ["Evicted from SSD", "k6 of a 1.00 KiB, segment 1", "its tenant is at its quota; this was the last copy."],
    ["Not promoted", "k5 1.00 KiB, segment 1", "memory is too full."],
    ["Promoted into memory", "k4 1.00 KiB, segment 1", "read 2 times lately."],
    ["Not written to SSD", "k3 1.00 KiB, segment 1", "the SSD would evict it first."],
    ["Written to SSD", "k2 1.00 KiB, segment 1", f"it is to leave memory: {KNOWN}; rule lru."],
    ["Evicted from memory", "k1 1.00 KiB, segment 1", f"room was needed; another copy stays: {KNOWN}."],
]
# The rows of the list, the latest first.
SHOWN = """
[...document.querySelectorAll("#latest > li")].map((row) => [
    row.querySelector("strong").textContent,
    [...row.querySelector(".subject").children].map((it) => it.textContent).join(" "),
    row.lastElementChild.textContent])
"""
# A list of its own, told these samples one after the other.
FED = """
import("/page/decisions.js").then(({ decisionList }) => {
    Object.assign(document.getElementById("latest"), { kept: undefined }).replaceChildren();
    const push = decisionList(() => {});
    return %s.map((sample) => { push(sample); return (%s); });
})
"""


def sample(latest: list[dict], time_s: float = 100.0, epoch: int = 1) -> dict:
    """A sample with these decisions alone."""
    return {"epoch": epoch, "time_s": time_s, "decisions": {"made": 1234, "latest": latest}}


def made(number: int, age_s: float = 1.0) -> dict:
    """The decision of this number."""
    decision, tier, why, learned = MADE[(number - 1) % len(MADE)]
    tenant = "a" if number == len(MADE) else "default"
    about = {"tenant": tenant, "key": f"k{number}", "bytes": 1024, "segment": 1, "tier": tier, "learned": learned}
    return {"number": number, "age_s": age_s, "decision": decision, "cause": "word", "why": why} | about


def test_each_decision_is_told_with_its_reason(command: Path, browser: Browser) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        assert "Nothing was evicted" in shown(page, "#latest-none")
        all_kinds = [made(number) for number in range(1, 7)]
        samples = [
            sample(all_kinds),
            # What was told before is told again, and older.
            sample([made(6, 3.0), made(7)], 102.0),
            # Another life of the server counts from the beginning.
            sample([made(1)], 5.0, 2),
        ]
        first, second, third = page.run(FED % (json.dumps(samples), SHOWN))  # type: ignore[misc]
        assert first == ROWS
        assert second[1:] == first and second[0][0] == "Evicted from memory"
        assert third == ROWS[-1:]
        many = [sample([made(number, 2.0) for number in range(1, 60)])]
        ages = "[...document.querySelectorAll('#latest .figures')].map((it) => it.textContent)"
        (rows,) = page.run(FED % (json.dumps(many), ages))  # type: ignore[misc]
        assert rows == ["2.0 s ago"] * 24
        assert "24 of 1,234" in shown(page, "#latest-note")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_latest_decisions_can_be_paused_and_followed(command: Path, browser: Browser, width: int, tmp_path: Path) -> None:
    options = ["--memory", "8MiB", "--ssd", "64MiB", "--dir", str(tmp_path / "kv")]
    with started(command, "serve", *options) as server, traffic(server.address), browser.page(server.page, width) as page:
        page.until("document.querySelectorAll('#latest > li').length", lambda count: count == 24)
        page.until("document.querySelector('#latest').innerText", lambda text: "Written to SSD" in str(text) and "Evicted from memory" in str(text))
        page.click("#pause")
        assert shown(page, "#pause") == "Go on"
        check(page, f"decisions-{width}")
        before = page.run(SHOWN)
        page.run(SAMPLES)
        page.until("samples.length", lambda count: int(str(count)) >= 2)
        assert page.run(SHOWN) == before
        told = server.json("/api/v1/decisions")
        assert told["made"] >= len(told["latest"]) > 0
        assert {"evicted", "offloaded"} <= {it["decision"] for it in told["latest"]}
        # A click on a key asks why it is kept.
        key = str(page.run("document.querySelector('#latest .link').textContent"))
        page.click("#latest .link")
        page.until("document.querySelector('#found').innerText", lambda text: key in str(text))
        page.click("#pause")
        assert shown(page, "#pause") == "Pause"
        page.until(SHOWN, lambda rows: rows != before)
