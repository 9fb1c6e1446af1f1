"""Environment variables of Mooncake: each has a meaning here, or is said to have none."""

import inspect
import logging
from collections.abc import Iterator

import pytest
from mooncake.engine import TransferEngine
from slackwater.compat.mooncake import descriptions, mooncake_config, variables
from slackwater.compat.mooncake.variables import IGNORED, OF_ENGINES, READ, begin

LOG = logging.getLogger("slackwater.mooncake")
BY_THE_ENGINE = [
    "MC_NUM_TCP_IO_THREADS", "MC_TCP_MAX_CONNECTIONS", "MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER",
    "MC_TCP_SLICE_SIZE", "MC_TCP_PROGRESS_TIMEOUT_SEC", "MC_TCP_STATUS_TIMEOUT_SEC", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was said yet, and the logger is as it was afterwards."""
    level = LOG.level
    monkeypatch.setattr(variables, "_told", set())
    yield
    LOG.setLevel(level)


def test_a_variable_has_one_meaning() -> None:
    for one, other in ((READ, IGNORED), (READ, OF_ENGINES), (IGNORED, OF_ENGINES)):
        # The store reads one that SGLang makes an argument of, too.
        assert not set(one) & set(other)


@pytest.mark.parametrize("name", IGNORED)
def test_one_without_effect_is_said_once(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(name, "1")
    begin("setup")
    begin("initialize")
    assert caplog.messages == [f"setup: {name} has no effect: {IGNORED[name]}"]


def test_one_that_is_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in IGNORED:
        monkeypatch.setenv(name, "")
    assert variables.without_effect() == []


def test_an_engine_says_them_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Only `setup` of a store did: those of the transfer engine were never told of."""
    monkeypatch.setenv("MC_HANDSHAKE_PORT", "12001")
    for _ in range(2):
        assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert [line for line in caplog.messages if "MC_HANDSHAKE_PORT has no effect" in line] == [
        f"initialize: MC_HANDSHAKE_PORT has no effect: {IGNORED['MC_HANDSHAKE_PORT']}"
    ]


@pytest.mark.parametrize("name", BY_THE_ENGINE)
def test_those_of_the_engine_are_read(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(name, "pigeon")
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1 and name in caplog.text
    monkeypatch.setenv(name, READ[name][0])
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0


def test_a_peer_has_the_time_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("", 5), ("2", 2), ("soon", 5), ("0", 1), ("9" * 18, descriptions.SECONDS_MAX)):
        monkeypatch.setenv("MC_HANDSHAKE_CONNECT_TIMEOUT", value)
        assert descriptions.seconds() == expected


def test_what_is_no_number_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The default counted, and nobody was told; a digit that Python's `int` does not take raised."""
    name = "MC_RPC_TIMEOUT_MS"
    for value in ("soon", "\u00b2", "-1", " 5", "1_0", "1.5", "9" * 5000):
        caplog.clear()
        monkeypatch.setenv(name, value)
        for _ in range(2):
            assert variables.number(name) == 30000 and variables.milliseconds(name) == 30
        assert caplog.messages == [f"environment: {name}: {value[:32]!r} is no number: 30000 counts"]
    monkeypatch.setenv(name, "1500")
    assert variables.number(name) == 1500 and variables.milliseconds(name) == 1.5


def test_variables_that_are_read_for_others_are_read() -> None:
    text = inspect.getsource(mooncake_config)
    for name, who in OF_ENGINES.items():
        assert (f'"{name}"' in text) == ("MooncakeConfig" in who), name


def test_what_is_logged_at_least(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    LOG.setLevel(logging.NOTSET)
    for value, expected in (
        ("", logging.NOTSET),
        ("TRACE", logging.DEBUG),
        ("info", logging.INFO),
        ("ERROR", logging.ERROR),
        ("WARNING", logging.WARNING),
        ("loud", logging.WARNING),
    ):
        monkeypatch.setenv("MC_LOG_LEVEL", value)
        begin("setup")
        assert LOG.level == expected, value
    assert caplog.messages == ["setup: MC_LOG_LEVEL: LOUD is none of TRACE, INFO, WARNING, ERROR"]
