"""The live page, in a browser: what it shows, what it does, and that nothing of it is cut."""

import contextlib
import functools
import itertools
import json
import operator
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import slackwater
from browser import Browser, Page
from servers import Server, lasting_address, lent, started, traffic

WIDTHS = (1280, 390)
LAYOUT = (Path(__file__).parent / "layout.js").read_text().split("\n", 1)[1]
TOKEN = "not-to-be-guessed-9"
# A folder for pictures of every scene, for people.
PICTURES = os.environ.get("PAGE_PICTURES")


def check(page: Page, scene: str, root: str = "document.body") -> None:
    """Nothing is cut or overlaps, nothing was said to the console, and nobody else was asked for anything."""
    found = page.run(f"({LAYOUT})({root})")
    if PICTURES:
        page.screenshot(Path(PICTURES) / f"{scene}.png")
    assert found == [], scene
    said = [entry["entry"] for entry in page.events("Log.entryAdded")]
    # A request that is refused is told there by the browser itself.
    assert [entry for entry in said if entry["source"] != "network"] == []
    assert page.events("Runtime.consoleAPICalled") == []
    assert page.events("Runtime.exceptionThrown") == []
    asked = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    own = str(page.run("location.origin"))
    assert asked and all(url.startswith(f"{own}/") for url in asked), asked
    assert not any("token" in url or TOKEN in url for url in asked), asked


def shown(page: Page, selector: str) -> str:
    """The text of an element, as it is seen."""
    return str(page.run(f"document.querySelector({json.dumps(selector)}).innerText"))


@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_store_says_so(command: Path, browser: Browser, width: int) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, width) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        page.until("document.querySelector('#flow .speed').textContent", lambda text: text == "0 B/s")
        assert shown(page, "#status") == "serving"
        assert shown(page, "#address") == server.address
        assert "no SSD" in shown(page, "#flow")
        assert shown(page, "#warnings").strip() == ""
        # A chart without a number, and a page without a value, say what they wait for.
        assert (shown(page, "#hits .nothing"), shown(page, "#through .nothing")) == ("No hits yet", "No bytes yet")
        assert shown(page, "#first").endswith(f"printf hello | slackwater put greeting - --connect {server.address}")
        assert "replica" not in shown(page, "#decisions")
        check(page, f"empty-{width}")
        with slackwater.connect(server.address) as client:
            client.put("greeting", b"hello")
            client.get("greeting")
        page.until("document.querySelector('#first').hidden && document.querySelector('#through .nothing').hidden")


# The words that a chart draws when it was told one sample, and after a second one.
AXES = """
(async () => {
    const drawn = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { drawn.push(text); return draw.call(this, text, ...rest); };
    const { hitChart } = await import("/page/charts.js");
    const parent = document.createElement("div");
    parent.style.width = "600px";
    document.body.append(parent);
    const push = hitChart(parent, document.createElement("p"));
    const turn = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const told = [];
    for (const time of [1000.5, 1003.5]) {
        drawn.length = 0;
        push(time, { hits: () => null });
        await turn();
        told.push([...new Set(drawn)].filter((text) => !text.endsWith("%")));
    }
    return told;
})()
"""


def test_the_time_of_a_chart_ends_with_its_last_sample(command: Path, browser: Browser) -> None:
    """Of one sample the end of the axis was some seconds ahead, and the marks stood at 13, 28 and 43 seconds."""
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        marks = ["−45 s", "−30 s", "−15 s", "now"]
        assert page.run(AXES) == [marks, marks]


