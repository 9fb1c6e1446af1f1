"""A store that another process serves."""

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import slackwater
import slackwater.aio
from slackwater import Client, ErrorCode, SlackwaterError, Store
from slackwater._native import RawClient

from processes import stop


Served = tuple[str, "subprocess.Popen[str]"]


@contextmanager
def serving(command: Path, *options: str | Path) -> Iterator[Served]:
    """A server of little memory: where it is, and its process."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--memory", "16MiB", "--log", "warn", *options]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip().removeprefix("serving at "), server
        finally:
            server.kill()


@pytest.fixture
def served(command: Path) -> Iterator[Served]:
    """A server for one test."""
    with serving(command, "--lease-ttl", "300ms") as served:
        yield served


@pytest.fixture
def address(served: Served) -> str:
    """Where it is."""
    return served[0]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """A client of it."""
    with slackwater.connect(address) as client:
        yield client


# What a store has and a client does not: why.
ABSENT = {
    "flush": "the queue before the SSD is the server's, and of all its clients: a put with `durable` returns when its value is synced",
}
# What a client has beyond a store.
FURTHER = {"stat"}
# What is awaited differently: a block is entered with `async with`, and a truth cannot be awaited.
PLAIN = {"__enter__", "__exit__", "__contains__"}


def methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") or name in PLAIN}


def test_a_client_has_what_a_store_has() -> None:
    """The guide said that its methods were those of a store, and eleven were missing."""
    assert methods(Store) - methods(Client) == set(ABSENT)
    assert methods(Client) - methods(Store) == FURTHER
    assert methods(Client) - methods(slackwater.aio.AsyncClient) == PLAIN
    assert methods(slackwater.aio.AsyncClient) <= methods(Client)
    for name in methods(Store) & methods(Client) - PLAIN - {"closed", "close"}:
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (Client, Store))
        further = {"replicas", "replicated", "preferred", "timeout"} & ours.keys()
        assert [one for one in ours if one not in further] == list(theirs), name
        assert all(ours[one].kind is ours[one].KEYWORD_ONLY for one in further), name
        assert all(str(ours[one]) == str(theirs[one]) for one in theirs), name
        assert "timeout" in ours or name in {"stats", "metrics"}, name


def test_stubs_have_the_methods_that_there_are() -> None:
    stubs = ast.parse((Path(slackwater.__file__).parent / "_native.pyi").read_text())
    classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}
    for kind in (Store, Client):
        written = {node.name: node for node in classes[kind.__name__].body if isinstance(node, ast.FunctionDef)}
        assert {name for name in written if not name.startswith("_") or name in PLAIN} == methods(kind)
        for name in methods(kind) - PLAIN - {"closed"}:
            arguments = written[name].args
            names = [one.arg for one in arguments.args + arguments.kwonlyargs]
            assert names == list(inspect.signature(getattr(kind, name)).parameters), name


def test_values_cross_processes(client: Client, address: str) -> None:
    value = bytes(range(256)) * 5000
    assert client.put("k", value) and not client.put("k", b"other")
    with slackwater.connect(address) as other:
        assert other.get("k") == value
        assert other.get("none") is None
        assert "k" in other and "none" not in other
        buffer = bytearray(len(value) + 7)
        assert other.get_into("k", buffer) == len(value)
        assert buffer[: len(value)] == value
        with pytest.raises(slackwater.RefusedError, match="the buffer 3"):
            other.get_into("k", bytearray(3))
    assert client.put("k", b"new", upsert=True)
    assert client.get("k") == b"new"
    assert client.remove("k", force=True) and not client.remove("k")


def test_batches_have_a_result_for_each_key(client: Client) -> None:
    keys = [f"k{i}" for i in range(20)]
    values = [bytes([i]) * (i * 1000 + 1) for i in range(20)]
    assert client.put_batch(keys, values) == [True] * 20
    assert client.get_batch([*keys, "none"]) == [*values, None]
    assert client.get_batch(["k0", "none", "k1"], prefix_only=True) == [values[0], None, None]
    assert client.exists_batch(["k0", "none"]) == [True, False]
    buffers = [bytearray(20_000) for _ in keys]
    assert client.get_batch_into(keys, buffers) == [len(value) for value in values]
    assert all(buffer.startswith(value) for buffer, value in zip(buffers, values, strict=True))
    refused = client.put_batch(["", "one"], [b"x", b"y"])
    assert isinstance(refused[0], SlackwaterError) and refused[1] is True
    assert client.list(limit=2) == [b"k0", b"k1"]
    assert client.list(after="k8") == [b"k9", b"one"]
    assert client.list(pattern="^o") == [b"one"]
    assert client.remove_batch(["one", "none"], force=True) == [True, False]


def test_threads_share_a_client(client: Client) -> None:
    client.put("k", b"v" * 100_000)
    wrong = []

    def read() -> None:
        wrong.extend(1 for _ in range(50) if client.get("k") != b"v" * 100_000)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_not_there_is_said(client: Client) -> None:
    with pytest.raises(slackwater.RetryError, match=re.escape("no server at tcp://127.0.0.1:9")) as caught:
        slackwater.connect("tcp://127.0.0.1:9", timeout=0.2)
    assert caught.value.code is ErrorCode.RPC_FAIL
    with pytest.raises(ValueError, match="address:"):
        slackwater.connect("here")
    with pytest.raises(slackwater.RefusedError, match="needs a key of ours"):
        slackwater.connect("curve://127.0.0.1:9/" + "5" * 64)
    with pytest.raises(slackwater.RefusedError, match="no key.pem|key file"):
        slackwater.connect("curve://127.0.0.1:9/" + "5" * 64, key_file="no key.pem")
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(slackwater.RefusedError, match="is closed"):
        client.get("k")


def test_a_client_is_not_used_in_a_fork(client: Client) -> None:
    client.put("k", b"v")
    child = os.fork()
    if child == 0:
        try:
            client.get("k")
        except slackwater.RefusedError as error:
            os._exit(0 if "connect after the fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get("k") == b"v"


def test_many_values_are_removed_by_a_pattern_or_all(client: Client) -> None:
    client.put_batch(["a1", "a2", "b1"], [b"v"] * 3)
    assert client.get("a1") == b"v"
    with pytest.raises(slackwater.RefusedError):
        client.remove_matching("(")
    assert client.remove_matching("^a", force=True) == 2
    # What was read before is not there for this client either.
    assert client.get_batch(["a1", "a2", "b1"]) == [None, None, b"v"]
    assert client.remove_all(force=True) == 1
    assert client.list() == []


def test_views_are_of_memory_that_the_client_read_into(client: Client, address: str) -> None:
    value = bytes(range(256)) * 40
    client.put("k", value)
    view = client.view("k", verify=True)
    assert view is not None and (len(view), view.tier) == (len(value), "memory")
    with view as memory:
        assert memory == value and memory.readonly
        # It is nobody else's: it neither keeps the key nor changes with it.
        assert client.remove("k", force=True)
        client.put("k", b"other")
        assert memory == value
    assert view.closed
    with pytest.raises(ValueError, match="released"):
        memory.tobytes()
    assert client.view("none") is None
    with client.view_batch(["k", "", "none", "k"], prefix_only=True) as blocks:
        assert isinstance(blocks[1], SlackwaterError) and blocks[1].code is ErrorCode.INVALID_KEY
        assert (blocks[0], blocks[2], blocks[3]) == (b"other", None, None)
        kept = memoryview(client.view("k"))  # type: ignore[arg-type]
    client.close()
    assert kept == b"other"


def test_values_on_ssd_are_described_and_viewed(command: Path, tmp_path: Path) -> None:
    tiers = ["--ssd", "64MiB", "--dir", tmp_path, "--file-bytes", "4MiB", "--promotion-threshold", "255"]
    with serving(command, *tiers) as (address, _), slackwater.connect(address) as client:
        keys = [f"k{number}" for number in range(24)]
        value = bytes(range(256)) * 4096
        assert all(client.put(key, value, durable=True) for key in keys)
        known = {key: client.stat(key) for key in keys}
        away = [key for key, stat in known.items() if [one["tier"] for one in stat["replicas"]] == ["ssd"]]
        assert away, known
        assert client.stats()["record_reads"] == 0
        view = client.view(away[0])
        assert view is not None and view.tier == "ssd" and bytes(view) == value
        assert client.stats()["record_reads"] == 1
        (reason,) = client.explain(away[0])
        assert (reason["tier"], reason["held"], reason["policy"]) == ("ssd", True, None)
        assert reason["words"].startswith("in ssd"), reason
        # A session reads it once for all its parts.
        raw, memory = RawClient(lambda *_: None), numpy.zeros(10, numpy.uint8)
        raw.open(address)
        assert raw.start_reads([away[1]]) == [0]
        for offset in (0, 7, len(value) - 10):
            assert raw.read_parts([away[1]], [[memory.ctypes.data]], [[10]], [[offset]]) == [10]
            assert memory.tobytes() == value[offset:][:10]
        assert raw.record_reads() == 1
        raw.close()


def test_a_value_is_described_as_the_master_knows_it(client: Client, command: Path, address: str) -> None:
    client.put("k", b"value", pin="hard")
    assert client.stat("none") is None and client.explain("none") is None
    known = client.stat("k")
    told = subprocess.run([command, "stat", "k", "--json", "--connect", address], capture_output=True, check=True)
    assert known == json.loads(told.stdout)
    assert (known["key"], known["bytes"], known["pin"], known["lease_ms"]) == ("k", 5, "hard", 0)
    (replica,) = known["replicas"]
    assert (replica["tier"], replica["state"], replica["readers"]) == ("memory", "complete", 0)
    client.get("k")
    (reason,) = client.explain("k")
    assert reason.keys() == reason_of_a_store().keys()
    assert (reason["tier"], reason["held"], reason["policy"], reason["learned"]) == ("memory", True, None, None)
    assert re.fullmatch("in memory; pinned until it is removed; readers hold it for .* more", reason["words"]), reason


def reason_of_a_store() -> dict[str, Any]:
    """As a store explains a value."""
    with Store(memory="8MiB", log="off") as store:
        store.put("k", b"v")
        reasons = store.explain("k")
        assert reasons is not None
        return reasons[0]


def test_a_client_says_what_it_moved_itself(client: Client, address: str) -> None:
    assert client.put("k", bytes(300_000)) and client.get("k") == bytes(300_000)
    stats = client.stats()
    assert stats.keys() == {"moved", "record_reads"} and stats["record_reads"] == 0
    moved = stats["moved"].values()
    assert sum(way["bytes_written"] for way in moved) == sum(way["bytes_read"] for way in moved) == 300_000
    assert sum(way["failed"] + way["active"] for way in moved) == 0
    text = client.metrics()
    ways = {way: counts["bytes_read"] for way, counts in stats["moved"].items()}
    for way, bytes_read in ways.items():
        assert f'slackwater_client_transfer_bytes_total{{way="{way}",direction="read"}} {bytes_read}\n' in text
    assert text.endswith("slackwater_client_record_reads_total 0\n")
    families = re.findall("^# TYPE (\\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families)) == 5
    with slackwater.connect(address) as other:
        assert sum(way["bytes_read"] for way in other.stats()["moved"].values()) == 0


def test_a_put_may_name_replicas_and_segments(client: Client) -> None:
    # A server has one memory: there are fewer copies than asked for, and names that it does not know are passed over.
    assert client.put("k", b"v", replicas=2, preferred=["memory", "none"])
    assert client.put_batch(["a"], [b"v"], replicas=2, preferred=["none"]) == [True]
    assert len(client.stat("k")["replicas"]) == 1
    with pytest.raises(slackwater.RefusedError) as caught:
        client.put("other", b"v", replicas=0)
    assert caught.value.code is ErrorCode.INVALID_PARAMS
    with pytest.raises(TypeError):
        client.put("other", b"v", preferred="memory")  # type: ignore[arg-type]


def test_a_put_may_need_all_its_replicas_on_different_hosts(client: Client) -> None:
    # A server is one host: what is to survive its loss is refused, and nothing less is stored instead.
    assert client.put("alone", b"v", replicated=True)
    with pytest.raises(slackwater.RefusedError, match="too few hosts") as caught:
        client.put("k", b"v", replicas=2, replicated=True)
    assert caught.value.code is ErrorCode.TOO_FEW_HOSTS
    (refused,) = client.put_batch(["k"], [b"v"], replicas=2, replicated=True)
    assert isinstance(refused, slackwater.RefusedError) and refused.code is ErrorCode.TOO_FEW_HOSTS
    assert client.get("k") is None
    with pytest.raises(slackwater.RefusedError, match="durable or replicated") as caught:
        client.put("k", b"v", durable=True, replicated=True)
    assert caught.value.code is ErrorCode.INVALID_PARAMS


def test_each_call_may_have_a_time_of_its_own(served: Served) -> None:
    """Only the connection had one, so that a look-up could not be given less time than a put."""
    address, server = served
    calls: list[Callable[[Client, float], Any]] = [
        lambda client, time: client.put("k", b"v", timeout=time),
        lambda client, time: client.put_batch(["k"], [b"v"], timeout=time),
        lambda client, time: client.get("k", timeout=time),
        lambda client, time: client.get_into("k", bytearray(1), timeout=time),
        lambda client, time: client.get_batch(["k"], timeout=time),
        lambda client, time: client.get_batch_into(["k"], [bytearray(1)], timeout=time),
        lambda client, time: client.view("k", timeout=time),
        lambda client, time: list(client.view_batch(["k"], timeout=time)),
        lambda client, time: client.exists("k", timeout=time),
        lambda client, time: client.exists_batch(["k"], timeout=time),
        lambda client, time: client.remove("k", timeout=time),
        lambda client, time: client.remove_batch(["k"], timeout=time),
        lambda client, time: client.remove_matching("k", timeout=time),
        lambda client, time: client.remove_all(timeout=time),
        lambda client, time: client.list(timeout=time),
        lambda client, time: client.set_quota("acme", memory=1, timeout=time),
        lambda client, time: client.delete_quota("acme", timeout=time),
        lambda client, time: client.quotas(timeout=time),
        lambda client, time: client.stat("k", timeout=time),
        lambda client, time: client.explain("k", timeout=time),
    ]
    with slackwater.connect(address, timeout=60) as client:
        stop(server)
        try:
            begun = time.monotonic()
            for number, call in enumerate(calls):
                try:
                    (ended,) = call(client, 0.02)
                except slackwater.RetryError as error:
                    ended = error
                assert isinstance(ended, slackwater.RetryError) and ended.code is ErrorCode.DEADLINE_PASSED, number
            assert time.monotonic() - begun < 30
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with pytest.raises(ValueError, match="timeout: -1"):
            client.get("k", timeout=-1)


def test_tenants_have_quotas(command: Path) -> None:
    with serving(command, "--tenants", "true") as (address, _), slackwater.connect(address) as client:
        with pytest.raises(slackwater.RefusedError) as caught:
            client.put("k", b"v", tenant="acme")
        assert caught.value.code is ErrorCode.TENANT_NOT_REGISTERED
        client.set_quota("acme", memory="1MiB", ssd=7)
        assert client.put("k", b"v", tenant="acme") and client.get("k") is None
        states = {state.pop("tenant"): state for state in client.quotas()}
        acme = states["acme"]
        assert (acme["memory_quota"], acme["ssd_quota"], acme["objects"]) == (1 << 20, 7, 1)
        with pytest.raises(SlackwaterError) as caught:
            client.delete_quota("acme")
        assert caught.value.code is ErrorCode.TENANT_NOT_EMPTY
        assert client.remove_all(tenant="acme") == 1
        client.delete_quota("acme")
        assert "acme" not in {state["tenant"] for state in client.quotas()}


def test_keys_without_the_right_are_refused(command: Path, tmp_path: Path) -> None:
    def key(name: str) -> str:
        made = subprocess.run([command, "keys", "new", tmp_path / name], capture_output=True, text=True, check=True)
        return re.findall("^hex +(\\w+)", made.stdout, re.MULTILINE)[0]

    key("server")
    allowed = tmp_path / "allowed"
    allowed.write_text(f"{key('anna')} basic tenants=acme\n{key('root')} admin\n")
    keys = ["--key-file", tmp_path / "server", "--allow", allowed, "--tenants", "true"]
    with (
        serving(command, *keys) as (address, _),
        slackwater.connect(address, key_file=tmp_path / "root") as root,
        slackwater.connect(address, key_file=tmp_path / "anna") as anna,
    ):
        root.set_quota("acme", memory="1MiB")
        assert root.put("k", b"ours") and anna.put("k", b"v", tenant="acme")
        operators: list[Callable[[], Any]] = [
            lambda: anna.set_quota("acme", memory="2MiB"),
            lambda: anna.delete_quota("acme"),
            lambda: anna.quotas(),
        ]
        others: list[Callable[[], Any]] = [
            lambda: anna.stat("k"),
            lambda: anna.explain("k"),
            lambda: anna.view("k"),
            lambda: anna.remove_matching("k", force=True),
            lambda: anna.remove_all(force=True),
        ]
        for calls, code in ((operators, ErrorCode.ROLE_NOT_PERMITTED), (others, ErrorCode.TENANT_NOT_PERMITTED)):
            for number, call in enumerate(calls):
                with pytest.raises(slackwater.RefusedError, match=code.name) as caught:
                    call()
                assert caught.value.code is code, number
        assert anna.stat("k", tenant="acme")["bytes"] == 1
        assert {state["tenant"]: state["memory_quota"] for state in root.quotas()}["acme"] == 1 << 20
        assert anna.remove_all(tenant="acme") == 1 and root.get("k") == b"ours"
