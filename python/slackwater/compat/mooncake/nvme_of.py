"""SSDs that are reached by NVMe over Fabrics: `MooncakeDistributedNoFRegister`.

There are none here: a node lends the SSD of its own machine. Scripts that register such SSDs can be imported, and are told so.
"""

from slackwater.compat.mooncake.opening import log

_FAILED = -1


class MooncakeDistributedNoFRegister:
    """Registers SSDs with a master, and takes none."""

    __slots__ = ()

    def real_register(
        self, nqn: str, nsid: int, traddr: str, trsvcid: int, base: int, size: int, master_server_addr: str, /
    ) -> int:
        """-1, with the reason in the log."""
        texts, numbers = (nqn, traddr, master_server_addr), (nsid, trsvcid, base, size)
        return _refused("real_register", f"{nqn} at {traddr}", texts, numbers)

    def real_unregister_by_endpoint(
        self, nqn: str, nsid: int, traddr: str, trsvcid: int, master_server_addr: str, /
    ) -> int:
        """-1, with the reason in the log."""
        texts, numbers = (nqn, traddr, master_server_addr), (nsid, trsvcid)
        return _refused("real_unregister_by_endpoint", f"{nqn} at {traddr}", texts, numbers)


def _refused(method: str, what: str, texts: tuple[object, ...], numbers: tuple[object, ...]) -> int:
    wrong = [given for given in texts if not isinstance(given, str)]
    wrong += [given for given in numbers if isinstance(given, float) or not hasattr(given, "__index__")]
    if wrong:
        raise TypeError(f"{method}: expected names and addresses as texts, and whole numbers, found {wrong[0]!r}")
    log.error(
        "%s: %s: no SSD is reached by NVMe over Fabrics: `slackwater node --ssd SIZE --dir PATH` lends that of its machine",
        method,
        what,
    )
    return _FAILED
