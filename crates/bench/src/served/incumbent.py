"""A node or a client of the incumbent's store, by its own Python API, as its users call it."""
import ctypes
import os
import socket
import sys
import threading
import time

from mooncake.store import MooncakeDistributedStore

# Memory that the buffers of all threads lie in.
BUFFER_BYTES = 64 << 20


def main(part, master, memory):
    store = MooncakeDistributedStore()
    # A client that lends nothing reads by TCP and not by a copy of its own.
    lent = int(memory) if part == "node" else 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{free.getsockname()[1]}"
    code = store.setup(name, "P2PHANDSHAKE", lent, BUFFER_BYTES, "tcp", "", master)
    if code != 0:
        fail(f"setup: {code}")
    say("ready")
    filled = []
    for line in sys.stdin:
        order, *numbers = line.split()
        block, count, concurrency, millis = (int(number) for number in numbers)
        if order == "fill":
            for key in filled:
                store.remove(key)
            filled = [key_of(block, number) for number in range(count)]
            for number, key in enumerate(filled):
                code = store.put(key, value_of(block, number))
                if code != 0:
                    fail(f"put: {code}")
            say("filled")
        else:
            run(store, block, count, concurrency, millis / 1e3)


def key_of(block, number):
    return f"value-{block}-{number}"


def value_of(block, number):
    return number.to_bytes(8, "little") + bytes([7]) * (block - 8)


def run(store, block, count, concurrency, window):
    slots = max(1, BUFFER_BYTES // concurrency // block)
    memory = [bytearray(b"\1") * (slots * block) for _ in range(concurrency)]
    places = [ctypes.addressof((ctypes.c_char * len(one)).from_buffer(one)) for one in memory]
    for place in places:
        if (code := store.register_buffer(place, slots * block)) != 0:
            fail(f"register_buffer: {code}")
    barrier, done, wrong = threading.Barrier(concurrency), [], []

    def read(thread):
        mine, times, turn = memory[thread], [], thread
        barrier.wait()
        first = last = time.perf_counter()
        while last < first + window:
            turn = (turn * 1103515245 + 12345) & 0x7FFFFFFF
            number, at = (turn >> 8) % count, len(times) % slots * block
            begun = time.perf_counter()
            read = store.get_into(key_of(block, number), places[thread] + at, block)
            last = time.perf_counter()
            if read != block or int.from_bytes(mine[at : at + 8], "little") != number:
                wrong.append((number, read))
                return
            times.append((last - begun) * 1e6)
        done.append((first, last, times))

    threads = [threading.Thread(target=read, args=(thread,)) for thread in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place in places:
        store.unregister_buffer(place)
    if wrong:
        fail(f"get_into of value {wrong[0][0]}: {wrong[0][1]}")
    seconds = max(last for _, last, _ in done) - min(first for first, _, _ in done)
    times = sorted(took for *_, of in done for took in of)
    at = lambda share: times[min(len(times) - 1, int(len(times) * share))]
    say("ran", len(times), seconds, at(0.5), at(0.99))


def say(*words):
    print(*words, flush=True)


def fail(why):
    say("failed:", why)
    os._exit(1)


main(*sys.argv[1:])
