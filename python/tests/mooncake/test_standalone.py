"""`mooncake_client` as a program: its flags, its end, its keys."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mooncake.store import MooncakeDistributedStore
from slackwater.compat.mooncake import opening
from slackwater.compat.mooncake.master import FlagError
from slackwater.compat.mooncake.opening import Arguments
from slackwater.compat.mooncake.standalone import main, settings
from slackwater.compat.mooncake.thin import attach
from slackwater.errors import _make
from standalones import free_port, heard, standalone, thin_process
from test_life import setup

from conftest import Starter


@pytest.fixture(scope="module")
def pool(started: Starter) -> Iterator[tuple[str, str]]:
    """A master, and a stand-alone client that lends it memory: the addresses of both."""
    with started("master") as (master, _), standalone(master, "--global_segment_size=64 MB") as (address, _):
        yield master, address


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_takes_its_memory_back_when_it_is_told_to_end(number: signal.Signals, started: Starter) -> None:
    with started("master", "--put-wait", "100ms") as (master, _):
        with standalone(master, "--global_segment_size=16MB") as (address, process):
            store = MooncakeDistributedStore()
            assert store.setup_dummy(0, 1 << 20, address) == 0 == store.put("k", b"v")
            process.send_signal(number)
            assert process.wait(20) == 0
            assert store.is_exist("k") == 0 and store.put("k", b"v") == -200 and store.health_check() == 2
            store.close()


def test_a_tenant_and_a_name_are_told_to_thin_clients(started: Starter) -> None:
    flags = ["--global_segment_size=16MB", "--host=localhost", "--tenant_id=default"]
    with started("master") as (master, _), standalone(master, *flags) as (address, _):
        connection, access = attach(address, 10)
        connection.close()
        assert access.hostname.startswith("localhost:") and access.master_server_addr == master
        assert (access.protocol, access.tenant_id, access.key_file) == ("tcp", "default", "")


ENDED: list[tuple[list[str], str]] = [
    (["--master_server_address=127.0.0.1:1"], "setup failed with -900 at 127.0.0.1:1"),
    (["--metadata_server=here"], "setup failed with -1"),
    (["--protocol=TCP"], "unknown protocol"),
    (["--global_segment_size=much"], "expected bytes or a text such as 512MB"),
    (["--port=0"], "ports are 1 to 65535"),
    (["--http_port=99999"], "ports are 1 to 65535"),
    (["--prot=1"], "did you mean --port?"),
]


@pytest.mark.parametrize(("words", "reason"), ENDED)
def test_what_it_cannot_do_ends_it(words: list[str], reason: str, pool: tuple[str, str]) -> None:
    given = [f"--master_server_address={pool[0]}", f"--port={free_port()}", "--global_segment_size=0", *words]
    ended = run_client(given)
    assert ended.returncode == 1 and reason in ended.stderr and "Traceback" not in ended.stderr


def run_client(words: list[str]) -> "subprocess.CompletedProcess[str]":
    """A `mooncake_client` that ends."""
    command = [sys.executable, "-m", "slackwater.compat.mooncake.standalone", *words]
    environment = os.environ | {"MC_RPC_CONNECT_TIMEOUT_MS": "500"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def test_a_port_has_one_stand_alone_client(pool: tuple[str, str]) -> None:
    ended = run_client([f"--master_server_address={pool[0]}", f"--port={pool[1].split(':')[1]}"])
    assert ended.returncode == 1 and "another one has it" in ended.stderr


def test_it_goes_on_without_http(started: Starter) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = ["--enable_http_server", f"--http_port={taken.getsockname()[1]}", "--global_segment_size=0"]
        with started("master") as (master, _), standalone(master, *flags) as (address, _):
            store = MooncakeDistributedStore()
            assert store.setup_dummy(0, 0, address) == 0 == store.health_check() == store.close()


def test_flags_are_read() -> None:
    given, warnings = settings(
        ["-port", "7", "--threads=8", "--local-buffer-size=1GB", "--enable_offload", "--noenable_http_server"],
        has_keys=False,
    )
    assert given.port == 7 and given.http_port is None and given.setup["enable_ssd_offload"] is True
    assert given.setup["global_segment_size"] == 4 << 30 and given.setup["local_hostname"] == "127.0.0.1"
    assert set(given.setup) <= set(Arguments.__dataclass_fields__)
    assert [line.split(" has no effect")[0] for line in warnings] == ["--threads", "--local_buffer_size"]
    given, warnings = settings(["--enable_http_server=true", "--host", "here", "--device_names=x", "--minloglevel=9"], False)
    assert (given.http_port, given.setup["local_hostname"], given.setup["rdma_devices"]) == (9300, "here", "x")
    assert not warnings
    assert settings(["--master_server_address=curve://127.0.0.1:1/key"], False)[0].setup["local_hostname"] == "127.0.0.1"
    assert settings(["--master_server_address=[::1]:1"], False)[0].setup["local_hostname"] == "[::1]"
    with pytest.raises(FlagError, match="no port"):
        settings(["--master_server_address=a:b"], False)
    with pytest.raises(FlagError, match="SLACKWATER_NODE_KEY_FILE"):
        settings([], has_keys=True)
    assert settings(["--global_segment_size=0"], has_keys=True)[0].setup["global_segment_size"] == 0


def test_it_ends_where_the_master_does_not_take_its_memory(
    pool: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It said in the log that nothing is lent, and served thin clients of a pool that did not have its memory."""

    def refused(*_arguments: object, **_options: object) -> None:
        raise _make("refused", -601, "the master takes no memory of this process")

    monkeypatch.setattr(opening, "lend", refused)
    monkeypatch.setattr(sys, "argv", ["mooncake_client", f"--master_server_address={pool[0]}", f"--port={free_port()}"])
    with pytest.raises(SystemExit, match="setup failed with -601"):
        main()
    assert "takes no memory of this process" in caplog.text


