"""The environment variables of Mooncake: those that are read here, and those that have no effect."""

import logging
import os

log = logging.getLogger("slackwater.mooncake")

READ = {
    "MC_RPC_TIMEOUT_MS": ("30000", "how long a call may take, in milliseconds"),
    "MC_RPC_CONNECT_TIMEOUT_MS": ("10000", "how long `setup` looks for the master, in milliseconds"),
    "MC_FORCE_TCP": ("", "anything but empty: bytes go by TCP, also within a host"),
    "MC_LOG_LEVEL": ("", "TRACE, INFO, WARNING or ERROR: what the logger `slackwater.mooncake` tells at least"),
    "MC_STORE_CLIENT_MIN_PORT": ("12300", "the least port in the name of a client"),
    "MC_STORE_CLIENT_MAX_PORT": ("14300", "the largest port in the name of a client"),
    "MC_MIN_RPC_PORT": ("15000", "the least port of a `TransferEngine`"),
    "MC_MAX_RPC_PORT": ("17000", "the largest port of a `TransferEngine`"),
    "MC_TRANSFER_TIMEOUT": ("30", "seconds that a transfer of a `TransferEngine` may take, 5 at least, and 1 ns for each byte"),
    "MC_HANDSHAKE_CONNECT_TIMEOUT": ("5", "seconds that a peer of a `TransferEngine` has for each thing that it is asked, 1 at least"),
    "MC_TCP_BIND_ADDRESS": ("", "where a `TransferEngine` listens, when that is not the address of its name; `0.0.0.0` is everywhere"),
    "MC_NUM_TCP_IO_THREADS": ("8", "threads of a `TransferEngine` that carry bytes, at most one for each CPU unless it is set"),
    "MC_TCP_MAX_CONNECTIONS": ("64", "transfers that a `TransferEngine` has under way"),
    "MC_TCP_LANES_PER_PEER": ("4", "connections of a `TransferEngine` to a peer"),
    "MC_TCP_MAX_CONNECTIONS_PER_PEER": ("4", "the same, where that is not set"),
    "MC_TCP_SLICE_SIZE": ("1048576", "bytes of a piece of a transfer"),
    "MC_TCP_PROGRESS_TIMEOUT_SEC": ("30", "seconds after which a connection that moves no byte is given up"),
    "MC_TCP_STATUS_TIMEOUT_SEC": ("30", "seconds that a peer has to say that a transfer is complete"),
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": ("65536", "transfers that wait for a peer"),
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": ("", "the directory of the SSD tier where `setup` names none"),
    "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": ("17179869184", "bytes of the SSD tier"),
}
"""Name, default and meaning of the variables that are read."""

_NO_CACHE = "there is no cache in the client"
_COUNTED = "the master counts"
_PAGES = "the memory of nodes has the pages that the system gives"
_NO_DEVICES = "bytes go by TCP, or within the host: there are no devices to choose from"
_DESCRIBED = "a peer is asked again when it refuses what was known of it"
_WAITS = "a transfer waits for room until its own deadline"
_EVICTION = "the log on the SSD evicts by the `policy` of the master"
_ORDERS = "nodes are told what to offload as soon as it is decided"
_LOG = "the SSD tier is one log in files of 64 MiB"

