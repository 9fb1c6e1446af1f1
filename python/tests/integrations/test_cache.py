"""A store as a cache of an engine."""

import logging
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import slackwater
from slackwater import ErrorCode
from slackwater.integrations.cache import PAUSE, Cache

LOG = logging.getLogger("slackwater.integrations.test")


class Clock:
    """A time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def away() -> slackwater.SlackwaterError:
    return slackwater.RetryError("no answer", ErrorCode.RPC_FAIL)


def test_a_store_that_is_away_is_tried_once_a_pause(store: slackwater.Store, caplog: pytest.LogCaptureFixture) -> None:
    """A server dies: each look-up waited for its whole deadline, on the thread of the engine that schedules requests."""
    clock, inner = Clock(), mock.Mock(wraps=store, closed=False)
    cache = Cache(inner, LOG, clock=clock)
    assert cache.write(["k"], [b"v"], [1]) == [True]
    inner.exists_batch.side_effect = away()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert cache.exists(["k"]) == [False] and cache.read(["k"], [bytearray(1)], [1]) == [False]
            assert cache.write(["k"], [b"v"], [1]) == [False] and cache.remove(["k"]) == [False]
            assert cache.get(["k"]) == [None] and list(cache.list("k")) == []
        assert inner.exists_batch.call_count == 1 and inner.get_batch_into.call_count == 0
        clock.now += PAUSE
        assert [cache.exists(["k"]) for _ in range(3)] == [[False]] * 3
        assert inner.exists_batch.call_count == 2
        # A thread that tries does not let the others wait with it.
        clock.now += PAUSE
        inner.exists_batch.side_effect = lambda *_, **__: [len(cache.get(["k"])) == 0]
        cache.exists(["k"])
        assert inner.get_batch.call_count == 0
        inner.exists_batch.side_effect = None
        clock.now += PAUSE
        assert cache.exists(["k"]) == [True] and cache.exists(["k"]) == [True]
    assert [record.getMessage()[:24] for record in caplog.records] == ["exists: no answer; furth", "the store answers again"]
    assert cache.counts["failures"] == 2 and cache.counts["skipped"] == 32


def test_keys_that_did_not_come_in_time_are_a_store_that_is_away(store: slackwater.Store) -> None:
    clock, inner = Clock(), mock.Mock(wraps=store, closed=False)
    cache = Cache(inner, LOG, clock=clock)
    late = slackwater.RetryError("too late", ErrorCode.DEADLINE_PASSED)
    inner.get_batch_into.side_effect = lambda *_, **__: [1, late]
    assert cache.read(["k", "l"], [bytearray(1), bytearray(1)], [1, 1]) == [True, False]
    assert cache.exists(["k"]) == [False] and inner.exists_batch.call_count == 0
    assert cache.ping() == 0
    cache.exists(["k"])
    assert inner.exists_batch.call_count == 2


def test_other_failures_do_not_stop_the_calls(store: slackwater.Store) -> None:
    inner = mock.Mock(wraps=store, closed=False)
    cache = Cache(inner, LOG)
    inner.put_batch.side_effect = lambda *_, **__: [slackwater.RetryError("full", ErrorCode.NO_AVAILABLE_HANDLE)]
    for _ in range(3):
        assert cache.write(["k"], [b"v"], [1]) == [False]
    assert cache.exists(["k"]) == [False] and "skipped" not in cache.counts
    assert cache.counts["failures_write_no_available_handle"] == 3


def test_a_frozen_store_is_waited_for_once(frozen: Any) -> None:
    """A server that is stopped takes connections and answers nothing: each call of the engine waited for its deadline."""
    clock = Clock()
    cache = Cache(slackwater.connect(frozen.address, timeout=2), LOG, clock=clock)
    assert cache.write(["k"], [b"v"], [1]) == [True]
    frozen.stop()
    begun = time.monotonic()
    for _ in range(40):
        assert cache.exists(["k"]) == cache.read(["k"], [bytearray(1)], [1]) == cache.write(["k"], [b"v"], [1]) == [False]
    assert time.monotonic() - begun < 10 and cache.counts["failures"] == 1 and cache.counts["skipped"] == 119
    frozen.go_on()
    back = False
    for _ in range(20):
        clock.now += PAUSE
        back = back or cache.exists(["k"]) == [True]
    assert back
    cache.close()


def test_failures_are_told_again_after_a_minute(store: slackwater.Store, caplog: pytest.LogCaptureFixture) -> None:
    """A warning of the first day was all that the log of a month had of a store that failed ever since."""
    clock = Clock()
    cache = Cache(store, LOG, clock=clock)
    with caplog.at_level(logging.WARNING):
        for seconds in (0, 1, 58, 1, 59, 1):
            clock.now += seconds
            cache.failed("test", ValueError(f"at {clock.now:.0f}"))
        cache.failed("other", ValueError("another kind"))
    told = [record.getMessage().split(";")[0] for record in caplog.records]
    assert told == ["test: at 100", "test: at 160", "test: at 220", "other: another kind"]


def test_a_call_that_was_ended_is_no_failure(store: slackwater.Store, caplog: pytest.LogCaptureFixture) -> None:
    """The calls that a normal end of the engine ends were logged as failures of the store."""
    inner = mock.Mock(wraps=store, closed=False)
    cache = Cache(inner, LOG)
    inner.get_batch_into.side_effect = slackwater.SlackwaterError("ended", ErrorCode.CANCELLED)
    assert cache.read(["k"], [bytearray(1)], [1]) == [False]
    assert cache.counts == {"cancelled": 1} and not caplog.records


def test_counts_tell_what_calls_did(store: slackwater.Store) -> None:
    cache = Cache(store, LOG)
    cache.write(["a", "b"], [b"aa", b"bbb"], [2, 3])
    cache.write(["b", "c"], [b"bbb", b"c"], [3, 1])
    cache.exists(["a", "z"])
    cache.read(["a", "b", "z"], [bytearray(2), bytearray(9), bytearray(1)], [2, 9, 1])
    assert cache.counts == {
        "write_new": 3,
        "write_existing": 1,
        "write_bytes": 6,
        "exists_hits": 1,
        "exists_misses": 1,
        "read_hits": 1,
        "read_misses": 1,
        "read_bytes": 2,
        "failures": 1,
        "failures_read_WrongLength": 1,
    }


def test_listing_ends_with_the_prefix(store: slackwater.Store) -> None:
    cache = Cache(store, LOG)
    names = [f"p:{number}" for number in range(25)]
    cache.write([*names, "o", "p", "q"], [b"v"] * 28, [1] * 28)
    with mock.patch("slackwater.integrations.cache.KEYS_LISTED", 10):
        listed = list(cache.list("p:"))
    assert [len(keys) for keys in listed] == [10, 10, 5]
    assert sorted(key.decode() for keys in listed for key in keys) == sorted(names)


def test_closed_once_and_for_all(store: slackwater.Store, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(store, LOG)
    cache.failed("test", ValueError("first"))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        cache.close()
        cache.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["closed after 1 failures"]
    assert cache.closed and cache.exists(["k"]) == [False] and cache.get(["k"]) == [None] and list(cache.list("")) == []


def test_a_server_that_dies_and_comes_back(command: Path) -> None:
    clock = Clock()
    arguments: list[Any] = [command, "serve", "--admin", "none", "--memory", "16MiB", "--log", "off", "--listen"]
    with subprocess.Popen([*arguments, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip().removeprefix("serving at ")
        cache = Cache(slackwater.connect(address, timeout=2), LOG, clock=clock)
        assert cache.write(["k"], [b"v"], [1]) == [True]
        server.kill()
    assert cache.read(["k"], [bytearray(1)], [1]) == cache.exists(["k"]) == [False]
    with subprocess.Popen([*arguments, address.removeprefix("tcp://")], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        back = False
        until = time.monotonic() + 30
        while not back and time.monotonic() < until:
            # The client connects again by itself; until then a call may still fail.
            clock.now += PAUSE
            back = cache.write(["k"], [b"v"], [1]) == [True]
        assert back and cache.exists(["k"]) == [True]
        cache.close()
        server.kill()
