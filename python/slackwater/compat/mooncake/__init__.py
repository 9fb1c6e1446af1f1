"""The package `mooncake` on Slackwater: see `slackwater.compat`."""

import pkgutil

from slackwater.compat.mooncake.buffer_pool import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]

# Packages that add to `mooncake` may lie beside it.
__path__ = pkgutil.extend_path(__path__, "mooncake")
