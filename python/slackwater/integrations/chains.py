"""Chains of keys, as they are learned from the questions of an engine that tells no parents."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .. import Chain

KEYS_MAX = 65_536
"""Keys whose places in chains are remembered; the ones that were asked for longest ago are forgotten."""


class Chains:
    """The parents of keys. An engine asks for the blocks of a request in order: each is the parent of the next.

    `family` is what two keys of one chain have in common, so that the keys of several ranks may be mixed in a question.
    """

    def __init__(self, family: Callable[[str], object]) -> None:
        self._family, self._lock = family, threading.Lock()
        self._places: OrderedDict[str, tuple[str | None, int]] = OrderedDict()

    def learn(self, keys: Sequence[str]) -> None:
        """Remembers the order of the keys of a request."""
        before: dict[object, tuple[str, int]] = {}
        with self._lock:
            for key in keys:
                family = self._family(key)
                if family in before:
                    parent, position = before[family]
                    place: tuple[str | None, int] = (parent, position + 1)
                else:
                    # A question may begin in the middle of a chain that an earlier one told.
                    place = self._places.get(key, (None, 0))
                self._places[key] = place
                self._places.move_to_end(key)
                before[family] = key, place[1]
            while len(self._places) > KEYS_MAX:
                self._places.popitem(last=False)

    def runs(self, keys: Sequence[str]) -> list[tuple[list[int], Chain | None]]:
        """The keys of a call as pieces of chains: places in the call, and what precedes them.

        Keys that no question has told of are runs in the order of the call, of which nothing else is known.
        """
        with self._lock:
            places = [self._places.get(key) for key in keys]
        runs: list[tuple[list[int], Chain | None]] = []
        open_runs: dict[object, tuple[list[int], str]] = {}
        for at, (key, place) in enumerate(zip(keys, places, strict=True)):
            family = self._family(key)
            run = open_runs.get(family)
            if run is not None and (place[0] == run[1] if place is not None else places[run[0][-1]] is None):
                run[0].append(at)
                open_runs[family] = run[0], key
                continue
            begun = [at]
            runs.append((begun, None if place is None else Chain(parent=place[0], position=place[1])))
            open_runs[family] = begun, key
        return runs
