"""What the page does with answers that fail, come late or come in another order: requests and timers are the test's own."""

from pathlib import Path

from browser import Browser
from servers import started

# A page of this origin on which nothing runs but what a test begins.
EMPTY = "/page/uplot/LICENSE"

# A stream whose requests and timers are the test's own; each `follow` is the answer to one more request.
FOLLOWED = """
(async () => {
    const { Stream } = await import("/page/stream.js");
    const event = "event: sample\\ndata: {}\\n\\n";
    const asked = [], timers = [], told = [], answers = [];
    window.fetch = (path, { signal }) => new Promise((resolve, reject) => {
        asked.push(signal);
        answers.push((text) => text === null ? reject(new TypeError("no link")) : resolve(new Response(text)));
    });
    window.setTimeout = (run, time) => timers.push({ run, time });
    window.clearTimeout = (number) => number && (timers[number - 1].time = null);
    window.reportError = () => {};
    let hidden = false, breaks = false;
    Object.defineProperty(document, "hidden", { get: () => hidden });
    const turn = () => new Promise((resolve) => { const { port1, port2 } = new MessageChannel(); port1.onmessage = resolve; port2.postMessage(0); });
    const until = async (holds) => { while (!holds()) await turn(); };
    const note = (name) => () => { told.push(name); };
    const made = () => new Stream({
        sample: () => { told.push("sample"); if (breaks) throw new Error("a field is missing"); },
        ...Object.fromEntries(["failure", "lost", "broken", "refused"].map((name) => [name, note(name)])),
    });
    const pauses = async (count, text) => {
        const found = [];
        for (let round = 0; round < count; round += 1) {
            const before = timers.length;
            answers.at(-1)(text);
            await until(() => timers.length > before);
            found.push(timers.at(-1).time);
            timers.at(-1).run();
        }
        return found;
    };
    return await (async () => { %s })();
})()
"""


def test_a_page_that_fails_over_samples_asks_less_and_less_often(command: Path, browser: Browser) -> None:
    """What failed while a sample was shown counted as a lost link, and the stream was asked for four times a second."""
    script = """
        const stream = made();
        stream.open();
        breaks = true;
        const broken = await pauses(6, event);
        const said = [...new Set(told.splice(0))];
        const aborted = asked.slice(0, 6).every((signal) => signal.aborted);
        breaks = false;
        const mended = await pauses(2, event);
        told.length = 0;
        const lost = await pauses(2, null);
        return { broken, said, aborted, mended, lost, at_last: told };
    """
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page + EMPTY, 1280) as page:
        page.until("document.readyState === 'complete' && location.protocol === 'http:'")
        assert page.run(FOLLOWED % script) == {
            "broken": [250, 1000, 2000, 5000, 10000, 10000],
            "said": ["sample", "broken"],
            "aborted": True,
            "mended": [250, 250],
            "lost": [1000, 2000],
            "at_last": ["lost", "lost"],
        }


def test_a_tab_that_nobody_sees_looks_no_more(command: Path, browser: Browser) -> None:
    """A tab that was opened behind others kept its stream for ever: only what changed later was noted."""
    script = """
        hidden = true;
        const stream = made();
        stream.open();
        const waits = timers.map(({ time }) => time);
        const before = asked[0].aborted;
        timers[0].run();
        const after = asked[0].aborted;
        hidden = false;
        document.dispatchEvent(new Event("visibilitychange"));
        return { waits, before, after, again: asked.length, told };
    """
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page + EMPTY, 1280) as page:
        page.until("document.readyState === 'complete' && location.protocol === 'http:'")
        expected = {"waits": [300_000], "before": False, "after": True, "again": 2, "told": []}
        assert page.run(FOLLOWED % script) == expected


# Three searches, of which the last is answered first; each path of the page's own server is answered by the test.
SEARCHED = """
(async () => {
    const answers = new Map();
    window.fetch = (path) => new Promise((resolve) => answers.set(String(path), resolve));
    const answer = (key, body, status) => ["object", "explain"].forEach((name) =>
        answers.get(`api/v1/${name}?key=${key}`)(new Response(JSON.stringify(name === "explain" && status === 200 ? [] : body), { status })));
    const object = { bytes: 1, replicas: [], pin: "none", lease_ms: 0, checksum: "0" };
    const field = document.querySelector("#search-key");
    const found = document.querySelector("#found");
    for (const key of ["first", "second", "third"]) {
        field.value = key;
        document.querySelector("#search").requestSubmit();
    }
    const changed = new Promise((resolve) => new MutationObserver(resolve).observe(found, { childList: true }));
    answer("third", object, 200);
    await changed;
    answer("first", object, 200);
    answer("second", { error_message: "none" }, 404);
    // What these answers cause is done before another answer is.
    for (let turn = 0; turn < 20; turn += 1) {
        await new Promise((resolve) => { const { port1, port2 } = new MessageChannel(); port1.onmessage = resolve; port2.postMessage(0); });
    }
    return found.innerText;
})()
"""


def test_the_last_search_is_what_is_shown(command: Path, browser: Browser) -> None:
    """The answer of an earlier search that came later stood under the key of the last one, with a button to remove it."""
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        assert "third" in str(found := page.run(SEARCHED))
        assert not any(other in str(found) for other in ("first", "second", "none of"))


# A change that is under way when its dialog is left by Escape, and another dialog after it.
LEFT = """
(async () => {
    const answers = [];
    window.fetch = () => new Promise((resolve) => answers.push(resolve));
    const all = (selector) => [...document.querySelectorAll(selector)];
    const turn = () => new Promise((resolve) => { const { port1, port2 } = new MessageChannel(); port1.onmessage = resolve; port2.postMessage(0); });
    const [dialog, said] = [document.querySelector("#dialog"), document.querySelector("#told")];
    const told = async (body, status) => {
        document.querySelector("#set-quota").click();
        all("#dialog input").forEach((input) => (input.value = "1"));
        document.querySelector("#dialog form").requestSubmit();
        const disabled = all("#dialog button:disabled").map((button) => button.textContent);
        dialog.close();
        document.querySelector("#remove-all").click();
        said.replaceChildren();
        answers.at(-1)(new Response(JSON.stringify(body), { status }));
        while (said.textContent === "") await turn();
        const words = [said.textContent, dialog.open, document.querySelector("#dialog .problem").textContent];
        dialog.close();
        return [disabled, ...words];
    };
    return [await told({ success: true }, 200), await told({ error_message: "no such tenant" }, 409)];
})()
"""


def test_what_a_dialog_began_closes_no_other_dialog(command: Path, browser: Browser) -> None:
    """A quota that was set after Escape closed the dialog that was open then, and its failure was said to nobody."""
    with started(command, "serve", "--memory", "16MiB") as server, browser.page(server.page, 1280) as page:
        page.until("document.querySelectorAll('#nodes > li').length", lambda count: count == 1)
        disabled = ["Forget the quota", "Set the quota"]
        expected = [[disabled, "The quota of 1 is set.", True, ""], [disabled, "no such tenant", True, ""]]
        assert page.run(LEFT) == expected
