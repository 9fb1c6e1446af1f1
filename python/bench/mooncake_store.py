"""How fast a program reads and stores values by `mooncake.store`, with Mooncake's package or with Slackwater's, unchanged.

`mooncake_store.py lend MASTER BYTES` lends memory to the pool of that master, fills it with values and lets others read them
until its standard input ends. `mooncake_store.py run MASTER OPERATION THREADS SECONDS` is another process, which lends nothing:
its threads read values by `get_into`, or store new ones by `put_from` and remove them. `mooncake_turns.py` runs both, in turns
with those of the other package.
"""

import ctypes
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from mooncake.store import MooncakeDistributedStore

BLOCK, VALUES = 1 << 20, 512
# Memory that the buffers of all threads lie in: more than a cache holds, as that of an engine is.
BUFFER_BYTES = 64 << 20


def opened(master: str, lent: int) -> Any:
    """A client; one that lends nothing reads what others have."""
    store = MooncakeDistributedStore()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{free.getsockname()[1]}"
    code = store.setup(name, "P2PHANDSHAKE", lent, BUFFER_BYTES, "tcp", "", master)
    if code != 0:
        sys.exit(f"setup: {code}")
    return store


def lend(master: str, lent: str) -> None:
    """Lends memory with values in it."""
    store = opened(master, int(lent))
    for number in range(VALUES):
        code = store.put(f"value-{number}", number.to_bytes(8, "little") + os.urandom(BLOCK - 8))
        if code != 0:
            sys.exit(f"put: {code}")
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


class Thread:
    """What one thread does, with memory of its own."""

    def __init__(self, store: Any, number: int, slots: int) -> None:
        self.store, self.number, self.slots, self.turn = store, number, slots, number
        # Written once, so that every page is there.
        self.memory = bytearray(os.urandom(BLOCK) * slots)
        self.place = ctypes.addressof((ctypes.c_char * len(self.memory)).from_buffer(self.memory))
        if (code := store.register_buffer(self.place, len(self.memory))) != 0:
            sys.exit(f"register_buffer: {code}")
        self.times: list[float] = []
        self.wrong: str | None = None

    def get_into(self, at: int) -> bool:
        """Reads a value; whether it is the one that was asked for."""
        self.turn = (self.turn * 1103515245 + 12345) & 0x7FFFFFFF
        value = (self.turn >> 8) % VALUES
        begun = time.perf_counter()
        length = self.store.get_into(f"value-{value}", self.place + at, BLOCK)
        self.times.append(time.perf_counter() - begun)
        return length == BLOCK and int.from_bytes(self.memory[at : at + 8], "little") == value

    def put_from(self, at: int) -> bool:
        """Stores a value under a new key, and removes it, which is not counted in the time of the call."""
        key = f"new-{os.getpid()}-{self.number}-{len(self.times)}"
        begun = time.perf_counter()
        stored = self.store.put_from(key, self.place + at, BLOCK)
        self.times.append(time.perf_counter() - begun)
        return stored == 0 and self.store.remove(key, True) == 0

    def run(self, operation: str, seconds: float, begin: threading.Barrier) -> None:
        """Calls for as long as is said."""
        call = getattr(self, operation)
        begin.wait()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if not call(len(self.times) % self.slots * BLOCK):
                self.wrong = f"{operation}: call {len(self.times)} of thread {self.number} failed"
                return


def run(master: str, operation: str, threads: str, seconds: str) -> None:
    """Says `ready`, waits for a line, calls, and prints calls a second and their times as JSON."""
    store, count = opened(master, 0), int(threads)
    workers = [Thread(store, number, max(1, BUFFER_BYTES // count // BLOCK)) for number in range(count)]
    begin = threading.Barrier(count + 1)
    arguments = operation, float(seconds), begin
    running = [threading.Thread(target=worker.run, args=arguments) for worker in workers]
    for thread in running:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    begin.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    took = time.perf_counter() - began
    for worker in workers:
        if worker.wrong:
            sys.exit(worker.wrong)
        store.unregister_buffer(worker.place)
    times = sorted(time for worker in workers for time in worker.times)
    half, late = (times[min(len(times) - 1, int(len(times) * share))] * 1e6 for share in (0.5, 0.99))
    print(json.dumps({"gbps": len(times) * BLOCK / took / 1e9, "p50_us": half, "p99_us": late}), flush=True)
    store.close()


if __name__ == "__main__":
    {"lend": lend, "run": run}[sys.argv[1]](*sys.argv[2:])
