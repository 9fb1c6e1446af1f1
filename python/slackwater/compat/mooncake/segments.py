"""Memory that a client lends besides what `setup` lends: its own, and that of files."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater._native import RawClient
from slackwater.compat.mooncake import node_keys, opening
from slackwater.compat.mooncake.opening import INTERNAL_ERROR, INVALID_PARAMS, NOT_SUPPORTED, log
from slackwater.errors import SlackwaterError

_UNIT = 16 << 20
_GRACE_SECONDS_MAX = 86_400


@dataclass
class _Segment:
    """Memory that is lent for a time."""

    lent: opening.Lent
    file: str | None
    start: int
    end: int
    leaves: bool = False

    def is_cut(self) -> bool:
        """Whether the file does not reach to its end any more."""
        try:
            return self.file is not None and os.stat(self.file).st_size < self.end
        except OSError:
            # A file without a name has all of its bytes.
            return False


class Segments:
    """The calls of a store about memory that is lent for a time."""

    _raw: RawClient
    _lock: threading.Lock
    _setup: opening.Arguments | None
    _hostname: str
    _mounted: dict[str, _Segment]

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Lends `size` bytes of a file, as of shared memory in `/dev/shm`, from `offset` on: `ret`, 0 or a code, and
        `segment_ids`.

        The bytes become those of values. Other processes that have the file can spoil them, which readers find out by
        checksums and take for a miss; when the file is made shorter, the segment leaves the pool. Room for all of it is kept
        at once.
        """
        if not isinstance(path, (str, bytes, os.PathLike)) or not all(isinstance(text, str) for text in (protocol, location)):
            raise TypeError("path, protocol and location: texts are needed")
        for name, number in (("size", size), ("offset", offset)):
            if isinstance(number, float) or not hasattr(number, "__index__") or number.__index__() < 0:
                raise TypeError(f"{name}: expected a number of bytes, found {number!r}")
        code, identity = self._raw.state(), ""
        # In a fork, another thread may have held the lock.
        if code != NOT_SUPPORTED:
            with self._lock:
                code, identity = self._mount("mount_segment", size, protocol, (os.fsdecode(path), offset))
        return {"ret": code, "segment_ids": [identity] if identity else []}

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lends memory, in whole pieces of 16 MiB: `ret`, 0 or a code, `segment_ids`, and `allocated_size`."""
        code, identity = self._raw.state(), ""
        if code != NOT_SUPPORTED:
            with self._lock:
                code, identity = self._mount("allocate_and_mount_segment", size, protocol)
        allocated = -(-size // _UNIT) * _UNIT if code == 0 else 0
        return {"ret": code, "segment_ids": [identity] if code == 0 else [], "allocated_size": allocated}

    def _mount(
        self, method: str, size: int, protocol: str, piece: tuple[str, int] | None = None
    ) -> tuple[int, str]:
        if self._raw.state() or self._setup is None:
            return self._raw.state() or INVALID_PARAMS, ""
        file, offset = piece or (None, 0)
        if file is not None and size == 0:
            return (0 if _has(file, offset) else INTERNAL_ERROR), ""
        if not 0 < size < opening.BYTES_LIMIT or offset >= opening.BYTES_LIMIT or protocol not in opening.PROTOCOLS:
            log.error("%s: %d bytes by %r cannot be lent", method, size, protocol)
            return INTERNAL_ERROR, ""
        bytes_lent = size if file is not None else -(-size // _UNIT) * _UNIT
        if file is None and bytes_lent > _machine_bytes():
            log.error("%s: this machine has no %d bytes of memory", method, bytes_lent)
            return INTERNAL_ERROR, ""
        arguments = replace(self._setup, global_segment_size=bytes_lent, enable_ssd_offload=False)
        shared = [one for one in self._mounted.values() if file is not None and _overlap(one, file, offset, size)]
        if shared:
            log.warning("%s: %s is lent already: what is put into one segment spoils the other", method, file)
        try:
            lent = opening.lend(self._raw, arguments, self._hostname, port=0, piece=piece)
        except (SlackwaterError, ValueError, OverflowError, OSError) as error:
            log.error("%s: %s", method, error)
            return INTERNAL_ERROR, ""
        if lent is None:
            return INTERNAL_ERROR, ""
        identity = f"{int.from_bytes(os.urandom(8), 'little')}-{lent.node}"
        path = file if file is None else os.path.abspath(file)
        self._mounted[identity] = _Segment(lent, path, offset, offset + size)
        return 0, identity

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back files that `mount_segment` lent: 0, or -1 when an id is none of them, and -600 when it is taken back
        already; the others are taken back all the same.

        What only they hold goes to the memory of others, as far as it can in the time; the rest misses.
        """
        return self._unmount("unmount_segment", segment_ids, grace_period_seconds, of_files=True)

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back memory that `allocate_and_mount_segment` lent, as `unmount_segment` does files."""
        return self._unmount("unmount_and_free_segment", segment_ids, grace_period_seconds, of_files=False)

    def _unmount(self, method: str, segment_ids: Sequence[str], grace: int, *, of_files: bool) -> int:
        if isinstance(segment_ids, str) or not 0 <= grace <= _GRACE_SECONDS_MAX:
            raise TypeError(f"a list of ids, and a grace of 0 to {_GRACE_SECONDS_MAX} seconds, are needed")
        if not all(isinstance(identity, str) for identity in segment_ids):
            raise TypeError("ids are texts")
        if self._raw.state() == NOT_SUPPORTED:
            return NOT_SUPPORTED
        codes, leaving = [0], {}
        with self._lock:
            if self._raw.state():
                return self._raw.state()
            for identity in segment_ids:
                segment = self._mounted.get(identity)
                if segment is None or (segment.file is not None) != of_files:
                    log.error("%s: not lent by this client: %s", method, identity)
                    codes.append(INTERNAL_ERROR)
                elif segment.leaves:
                    log.error("%s: is taken back already: %s", method, identity)
                    codes.append(INVALID_PARAMS)
                else:
                    segment.leaves = True
                    leaving[identity] = segment
        until = time.monotonic() + grace
        for identity, segment in leaving.items():
            if segment.is_cut():
                log.error("%s: %s was made shorter: what it held is lost", method, segment.file)
            try:
                # Without the lock: the client can be closed meanwhile, and lend other memory.
                self._raw.take_back(segment.lent.node, max(until - time.monotonic(), 0))
            finally:
                node_keys.give_back(segment.lent.key)
                with self._lock:
                    self._mounted.pop(identity, None)
        return next((code for code in codes if code), 0)

    def _forget_segments(self) -> None:
        """The client is closed, and has taken all back but what another thread takes back."""
        node_keys.give_back_all(self._raw, {one.lent.key for one in self._mounted.values() if one.leaves})
        self._mounted = {}

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


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _has(file: str, offset: int) -> bool:
    """Whether there is a file of more than so many bytes, which may be written."""
    try:
        return os.path.isfile(file) and os.access(file, os.R_OK | os.W_OK) and os.stat(file).st_size > offset
    except (OSError, ValueError):
        return False


def _overlap(segment: _Segment, file: str, offset: int, size: int) -> bool:
    """Whether a segment has bytes of this piece of a file."""
    try:
        same = segment.file is not None and os.path.samefile(segment.file, file)
    except (OSError, ValueError):
        return False
    return same and segment.start < offset + size and offset < segment.end
