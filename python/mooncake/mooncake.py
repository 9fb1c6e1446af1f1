"""The package `mooncake` on Slackwater: `slackwater.compat` under this name.

A module, and no folder: a Mooncake that is installed in the same place has a folder of that name, which an import finds
first, and nothing of it is overwritten.
"""

import slackwater.compat

slackwater.compat.install()
