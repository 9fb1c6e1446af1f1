"""A headless Chromium, asked through a pipe: no driver, no port, and nothing to install but the browser."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 30.0

Message = dict[str, object]


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One process, and what it said."""

    def __init__(self, program: str, profile: Path) -> None:
        asks, self._out = os.pipe()
        self._in, tells = os.pipe()
        # The protocol is spoken at descriptors 3 and 4, which bash sets where Python has other uses for them.
        script = f'exec "$@" 3<&{asks} 4>&{tells}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        quiet = ["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *flags, *quiet, "about:blank"],
            pass_fds=(asks, tells),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asks)
        os.close(tells)
        self._rest = b""
        self._number = 0
        self.events: list[Message] = []

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict:
        """Calls a method of the protocol and gives its result; what happens meanwhile is kept in `events`."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            some = os.read(self._in, 1 << 16)
            assert some, "the browser has ended"
            self._rest += some
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    @contextmanager
    def page(self, url: str, width: int, *, dark: bool = False) -> Iterator["Page"]:
        """A page of this width, closed at the end."""
        self.events.clear()
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme, still])
        self.call("Page.navigate", session, url=url)
        try:
            yield Page(self, session)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One page, and what may be asked of it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def run(self, script: str) -> object:
        """The value of an expression, or of what it promises."""
        answer = self._evaluate(script)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def _evaluate(self, script: str) -> dict:
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        return self._browser.call("Runtime.evaluate", self._session, expression=script, **how)

    def until(self, script: str, holds: Callable[[object], object] = bool) -> object:
        """Waits until the value of an expression is as it should be; before the page is there it is an exception."""
        ends = time.monotonic() + PATIENCE
        while "exceptionDetails" in (answer := self._evaluate(script)) or not holds(answer["result"].get("value")):
            assert time.monotonic() < ends, f"never came true: {script} is {answer}"
            time.sleep(0.05)
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks where the element is, as a person does: what covers it gets the click."""
        script = f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{ block: "center" }});
            const at = found.getBoundingClientRect();
            return [at.x + at.width / 2, at.y + at.height / 2];
        }})()"""
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self._browser.call("Input.dispatchMouseEvent", self._session, type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into the element that has the focus."""
        self._browser.call("Input.insertText", self._session, text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            press = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            extra = {"text": text} if text and kind == "keyDown" else {}
            self._browser.call("Input.dispatchKeyEvent", self._session, **press, **extra)

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture, for a person to look at."""
        size = self._browser.call("Page.getLayoutMetrics", self._session)["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._browser.call("Page.captureScreenshot", self._session, captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def events(self, method: str) -> list[dict]:
        """What happened so far, by the name of the event."""
        self.run("0")
        own = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event["params"] for event in own if event["method"] == method]
