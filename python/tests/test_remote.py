"""A store that another process serves."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import slackwater
from slackwater import Client, ErrorCode, SlackwaterError


@pytest.fixture
def address(command: Path) -> Iterator[str]:
    """Where a server of little memory is, for one test."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--memory", "16MiB", "--log", "warn"]
    arguments += ["--lease-ttl", "300ms"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip().removeprefix("serving at ")
        finally:
            server.kill()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """A client of it."""
    with slackwater.connect(address) as client:
        yield client


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
