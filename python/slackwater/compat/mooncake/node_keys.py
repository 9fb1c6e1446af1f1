"""The keys of what clients of this process lend: each segment is a node of its pool, with a key of its own.

`SLACKWATER_NODE_KEY_FILE` names their files, one or several with `:` between them. A key is used by one segment at a time, and
free again when that is taken back, or its client is closed or dropped.
"""

import os
import threading
import weakref
from collections.abc import Collection

from slackwater._native import RawClient

VARIABLE = "SLACKWATER_NODE_KEY_FILE"

_used: "dict[str, weakref.ref[RawClient]]" = {}
_lock = threading.Lock()


# Those that the parent of this process used at the fork: they stay the parent's.
_of_parent: set[str] = set()


def _after_fork() -> None:
    # Another thread may have held it.
    global _lock
    _lock = threading.Lock()
    _of_parent.update(_used)


os.register_at_fork(after_in_child=_after_fork)


def files() -> list[str]:
    """The files of all keys for what is lent."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def take(client: RawClient) -> str | None:
    """A key that no segment has; None where there are no keys for segments. Raises `ValueError` when all are used, and when
    nothing says whose transfers are taken."""
    named = files()
    if not named:
        return None
    if not os.environ.get("SLACKWATER_ALLOW"):
        raise ValueError(f"SLACKWATER_ALLOW names the keys whose transfers a segment of {VARIABLE} takes: it is not set")
    with _lock:
        for path in map(os.path.realpath, named):
            holder = _used.get(path)
            if path not in _of_parent and (holder is None or holder() is None):
                _used[path] = weakref.ref(client)
                return path
    raise ValueError(f"each segment needs a key of its own: the {len(named)} of {VARIABLE} are used")


def give_back(path: str | None) -> None:
    """A segment does not use the key of this file any more."""
    if path is not None:
        with _lock:
            _used.pop(path, None)


def give_back_all(client: RawClient, but: Collection[str | None] = ()) -> None:
    """A client is closed: its keys are free, but for those of segments that are still taken back."""
    with _lock:
        for path in [path for path, holder in _used.items() if holder() is client and path not in but]:
            del _used[path]
