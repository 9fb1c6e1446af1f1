"""The peer of the benchmark: a ROUTER that echoes and DEALERs that ask, over libzmq."""
import os
import sys
import threading
import time

import zmq

context = zmq.Context()


def say(*words):
    print(*words, flush=True)


def end_with_parent():
    sys.stdin.read()
    os._exit(0)


def serve(mechanism):
    threading.Thread(target=end_with_parent, daemon=True).start()
    socket = context.socket(zmq.ROUTER)
    key = b"-"
    if mechanism == "CURVE":
        key, secret = zmq.curve_keypair()
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = key, secret
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    say("listening", f"{port}/{key.decode()}")
    while True:
        socket.send_multipart(socket.recv_multipart(copy=False), copy=False)


def serve_slowly(queue, work):
    threading.Thread(target=end_with_parent, daemon=True).start()
    socket = context.socket(zmq.ROUTER)
    # Answers are never dropped.
    socket.rcvhwm, socket.sndhwm = int(queue), 0
    say("listening", socket.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        frames = socket.recv_multipart()
        if len(frames) > 2:
            time.sleep(float(work))
        socket.send_multipart(frames)


def burst(port, queue):
    socket = context.socket(zmq.DEALER)
    socket.sndhwm, socket.rcvhwm, socket.rcvtimeo, socket.sndtimeo = int(queue), 0, 15_000, 15_000
    socket.connect(f"tcp://127.0.0.1:{port}")
    socket.send(b"")
    socket.recv()
    say("ready")
    for line in sys.stdin:
        _, requests, size = line.split()
        requests, body, answered = int(requests), bytes(int(size)), 0
        began = time.perf_counter()
        sent = last = 0.0
        try:
            for _ in range(requests):
                socket.send_multipart((b"bench.slow", b"t" * 15, body))
            sent = time.perf_counter() - began
            while answered < requests:
                socket.recv_multipart()
                answered += 1
                last = time.perf_counter() - began
        except zmq.Again:
            pass
        say("burst", answered, 0, requests - answered, sent, 0, last)


def ask(address, count):
    port, key = address.split("/", 1)
    sockets = []
    for _ in range(int(count)):
        socket = context.socket(zmq.DEALER)
        if key != "-":
            public, secret = zmq.curve_keypair()
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = key.encode(), public, secret
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(b"")
        socket.recv()
        sockets.append(socket)
    say("ready")
    clock = time.perf_counter_ns
    for line in sys.stdin:
        _, size, seconds = line.split()
        body, times = bytes(int(size)), []
        head, tag = b"bench.echo", b"t" * 15
        began = clock()
        until = began + int(float(seconds) * 1e9)
        if len(sockets) == 1:
            socket = sockets[0]
            now = began
            while now < until:
                asked = now
                socket.send_multipart((head, tag, body))
                socket.recv_multipart()
                now = clock()
                times.append(now - asked)
        else:
            poller = zmq.Poller()
            asked = {}
            for socket in sockets:
                poller.register(socket, zmq.POLLIN)
                asked[socket] = clock()
                socket.send_multipart((head, tag, body))
            while asked:
                for socket, _ in poller.poll():
                    socket.recv_multipart()
                    now = clock()
                    times.append(now - asked.pop(socket))
                    if now < until:
                        asked[socket] = now
                        socket.send_multipart((head, tag, body))
        took = (clock() - began) / 1e9
        times.sort()
        say("asked", len(times), took, times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3)


part = {"rpc-server": serve, "rpc-client": ask, "burst-server": serve_slowly, "burst-client": burst}
part[sys.argv[1]](*sys.argv[2:])