# Two samples of one life, two seconds apart, in which every flow has a speed of its own.
FLOWS = """
(async () => {
    const { flow } = await import("/page/flow.js");
    const { Rates } = await import("/page/rates.js");
    const counted = (times) => ({
        objects: 5,
        memory: { capacity_bytes: 4096, used_bytes: 1024 },
        ssd: { capacity_bytes: 8192, used_bytes: 8192 },
        reads: { memory_hits: 6 * times, ssd_hits: 2 * times, misses: 4 * times, memory_bytes: 4096 * times, ssd_bytes: 6144 * times },
        puts: { bytes: 2048 * times },
        offloads: { completed_bytes: 8192 * times },
        promotions: { completed_bytes: 10240 * times },
        copies: { bytes: 16384 * times },
        evictions: { bytes: 12288 * times },
        ssd_evictions: { bytes: 14336 * times },
    });
    const rates = new Rates();
    // A page that follows again is told the latest sample once more; that began all rates anew.
    const samples = [[7, 100, 1], [8, 20, 9], [8, 10, 5], [8, 12, 6], [8, 12, 6]];
    const another = samples.map(([epoch, time_s, times]) => rates.push({ epoch, time_s, stats: counted(times) }));
    const picture = (width, nodes) => {
        const parent = document.createElement("div");
        parent.style.width = `${width}px`;
        document.body.append(parent);
        flow(parent)(rates, { ...rates.latest, stats: { ...rates.latest.stats, nodes: { nodes: Array(nodes).fill({}) } } });
        const speeds = [...parent.querySelectorAll("g:not(.gone)")].map((it) => [...it.querySelectorAll("text")].map((text) => text.textContent).join(" "));
        const boxes = [...parent.querySelectorAll("svg > text")].map((it) => it.textContent).filter(Boolean);
        const words = parent.querySelector("svg").getAttribute("aria-label");
        parent.remove();
        return { speeds, boxes, words };
    };
    const hits = rates.hits((path) => rates.last(path));
    return { ...picture(700, 1), pool: picture(700, 2), upright: picture(390, 2), hits: [hits.memory, hits.ssd], another };
})()
"""


def test_a_rate_is_what_was_counted_in_between(command: Path, browser: Browser) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        found = page.run(FLOWS)
        assert isinstance(found, dict)
        memory = ["puts 1.00 KiB/s", "from memory 2.00 KiB/s", "from SSD 3.00 KiB/s"]
        moves = ["offloads 4.00 KiB/s", "promotions 5.00 KiB/s", "evicted 6.00 KiB/s", "evicted 7.00 KiB/s"]
        assert found["speeds"] == memory + moves and "nodes" not in found["words"]
        pool, upright = found["pool"], found["upright"]
        assert pool["speeds"] == memory + moves[:2] + ["between nodes 8.00 KiB/s"] + moves[2:]
        assert "between nodes 8.00 KiB/s" in pool["words"]
        assert upright["speeds"] == memory + moves[:2] and "evicts 6.00 KiB/s, between nodes 8.00 KiB/s" in upright["boxes"]
        assert found["hits"] == [0.5, pytest.approx(1 / 6)]
        assert found["another"] == [True, True, True, True, False]
        filled = {"1.00 KiB of 4.00 KiB", "25.0 %", "8.00 KiB of 8.00 KiB", "100.0 %", "2.0/s missed", "4.0/s served"}
        assert filled <= set(found["boxes"]), found
        script = """import("/page/format.js").then((format) => [
            format.bytes(0), format.bytes(1023), format.bytes(1024 ** 2 - 1), format.bytes(1536), format.count(1234567), format.count(999949),
            format.rate(0.01), format.micros(999.4), format.micros(1500), format.seconds(89.6), format.seconds(3600 * 5),
            format.parseBytes("1.5GiB"), format.parseBytes("64 m"), format.parseBytes("7"), format.parseBytes("much"), format.parseBytes("-1"),
            format.many(1, "object"), format.many(0, "object"), format.many(1200, "object")])"""
        words = ["0 B", "1023 B", "1.00 MiB", "1.50 KiB", "1.23 M", "999,949", "< 0.1/s", "999 µs", "1.50 ms", "90 s", "5.0 h"]
        assert page.run(script) == [*words, 1.5 * 2**30, 64 << 20, 7, None, None, "1 object", "0 objects", "1,200 objects"]


