"""Calls of a store as data: played against any package `mooncake`, and results that can be compared.

As a program it plays the calls in a file, in an interpreter of its own: `calls.py PACKAGE MASTER CALLS RESULTS`, where
PACKAGE is `mooncake` or `slackwater`. It needs nothing but that package.
"""

import ctypes
import json
import sys
import zlib
from typing import Any

MEMORY = 1 << 20


class Player:
    """A store and memory that its calls use."""

    def __init__(self, module: Any, store: Any) -> None:
        self.module, self.store = module, store
        self.memory = bytearray(bytes(range(256)) * (MEMORY // 256))
        self._held = (ctypes.c_char * MEMORY).from_buffer(self.memory)
        self.base = ctypes.addressof(self._held)

    def play(self, call: list[Any]) -> Any:
        """The result of `[method, arguments, keywords]`, of which the last may be missing."""
        method, arguments, *keywords = call
        given = [self._given(one) for one in arguments]
        named = {name: self._given(one) for name, one in (keywords[0] if keywords else {}).items()}
        try:
            return self._shown(getattr(self.store, method)(*given, **named))
        except Exception as error:
            return {"raises": type(error).__name__}

    def checksum(self) -> int:
        """Of the memory as it is."""
        return zlib.crc32(self.memory)

    def _given(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._given(one) for one in value]
        if not isinstance(value, dict):
            return value
        (kind, content), *_ = value.items()
        if kind == "@":
            return self.base + content
        if kind == "bytes":
            return content.encode("latin-1")
        if kind == "filled":
            return bytes([content[0]]) * content[1]
        assert kind == "config", kind
        config = self.module.ReplicateConfig()
        for name, one in content.items():
            setattr(config, name, getattr(self.module.SoftPinAction, one) if name == "soft_pin_action" else one)
        return config

    def _shown(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return {"bytes": value.decode("latin-1")} if len(value) < 64 else {"crc": zlib.crc32(value)}
        if isinstance(value, (list, tuple)):
            return [self._shown(one) for one in value]
        if isinstance(value, dict):
            return {name: self._shown(one) for name, one in value.items()}
        if hasattr(value, "is_memory_replica"):
            return [value.status.name, value.is_memory_replica(), value.is_disk_replica()]
        if hasattr(value, "ptr"):
            assert len(value) == value.size() == len(memoryview(value)) and value.ptr()
            return {"handle": self._shown(bytes(value))}
        return value


def opened(module: Any, master: str, segment: int = 64 << 20) -> Player:
    """A player whose store lends memory to the master of that address."""
    store = module.MooncakeDistributedStore()
    code = store.setup("localhost", "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", master)
    assert code == 0, f"setup: {code}"
    return Player(module, store)


def main(package: str, master: str, calls: str, results: str) -> None:
    """See the module."""
    if package == "slackwater":
        import slackwater.compat

        slackwater.compat.install(over=True)
    import mooncake.store

    player = opened(mooncake.store, master)
    with open(calls, encoding="utf-8") as file:
        sequences = json.load(file)
    played = []
    for sequence in sequences:
        outcomes = [[player.play(call), player.checksum()] for call in sequence]
        player.store.remove_all(True)
        played.append(outcomes)
    with open(results, "w", encoding="utf-8") as file:
        json.dump(played, file)
    player.store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
