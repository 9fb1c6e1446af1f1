"""Plays random calls in any order on one store and one engine, from several threads and under Ctrl-C: `disorder.py MASTER SEED`.

Calls are made before `setup`, after `close`, during both, and twice. What a call gives is of no interest, so long as it gives
something: at the end the process is alive, and the store works.
"""

import logging
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import slackwater.compat

slackwater.compat.install(over=True)
sys.path.insert(0, str(Path(__file__).parent))

import calls
import mooncake.store
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

THREADS, STEPS, INTERRUPT_EVERY = 3, 150, 0.004


class Disorder:
    """A store, an engine, and memory of both."""

    def __init__(self, master: str) -> None:
        self.master = master
        self.player = calls.Player(mooncake.store, mooncake.store.MooncakeDistributedStore())
        self.engine = TransferEngine()

    def setup(self, draw: random.Random) -> Any:
        """With arguments that are right, or others."""
        given = ["localhost", "P2PHANDSHAKE", draw.choice([0, 0, 1 << 20]), draw.choice([0, 1 << 20]), "tcp", "", self.master]
        if draw.random() < 0.2:
            given[draw.randrange(7)] = draw.choice(["", "x", -1, None, 1 << 70])
        if draw.random() < 0.2:
            names = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol")
            return self.player.store.setup(dict(zip(names, given, strict=False)) | {"master_server_addr": self.master})
        return self.player.store.setup(*given)

    def life(self, draw: random.Random) -> Any:
        """Begins, ends, or is asked how it is."""
        store, base = self.player.store, self.player.base
        choices = [
            lambda: self.setup(draw), lambda: self.setup(draw), store.close, lambda: (store.close(), store.close()),
            store.health_check, store.get_hostname, store.get_offload_rpc_read_count,
            lambda: store.register_buffer(base, draw.choice([0, 1000, calls.MEMORY])), lambda: store.unregister_buffer(base),
            lambda: store.allocate_and_mount_segment(1 << 20), lambda: store.unmount_and_free_segment(["1-2"]),
            lambda: store.alloc_from_mem_pool(10), lambda: store.setup_dummy(0, 0, "127.0.0.1:1"),
            lambda: store.create_copy_task("a", ["x"]), lambda: store.query_task((1, 2)), store.unmount_local_disk_segment,
        ]  # fmt: skip
        return draw.choice(choices)()

    def transfer(self, draw: random.Random) -> Any:
        """A call of the engine, whose peer is itself or nobody."""
        engine, base = self.engine, self.player.base
        peer = draw.choice([f"127.0.0.1:{engine.get_rpc_port()}", "127.0.0.1:1", ""])
        given = (peer, base + draw.randrange(1000), base + draw.randrange(1000), draw.choice([0, 10, 1 << 30]))
        listed = (given[0], *([one] for one in given[1:]))
        choices = [
            lambda: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), lambda: engine.register_memory(base, 2000),
            lambda: engine.unregister_memory(base), lambda: engine.transfer_sync_write(*given),
            lambda: engine.transfer_sync(*given, TransferOpcode.Read, TransferNotify("a", "b")),
            lambda: engine.batch_transfer_sync_read(*listed), lambda: engine.transfer_check_status(draw.randrange(9)),
            lambda: engine.get_batch_transfer_status([engine.batch_transfer_async_write(*listed), draw.randrange(9)]),
            lambda: engine.free_managed_buffer(engine.allocate_managed_buffer(draw.choice([0, -1, 4096])), 1),
            engine.get_notifies, lambda: engine.send_probe(peer), lambda: engine.get_first_buffer_address(peer),
            lambda: engine.write_bytes_to_buffer(base, b"x", 1), lambda: engine.read_bytes_from_buffer(base, 5),
        ]  # fmt: skip
        return draw.choice(choices)()

    def step(self, draw: random.Random, call: list[Any]) -> None:
        """One call, of any kind. What it raises is about its arguments."""
        kind = draw.random()
        try:
            if kind < 0.6:
                self.player.play(call)
            elif kind < 0.85:
                self.life(draw)
            else:
                self.transfer(draw)
        except (TypeError, ValueError):
            pass

    def run(self, seed: int) -> None:
        """Makes calls."""
        # Where Mooncake's calls are drawn for the comparison.
        from test_differential import drawn

        draw = random.Random(seed)
        for call in [call for _ in range(STEPS) for call in drawn(draw)][:STEPS]:
            self.step(draw, call)


def main(master: str, seed: int) -> None:
    """See the module."""
    # Before Python 3.13, Ctrl-C can come between a handler's lock and what would release it: all that log then wait for ever.
    logging.disable()
    disorder = Disorder(master)
    threads = [threading.Thread(target=disorder.run, args=(seed * 100 + number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    # Threads of Python's own are not interrupted: this one is, in whatever call it is.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted, draw = 0, random.Random(seed)
    from test_differential import drawn

    for call in drawn(draw) * 8:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.random() * INTERRUPT_EVERY)
            disorder.step(draw, call)
        except KeyboardInterrupt:
            interrupted += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    for thread in threads:
        thread.join()
    store = disorder.player.store
    ended = [store.close(), store.close(), store.put("k", b"v"), store.get("k")]
    assert ended == [0, 0, -600, b""], ended
    anew = [store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master), store.upsert("k", b"v"), store.get("k"), store.close()]
    assert anew == [0, 0, b"v", 0], anew
    print("alive after", interrupted, "interruptions")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
