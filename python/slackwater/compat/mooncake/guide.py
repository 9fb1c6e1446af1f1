"""The guide for those who come from Mooncake, made of the tables that the programs and tests use.

`python -m slackwater.compat.mooncake.guide` prints it; it is kept in `docs/guide/migrate-from-mooncake.md`.
"""

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slackwater.compat.mooncake import standalone, store, transfer_engine_bench
from slackwater.compat.mooncake.master import FLAGS
from slackwater.compat.mooncake.variables import IGNORED, OF_ENGINES, READ

_FOLDER = Path(__file__).parent
_HEAD = """# From Mooncake to Slackwater

Programs that use `mooncake.store` or `mooncake.engine` run on Slackwater when they import it from here. This page is made of
the tables that the programs and their tests use.

## Switching

| before | now |
|---|---|
| `pip install mooncake-transfer-engine` | `pip uninstall mooncake-transfer-engine`, and `pip install . ./python/mooncake` in this folder |
| `mooncake_master --rpc_port=50051` | the same command, or `slackwater master` |
| `mooncake_client --master_server_address=127.0.0.1:50051 --global_segment_size="4 GB"` | the same command |
| a program that imports `mooncake.store` | the same program |
| `transfer_engine_bench --mode=target`, `transfer_engine_bench --segment_id=…` | the same commands; for two machines with keys, below |
| `transfer_engine_topology_dump` | the same command, or `slackwater topology`: network interfaces instead of RDMA devices |
| `mc_store_rest_server`, `mooncake_http_metadata_server` | the same commands, for this machine unless `--host` says otherwise |

Without the second package, `slackwater.compat.install()` gives one process the modules, before anything imports `mooncake`.
A Mooncake that is installed is never overwritten and stays the one that programs get; `slackwater.compat.active()` names the
active one. The reason of each code is logged once to `slackwater.mooncake`.

`setup` connects to the `slackwater master` or `slackwater serve` at `master_server_addr`. With a segment of more than 0 bytes it
lends memory of its process to a master; `serve` has memory of its own and takes none, which is logged. Without keys both
sides are on one machine; for others give `master_server_addr` as `curve://HOST:PORT/KEY`, as
[the guide to serving](serving.md) says, our own key in `SLACKWATER_KEY_FILE`, the keys of what we lend in `SLACKWATER_NODE_KEY_FILE`,
one for each segment, with the level `node` in the master's list, and the keys whose transfers a segment takes in `SLACKWATER_ALLOW`.
`mooncake.async_store` is there too; up to eight calls of a store are awaited at a time, and cancelled ones
end. What only the memory of a client held misses once that client is closed, and 10 s after it dies.

Memory that is to outlive the programs that use it belongs to `mooncake_client`, which lends it to the pool until it is ended
by SIGINT or SIGTERM. A program on the same machine, of the same user, is a thin client of it by
`setup_dummy(mem_pool_size, local_buffer_size, "127.0.0.1:50052")`: it is told which master, protocol, tenant and file of a key
to use, and is then a client like others. Programs may come and go by hundreds; one that is killed gives back the
room of its unfinished puts at once, and its leases when they run out. One with `mem_pool_size` has memory for `alloc_from_mem_pool`, registered, until it is
closed; values may lie in any other memory too.
"""

_ENGINES = """
## Engines of two machines

Without keys a `TransferEngine` serves the processes of its machine: `initialize` takes a `local_hostname` of loopback. With keys it
takes any address of the machine, and everything that engines say to each other is sealed: where their memory is, notices, probes,
and bytes. Each engine proves the key in `SLACKWATER_KEY_FILE`, and has as peers the engines whose keys are in the list
`SLACKWATER_ALLOW`, and no others:

```text
slackwater keys new engine.key                    # on each machine; the public half goes to the others
slackwater keys allow peers KEY-OF-THE-OTHER      # one line for each peer
export SLACKWATER_KEY_FILE=engine.key SLACKWATER_ALLOW=peers
transfer_engine_bench --mode=target --protocol=tcp --local_server_name=10.0.0.5      # says --segment_id=10.0.0.5:16705
transfer_engine_bench --protocol=tcp --local_server_name=10.0.0.6 --segment_id=10.0.0.5:16705
```

Engines of one machine that share a key file need its key on the list too. A change of the list is in force within a second. The
metadata server needs no trust: an engine that an entry leads to proves its key, or is none. Peers reach the port of the engine, from
`MC_MIN_RPC_PORT` to `MC_MAX_RPC_PORT`, and a free port for bytes; `MC_TCP_BIND_ADDRESS` says where to listen when that is not the
address of `local_hostname`. For vLLM and SGLang that serve prefill and decode on different machines, set the variables for both.
Where both run on one machine without keys, have them take its loopback for theirs: `VLLM_HOST_IP=127.0.0.1`, and
`SGLANG_HOST_IP=127.0.0.1`. Their stores need neither.

## What was tested with engines

Their own code drives the package, by `python -m pytest python/tests/mooncake/test_connectors.py` where `SGLANG_PYTHON`,
`LMCACHE_PYTHON` and `VLLM_PYTHON` name interpreters that have them; no GPU is needed.

| engine | what of it ran |
|---|---|
| SGLang 0.5.23 | the backend `mooncake` of its hierarchical cache, by its factory and controller, with pools of each layout, several ranks, and an SSD; the tests of its package; its transfer engine |
| LMCache 0.5.6 | the connector `mooncakestore` under its remote backend, with metadata in the store and without; its look-up client |
| vLLM 0.33.0 | `MooncakeStoreConnector`, as worker and scheduler, with caches on the CPU; the store of its encoders' embeddings. Not its `MooncakeConnector` |

Each wrote, asked, read, missed, and went on without a master that was killed. What those of LMCache take for a hit then is an
error of the question, which its read finds to be a miss.
"""

