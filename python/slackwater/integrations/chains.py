"""Chains of keys, as they are learned from the questions of an engine that tells no parents."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .. import Chain

UNPLACED = Chain(position=Chain.POSITION_UNKNOWN)
"""Of keys of which nobody knows what precedes them."""

KEYS_MAX = 65_536
"""Keys whose places in chains are remembered; the ones that were asked for longest ago are forgotten."""


class Chains:
    """The parents of keys. An engine asks for the blocks of a request in order: each is the parent of the next.

    `family` is what two keys of one chain have in common, so that the keys of several ranks may be mixed in a question.
    `ordered` says that a call has keys of one request, in order, so that those which no question told of are a run as well.
    """

    def __init__(self, family: Callable[[str], object], *, ordered: bool) -> None:
        self._family, self._ordered, self._lock = family, ordered, threading.Lock()
        self._places: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def learn(self, keys: Sequence[str]) -> None:
        """Remembers the order of the keys of a request.

        The first may be in the middle of its chain, as an engine asks only for what it has not got itself: what an earlier
        question told of it stays, and where none did, positions count from it, as those of no root.
        """
        before: dict[object, tuple[str, int]] = {}
        with self._lock:
            for key in keys:
                family = self._family(key)
                if family in before:
                    parent, position = before[family]
                    self._places[key] = parent, position + 1
                if key in self._places:
                    self._places.move_to_end(key)
                before[family] = key, self._places[key][1] if key in self._places else Chain.POSITION_UNKNOWN
            while len(self._places) > KEYS_MAX:
                self._places.popitem(last=False)

    def runs(self, keys: Sequence[str]) -> list[tuple[list[int], Chain]]:
        """The keys of a call as pieces of chains: places in the call, and what precedes them."""
        with self._lock:
            places = [self._places.get(key) for key in keys]
        runs: list[tuple[list[int], Chain]] = []
        # For each family the run that grows, its last key, and whether anything is known of that key.
        open_runs: dict[object, tuple[list[int], str, bool]] = {}
        for at, (key, place) in enumerate(zip(keys, places, strict=True)):
            family = self._family(key)
            run = open_runs.get(family)
            if run is not None and (place[0] == run[1] if place is not None else self._ordered and not run[2]):
                run[0].append(at)
                open_runs[family] = run[0], key, place is not None
                continue
            begun = [at]
            runs.append((begun, UNPLACED if place is None else Chain(parent=place[0], position=place[1])))
            open_runs[family] = begun, key, place is not None
        return runs
