"""Makes curve.txt: the handshake of CurveZMQ (ZeroMQ RFC 26) by libsodium, from the fixed keys of the test.

Run with PyNaCl installed: python make.py > curve.txt
"""
import struct

from nacl import bindings as nacl


def random_like(seed):
    return bytes(((seed * 31 + i * 7) & 0xFF) ^ 0x5A for i in range(112))


def counter(prefix, n):
    return prefix + struct.pack(">Q", n)


def box(plain, nonce, public, secret):
    return nacl.crypto_box(plain, nonce, public, secret)


def public(secret):
    return nacl.crypto_scalarmult_base(secret)


def prop(name, value):
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


client_secret, server_secret = bytes([1] * 32), bytes([2] * 32)
C, S = public(client_secret), public(server_secret)
ours, theirs = random_like(3), random_like(4)
c1, vouch_nonce = ours[:32], ours[64:80]
s1, cookie_key, cookie_nonce, welcome_nonce = theirs[:32], theirs[32:64], theirs[80:96], theirs[96:112]
C1, S1 = public(c1), public(s1)

hello = b"\x05HELLO\x01\x00" + bytes(72) + C1 + struct.pack(">Q", 1)
hello += box(bytes(64), counter(b"CurveZMQHELLO---", 1), S, c1)

cookie = cookie_nonce + nacl.crypto_secretbox(C1 + s1, b"COOKIE--" + cookie_nonce, cookie_key)
welcome = b"\x07WELCOME" + welcome_nonce + box(S1 + cookie, b"WELCOME-" + welcome_nonce, C1, server_secret)

vouch = box(C1 + S, b"VOUCH---" + vouch_nonce, S1, client_secret)
metadata = prop(b"Socket-Type", b"DEALER") + prop(b"Identity", b"")
initiate = b"\x08INITIATE" + cookie + struct.pack(">Q", 2)
initiate += box(C + vouch_nonce + vouch + metadata, counter(b"CurveZMQINITIATE", 2), S1, c1)

metadata = prop(b"Socket-Type", b"ROUTER") + prop(b"Identity", b"")
ready = b"\x05READY" + struct.pack(">Q", 1) + box(metadata, counter(b"CurveZMQREADY---", 1), C1, s1)


def message(prefix, n, flags, payload, public_key, secret):
    return b"\x07MESSAGE" + struct.pack(">Q", n) + box(bytes([flags]) + payload, counter(prefix, n), public_key, secret)


up = [message(b"CurveZMQMESSAGEC", 3, 1, b"first", S1, c1), message(b"CurveZMQMESSAGEC", 4, 0, b"", S1, c1)]
down = [message(b"CurveZMQMESSAGES", 2, 0, b"answer", C1, s1)]

for name, body in [("hello", hello), ("welcome", welcome), ("initiate", initiate), ("ready", ready)]:
    print(name, body.hex())
for body in up:
    print("up", body.hex())
for body in down:
    print("down", body.hex())
