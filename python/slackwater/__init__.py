"""A tiered store for the KV cache of LLM serving: DRAM over SSD, with promotion on hit.

>>> import slackwater
>>> with slackwater.Store("/var/cache/kv", memory="4GiB", ssd="64GiB") as store:
...     store.put("block-1", b"bytes of a block")
...     store.get("block-1")
True
b'bytes of a block'
"""

import atexit as _atexit
import os as _os

from ._native import Chain, Client, Store, View, __version__, connect, export_traces
from ._native import after_fork as _after_fork
from .errors import (
    ErrorCode,
    FatalError,
    GoneError,
    RefusedError,
    RetryError,
    SlackwaterError,
)
from .views import Views

__all__ = [
    "Chain",
    "Client",
    "ErrorCode",
    "FatalError",
    "GoneError",
    "RefusedError",
    "RetryError",
    "SlackwaterError",
    "Store",
    "View",
    "Views",
    "__version__",
    "connect",
    "export_traces",
]

_os.register_at_fork(after_in_child=_after_fork)
_atexit.register(export_traces, None)
