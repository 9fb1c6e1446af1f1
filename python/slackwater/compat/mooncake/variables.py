"""The environment variables of Mooncake: those that are read here, and those that have no effect."""

import os

READ = {
    "MC_RPC_TIMEOUT_MS": ("30000", "how long a call may take, in milliseconds"),
    "MC_RPC_CONNECT_TIMEOUT_MS": ("10000", "how long `setup` looks for the master, in milliseconds"),
    "MC_FORCE_TCP": ("", "anything but empty: bytes go by TCP, also within a host"),
    "MC_STORE_CLIENT_MIN_PORT": ("12300", "the least port in the name of a client"),
    "MC_STORE_CLIENT_MAX_PORT": ("14300", "the largest port in the name of a client"),
    "MC_MIN_RPC_PORT": ("15000", "the least port of a `TransferEngine`"),
    "MC_MAX_RPC_PORT": ("17000", "the largest port of a `TransferEngine`"),
    "MC_TRANSFER_TIMEOUT": ("30", "seconds that a transfer of a `TransferEngine` may take, 5 at least, and 1 ns for each byte"),
    "MC_TCP_BIND_ADDRESS": ("", "where a `TransferEngine` listens, when that is not the address of its name; `0.0.0.0` is everywhere"),
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": ("", "the directory of the SSD tier where `setup` names none"),
    "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": ("17179869184", "bytes of the SSD tier"),
}
"""Name, default and meaning of the variables that are read."""

IGNORED = {
    "MC_STORE_MEMCPY": "values on this host are always copied in memory",
    "MC_STORE_LOCAL_HOT_CACHE_SIZE": "there is no cache in the client",
    "MC_STORE_CLIENT_METRIC": "the master counts",
    "MC_STORE_CLIENT_METRIC_INTERVAL": "the master counts",
    "MC_STORE_CLUSTER_ID": "a master has one pool",
    "MC_METADATA_CLUSTER_ID": "a master has one pool",
    "MC_STORE_USE_HUGEPAGE": "the memory of nodes has the pages that the system gives",
    "MC_STORE_HUGEPAGE_SIZE": "the memory of nodes has the pages that the system gives",
    "MC_STORE_NUMA_SOCKET_ID": "nodes are bound by the system",
    "MC_STORE_REPLICA_SCORING": "the master names the best replica first",
    "MC_FILEREAD_WORKERS": "nodes read from SSD by a queue of the kernel",
    "MOONCAKE_STORE_CHECKSUM": "checksums are always compared",
    "MC_USE_IPV6": "addresses say what they are",
}
"""Why the others have no effect."""


def without_effect() -> list[str]:
    """What is to be said about variables that are set and not read."""
    return [f"{name} has no effect: {why}" for name, why in IGNORED.items() if os.environ.get(name)]


def milliseconds(name: str) -> float:
    """The seconds that a variable of milliseconds says; its default where it is no number."""
    default = int(READ[name][0]) / 1000
    try:
        return int(os.environ[name]) / 1000 if os.environ.get(name) else default
    except ValueError:
        return default


def number(name: str) -> int:
    """The number that a variable says; its default where it is none."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else int(READ[name][0])
