"""A client with many links over libzmq, which waits for all of them by libzmq's own poll, or by epoll on their descriptors.

Python only counts: a poll is one call of zmq_poll over an array that is made once, as a program in C makes it.
"""
import ctypes
import os
import resource
import select
import sys
import time

import zmq

# Links that are opened at a time.
OPENING = 256
# Links of one source address. libzmq binds each connection to it, and the kernel walks over the ports that are taken: beyond some
# 8,000 of one address, those of connections that have ended lately included, a link takes milliseconds and more.
SOURCE = 1_000
SETTLING = 0.05
# A client is even with its messages when none comes for so long, and is given up when that takes too long.
QUIET, PATIENCE = 0.1, 8.0


class PollItem(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_void_p), ("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def library():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/libzmq" in line}
    if not paths:
        sys.exit("the libzmq of this pyzmq is no library of its own")
    return ctypes.CDLL(paths.pop())


class Poll:
    """All sockets in one zmq_poll."""

    def __init__(self, sockets):
        self.sockets = sockets
        self.items = (PollItem * (len(sockets) + 1))()
        for item, socket in zip(self.items, sockets):
            item.socket, item.events = socket.underlying, zmq.POLLIN
        self.items[-1].fd, self.items[-1].events = 0, zmq.POLLIN
        self.ready = memoryview(self.items).cast("B").cast("h")[7::8]
        self.call = library().zmq_poll

    def wait(self, seconds):
        """The sockets that may have messages, and whether the parent has spoken."""
        timeout = -1 if seconds is None else max(0, int(seconds * 1e3) + 1)
        self.call(self.items, len(self.items), ctypes.c_long(timeout))
        ready = [at for at, events in enumerate(self.ready) if events]
        spoken = bool(ready) and ready[-1] == len(self.sockets)
        return [self.sockets[at] for at in ready[: len(ready) - spoken]], spoken


class Epoll:
    """The descriptors that libzmq gives for its sockets; only those that were signalled are asked."""

    def __init__(self, sockets):
        self.epoll = select.epoll()
        self.sockets = {socket.getsockopt(zmq.FD): socket for socket in sockets}
        for descriptor, socket in self.sockets.items():
            self.epoll.register(descriptor, select.EPOLLIN)
            # A socket signals only after it was found empty.
            socket.getsockopt(zmq.EVENTS)
        self.epoll.register(0, select.EPOLLIN)

    def wait(self, seconds):
        ready = [descriptor for descriptor, _ in self.epoll.poll(seconds)]
        # Asking for events makes libzmq take the signal away.
        signalled = [self.sockets[at] for at in ready if at != 0]
        return [socket for socket in signalled if socket.getsockopt(zmq.EVENTS) & zmq.POLLIN], 0 in ready


class Client:
    def __init__(self, kind, address, count, heartbeats):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        before, began = resident(), time.monotonic()
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, count + 16)
        sockets, pid = [], os.getpid()
        for number in range(count):
            socket = context.socket(zmq.DEALER)
            socket.linger, socket.rcvtimeo = 0, 30_000
            if heartbeats == "on":
                socket.heartbeat_ivl, socket.heartbeat_timeout = 15_000, 30_000
            source = f"127.{64 + pid % 128}.{pid // 128 % 256}.{1 + number // SOURCE}:0"
            socket.connect(address.replace("tcp://", f"tcp://{source};"))
            socket.send(b"HI")
            sockets.append(socket)
            if number >= OPENING:
                sockets[number - OPENING].recv_multipart()
        for socket in sockets[-OPENING:]:
            socket.recv_multipart()
        seconds = time.monotonic() - began
        for socket in sockets:
            socket.send(b"bench.register")
        self.waiter = {"poll": Poll, "epoll": Epoll}[kind](sockets)
        say("ready", seconds, (resident() - before) / count)

    def turn(self, seconds, times):
        """Waits and takes every message; the time of the last one, and whether the parent has spoken."""
        ready, spoken = self.waiter.wait(seconds)
        for socket in ready:
            try:
                while True:
                    body = socket.recv_multipart(zmq.NOBLOCK)[-1]
                    times.append(now() - int.from_bytes(body[:8], "little"))
            except zmq.Again:
                pass
        return len(ready), spoken

    def until(self, end, times):
        while (left := end - time.monotonic()) > 0:
            self.turn(left, times)

    def obey(self):
        orders = Orders()
        while True:
            while not (order := orders.next()):
                spoken = False
                while not spoken:
                    _, spoken = self.turn(None, [])
                orders.read()
            if order[0] == "measure":
                self.measure(float(order[1]))
            elif order[0] == "drain":
                end = time.monotonic() + PATIENCE
                while self.turn(QUIET, [])[0] and time.monotonic() < end:
                    pass
                say("drained")

    def measure(self, seconds):
        self.until(time.monotonic() + SETTLING, [])
        times, began, cpu = [], time.monotonic(), time.process_time()
        self.until(began + seconds, times)
        cpu, took = time.process_time() - cpu, time.monotonic() - began
        times.sort()
        at = lambda share: times[min(len(times) - 1, int(len(times) * share))] / 1e3 if times else 0.0
        say("measured", len(times), took, cpu, at(0.5), at(0.99), 0)


class Orders:
    """Lines of the parent, read only when there are some."""

    def __init__(self):
        self.text = b""

    def next(self):
        line, end, rest = self.text.partition(b"\n")
        if not end:
            return None
        self.text = rest
        return line.decode().split() or ["nothing"]

    def read(self):
        more = os.read(0, 4096)
        if not more:
            os._exit(0)
        self.text += more


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()


def say(*words):
    print(*words, flush=True)


_, kind, address, count, heartbeats = sys.argv
Client(kind, address, int(count), heartbeats).obey()
