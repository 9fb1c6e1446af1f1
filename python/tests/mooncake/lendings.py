"""Calls that lend files and memory as a list of steps: what each gives, in any package `mooncake`.

As a program it prints that for an interpreter of its own: `lendings.py PACKAGE MASTER FILE`, where PACKAGE is `mooncake` or
`slackwater`, and FILE is one of 64 MiB.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

UNIT = 16 << 20


def steps(store: Any, other: Any, file: str) -> list[tuple[str, Callable[[], Any]]]:
    """Each with what it does."""
    held: dict[str, str] = {}

    def lend(name: str, *arguments: Any, by: Any = store) -> Callable[[], Any]:
        """Keeps the id under a name, and gives how many there are instead."""

        def call() -> Any:
            is_file = isinstance(arguments[0], (str, bytes))
            made = (by.mount_segment if is_file else by.allocate_and_mount_segment)(*arguments)
            held.update((name, identity) for identity in made["segment_ids"])
            assert all(part.isdigit() for identity in made["segment_ids"] for part in identity.split("-"))
            return made | {"segment_ids": len(made["segment_ids"])}

        return call

    def take(*names: str, by: Any = store, free: bool = False, grace: int = 0) -> Callable[[], Any]:
        """By names, and ids where there is no such name."""

        def call() -> Any:
            ids = [held.get(name, name) for name in names]
            return (by.unmount_and_free_segment if free else by.unmount_segment)(ids, grace)

        return call

    return [
        ("no file", lend("x", "/nowhere", UNIT)),
        ("an empty name", lend("x", "", UNIT)),
        ("a directory", lend("x", "/dev/shm", UNIT)),
        ("a long name", lend("x", "/tmp/" + "x" * 5000, UNIT)),
        ("a null", lend("x", "/tmp/a\0b", UNIT)),
        ("no bytes", lend("x", file, 0)),
        ("no bytes of no file", lend("x", "/nowhere", 0)),
        ("no bytes behind the end", lend("x", file, 0, 128 << 20)),
        ("fewer than none", lend("x", file, -1)),
        ("a text for a size", lend("x", file, "1")),
        ("a fraction", lend("x", file, 1.5)),
        ("an offset within a page", lend("x", file, UNIT, 1)),
        ("an offset before the file", lend("x", file, UNIT, -1)),
        ("an offset behind the end", lend("x", file, UNIT, 64 << 20)),
        ("more than the file", lend("x", file, (64 << 20) + 1)),
        ("more than a machine", lend("x", file, 1 << 45)),
        ("memory of more than a machine", lend("x", 1 << 45)),
        ("memory of no bytes", lend("x", 0)),
        ("a name in bytes", lend("bytes", os.fsencode(file), UNIT)),
        ("it goes", take("bytes")),
        ("an offset, a protocol and a place", lend("all", file, UNIT, 4096, "tcp", "cpu:0")),
        ("they go", take("all")),
        ("half a page more", lend("half", file, UNIT + 5000)),
        ("it goes too", take("half")),
        ("a file", lend("file", file, UNIT)),
        ("the same again", lend("twice", file, UNIT)),
        ("memory", lend("memory", 1)),
        ("a put", lambda: store.put("k", b"v")),
        ("a file of another client", take("file", by=other)),
        ("memory of another client", take("memory", by=other, free=True)),
        ("a file as memory", take("file", free=True)),
        ("memory as a file", take("memory")),
        ("the file", take("file")),
        ("the file again", take("file")),
        ("nothing", take()),
        ("an id that is none", take("x")),
        ("an empty id", take("")),
        ("an id of three parts", take("1-2-3")),
        ("an id of nobody", take("1-2")),
        ("a text for ids", lambda: store.unmount_segment("1-2")),
        ("a number for an id", lambda: store.unmount_segment([1])),
        ("a tuple of ids", lambda: store.unmount_segment(("1-2",))),
        ("a time before now", lambda: store.unmount_segment([], -1)),
        ("a text for a time", lambda: store.unmount_segment([], "1")),
        ("one that is right and one that is not", take("twice", "1-2")),
        ("it went", take("twice")),
        ("another one", lend("one", file, UNIT)),
        ("the same twice in a list", take("one", "one")),
        ("memory and an id of nobody", take("1-2", "memory", free=True)),
        ("the memory went", take("memory", free=True)),
        ("more memory", lend("more", UNIT + 1)),
        ("twice in a list, too", take("more", "more", free=True)),
        ("all of the file", lend("whole", file, 64 << 20)),
        ("a put into it", lambda: store.put("l", b"v")),
        ("what is in it", lambda: other.is_exist("l")),
        ("it is taken back", take("whole")),
        ("what was in it", lambda: other.is_exist("l")),
    ]


def taken(of: list[tuple[str, Callable[[], Any]]]) -> dict[str, Any]:
    """The result of each step, or the kind of its exception."""
    results: dict[str, Any] = {}
    for name, step in of:
        assert name not in results
        try:
            results[name] = step()
        except Exception as error:
            results[name] = type(error).__name__
    return results


def main(package: str, master: str, file: str) -> None:
    """See the module."""
    if package == "slackwater":
        import slackwater.compat

        slackwater.compat.install(over=True)
    import mooncake.store as module

    stores = [module.MooncakeDistributedStore() for _ in range(2)]
    for store in stores:
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    print(json.dumps(taken(steps(*stores, file))), flush=True)
    for store in stores:
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
