"""Memory that a client lends besides what `setup` lends."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slackwater._native import RawClient
from slackwater.compat.mooncake import opening
from slackwater.compat.mooncake.opening import INTERNAL_ERROR, INVALID_PARAMS, NOT_SUPPORTED, log
from slackwater.errors import SlackwaterError

_UNIT = 16 << 20
_GRACE_SECONDS_MAX = 86_400


class Segments:
    """The calls of a store about memory that is lent for a time."""

    _raw: RawClient
    _lock: threading.Lock
    _setup: opening.Arguments | None
    _hostname: str
    _mounted: dict[str, int]

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lends memory, in whole pieces of 16 MiB: `ret`, 0 or a code, `segment_ids`, and `allocated_size`."""
        code, identity = self._raw.state(), ""
        # In a fork, another thread may have held the lock.
        if code != NOT_SUPPORTED:
            with self._lock:
                code, identity = self._mount(size, protocol)
        allocated = -(-size // _UNIT) * _UNIT if code == 0 else 0
        return {"ret": code, "segment_ids": [identity] if code == 0 else [], "allocated_size": allocated}

    def _mount(self, size: int, protocol: str) -> tuple[int, str]:
        if self._raw.state() or self._setup is None:
            return self._raw.state() or INVALID_PARAMS, ""
        if not 0 < size < opening.BYTES_LIMIT or protocol not in opening.PROTOCOLS:
            log.error("allocate_and_mount_segment: %d bytes by %r cannot be lent", size, protocol)
            return INTERNAL_ERROR, ""
        if os.environ.get("SLACKWATER_KEY_FILE"):
            log.error("allocate_and_mount_segment: with keys, a process is one node: give setup all of its memory")
            return INTERNAL_ERROR, ""
        bytes_lent = -(-size // _UNIT) * _UNIT
        arguments = replace(self._setup, global_segment_size=bytes_lent, enable_ssd_offload=False)
        try:
            node = opening.lend(self._raw, arguments, self._hostname, port=0)
        except (SlackwaterError, ValueError, OverflowError, OSError) as error:
            log.error("allocate_and_mount_segment: %s", error)
            return INTERNAL_ERROR, ""
        if node is None:
            return INTERNAL_ERROR, ""
        identity = f"{int.from_bytes(os.urandom(8), 'little')}-{node}"
        self._mounted[identity] = node
        return 0, identity

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back memory that `allocate_and_mount_segment` lent: 0, or -1 when an id is none of it, and nothing is.

        What only that memory holds goes to the memory of others, as far as it can in the time; the rest misses.
        """
        if isinstance(segment_ids, str) or not 0 <= grace_period_seconds <= _GRACE_SECONDS_MAX:
            raise TypeError(f"a list of ids, and a grace of 0 to {_GRACE_SECONDS_MAX} seconds, are needed")
        if self._raw.state() == NOT_SUPPORTED:
            return NOT_SUPPORTED
        with self._lock:
            if self._raw.state():
                return self._raw.state()
            if any(identity not in self._mounted for identity in segment_ids):
                log.error("unmount_and_free_segment: not lent by this client: %s", ", ".join(segment_ids))
                return INTERNAL_ERROR
            nodes = [self._mounted.pop(identity) for identity in dict.fromkeys(segment_ids)]
        for node in nodes:
            self._raw.take_back(node, grace_period_seconds)
        return 0

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0 where this client lends no SSD, with a warning; -1 before `setup`. An SSD goes with the memory above it: -1012."""
        if isinstance(grace_period_seconds, bool) or not isinstance(grace_period_seconds, int) or grace_period_seconds < 0:
            raise TypeError(f"grace_period_seconds: expected a number of seconds, found {grace_period_seconds!r}")
        setup = self._setup
        if self._raw.state() or setup is None:
            return INTERNAL_ERROR
        if not setup.enable_ssd_offload or not setup.global_segment_size:
            log.warning("unmount_local_disk_segment: this client lends no SSD")
            return 0
        log.error("unmount_local_disk_segment: the SSD goes with its memory: close the client, or `slackwater drain` its node")
        return NOT_SUPPORTED
