"""What a client answers by HTTP where `setup` asks for it."""

import gc
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from conftest import in_child
from mooncake.store import MooncakeDistributedStore
from slackwater.compat.mooncake import client_http, http_service
from standalones import fetched, free_tcp_port


def opened(master: str, port: int) -> MooncakeDistributedStore:
    """A client that answers at a port."""
    store, http = MooncakeDistributedStore(), {"enable_client_http_server": True, "client_http_port": port}
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master, **http) == 0
    return store


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "slackwater-client-http"]


def test_a_client_answers_until_it_is_closed(master: str) -> None:
    port = free_tcp_port()
    store = opened(master, port)
    status, text = fetched(port, "/health")
    assert status == 200 and json.loads(text) == {"status": "ok", "code": 0}
    status, text = fetched(port, "/metrics")
    assert status == 200 and "\nslackwater_client_ssd_reads_total 0\n" in text and text.startswith("# HELP ")
    assert fetched(port, "/metrics/summary") == (200, "reads of this client that asked for values on SSD: 0\n")
    assert fetched(port, "/nothing")[0] == 404
    # A fork ends what is its own, and does not wait for a thread that it has not.
    http = store._http
    assert http is not None
    assert in_child(lambda: store.close() == 0 and http.close() is None) and fetched(port, "/health")[0] == 200
    assert store.close() == 0 == store.close() and not threads()
    with pytest.raises(OSError):
        fetched(port, "/health")
    assert opened(master, port).close() == 0


def test_a_client_that_is_dropped_answers_no_more(master: str) -> None:
    port = free_tcp_port()
    store = opened(master, port)
    del store
    gc.collect()
    assert not threads()


def test_a_port_that_is_taken_is_a_warning(master: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_tcp_port()
    first, second = opened(master, port), opened(master, port)
    assert f"no HTTP at 127.0.0.1:{port}" in caplog.text and second.put("k", b"v") == 0 and fetched(port, "/health")[0] == 200
    assert second.close() == 0 and fetched(port, "/health")[0] == 200 and first.close() == 0
    assert opened(master, 99_999).close() == 0 and "no HTTP at 127.0.0.1:99999" in caplog.text


@pytest.mark.parametrize(("code", "status"), [(0, 200), (1, 503), (2, 503)])
def test_health_is_that_of_the_client(code: int, status: int) -> None:
    said = client_http.answer(http_service.Asked("GET", ("health",), {}, b""), lambda: code, list)
    assert said.status == status and json.loads(said.body)["code"] == code
    assert client_http.answer(http_service.Asked("PUT", ("health",), {}, b""), lambda: code, list).status == 405


def test_figures_are_those_of_the_client() -> None:
    figures = [client_http.Figure("a", "gauge", "What is there.", 1), client_http.Figure("b_total", "counter", "What was.", 2)]

    def told(*path: str) -> str:
        return client_http.answer(http_service.Asked("GET", path, {}, b""), lambda: 0, lambda: figures).body.decode()

    assert told("metrics") == (
        "# HELP a What is there.\n# TYPE a gauge\na 1\n# HELP b_total What was.\n# TYPE b_total counter\nb_total 2\n"
    )
    assert told("metrics", "summary") == "what is there: 1, what was: 2\n"
    store = MooncakeDistributedStore()
    raw, store._raw = store._raw, SimpleNamespace(record_reads=lambda: 3)  # type: ignore[assignment]
    store._serve_http(0)
    store._raw, http = raw, store._http
    assert http is not None and "\nslackwater_client_ssd_reads_total 3\n" in fetched(http.port, "/metrics")[1]
    http.close()


def test_a_service_that_its_own_thread_collects_ends() -> None:
    class Owner:
        pass

    owner = Owner()
    http = client_http.ClientHttp(owner, 0, lambda: 0, list)
    (serving,) = threads()
    # As when the collector runs there.
    _, _, (process, service, _), _ = http.close.peek()
    service.service_actions = lambda: client_http._end(process, service, serving)
    socket.create_connection(("127.0.0.1", http.port)).close()
    serving.join(20)
    assert not serving.is_alive() and process == os.getpid()
