"""Chains that are learned from the questions of an engine."""

import pytest
from slackwater import Chain
from slackwater.integrations.chains import KEYS_MAX, UNPLACED, Chains


def family(key: str) -> str:
    return key.split("-")[0]


def told(*questions: str, ordered: bool = True) -> Chains:
    chains = Chains(family, ordered=ordered)
    for question in questions:
        chains.learn(question.split())
    return chains


def shown(chains: Chains, call: str) -> list[tuple[str, str | None]]:
    """The runs of a call: their keys, and their parent and position if they have any."""
    keys = call.split()
    runs = []
    for places, chain in chains.runs(keys):
        text = None
        if repr(chain) != repr(UNPLACED):
            parent, position = repr(chain).removeprefix("Chain(parent=").split(", ")[:2]
            # Each counts from a key of which no question told what precedes it.
            after = int(position.removeprefix("position=")) - Chain.POSITION_UNKNOWN
            text = f"{parent.strip('b').strip(chr(39)).strip(chr(34))} {after}"
        runs.append((" ".join(keys[at] for at in places), text))
    return runs


@pytest.mark.parametrize(
    ("questions", "call", "runs"),
    [
        # What was never asked for is in the order of the call.
        ([], "a-1 a-2", [("a-1 a-2", None)]),
        ([], "", []),
        (["a-1 a-2 a-3"], "a-1 a-2 a-3", [("a-1 a-2 a-3", None)]),
        # A part of a chain has the parent that the question told.
        (["a-1 a-2 a-3"], "a-2 a-3", [("a-2 a-3", "a-1 1")]),
        # A hole parts runs.
        (["a-1 a-2 a-3 a-4"], "a-1 a-3 a-4", [("a-1", None), ("a-3 a-4", "a-2 2")]),
        # Two requests in one call are two chains, and so are two ranks of one.
        (["a-1 a-2", "a-5 a-6"], "a-1 a-2 a-5 a-6", [("a-1 a-2", None), ("a-5 a-6", None)]),
        (["a-1 b-1 a-2 b-2"], "a-1 b-1 a-2 b-2", [("a-1 a-2", None), ("b-1 b-2", None)]),
        # A branch has the parent of its own question.
        (["a-1 a-2 a-3", "a-1 a-2 a-9"], "a-9", [("a-9", "a-2 2")]),
        # A question from the middle continues what is known.
        (["a-1 a-2", "a-2 a-3"], "a-3", [("a-3", "a-2 2")]),
        # Known and unknown keys are not one run.
        (["a-1 a-2"], "a-1 a-2 a-7 a-8", [("a-1 a-2", None), ("a-7 a-8", None)]),
        (["a-1 a-2"], "a-7 a-2", [("a-7", None), ("a-2", "a-1 1")]),
        # The second turn asks only for what the engine has not got itself, and a later one for all.
        (["a-1 a-2", "a-3 a-4"], "a-3 a-4", [("a-3 a-4", None)]),
        (["a-1 a-2", "a-3 a-4"], "a-4", [("a-4", "a-3 1")]),
        (["a-1 a-2", "a-3 a-4", "a-1 a-2 a-3 a-4"], "a-3 a-4", [("a-3 a-4", "a-2 2")]),
        (["a-1 a-2 a-3 a-4", "a-3 a-4"], "a-3 a-4", [("a-3 a-4", "a-2 2")]),
        # Each layer is asked for by itself, one chunk a question: that tells of no chain.
        (["a-1", "a-2", "a-3"], "a-1 a-2 a-3", [("a-1 a-2 a-3", None)]),
        (["a-1 a-2 a-3", "a-2"], "a-2 a-3", [("a-2 a-3", "a-1 1")]),
    ],
)
def test_runs_are_what_questions_told(questions: list[str], call: str, runs: list[tuple[str, str | None]]) -> None:
    assert shown(told(*questions), call) == runs


def test_keys_of_many_requests_are_no_chain() -> None:
    """A batch of several requests told the store that a chunk of one came before a chunk of the other."""
    assert shown(told(ordered=False), "a-1 a-2") == [("a-1", None), ("a-2", None)]
    chains = told("a-1 a-2", "a-5 a-6", ordered=False)
    assert shown(chains, "a-1 a-2 a-5 a-6") == [("a-1 a-2", None), ("a-5 a-6", None)]
    assert shown(chains, "a-1 a-2 a-7 a-8") == [("a-1 a-2", None), ("a-7", None), ("a-8", None)]


def test_what_precedes_a_key_is_unknown_and_not_nothing() -> None:
    """A key without a place was told to the store as the root of a chain."""
    ((places, chain),) = told().runs(["a-1"])
    assert places == [0] and "parent=None, position=536870912," in repr(chain)


def test_what_was_asked_longest_ago_is_forgotten() -> None:
    chains = told("a-first a-second")
    chains.learn([f"a-{number}" for number in range(KEYS_MAX)])
    chains.learn(["a-first", "a-second"])
    assert shown(chains, "a-1") == [("a-1", "a-0 1")]
    chains.learn([f"b-{number}" for number in range(2)])
    assert shown(chains, "a-second") == [("a-second", "a-first 1")]
    assert shown(chains, "a-1") == [("a-1", None)] and shown(chains, "a-2") == [("a-2", "a-1 2")]
    assert len(chains._places) == KEYS_MAX