_DEFAULTS = """
## Defaults that differ, and why

**Promotion is on** (`--promotion_on_hit` is off there). A read from SSD costs about ten times one from memory, and a value that was
read twice in a short time is likely to be read again. There, promotions are handed out with a heartbeat each ten seconds, and
each reads its value from SSD once more, so that they are worth their price only sometimes. Here the read that earns a promotion
begins it, and gives it the bytes where it has them already. Where memory is fuller than `promotion.high` nothing is promoted until
eviction has made room; `slackwater_promotions_rejected_total` counts what was refused, by why. `promotion.enabled = false` turns it
off; [tuning](tuning.md) says which other options there are.

**Waiting is adaptive.** There, a thread that waits looks without a pause until its bytes are there, which takes a core for each
waiter. Here a waiter looks for at most 100 µs, and only where what it learned of earlier waits says that this is cheaper than a
sleep; then it sleeps until it is woken. `wait = "park"` never looks, `wait = "adaptive:max_spin=20us,cpu_price=4"` looks for a
shorter time and counts CPU dearer, and `wait = "spin"` does as they do. As the variable `SLACKWATER_WAIT` it holds for every
store, engine and message layer of a process.
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [tuple(head)]
    lines += [("---",) * len(lines[0])]
    lines += [tuple(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |".replace(" --- ", "---") for line in lines)


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), 120, break_long_words=False, break_on_hyphens=False)


def _flags(flags: dict[str, dict[str, Any]], option: str) -> Iterable[str]:
    effective = [flag for flag in flags.values() if flag["option"] is not None]
    without = [flag for flag in flags.values() if flag["option"] is None]
    shown = [(f"`--{flag['name']}`", f"`{flag['default']}`", flag["option"], flag["meaning"]) for flag in effective]
    yield _table(("flag", "default there", option, "meaning"), shown)
    yield "\nThese are taken with a warning, and have no effect:\n"
    yield _table(("flag", "why"), ((f"`--{flag['name']}`", flag["meaning"]) for flag in without))


def text() -> str:
    """The guide."""
    names = json.loads((_FOLDER / "names.json").read_text(encoding="utf-8"))
    deviations = json.loads((_FOLDER / "deviations.json").read_text(encoding="utf-8"))
    methods, module = set(dir(store.MooncakeDistributedStore)), set(dir(store))
    has = [name for name in names["MooncakeDistributedStore"] if name in methods]
    lacks = [name for name in names["MooncakeDistributedStore"] if name not in methods]
    absent = [name for name in names["mooncake.store"] if name not in module]
    parts = [
        _HEAD,
        _ENGINES.lstrip(),
        "## Methods\n\nThere, with the same arguments and results but for what the next table says:\n",
        _names(has),
        *(["\nNot there yet; calling one is an `AttributeError`:\n", _names(lacks)] if lacks else []),
        *(["\nOf the names of `mooncake.store` these are not there yet:\n", _names(absent)] if absent else []),
        "\n## What is different\n",
        _table(
            ("", "Mooncake", "Slackwater"), ((row["point"], row["mooncake"], row["slackwater"]) for row in deviations)
        ),
        _DEFAULTS,
        (_FOLDER / "measured.txt").read_text(encoding="utf-8"),
        "## Environment\n",
        _table(("variable", "default", "meaning"), ((f"`{name}`", *row) for name, row in READ.items())),
        "\nThese are read where arguments of calls are made of them:\n",
        _table(("variable", "by"), ((f"`{name}`", who) for name, who in OF_ENGINES.items())),
        "\nThese are reported once when they are set, and have no effect:\n",
        _table(("variable", "why"), ((f"`{name}`", why) for name, why in IGNORED.items())),
        "\n## Flags of `mooncake_master`\n\nWith one or two dashes, as `--name=value` or `--name value`, or in the file that"
        " `--config_path` names.\n",
        *_flags(FLAGS, "option of `slackwater master`"),
        "\n## Flags of `mooncake_client`\n\nWith one or two dashes, as `--name=value` or `--name value`.\n",
        *_flags(standalone.FLAGS, "argument of `setup`"),
        "\n## Flags of `transfer_engine_bench`\n\nWith one or two dashes, as `--name=value` or `--name value`. A target says its"
        " name, which is the `--segment_id` of an initiator.\n",
        *_flags(transfer_engine_bench.FLAGS, "argument of `initialize`"),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(text(), end="")
