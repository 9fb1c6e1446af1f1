"""How fast calls of `mooncake.store` are: `python python/bench/mooncake_calls.py HOST:PORT`, of a `slackwater serve` with 1 GiB.

Prints how long calls of one thread take, to be held against `slackwater bench store --served --paths same_host --blocks 4KiB
--concurrency 1` for the same from Rust; what 64 threads read by `get_into` to what one thread reads, in rounds that take turns,
beside what they copy without a store while they hold the interpreter's lock; and how long `batch_is_exist`
takes for 10,000 keys of which every second is there.
"""

import ctypes
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import slackwater.compat

slackwater.compat.install(over=True)

from mooncake.store import MooncakeDistributedStore

ROUNDS, ROUND_SECONDS = 9, 0.5
THREADS, KEYS = 64, 10_000
SIZES = (4096, 65536, 1 << 20)
CALLS, PAGE, PAGES = 20_000, 4096, 128


def moved_for(threads: int, size: int, move: Callable[[int], int]) -> float:
    """Bytes a second that so many threads move together."""
    begin, counts, wrong = threading.Barrier(threads + 1), [0] * threads, []

    def run(thread: int) -> None:
        begin.wait()
        until = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            if (moved := move(thread)) != size:
                wrong.append(moved)
                return
            counts[thread] += 1

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    begin.wait()
    began = time.monotonic()
    for thread in running:
        thread.join()
    if wrong:
        sys.exit(f"a thread moved {wrong[0]} bytes of {size}")
    return sum(counts) * size / (time.monotonic() - began)


def show_threads(store: MooncakeDistributedStore) -> None:
    """Prints what many threads read to what one reads, and what they copy to what one copies."""
    memory = [bytearray(max(SIZES)) for _ in range(THREADS)]
    addresses = [ctypes.addressof((ctypes.c_char * len(one)).from_buffer(one)) for one in memory]
    for size in SIZES:
        key, value = f"value-{size}", bytes(size)
        store.put(key, value)
        views = [memoryview(one)[:size] for one in memory]

        def read(thread: int, key: str = key, size: int = size) -> int:
            return store.get_into(key, addresses[thread], size)

        def copy(thread: int, views: list[memoryview] = views, value: bytes = value) -> int:
            views[thread][:] = value
            return len(value)

        kept: dict[str, list[float]] = {"reads": [], "copies": []}
        alone = []
        for _ in range(ROUNDS):
            for name, move in (("reads", read), ("copies", copy)):
                one = moved_for(1, size, move)
                kept[name].append(moved_for(THREADS, size, move) / one)
                if move is read:
                    alone.append(one)
        one = statistics.median(alone)
        told = ", ".join(f"{name} {statistics.median(of):.2f} ({min(of):.2f} - {max(of):.2f})" for name, of in kept.items())
        print(f"{size} bytes, {THREADS} threads / 1 thread: {told}; get_into by 1 thread {one / 1e9:.2f} GB/s, {size / one * 1e6:.1f} us a call")


def show_calls(store: MooncakeDistributedStore) -> None:
    """Prints the median time of each call of one thread, and of a page of each batch."""
    buffer = ctypes.create_string_buffer(PAGES * PAGE)
    begin = ctypes.addressof(buffer)
    store.register_buffer(begin, len(buffer))
    value = bytes(PAGE)
    store.put("page", value)
    pages = [f"page-{number}" for number in range(PAGES)]
    addresses, sizes = [begin + PAGE * number for number in range(PAGES)], [PAGE] * PAGES

    def half_of(call: Callable[[], Any], expected: Any, after: Callable[[], Any] = lambda: None, times: int = CALLS) -> float:
        """Microseconds."""
        took = []
        for _ in range(times):
            began = time.perf_counter_ns()
            result = call()
            took.append(time.perf_counter_ns() - began)
            if result != expected:
                raise SystemExit(f"a call gave {result}")
            after()
        return statistics.median(took) / 1e3

    def remove() -> None:
        for name in ("new", *pages):
            store.remove(name, True)

    rows = [
        ("get_into", half_of(lambda: store.get_into("page", begin, PAGE), PAGE)),
        ("get", half_of(lambda: store.get("page"), value)),
        ("is_exist", half_of(lambda: store.is_exist("page"), 1)),
        ("put", half_of(lambda: store.put("new", value), 0, lambda: store.remove("new", True))),
        ("put_from", half_of(lambda: store.put_from("new", begin, PAGE), 0, lambda: store.remove("new", True))),
    ]
    for name, took in rows:
        print(f"{name} of {PAGE} bytes: p50 {took:.1f} us")
    few = CALLS // PAGES
    stored = half_of(lambda: store.batch_put_from(pages, addresses, sizes), [0] * PAGES, remove, few)
    store.batch_put_from(pages, addresses, sizes)
    read = half_of(lambda: store.batch_get_into(pages, addresses, sizes), [PAGE] * PAGES, times=few)
    for name, took in (("batch_put_from", stored), ("batch_get_into", read)):
        print(f"{name} of {PAGES} pages: p50 {took:.0f} us, {took / PAGES:.2f} us a page")
    store.unregister_buffer(begin)


def main() -> None:
    """Measures and prints."""
    store = MooncakeDistributedStore()
    if store.setup("localhost", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", sys.argv[1]) != 0:
        sys.exit("no store there")
    show_calls(store)
    show_threads(store)
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
