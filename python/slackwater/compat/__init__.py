"""Slackwater under the names of other packages, for programs that were written for them.

`install()` puts the modules of `slackwater.compat.mooncake` where `import mooncake.store` and the like find them, in this
process alone. A Mooncake that is installed is never overwritten: while one is there, nothing is put in its place unless
`install(over=True)` says so, and `active()` names the one that programs get.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType

__all__ = ["MODULES", "active", "install", "installed_mooncake"]

MODULES = (
    "allocator",
    "store",
    "async_store",
    "buffer_pool",
    "engine",
    "http_metadata_server",
    "mooncake_config",
    "mooncake_store_service",
)
"""The modules of the package `mooncake` that are provided."""

_NAME = "mooncake"
_OURS = f"{__name__}.{_NAME}"


def installed_mooncake() -> str | None:
    """Name and version of the Mooncake distribution of this environment, if there is one."""
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("mooncake-transfer-engine"):
            return f"{name} {distribution.version}"
    return None


def active() -> str:
    """Which `mooncake` an import gives: `slackwater`, name and version of a Mooncake, a path, or `none`."""
    loaded = sys.modules.get(_NAME)
    if loaded is not None:
        return "slackwater" if _is_ours(loaded) else installed_mooncake() or str(loaded)
    found = importlib.util.find_spec(_NAME)
    if found is None:
        return "none"
    if found.loader is not None and _is_stand_in(found.origin):
        return "slackwater"
    return installed_mooncake() or str(found.origin or found.submodule_search_locations)


def install(*, over: bool = False) -> ModuleType:
    """Lets `import mooncake` and its modules give Slackwater's in this process; the package.

    Raises `ImportError` when another `mooncake` is loaded, or installed and not meant to be passed over by `over`.
    """
    loaded = sys.modules.get(_NAME)
    if loaded is not None and not _is_ours(loaded) and not _is_stand_in(getattr(loaded, "__file__", None)):
        raise ImportError(
            f"another mooncake is loaded from {getattr(loaded, '__file__', loaded)}: call slackwater.compat.install() "
            "before anything imports it"
        )
    other = installed_mooncake()
    if other is not None and not over:
        raise ImportError(
            f"{other} is installed and stays the active mooncake: uninstall it, or take Slackwater's in this process "
            "with slackwater.compat.install(over=True)"
        )
    package = importlib.import_module(_OURS)
    sys.modules[_NAME] = package
    for name in MODULES:
        module = importlib.import_module(f"{_OURS}.{name}")
        sys.modules[f"{_NAME}.{name}"] = module
    return package


def _is_ours(module: ModuleType) -> bool:
    return module.__name__ == _OURS


def _is_stand_in(origin: str | None) -> bool:
    """Whether this file is the module `mooncake` of the distribution `slackwater-mooncake`."""
    if origin is None or not origin.endswith("mooncake.py"):
        return False
    with open(origin, encoding="utf-8") as file:
        return "slackwater.compat" in file.read()
