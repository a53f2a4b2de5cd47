"""Deadlocks: found if and only if there is one, and told as a chain that can be followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core import deadlock
from holdfast.core.claim import MAX, Claim, ClaimState, Granted, ResourceState, actor_of
from holdfast.core.deadlock import Wait, asked_last, describe, find_deadlock
from holdfast.core.queue import Queue

from .naive_deadlock import never_served

RESOURCES = ("a", "b", "c")
ACTORS = 5


class Ask(NamedTuple):
    """An actor asks for a resource, unless it waits already."""

    actor: int
    resource: str
    weight: int
    capacity: int
    fair: bool
    detached: bool


KINDS = [(MAX, MAX), (MAX, MAX), (1, MAX), (1, 2), (1, 2), (1, 3), (2, 3)]

asks = st.builds(
    lambda actor, resource, kind, fair, detached: Ask(actor, resource, kind[0], kind[1], fair, detached),
    st.integers(0, ACTORS - 1),
    st.sampled_from(RESOURCES),
    st.sampled_from(KINDS),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, False, False, True]),
)
stories = st.lists(asks, min_size=3, max_size=20)


def play(story: Sequence[Ask]) -> list[ResourceState]:
    """Let the actors ask one after the other; return what `inspect` shows in the end. Who waits asks nothing more."""
    queues = {resource: Queue() for resource in RESOURCES}
    waits: set[int] = set()
    for number, ask in enumerate(story):
        if ask.actor in waits:
            continue
        claim = Claim(
            ask.resource, f"client.{ask.actor}.{number}", ask.weight, ask.capacity, 100.0, f"actor-{ask.actor}",
            None, ask.fair, ask.detached,
        )  # fmt: skip
        if not isinstance(queues[ask.resource].claim(claim, 0.0, 1, 100.0).answer, Granted):
            waits.add(ask.actor)
    return [queue.state(resource, 0.0) for resource, queue in queues.items()]


def check(states: Sequence[ResourceState]) -> int:
    """Compare, for every waiting claim; return how many are in a deadlock."""
    stuck = never_served(states)
    for state in states:
        for claim in state.waiters:
            chain = find_deadlock(states, claim.holder)
            assert bool(chain) is (claim.holder in stuck)
            if chain:
                check_chain(states, claim, chain)
    return len(stuck)


def check_chain(states: Sequence[ResourceState], first: ClaimState, chain: Sequence[Wait]) -> None:
    """Follow a chain: everybody waits for the next one, and the last for one of those before."""
    shown = {state.resource: state for state in states}
    assert chain[0].waiter == first
    for link in chain:
        assert link.waiter in shown[link.resource].waiters
        assert link.blocker in shown[link.resource].holders
        assert not link.blocker.detached
    actors = [actor_of(link.waiter.holder) for link in chain]
    assert len(set(actors)) == len(actors)
    assert [actor_of(link.blocker.holder) for link in chain[:-1]] == actors[1:]
    assert actor_of(chain[-1].blocker.holder) in actors
    assert len({link.identity for link in chain}) == len(chain)


@settings(max_examples=400, deadline=None)
@given(stories)
def test_a_deadlock_is_found_if_and_only_if_there_is_one(story: list[Ask]) -> None:
    check(play(story))


@settings(max_examples=200, deadline=None)
@given(stories)
def test_locks_that_are_taken_in_one_order_never_deadlock(story: list[Ask]) -> None:
    """The way out that the error names: an actor that asks for nothing before what it holds is never stuck."""
    last: dict[int, str] = {}
    sorted_story = []
    for ask in story:
        if ask.resource > last.get(ask.actor, ""):
            last[ask.actor] = ask.resource
            sorted_story.append(ask)
    assert check(play(sorted_story)) == 0


def test_the_stories_have_deadlocks_and_waits_without_one() -> None:
    """Or the properties above would say nothing."""
    found: set[bool] = set()

    @settings(max_examples=300, deadline=None, database=None, phases=[Phase.generate])
    @given(stories)
    def look(story: list[Ask]) -> None:
        states = play(story)
        if any(state.waiters for state in states):
            found.add(bool(never_served(states)))

    look()
    assert found == {True, False}


# -- controls: one mistake each


def forgets_those_ahead(state: ResourceState, waiting: set[str], blocked: set[str]) -> list[Wait]:
    return _blocked(state._replace(waiters=tuple(c._replace(fair=False) for c in state.waiters)), waiting, blocked)


def takes_detached_claims_for_lasting(state: ResourceState, waiting: set[str], blocked: set[str]) -> list[Wait]:
    return _blocked(state._replace(holders=tuple(c._replace(detached=False) for c in state.holders)), waiting, blocked)


def follows_the_first_holder_only(state: ResourceState, waiting: set[str], blocked: set[str]) -> list[Wait]:
    """A plain search for cycles: one of several permits would be enough."""
    for claim in state.holders[:1]:
        if actor_of(claim.holder) in blocked:
            return [Wait(state.resource, waiter, claim) for waiter in state.waiters if waiter.holder in waiting]
    return []


def takes_every_holder_for_lasting(state: ResourceState, waiting: set[str], blocked: set[str]) -> list[Wait]:
    return _blocked(state, waiting, blocked | {actor_of(claim.holder) for claim in state.holders})


_blocked = deadlock._blocked
MUTANTS = [
    forgets_those_ahead,
    takes_detached_claims_for_lasting,
    follows_the_first_holder_only,
    takes_every_holder_for_lasting,
]


@pytest.mark.control
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_is_noticed(mutant: Callable[..., list[Wait]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock, "_blocked", mutant)

    @settings(max_examples=2000, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    @given(stories)
    def fails(story: list[Ask]) -> None:
        check(play(story))

    with pytest.raises((AssertionError, StopIteration, RuntimeError, ExceptionGroup)):
        fails()


# -- by example


def lock(actor: int, resource: str) -> Ask:
    return Ask(actor, resource, MAX, MAX, True, False)


def permit(actor: int, resource: str, permits: int = 2) -> Ask:
    return Ask(actor, resource, 1, permits, True, False)


def read(actor: int, resource: str) -> Ask:
    return Ask(actor, resource, 1, MAX, True, False)


def waiter(states: Sequence[ResourceState], actor: int) -> str:
    waiters = [claim.holder for state in states for claim in state.waiters]
    return next(holder for holder in waiters if actor_of(holder) == f"client.{actor}")


def test_two_that_wait_for_each_other_are_told_by_name() -> None:
    states = play([lock(1, "a"), lock(2, "b"), lock(1, "b"), lock(2, "a")])
    chain = find_deadlock(states, waiter(states, 2))
    assert describe(chain) == "actor-2 waits for 'a' held by actor-1, actor-1 waits for 'b' held by actor-2"
    assert [link.resource for link in find_deadlock(states, waiter(states, 1))] == ["b", "a"]


def test_who_waits_for_a_cycle_of_others_is_told_of_it() -> None:
    states = play([lock(1, "a"), lock(2, "b"), lock(1, "b"), lock(2, "a"), lock(3, "a")])
    assert [link.waiter.owner for link in find_deadlock(states, waiter(states, 3))] == ["actor-3", "actor-1", "actor-2"]


def test_the_last_to_ask_is_known_by_its_waiting_life() -> None:
    states = play([lock(1, "a"), lock(2, "b"), lock(1, "b"), lock(2, "a")])
    first, second = find_deadlock(states, waiter(states, 1))
    early = first._replace(waiter=first.waiter._replace(left=5.0))
    late = second._replace(waiter=second.waiter._replace(left=5.9))
    assert asked_last((late, early))
    assert not asked_last((early, late))
    assert asked_last((early, early._replace(resource="b")))  # where it cannot be told, both raise


def test_a_chain_without_a_cycle_is_none() -> None:
    states = play([lock(1, "a"), lock(2, "b"), lock(2, "a"), lock(3, "b")])
    assert find_deadlock(states, waiter(states, 3)) == ()
    assert find_deadlock(states, "client.9.9") == ()
    assert find_deadlock([], "client.9.9") == ()


def test_one_permit_that_comes_free_is_enough() -> None:
    """A cycle in the picture of who waits for whom is no deadlock while another holder can let go."""
    story = [permit(1, "a"), permit(2, "a"), lock(3, "b"), lock(1, "b"), permit(3, "a")]
    states = play(story)
    assert find_deadlock(states, waiter(states, 3)) == ()
    states = play([*story[:3], lock(4, "c"), lock(1, "b"), lock(2, "c"), permit(3, "a"), lock(4, "a")])
    assert [link.resource for link in find_deadlock(states, waiter(states, 3))] == ["a", "b"]


def test_who_took_all_permits_and_wants_one_more_waits_for_itself() -> None:
    states = play([permit(1, "a"), permit(1, "a"), permit(1, "a")])
    (link,) = find_deadlock(states, waiter(states, 1))
    assert actor_of(link.blocker.holder) == actor_of(link.waiter.holder)


def test_a_reader_behind_a_writer_waits_for_the_readers_before_it() -> None:
    """Reader 1 holds a and waits for b; its holder waits to read a, behind a writer: nobody ever goes."""
    states = play([read(1, "a"), lock(2, "b"), lock(3, "a"), lock(1, "b"), read(2, "a")])
    assert [link.resource for link in find_deadlock(states, waiter(states, 2))] == ["a", "b"]
    states = play([read(1, "a"), lock(2, "b"), lock(1, "b"), read(2, "a")])  # without the writer there is no wait
    assert find_deadlock(states, waiter(states, 1)) == ()
