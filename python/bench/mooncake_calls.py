"""How fast calls of `mooncake.store` are: `python python/bench/mooncake_calls.py HOST:PORT`, of a `slackwater serve` with 1 GiB.

Prints what 64 threads read by `get_into` to what one thread reads, in rounds that take turns, and how long `batch_is_exist`
takes for 10,000 keys of which every second is there.
"""

import ctypes
import statistics
import sys
import threading
import time

import slackwater.compat

slackwater.compat.install(over=True)

from mooncake.store import MooncakeDistributedStore

ROUNDS, ROUND_SECONDS = 9, 0.5
THREADS, KEYS = 64, 10_000
SIZES = (4096, 65536, 1 << 20)


def read_for(store: MooncakeDistributedStore, threads: int, size: int, buffers: list[ctypes.Array[ctypes.c_char]]) -> float:
    """Bytes a second that so many threads read together."""
    begin, counts = threading.Barrier(threads + 1), [0] * threads
    key = f"value-{size}"

    def run(thread: int) -> None:
        address = ctypes.addressof(buffers[thread])
        begin.wait()
        until = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            if store.get_into(key, address, size) != size:
                raise SystemExit("a read failed")
            counts[thread] += 1

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    begin.wait()
    began = time.monotonic()
    for thread in running:
        thread.join()
    return sum(counts) * size / (time.monotonic() - began)


def main() -> None:
    """Measures and prints."""
    store = MooncakeDistributedStore()
    if store.setup("localhost", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", sys.argv[1]) != 0:
        sys.exit("no store there")
    buffers = [ctypes.create_string_buffer(max(SIZES)) for _ in range(THREADS)]
    for size in SIZES:
        store.put(f"value-{size}", bytes(size))
        rounds = [(read_for(store, 1, size, buffers), read_for(store, THREADS, size, buffers)) for _ in range(ROUNDS)]
        ratios = sorted(many / one for one, many in rounds)
        one = statistics.median(one for one, _ in rounds)
        print(
            f"get_into of {size} bytes: {THREADS} threads / 1 thread {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} - {ratios[-1]:.2f}), 1 thread {one / 1e9:.2f} GB/s, {size / one * 1e6:.1f} us a call"
        )
    names = [f"key-{number}" for number in range(KEYS)]
    if store.put_batch(names[::2], [b"v"] * (KEYS // 2)) != 0:
        sys.exit("the keys are not stored")
    times = []
    for _ in range(50):
        began = time.monotonic()
        found = store.batch_is_exist(names)
        times.append(time.monotonic() - began)
    assert sum(found) == KEYS // 2
    times.sort()
    print(f"batch_is_exist of {KEYS} keys: {times[0] * 1e3:.2f} ms at least, p50 {times[25] * 1e3:.2f}, most {times[-1] * 1e3:.2f}")
    store.remove_all(True)
    store.close()


if __name__ == "__main__":
    main()
