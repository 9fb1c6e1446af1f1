"""What clients answer by HTTP, at 127.0.0.1: whether the master answers, and figures of their own."""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackwater.compat.mooncake.http_service import NOT_ALLOWED, NOT_FOUND, Answer, Asked, Service

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Figure:
    """A metric: its name and kind as Prometheus means them, what it counts, and its value."""

    name: str
    kind: str
    meaning: str
    value: int


def answer(asked: Asked, health: Callable[[], int], figures: Callable[[], Sequence[Figure]]) -> Answer:
    """Requests by HTTP. `health` is that of `health_check`."""
    if asked.path not in (("health",), ("metrics",), ("metrics", "summary")):
        return NOT_FOUND
    if asked.method != "GET":
        return NOT_ALLOWED
    if asked.path == ("health",):
        code = health()
        status = "ok" if code == 0 else "the master does not answer"
        return Answer.json(200 if code == 0 else 503, status=status, code=code)
    if asked.path == ("metrics", "summary"):
        said = ", ".join(f"{one.meaning[0].lower()}{one.meaning[1:].rstrip('.')}: {one.value}" for one in figures())
        return Answer(200, f"{said}\n".encode(), "text/plain; charset=utf-8")
    lines = [
        f"# HELP {one.name} {one.meaning}\n# TYPE {one.name} {one.kind}\n{one.name} {one.value}\n" for one in figures()
    ]
    return Answer(200, "".join(lines).encode(), "text/plain; version=0.0.4; charset=utf-8")


class ClientHttp:
    """A service of one client, which ends with it, or before. Raises `OSError` where the port is taken."""

    def __init__(
        self, owner: object, port: int, health: Callable[[], int], figures: Callable[[], Sequence[Figure]]
    ) -> None:
        service = Service(HOST, port, 0, lambda asked: answer(asked, health, figures))
        serving = threading.Thread(target=service.serve_forever, name="slackwater-client-http", daemon=True)
        serving.start()
        self.port = service.port
        self.close = weakref.finalize(owner, _end, os.getpid(), service, serving)


def _end(process: int, service: Service, serving: threading.Thread) -> None:
    if process != os.getpid():
        return
    if threading.current_thread() is serving:
        # The garbage collector runs on any thread: this one would wait for its own end.
        threading.Thread(target=_end, args=(process, service, serving), name="slackwater-end").start()
        return
    service.shutdown()
    service.server_close()
