"""The package `mooncake` on Slackwater: see `slackwater.compat`."""

import pkgutil

# Packages that add to `mooncake` may lie beside it.
__path__ = pkgutil.extend_path(__path__, "mooncake")