def test_thin_clients_use_the_key_of_their_stand_alone_client(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are told the file, which processes of the same user can read; theirs in the environment goes before it."""

    def keys(*words: str) -> str:
        made = subprocess.run([command, "keys", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return made.stdout.splitlines()[0].split()[-1] if words[0] == "new" else ""

    public, client, node = (keys("new", f"{name}.key") for name in ("master", "client", "node"))
    keys("allow", "allowed", client)
    keys("allow", "allowed", node, "--level", "node")
    keys("allow", "clients", client)

    def serving(kind: str, *options: str) -> "subprocess.Popen[str]":
        words = [command, kind, "--log=error", *options]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)

    with serving("master", "--listen=127.0.0.1:0", "--admin=none", "--key-file=master.key", "--allow=allowed") as master:
        port = heard(master).partition("127.0.0.1:")[2].split("/")[0]
        where = f"curve://127.0.0.1:{port}/{public}"
        lent = ["--memory=16MiB", "--data=127.0.0.1:0", "--key-file=node.key", "--allow=clients"]
        with serving("node", f"--master={where}", *lent) as lender:
            try:
                environment = {"SLACKWATER_KEY_FILE": str(tmp_path / "client.key")}
                with standalone(where, "--global_segment_size=0", **environment) as (address, _):
                    code = """
say(store.put("k", b"v") == 0 and store.get("k") == b"v")
"""
                    assert "SLACKWATER_KEY_FILE" not in os.environ
                    with thin_process(address, code) as process:
                        assert heard(process) == "True"
                    # A node's key puts nothing.
                    with thin_process(address, code, SLACKWATER_KEY_FILE=str(tmp_path / "node.key")) as process:
                        assert heard(process) in ("", "False")
                # Nor is the memory of a client's key taken, which was said to be lent.
                monkeypatch.setenv("SLACKWATER_KEY_FILE", str(tmp_path / "client.key"))
                monkeypatch.setenv("SLACKWATER_ALLOW", str(tmp_path / "clients"))
                store = MooncakeDistributedStore()
                assert setup(store, where, global_segment_size=16 << 20) == -2007 and store.health_check() == 1
                assert "takes no memory of this process" in caplog.text
                assert setup(store, where, global_segment_size=0) == 0 == store.close()
            finally:
                lender.kill()
                master.kill()
