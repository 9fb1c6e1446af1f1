"""The store that an engine's configuration names."""

from collections.abc import Mapping
from typing import Any

from .. import Client, Store, connect

OPTIONS = ("address", "key_file", "timeout", "tenant", "store")
"""`address`, `key_file` and `timeout` are those of `slackwater.connect`. In their place, `store` has the arguments of
`slackwater.Store`, for a store inside the engine's process. `tenant` is that of every call."""


def quoted(name: str) -> str:
    """A name as a part of keys, whose parts have colons between them: no name's keys begin with another's."""
    return name.replace("%", "%25").replace(":", "%3A")


def open_store(options: Mapping[str, Any], *, processes: int = 1) -> Store | Client:
    """Opens or connects to the store of `options`; `processes` is how many processes of the engine open one alike.

    Raises ValueError for options that cannot be, and what `slackwater.connect` and `slackwater.Store` raise.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"slackwater: no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")
    tenant = options.get("tenant")
    if tenant is not None and not (isinstance(tenant, str) and tenant):
        raise ValueError(f"slackwater: tenant: {tenant!r} is no name")
    inside = options.get("store")
    if inside is None:
        chosen = {name: options[name] for name in ("key_file", "timeout") if options.get(name) is not None}
        return connect(options.get("address"), **chosen)
    if not isinstance(inside, Mapping):
        raise ValueError("slackwater: store: a table of arguments is needed, such as {\"memory\": \"8GiB\"}")
    both = sorted(name for name in ("address", "key_file", "timeout") if options.get(name) is not None)
    if both:
        raise ValueError(f"slackwater: {both[0]} and store: either the store is served, or it is inside this process")
    if processes > 1:
        raise ValueError(
            f"slackwater: store: {processes} processes of the engine need one store: serve it, and give them its address"
        )
    return Store(**inside)