IGNORED = {
    "MC_STORE_MEMCPY": "values on this host are always copied in memory",
    "MC_STORE_LOCAL_HOT_CACHE_SIZE": _NO_CACHE,
    "MC_STORE_LOCAL_HOT_BLOCK_SIZE": _NO_CACHE,
    "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": _NO_CACHE,
    "MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD": _NO_CACHE,
    "MC_STORE_CLIENT_METRIC": _COUNTED,
    "MC_STORE_CLIENT_METRIC_INTERVAL": _COUNTED,
    "MC_STORE_CLUSTER_ID": "a master has one pool",
    "MC_METADATA_CLUSTER_ID": "a master has one pool",
    "MC_STORE_USE_HUGEPAGE": _PAGES,
    "MC_STORE_HUGEPAGE_SIZE": _PAGES,
    "MC_STORE_NUMA_SOCKET_ID": "nodes are bound by the system",
    "MC_STORE_REPLICA_SCORING": "the master names the best replica first",
    "MC_FILEREAD_WORKERS": "nodes read from SSD by a queue of the kernel",
    "MOONCAKE_STORE_CHECKSUM": "checksums of whole values are always compared",
    "MC_USE_IPV6": "addresses say what they are",
    "MC_TCP_PROTO": "there is one protocol over TCP",
    "MC_TCP_ENABLE_CONNECTION_POOL": "connections to a peer are always kept",
    "MC_TCP_ADMISSION_TIMEOUT_MS": _WAITS,
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": _WAITS,
    "MC_HANDSHAKE_PORT": "peers ask at the port that `get_rpc_port` says",
    "MC_HANDSHAKE_LISTEN_BACKLOG": "128 connections wait at that port",
    "MC_HANDSHAKE_MAX_LENGTH": "what a peer says of its memory has at most 64 MiB",
    "MC_LEGACY_RPC_PORT_BINDING": "the port is one from MC_MIN_RPC_PORT to MC_MAX_RPC_PORT",
    "MC_DISABLE_METACACHE": _DESCRIBED,
    "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS": _DESCRIBED,
    "MC_CUSTOM_TOPO_JSON": _NO_DEVICES,
    "MC_TE_FILTERS": _NO_DEVICES,
    "MC_RETRY_CNT": "a piece of a transfer is tried again until the deadline of the transfer",
    "MC_SLICE_SIZE": "MC_TCP_SLICE_SIZE says how long pieces are",
    "MC_SLICE_TIMEOUT": "MC_TRANSFER_TIMEOUT says how long a transfer may take",
    "MC_TE_METRIC": "the counters of an engine are not printed",
    "MC_TE_METRIC_INTERVAL_SECONDS": "the counters of an engine are not printed",
    "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": _LOG,
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": _LOG,
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": _LOG,
    "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES says how much room there is",
    "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": _EVICTION,
    "MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION": _EVICTION,
    "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO": _EVICTION,
    "MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO": _EVICTION,
    "MOONCAKE_OFFSET_EVICTION_POLICY": _EVICTION,
    "MOONCAKE_OFFSET_EVICTION_HIGH_RATIO": _EVICTION,
    "MOONCAKE_OFFSET_EVICTION_LOW_RATIO": _EVICTION,
    "MOONCAKE_OFFSET_PERSIST_MODE": _LOG,
    "MOONCAKE_OFFSET_PERSIST_INTERVAL_SECONDS": _LOG,
    "MOONCAKE_OFFSET_RECORD_CRC": "records always have a checksum",
    "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT": "keys are bounded by the room for their values",
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "values go to the SSD from where they lie; `local_buffer_size` bounds what is read from it at a time",
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": _ORDERS,
    "MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_INTERVAL_SECONDS": "what was read from SSD is given back when its lease ends",
    "MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_TTL_MS": "what was read from SSD is given back when its lease ends",
    "MOONCAKE_OFFLOAD_USE_URING": "the queue of the kernel is used wherever it is there",
}
"""Why the others have no effect."""

OF_ENGINES = {
    "MOONCAKE_CONFIG_PATH": "vLLM, and `MooncakeConfig`",
    "MOONCAKE_MASTER": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_CLIENT": "SGLang",
    "MOONCAKE_LOCAL_HOSTNAME": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_TE_META_DATA_SERVER": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_LOCAL_BUFFER_SIZE": "`MooncakeConfig`",
    "MOONCAKE_PROTOCOL": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_DEVICE": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_TENANT_ID": "SGLang, and `MooncakeConfig`",
    "MOONCAKE_OFFLOAD_ENABLED": "`MooncakeConfig`",
    "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER": "`MooncakeConfig`",
    "MOONCAKE_CLIENT_HTTP_PORT": "`MooncakeConfig`",
    "MOONCAKE_ENABLE_SSD_OFFLOAD": "SGLang",
    "MOONCAKE_MASTER_METRICS_PORT": "SGLang",
    "MOONCAKE_CHECK_SERVER": "SGLang",
    "MOONCAKE_STANDALONE_STORAGE": "SGLang",
    "MOONCAKE_PREFERRED_SEGMENT": "vLLM",
    "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "vLLM",
}
"""Who reads the variables from which arguments of calls are made."""

_LEVELS = {"TRACE": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
# Enough for the bytes of any device.
_DIGITS_MAX = 18
_told: set[str] = set()


def begin(call: str) -> None:
    """What a client or an engine does at its start: sets what is logged, and says once in a process which variables are set
    without effect."""
    level = os.environ.get("MC_LOG_LEVEL", "").upper()
    if level in _LEVELS:
        log.setLevel(_LEVELS[level])
    elif level:
        _tell_once(call, f"MC_LOG_LEVEL: {level} is none of {', '.join(_LEVELS)}")
    for line in without_effect():
        _tell_once(call, line)


def _tell_once(call: str, line: str) -> None:
    if line not in _told:
        _told.add(line)
        log.warning("%s: %s", call, line)


def without_effect() -> list[str]:
    """What is to be said about variables that are set and not read."""
    return [f"{name} has no effect: {why}" for name, why in IGNORED.items() if os.environ.get(name)]


def milliseconds(name: str) -> float:
    """The seconds that a variable of milliseconds says; its default where it is no number."""
    return number(name) / 1000


def number(name: str) -> int:
    """The number that a variable says; its default where it is none, which is said once."""
    text, default = os.environ.get(name, ""), READ[name][0]
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    if text:
        _tell_once("environment", f"{name}: {text[:32]!r} is no number: {default} counts")
    return int(default)