# The counters of each line, as an operator reads the line.
COUNTED = {
    "Promoted into memory": "promotions.completed",
    "not: read too rarely": "promotions.rejected_frequency",
    "not: worth less than what memory holds": "promotions.rejected_index",
    "not: memory is too full": "promotions.rejected_watermark",
    "not: too many under way": "promotions.rejected_cap",
    "not: failed, late or cancelled": "promotions.failed promotions.expired promotions.cancelled",
    "Another replica of what is read much": "replication.completed",
    "would have been made": "replication.observed",
    "not: it has enough": "replication.rejected_enough",
    "not: no other node has room": "replication.rejected_room",
    "not: the quota of the tenant is used up": "replication.rejected_quota",
    "not: too many under way, gone or failed": "replication.rejected_queue replication.rejected_unready replication.failed",
    "Written to SSD": "offloads.completed",
    "not: the SSD would evict it first": "offloads.skipped_not_worth",
    "not: too many under way ": "offloads.skipped_full",
    "not: no SSD takes it": "offloads.skipped_no_disk",
    "not: the SSD is failing": "offloads.skipped_failing",
    "not: failed, late or cancelled ": "offloads.failed offloads.expired offloads.cancelled",
    "Evicted from memory": "evictions.count",
    "Evicted from SSD": "ssd_evictions.count",
    "Puts stored": "puts.stored",
    "not: the key was there": "puts.existed",
    "not: refused or failed": "puts.refused",
    "Puts that waited for space": "puts.waited",
}
TILES = {
    "Reads": "reads.memory_hits reads.ssd_hits reads.misses",
    "Bytes read": "reads.memory_bytes reads.ssd_bytes",
    "Puts": "puts.stored",
    "Bytes put": "puts.bytes",
}
# Every number of the page that is not a rate.
SHOWN = """
(() => {
    const all = (selector, shown) => [...document.querySelectorAll(selector)].map(shown);
    return {
        decisions: all("#decisions tr", (row) => [row.firstElementChild.textContent, row.lastElementChild.title]),
        objects: document.querySelector("#tiles strong").textContent,
        tiles: all("#tiles .tile[title]", (tile) => [tile.firstElementChild.textContent, tile.title]),
        hits: document.querySelector("#tiles .tile:nth-child(3) small").textContent,
        segments: all("#nodes .segment .figures", (it) => it.title),
        shares: all("#nodes .segment .figures", (it) => it.textContent.split(", ").at(-1)),
        latency: all("#latency tr", (row) => [...row.children].map((cell) => cell.textContent)),
        phases: all("#phases tr", (row) => [...row.children].map((cell) => cell.textContent)),
        tenants: all("#tenants > li", (it) => [...it.querySelectorAll("h3, .quiet, .figures")].map((part) => part.textContent)),
    };
})()
"""
# The same of a sample that nobody sent.
SHOWN_OF = """
Promise.all([import("/page/tables.js"), import("/page/rates.js")]).then(([tables, { Rates }]) => {
    const [sample, rates] = [%s, new Rates()];
    rates.push(sample);
    // The lines that are there follow the rates of the page.
    for (const id of ["tiles", "decisions"]) Object.assign(document.getElementById(id), { kept: undefined }).replaceChildren();
    tables.tiles(rates);
    for (const part of ["nodes", "latency", "tenants"]) tables[part](sample);
    tables.decisions(rates, sample);
    return (%s);
})
"""


def told(server: Server) -> dict:
    """What the paths tell that a sample is made of."""
    parts = {name: server.json(f"/api/v1/{path}")[name] for name, path in (("segments", "segments"), ("quotas", "tenant_quotas"))}
    return {"epoch": 1, "time_s": 1, "stats": server.json("/api/v1/stats"), "tenants_left": 0, **parts}


