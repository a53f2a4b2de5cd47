"""Every interleaving of small Redlocks: tokens are unique and rise, nobody holds twice; and each mutant is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.ballot import GRANTED, Node, Vote, majority
from tests.core.ballot_model import NODES, System, broken_by_rule, explore, granted_by_rule, left_by_rule

SYSTEMS = {
    "two clients, two rounds each": System(rounds=(2, 2), highest=3),
    "two clients, more ballots": System(rounds=(2, 1), highest=4),
    "three clients": System(rounds=(1, 1, 1), highest=3),
    "sending again": System(rounds=(2, 1), highest=3, resends=True),
    "grants run out at any time": System(rounds=(2, 1), highest=3, expires=True),
    "a grant is broken": System(rounds=(2, 1), highest=3, evict=broken_by_rule),
    "a grant is broken, grants run out, and sending again": System(
        rounds=(1, 1), highest=2, expires=True, resends=True, evict=broken_by_rule
    ),
    "grants run out, and sending again": System(rounds=(1, 1), highest=3, expires=True, resends=True),
}


# The smallest explores 25,000 states in a second or two, the others take several seconds each.
QUICK = "grants run out, and sending again"


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(system, id=name, marks=[] if name == QUICK else pytest.mark.slow)
        for name, system in SYSTEMS.items()
    ],
)
def test_no_interleaving_breaks_a_law(system: System):
    found = explore(system)
    assert not found.broken, "\n".join((found.broken, *found.trace))
    assert found.states > 10_000  # a system in which little can happen proves little


def test_messages_that_are_forgotten_do_not_matter():
    """The exploration without that shortcut comes to the same end."""
    system = System(rounds=(1, 1), highest=3)
    short, whole = explore(system), explore(replace(system, prunes=False))
    assert not short.broken
    assert not whole.broken
    assert whole.states > short.states


def grants_the_same_again(node: Node, holder: str, ballot: int) -> tuple[Node, Vote]:
    """A mutant: `>=` where the rule has `>`."""
    if not node.ballot and ballot == node.counter:
        return Node(ballot, holder, ballot, 1), Vote(GRANTED, ballot, ballot)
    return granted_by_rule(node, holder, ballot)


def grants_what_is_taken(node: Node, holder: str, ballot: int) -> tuple[Node, Vote]:
    """A mutant: it does not look whether somebody holds the resource."""
    if ballot > node.counter:
        return Node(ballot, holder, ballot, 1), Vote(GRANTED, ballot, ballot)
    return granted_by_rule(node, holder, ballot)


def frees_any_ballot(node: Node, holder: str, ballot: int) -> Node:
    """A mutant: a release does not say of which round it is."""
    return Node(node.counter) if node.holder == holder else left_by_rule(node, holder, ballot)


def breaks_only_what_is_there(node: Node, holder: str, ballot: int) -> Node:
    """A mutant: where the grant is not there (yet), nothing keeps it from coming."""
    broken = broken_by_rule(node, holder, ballot)
    return broken if broken.broken else node


def frees_what_it_breaks(node: Node, holder: str, ballot: int) -> Node:
    """A mutant: it ends the grant, and its holder does not know."""
    return left_by_rule(node, holder, ballot)


SMALL = System(rounds=(2, 1), highest=3, prunes=False)

MUTANTS = {
    "at least as high is high enough": (replace(SMALL, decide=grants_the_same_again), "given twice"),
    "a minority is enough": (replace(SMALL, needed=majority(NODES) - 1), "token"),
    "a node forgets what it acknowledged": (replace(SMALL, forgets=True), "token"),
    "a release without its ballot": (replace(SMALL, leave=frees_any_ballot), "two hold"),
    "votes of different ballots add up": (replace(SMALL, counts=lambda mine, voted: True), "two hold|token"),
    "a late proposal revives what is broken": (
        replace(SMALL, evict=breaks_only_what_is_there),
        "can be renewed",
    ),
    "what is broken is free at once": (replace(SMALL, evict=frees_what_it_breaks), "two hold"),
    "a node does not look who holds": (replace(SMALL, decide=grants_what_is_taken), "two hold"),
}


@pytest.mark.control
@pytest.mark.parametrize(("mutant", "law"), MUTANTS.values(), ids=MUTANTS.keys())
def test_each_mutant_is_caught(mutant: System, law: str):
    found = explore(mutant)
    assert any(part in found.broken for part in law.split("|")), found
    assert found.trace


def test_what_cannot_be_explored_proves_nothing():
    with pytest.raises(RuntimeError, match="more than 100 states"):
        explore(SMALL, most=100)
