"""The package `mooncake` on Slackwater: see `slackwater.compat`."""

# `socket` imports this at its first look-up of a name. Ctrl-C in an import can leave CPython's lock of all imports taken,
# or the codec unknown for good, so that calls import nothing but what a caller's own values need (torch, numpy).
import encodings.idna
import pkgutil

from slackwater.compat.mooncake.buffer_pool import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]

# Packages that add to `mooncake` may lie beside it.
__path__ = pkgutil.extend_path(__path__, "mooncake")