def distinct(value: object, numbers: Iterator[int]) -> object:
    """The same with another number for each number, so that no two can be taken for each other."""
    if isinstance(value, dict):
        return {name: distinct(part, numbers) for name, part in value.items()}
    if isinstance(value, list):
        return [distinct(part, numbers) for part in value]
    return next(numbers) if isinstance(value, int | float) and not isinstance(value, bool) else value


def numbers(page: Page, sample: dict) -> dict[str, object]:
    """What `SHOWN` must be; the page's own functions put numbers in words, as tested above."""
    stats, segments, tenants = sample["stats"], sample["segments"], sample["quotas"]

    def words(function: str, *values: float) -> list[str]:
        script = f'import("/page/format.js").then((format) => {json.dumps(values)}.map(format.{function}))'
        return list(page.run(script))  # type: ignore[call-overload]

    def total(paths: str) -> str:
        parts = [functools.reduce(operator.getitem, path.split("."), stats) for path in paths.split()]
        return f"{sum(parts):,}"

    def held(quota: dict, tier: str) -> str:
        limit = quota[f"{tier}_quota_bytes"]
        used, of = words("bytes", quota[f"{tier}_bytes"], limit or 0)
        return f"{used}, no quota" if limit is None else f"{used} of {of}"

    reads = stats["reads"]
    hits = reads["memory_hits"] + reads["ssd_hits"]
    timed = {"memory": "read from memory", "ssd": "read from SSD", "put": "put"}
    quantiles = ("p50_us", "p95_us", "p99_us", "p999_us")
    latency = {name: stats["latency"][call] for call, name in timed.items()}
    parts = {"look_up": "look-up of a call", "queue": "wait before the SSD", "ssd": "SSD", "wire": "way to a client, from SSD"}
    phases = {name: stats["phases"][part] for part, name in parts.items()}
    return {
        # A store that is alone has no other node for a replica.
        "decisions": [[line.strip(), total(paths)] for line, paths in COUNTED.items() if "nodes" in stats or not paths.startswith("replication")],
        "objects": words("count", stats["objects"])[0],
        "tiles": [[name, f"{total(paths)} in all"] for name, paths in TILES.items()],
        "hits": f"{words('percent', hits / (hits + reads['misses']))[0]} in all",
        "segments": [f"{it['used_bytes']} of {it['capacity_bytes']} bytes" for it in segments],
        "shares": [words("percent", it["used_bytes"] / it["capacity_bytes"])[0] for it in segments],
        "latency": [[name, *words("micros", *(it[at] for at in quantiles))] for name, it in latency.items() if it["count"] > 0],
        "phases": [[name, *words("micros", *(it[at] for at in quantiles))] for name, it in phases.items() if it["count"] > 0],
        "tenants": [[it["tenant_id"], f"{words('count', it['objects'])[0]} object{'' if it['objects'] == 1 else 's'}", held(it, "memory"), held(it, "ssd")] for it in tenants],
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_a_busy_store_shows_what_is_counted(command: Path, browser: Browser, width: int, tmp_path: Path) -> None:
    options = ["--memory", "16MiB", "--ssd", "256MiB", "--dir", str(tmp_path / "kv")]
    with started(command, "serve", *options) as server:
        with traffic(server.address), browser.page(server.page, width, dark=width < 600) as page:
            speed = "[...document.querySelectorAll('#flow .speed')].map((it) => it.textContent)"
            page.until(f"{speed}.filter((text) => /[KM]iB/.test(text)).length", lambda count: int(str(count)) >= 3)
            page.until("document.querySelector('#hits-legend b').textContent", lambda text: str(text).endswith("%"))
            page.until("document.querySelector('#hits').ariaLabel", lambda text: "memory" in str(text))
            check(page, f"busy-{width}")
            # Keys are typed, and found or not.
            page.click("#search-key")
            page.type("model@7")
            page.press("Enter", 13, "\r")
            page.until("document.querySelectorAll('#found .reason').length", lambda count: int(str(count)) >= 1)
            assert "30000 bytes" in shown(page, "#found")
            check(page, f"found-{width}")
            # Whether it has a lease or not, this removes it.
            page.click("#found .danger")
            page.click("#dialog input[type=checkbox]")
            check(page, f"remove-{width}", "document.querySelector('#dialog')")
            page.click("#dialog .danger")
            page.until("document.querySelector('#found').innerText", lambda text: text == "")
            assert "model@7 is removed" in str(page.run("document.querySelector('#told').textContent"))
            with slackwater.connect(server.address) as client:
                assert "model@7" not in client
            page.run("document.querySelector('#search-key').value = '<b>none</b>'")
            page.click("#search button")
            page.until("document.querySelector('#found').innerText", lambda text: "<b>none</b>" in str(text))
        with browser.page(server.page, width) as page:
            # Nothing happens any more: the numbers of the page are those of the other paths.
            page.until("document.querySelectorAll('#tiles strong').length", lambda count: count == 6)
            # What is under way when the traffic ends is counted a moment later.
            page.until(SHOWN, lambda shown: shown == numbers(page, told(server)))
            # Most of them are zero: no two are alike in a sample that is like this one and has another number everywhere.
            sample = told(server)
            node = sample["segments"][0]["node"]
            sample["quotas"][0] |= {"memory_quota_bytes": 1, "ssd_quota_bytes": 1}
            sample["stats"]["nodes"] = {"nodes": [], "clients": 1}
            made = distinct(sample, itertools.count(11, 1_009))
            assert isinstance(made, dict)
            for segment in made["segments"]:
                segment |= {"node": node}
            assert page.run(SHOWN_OF % (json.dumps(made), SHOWN)) == numbers(page, made)


def changes(page: Page) -> list[str]:
    """The requests so far that change something."""
    requests = [event["request"] for event in page.events("Network.requestWillBeSent")]
    own = str(page.run("location.origin"))
    return [f"{it['method']} {it['url'].removeprefix(own)}" for it in requests if it["method"] != "GET"]


@pytest.mark.parametrize("width", WIDTHS)
def test_actions_ask_before_they_act(command: Path, browser: Browser, width: int) -> None:
    with started(command, "serve", "--memory", "16MiB") as server:
        with slackwater.connect(server.address) as client:
            client.put(" k ", bytes(1000))
        with browser.page(server.page, width) as page:
            page.until("document.querySelector('#tiles strong')?.textContent", lambda text: text == "1")
            page.click("#nodes button")
            page.until("document.querySelector('#dialog').open")
            check(page, f"drain-{width}", "document.querySelector('#dialog')")
            page.press("Escape", 27)
            page.until("!document.querySelector('#dialog').open")
            assert server.json("/api/v1/jobs")["jobs"] == []
            # Tenants are not told apart here: the dialog stays and says so.
            page.click("#set-quota")
            page.type(" t ")
            # With both sizes empty the key Enter removed the quota.
            page.press("Enter", 13, "\r")
            assert page.run("document.querySelector('#dialog').open")
            assert changes(page) == []
            # The browser went to the first of them.
            for text in ("1GiB", "2GiB"):
                page.type(text)
                page.press("Tab", 9)
            page.click("#dialog .first")
            page.until("!document.querySelector('#dialog .problem').hidden")
            check(page, f"quota-{width}", "document.querySelector('#dialog')")
            page.click("#dialog .danger")
            page.until("document.querySelector('#dialog .danger').disabled", lambda disabled: not disabled)
            # The name is as it was typed.
            assert changes(page) == [f"{method} /api/v1/tenant_quotas?tenant_id=+t+" for method in ("PUT", "DELETE")]
            page.click("#dialog button[type=button]:not(.danger)")
            page.click("#search-key")
            page.type(" k ")
            page.press("Enter", 13, "\r")
            page.until("document.querySelector('#found dd')?.textContent", lambda text: text == " k ")
            check(page, f"spaces-{width}")
            page.click("#remove-all")
            page.click("#dialog .danger")
            # The word that it asks for was not typed.
            assert page.run("document.querySelector('#dialog').open")
            page.click("#dialog input[required]")
            page.type("remov")
            page.click("#dialog .danger")
            assert page.run("document.querySelector('#dialog').open")
            page.click("#dialog input[required]")
            page.press("End", 35)
            page.type("e")
            page.click("#dialog input[type=checkbox]")
            page.click("#dialog .danger")
            page.until("document.querySelector('#tiles strong').textContent", lambda text: text == "0")
            assert "1 object is removed" in str(page.run("document.querySelector('#told').textContent"))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_token_is_asked_for_and_kept_in_the_tab(command: Path, browser: Browser, width: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    arguments = ["serve", "--memory", "16MiB", "--admin-token-file", str(file)]
    with started(command, *arguments) as server, browser.page(server.page, width) as page:
        page.until("document.activeElement.id", lambda name: name == "token")
        # A header cannot carry it: the request threw, and the page said that the server does not answer.
        page.type("жетон-которого-нет")
        page.press("Enter", 13, "\r")
        page.until("document.querySelector('#sign-in-why').innerText", lambda text: "ASCII" in str(text))
        assert page.run("document.querySelector('#trouble').hidden && sessionStorage.length === 0")
        page.run("document.querySelector('#token').value = ''")
        page.type("wrong-token-of-somebody")
        page.press("Enter", 13, "\r")
        page.until("document.querySelector('#sign-in-why').innerText", lambda text: "ASCII" not in str(text))
        check(page, f"token-{width}")
        page.type(TOKEN)
        page.press("Enter", 13, "\r")
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        assert page.run("localStorage.length") == 0 and page.run("location.href") == f"{server.page}/"
        # Another token is in the file: the one of this tab is refused from then on.
        file.write_text("another-token-of-this\n")
        page.click("#reload")
        check(page, f"reload-{width}", "document.querySelector('#dialog')")
        assert changes(page) == []
        page.click("#dialog .first")
        page.until("!document.querySelector('#sign-in').hidden")
        assert changes(page) == ["POST /api/v1/reload"]
        assert "are read again" in str(page.run("document.querySelector('#told').textContent"))
        assert page.run("sessionStorage.length") == 0
        page.type("another-token-of-this")
        page.press("Enter", 13, "\r")
        page.until("document.querySelector('#sign-in').hidden")
        page.click("#forget")
        page.until("!document.querySelector('#sign-in').hidden")
        assert page.run("sessionStorage.length") == 0


# Notes of each sample that the page is told whether the charts took it as another one.
SAMPLES = """
(() => {
    window.samples = [];
    const [told, drawn] = ["#address", "#through"].map((selector) => document.querySelector(selector));
    const seen = new MutationObserver((records) => samples.push(records.some(({ target }) => target === drawn)));
    seen.observe(told, { attributeFilter: ["title"] });
    seen.observe(drawn, { attributeFilter: ["aria-label"] });
})()
"""


def test_a_sample_that_is_told_again_is_one_sample(command: Path, browser: Browser) -> None:
    """Each time that the stream began anew its first sample was drawn twice, and rates began anew with it."""
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        page.run(SAMPLES)
        # After each new sample the page follows anew, until that is quicker than the next sample.
        page.run("new MutationObserver(() => samples.at(-1) && document.querySelector('#forget').click()).observe(document.querySelector('#through'), { attributeFilter: ['aria-label'] })")
        page.until("samples.includes(false)")
        assert "–" not in str(page.run("document.querySelector('#decisions').innerText"))


def test_the_page_is_used_by_keyboard(command: Path, browser: Browser) -> None:
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        passed = []
        for _ in range(12):
            page.press("Tab", 9)
            passed.append(str(page.run("document.activeElement.id || document.activeElement.textContent")))
        for control in ("Skip to the content", "theme", "Drain…", "search-key", "set-quota", "pause", "reload", "remove-all"):
            assert control in passed, passed
        # The focus stays where it is while samples come.
        page.run("document.querySelector('#nodes button').focus()")
        page.run(SAMPLES)
        page.until("samples.length", lambda count: int(str(count)) >= 3)
        assert page.run("document.activeElement === document.querySelector('#nodes button')")
        before = page.run("getComputedStyle(document.body).backgroundColor")
        page.run("document.querySelector('#theme').focus()")
        for _ in range(2):
            page.press("Enter", 13, "\r")
        assert shown(page, "#theme") == "Theme: dark"
        assert page.run("getComputedStyle(document.body).backgroundColor") != before
        check(page, "dark-1280")


def test_a_pool_of_ten_nodes_and_one_that_dies(command: Path, browser: Browser, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(command, "master"))
        with browser.page(server.page, 390) as page:
            page.until("document.querySelector('#status').textContent", lambda text: text == "not serving")
            assert shown(page, "#warnings code") == "slackwater node" and "`" not in shown(page, "#warnings")
            check(page, "no-node-390")
        nodes = [stack.enter_context(lent(command, server.address, tmp_path / str(number))) for number in range(10)]
        with traffic(server.address):
            for width in WIDTHS:
                with browser.page(server.page, width) as page:
                    page.until("document.querySelectorAll('#nodes .good').length", lambda count: count == 10)
                    page.until("[...document.querySelectorAll('#flow .speed')][0].textContent", lambda text: "iB/s" in str(text))
                    assert "with a link" in shown(page, "#flow")
                    check(page, f"pool-{width}")
        with browser.page(server.page, 390) as page:
            page.until("document.querySelectorAll('#nodes .good').length", lambda count: count == 10)
            page.click("#nodes button")
            page.click("#dialog input")
            page.type("much")
            page.click("#dialog .first")
            page.until("document.querySelector('#dialog .problem').textContent", lambda text: "no size" in str(text))
            assert server.json("/api/v1/jobs")["jobs"] == []
            page.run("document.querySelector('#dialog input').value = '1GiB'")
            page.click("#dialog .first")
            page.until("document.querySelector('#jobs .pill').textContent", lambda text: text == "succeeded")
            (job,) = server.json("/api/v1/jobs")["jobs"]
            drained = job["work"]["segments"][0]
            assert shown(page, "#jobs h3") == f"{job['job_id']}: drain {drained}"
            page.until("document.querySelector('#nodes').innerText", lambda text: ", drained" in str(text))
            check(page, "drained-390")
            assert server.json("/api/v1/stats")["copies"]["bytes"] >= job["migrated_bytes"] > 0
        nodes[3].kill()
        died = f"node {nodes[3].number}"  # type: ignore[attr-defined]
        for width in WIDTHS:
            with browser.page(server.page, width) as page:
                page.until("document.querySelector('#warnings').innerText", lambda text: died in str(text).lower())
                page.until("document.querySelectorAll('#nodes .good').length", lambda count: count == 9)
                check(page, f"failing-{width}")


def test_a_server_that_goes_is_waited_for(command: Path, browser: Browser) -> None:
    admin = lasting_address()
    with started(command, "serve", "--memory", "16MiB", admin=admin) as server:
        stack = contextlib.ExitStack()
        page = stack.enter_context(browser.page(server.page, 390))
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
    with stack:
        page.until("!document.querySelector('#trouble').hidden")
        assert shown(page, "#status") == "no link"
        with subprocess.Popen(
            [command, "serve", "--memory", "16MiB", "--listen", "127.0.0.1:0", "--admin", admin, "--log", "off"],
            stdout=subprocess.PIPE,
        ) as again:
            page.until("document.querySelector('#trouble').hidden")
            assert shown(page, "#status") == "serving"
            again.kill()
