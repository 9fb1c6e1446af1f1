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

    def sequence(self, sequence: list[list[Any]]) -> list[Any]:
        """The results of calls, and the checksum of the memory after each that succeeded; nothing is left behind."""
        outcomes = []
        for call in sequence:
            result = self.play(call)
            succeeded = not _has_code(result)
            outcomes.append([result, zlib.crc32(self.memory) if succeeded else None])
            if not succeeded:
                # What a failed call leaves in the memory means nothing.
                self.fill()
        keys = sorted({key for call in sequence for key in _texts(call[1])})
        self.store.batch_get_session_end(keys)
        self.store.batch_put_session_revoke(keys)
        self.store.remove_all(True)
        self.fill()
        return outcomes

    def fill(self) -> None:
        """Each byte of the memory is the last of its offset again."""
        self.memory[:] = bytes(range(256)) * (MEMORY // 256)

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
        if kind == "repeated":
            return content[0] * content[1]
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


def _has_code(result: Any) -> bool:
    if isinstance(result, list):
        return any(_has_code(one) for one in result)
    return isinstance(result, int) and result < 0


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) and value else []


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
    assert player.store.register_buffer(player.base, MEMORY) == 0
    with open(calls, encoding="utf-8") as file:
        sequences = json.load(file)
    played = [player.sequence(sequence) for sequence in sequences]
    with open(results, "w", encoding="utf-8") as file:
        json.dump(played, file)
    player.store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
