"""The chains that are read most: what is told of each, and how wrong it may be."""

import json
from pathlib import Path

import pytest
import slackwater
from browser import Browser
from servers import started
from test_page import WIDTHS, check, shown

CHAINS = [
    {"tenant": "default", "key": "<b>first</b>", "reads": 60.0, "excess": 0.0},
    {"tenant": "a", "key": "second", "reads": 30.5, "excess": 2.25},
]
# The table, and what stands below it, after each of these samples.
FED = """
import("/page/tables.js").then(({ hottest }) => %s.map((hottest_now) => {
    Object.assign(document.getElementById("hottest"), { kept: undefined }).replaceChildren();
    hottest({ hottest: hottest_now }, () => {});
    const rows = [...document.querySelectorAll("#hottest tr")];
    return [...rows.map((row) => [...row.children].map((cell) => cell.textContent)), rows.map((row) => row.children[1].title),
        document.getElementById("hottest-note").textContent];
}))
"""


def test_counts_are_told_with_what_they_may_be_too_high(command: Path, browser: Browser) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        assert "Nothing was looked up" in shown(page, "#hottest-note")
        assert page.run("document.querySelector('#hottest-table').hidden")
        samples = [{"reads": 120.0, "chains": CHAINS}, {"reads": 120.0, "chains": CHAINS[:1]}]
        both, first = page.run(FED % json.dumps(samples))  # type: ignore[misc]
        row = ["<b>first</b>", "60", "50.0 %"]
        assert both[:3] == [row, ["second of a", "31", "25.4 %"], ["60.0", "28.3 to 30.5"]]
        assert both[3].startswith("A count may be 3 too high, and none is too low")
        assert first[0] == row and first[2].startswith("The counts are exact")


# The shares that one line shows after each of these samples.
KEPT = """
import("/page/tables.js").then(({ hottest }) => %s.map((hottest_now) => {
    hottest({ hottest: hottest_now }, () => {});
    return [...document.querySelectorAll("#hottest tr")].map((row) => row.lastElementChild.textContent);
}))
"""


def test_a_share_is_of_all_look_ups_at_that_moment(command: Path, browser: Browser) -> None:
    """A line kept the sum of the sample that it was made for, and its share went beyond 100 % as look-ups came."""
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        chain = CHAINS[0]
        samples = [{"reads": 60.0, "chains": [chain]}, {"reads": 480.0, "chains": [chain | {"reads": 120.0}]}]
        assert page.run(KEPT % json.dumps(samples)) == [["100.0 %"], ["25.0 %"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_look_ups_are_counted_while_somebody_looks(command: Path, browser: Browser, width: int) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, width) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        with slackwater.connect(server.address) as client:
            client.put("hot", bytes(1000))
            for number in range(30):
                client.get(f"a-key-that-is-long-enough-to-need-another-line-on-a-narrow-page-{number % 6}")
        rows = "[...document.querySelectorAll('#hottest tr')].map((row) => row.children[1].textContent)"
        page.until(rows, lambda counts: counts == ["5"] * 6)
        told = server.json("/api/v1/hottest")
        assert told["reads"] == 30 and [chain["reads"] for chain in told["chains"]] == [5] * 6
        check(page, f"hottest-{width}")
        page.click("#hottest .link")
        page.until("document.querySelector('#found').innerText", lambda text: "a-key-that" in str(text))
