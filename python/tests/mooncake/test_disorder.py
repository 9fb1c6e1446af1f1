"""No order of calls ends the process, and none leaves a store that does not work."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mooncake.store import MooncakeDistributedStore
from test_life import setup

from conftest import Starter

SEED = int(os.environ.get("MOONCAKE_SEED", "14"))
SCRIPT = Path(__file__).with_name("disorder.py")
IMPORTS = """
import sys
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, bind_to_numa_node
before, master = set(sys.modules), sys.argv[1]
store, engine = MooncakeDistributedStore(), TransferEngine()
assert store.setup("localhost", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", master) == 0
assert store.put("k", b"v") == 0 and store.get("k") == b"v" and store.remove("k", True) == 0
assert store.setup_dummy(0, 0, "127.0.0.1:1") != 0
assert engine.initialize("localhost", "P2PHANDSHAKE", "tcp", "") == 0
engine.transfer_sync_write("127.0.0.1:1", 0, 0, 1)
bind_to_numa_node(0)
driven = MooncakeDistributedStoreAsync()
store.close()
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("number", range(4))
def test_calls_in_any_order_leave_a_store_that_works(number: int, started: Starter) -> None:
    """`MOONCAKE_SEED` draws other calls."""
    seed = SEED + number
    variables = {**os.environ, "MC_TRANSFER_TIMEOUT": "5"}
    with started("master", "--put-wait", "100ms") as (address, _):
        lender = MooncakeDistributedStore()
        assert lender.setup("localhost", "P2PHANDSHAKE", 32 << 20, 0, "tcp", "", address) == 0
        command = [sys.executable, "-X", "faulthandler", str(SCRIPT), address, str(seed)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, env=variables)
        lender.close()
    assert ran.returncode == 0 and ran.stdout.startswith("alive after"), f"seed {seed}: {ran.returncode}\n{ran.stderr[-4000:]}"
    assert int(ran.stdout.split()[2]) > 0, "nothing was interrupted"


def test_a_call_imports_nothing_where_ctrl_c_could_come(master: str) -> None:
    """The first look-up of a name imported a codec. Ctrl-C there blocked every later import, or each look-up failed."""
    ran = subprocess.run([sys.executable, "-c", IMPORTS, master], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr


def test_an_interruption_of_what_is_logged_is_not_lost(master: str) -> None:
    """Ctrl-C that came while the reason of a code was logged was printed, and the program went on."""

    class Interrupted(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise KeyboardInterrupt

    store, handler, log = MooncakeDistributedStore(), Interrupted(), logging.getLogger("slackwater.mooncake")
    assert setup(store, master) == 0
    log.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.put("", b"v")
            store.is_exist("k")
    finally:
        log.removeHandler(handler)
    assert store.put("", b"v") == -600 and store.put("k", b"v") == 0 == store.remove("k", True) == store.close()
