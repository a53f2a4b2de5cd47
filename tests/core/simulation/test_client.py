"""Laws as invariants of the client's half, in thousands of schedules; and a mutant for each that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import acquisition, agenda, lease, queue
from holdfast.core.acquisition import Acquisition
from holdfast.core.agenda import Agenda, Orphan
from holdfast.core.claim import Claim
from holdfast.core.lease import LIVE, Fact, Hold
from holdfast.core.queue import Queue
from holdfast.core.timing import LATENESS
from holdfast.errors import StoreUnavailable
from holdfast.keeper.keeper import Keeper
from tests.core.simulation.world import WAITING_LIFE, Actor, Client, Weather, World, grantee, worker

STORM = Weather(lost=0.15, late=0.1, twice=0.1, handed=0.3, cancelled=0.03)
seeds = st.integers(0, 2**32 - 1)


def believers(world: World) -> list[Hold]:
    """Return the holds that are live as their processes see them now; a paused one sees nothing."""
    return [
        hold
        for client in world.clients
        if not client.stopped()
        for hold in client.holds.values()
        if hold.state in LIVE and world.now < hold.deadline
    ]


def exclusive(world: World) -> None:
    """Laws 1 and 9: whoever believes to hold does, by the store's clock, and with its newest token."""
    live = believers(world)
    assert len(live) <= 1, f"two believe to hold: {[hold.claim.holder for hold in live]}"
    for hold in live:
        holder = grantee(world)
        assert holder is not None, f"{hold.claim.holder} believes to hold, and nobody does"
        assert (holder.claim.holder, holder.token) == (hold.claim.holder, hold.token)
        assert hold.token == world.queue.counter
    assert world.tokens == sorted(set(world.tokens)), "law 2: tokens are unique, and rise"
    holders = [entry.claim.holder for entry in world.queue.entries]
    assert len(holders) == len(set(holders)), "law 4: a claim sent twice is one claim"


def play(seed: int, weather: Weather, *, ttl: float, timeout: float | None, stay: float = 0.0) -> World:
    """Let three processes contend in this weather, then in a calm, and return the world."""
    world = World(Random(seed), weather)
    world.watchers.append(lambda: exclusive(world))
    for number in range(3):
        client = Client(world, f"p{number}")
        Actor(client, lambda actor: worker(actor, ttl, timeout, 30, stay))
    for _ in range(40):
        world.run(0.5)
        client = world.random.choice(world.clients)
        if world.random.random() < weather.paused:
            client.pause(world.random.uniform(0, 2.5 * ttl))
        if world.random.random() < weather.blocked:
            client.block(world.random.uniform(0, 4 * ttl))
        if world.random.random() < weather.closed and not client.closing:
            client.close()
            client.keeper.end(world.now + 5, _Nothing())
    world.weather = Weather()
    return world


class _Nothing:
    def set(self) -> None:
        """Nobody waits."""


def leaves_nothing(world: World) -> None:
    """Law 5: what was finished is gone when the last stray has come; ttls are far longer than that."""
    finished = {holder for client in world.clients for holder in client.finished}
    world.run(world.io_timeout + LATENESS + 1.5)
    left = [entry.claim.holder for entry in world.queue.entries if entry.claim.holder in finished]
    assert left == [], f"finished, and still there: {left}"


@settings(max_examples=400, deadline=None, report_multiple_bugs=False)
@given(seeds)
def test_exclusion_and_loss_in_a_storm(seed: int) -> None:
    play(seed, STORM._replace(paused=0.2, blocked=0.1, closed=0.02), ttl=1.5, timeout=None)


@settings(max_examples=400, deadline=None, report_multiple_bugs=False)
@given(seeds)
def test_whatever_is_finished_leaves_nothing(seed: int) -> None:
    leaves_nothing(play(seed, STORM, ttl=30.0, timeout=3.0))


@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(seeds)
def test_a_late_copy_of_a_claim_holds_nothing(seed: int) -> None:
    """Its first copy is delayed, its second is granted and released, and then the first arrives."""
    leaves_nothing(play(seed, Weather(late=0.5), ttl=30.0, timeout=None, stay=0.1))


@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(seeds)
def test_closing_leaves_nothing(seed: int) -> None:
    world = play(seed, STORM._replace(closed=0.05, lost=0.05), ttl=30.0, timeout=None)
    for client in world.clients:
        if not client.closing:
            client.close()
    world.run(1.0)
    for client in world.clients:
        client.keeper.end(world.now + 5, _Nothing())
    world.run(max(WAITING_LIFE, world.io_timeout + LATENESS) + 3.0)
    if all(client.keeper.ended for client in world.clients):
        believers_left = believers(world)
        assert believers_left == []


@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(seeds)
def test_what_a_crashed_process_held_goes_to_the_next(seed: int) -> None:
    """Law 6: within ttl + waiting life + 1 s."""
    ttl = 2.0
    world = World(Random(seed), Weather(handed=0.3))
    world.watchers.append(lambda: exclusive(world))
    for number in range(3):
        Actor(Client(world, f"p{number}"), lambda actor: worker(actor, ttl, None, 100))
    world.run(world.random.uniform(0, 5))
    world.random.choice(world.clients).crash()
    before = world.clients[0].acquired, world.clients[1].acquired, world.clients[2].acquired
    world.run(6 * 0.7 * ttl)  # the longest that a live one stays
    world.run(ttl + WAITING_LIFE + 1.0)
    assert before != (world.clients[0].acquired, world.clients[1].acquired, world.clients[2].acquired)


@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(seeds, st.sampled_from([0, 0.5, 2.0]))
def test_an_acquire_takes_its_timeout_and_one_exchange_at_most(seed: int, timeout: float) -> None:
    world = play(seed, STORM._replace(cancelled=0.0), ttl=3.0, timeout=timeout)
    for client in world.clients:
        for took, allowed in client.durations:
            assert allowed is not None
            assert took <= allowed + world.io_timeout * 1.05 + 0.02


@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(seeds, st.sampled_from([0.5, 1.5, 10.0]))
def test_a_lease_is_kept_while_renewals_get_through(seed: int, ttl: float) -> None:
    """Law 15: loops are blocked, other calls are lost and late; no lease is lost."""
    world = play(seed, STORM._replace(blocked=0.5, renewals=False, cancelled=0.0), ttl=ttl, timeout=None)
    assert [loss for client in world.clients for loss in client.losses] == []


@settings(max_examples=100, deadline=None, report_multiple_bugs=False)
@given(seeds, st.sampled_from([0.5, 1.0, 1.6]))
def test_one_lost_renewal_costs_no_lease(seed: int, ttl: float) -> None:
    world = World(Random(seed), Weather())
    client = Client(world, "p")
    Actor(client, lambda actor: worker(actor, ttl, None, 10))
    exchange, asked = world.exchange, []

    def loses_one(verb: str, arguments: Any, limit: float, done: Callable[[Any], None]) -> None:
        if verb == "renew":
            asked.append(1)
            if len(asked) % 4 == seed % 4:
                world.later(limit, lambda: done(StoreUnavailable("lost")))
                return
        exchange(verb, arguments, limit, done)

    world.exchange = loses_one  # type: ignore[method-assign]
    world.run(30.0)
    assert client.acquired
    assert client.losses == []


def test_somebody_acquires_in_a_storm() -> None:
    """The properties above are about something: locks are taken, lost and taken again."""
    worlds = [play(seed, STORM._replace(paused=0.2), ttl=1.5, timeout=None) for seed in range(20)]
    assert sum(client.acquired for world in worlds for client in world.clients) > 100
    assert any(client.losses for world in worlds for client in world.clients)


# -- mutants


def _extends_unknown(patch: pytest.MonkeyPatch) -> None:
    original = lease.outcome_of

    def outcome(hold: Hold, answer: Any, asked: float, now: float) -> Any:
        found = original(hold, answer, asked, now)
        return found._replace(deadline=now + hold.claim.ttl) if found.fact is Fact.UNKNOWN else found

    patch.setattr("holdfast.keeper.keeper.outcome_of", outcome)


def _claims_twice(self: Queue, claim: Claim, *args: Any, **options: Any) -> Any:
    found, Queue.find = Queue.find, lambda self, holder: None  # type: ignore[method-assign]
    try:
        return _CLAIM(self, claim, *args, **options)
    finally:
        Queue.find = found  # type: ignore[method-assign]


_CLAIM = Queue.claim


def _never_withdraws(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acquisition, "leftover", lambda self, now: None)


# What is wrong, the property that must notice, and the parameter that it takes besides a seed.
MUTANTS: dict[str, tuple[Any, ...]] = {
    "believes a grant for too long": (
        lambda patch: patch.setattr(acquisition, "local_deadline", lambda asked, ttl, left: asked + ttl + 1.0),
        test_exclusion_and_loss_in_a_storm,
    ),
    "takes unknown for renewed": (_extends_unknown, test_exclusion_and_loss_in_a_storm),
    "asks, then reads the clock": (
        lambda patch: patch.setattr(lease, "local_deadline", lambda asked, ttl, left: asked + ttl + 0.9),
        test_exclusion_and_loss_in_a_storm,
    ),
    "counts tokens by the clock alone": (
        lambda patch: patch.setattr(queue, "next_token", lambda counter, clock_us: clock_us // 1_000_000),
        test_exclusion_and_loss_in_a_storm,
    ),
    "lets anybody release": (
        lambda patch: patch.setattr(Queue, "find", lambda self, holder: self.entries[0] if self.entries else None),
        test_exclusion_and_loss_in_a_storm,
    ),
    "takes a claim that is sent twice for two": (
        lambda patch: patch.setattr(Queue, "claim", _claims_twice),
        test_exclusion_and_loss_in_a_storm,
    ),
    "starts a body without a lease": (
        lambda patch: patch.setattr(Acquisition, "usable", lambda self, deadline, now: True),
        test_exclusion_and_loss_in_a_storm,
    ),
    "keeps what is dead in line": (
        lambda patch: patch.setattr(Queue, "sweep", lambda self, now: ()),
        test_what_a_crashed_process_held_goes_to_the_next,
    ),
    "never withdraws": (_never_withdraws, test_whatever_is_finished_leaves_nothing),
    "forgets strays": (
        lambda patch: patch.setattr(Orphan, "answered", lambda self, now: False),
        test_whatever_is_finished_leaves_nothing,
    ),
    "forgets strays of what was held": (
        lambda patch: patch.setattr(Acquisition, "_stray_until", lambda self: -inf),
        test_a_late_copy_of_a_claim_holds_nothing,
    ),
    "gives up after one release": (
        lambda patch: patch.setattr(Orphan, "unanswered", lambda self, now: False),
        test_whatever_is_finished_leaves_nothing,
    ),
    "withdraws in the foreground, always": (
        lambda patch: patch.setattr(acquisition, "SLACK", 100.0),
        test_an_acquire_takes_its_timeout_and_one_exchange_at_most,
        0.5,
    ),
    "never renews": (
        lambda patch: patch.setattr(Agenda, "_batches", lambda self, holds, now: []),
        test_a_lease_is_kept_while_renewals_get_through,
        1.5,
    ),
    "renews at the deadline": (
        lambda patch: patch.setattr(lease, "renew_time", lambda asked, deadline: deadline - 0.001),
        test_a_lease_is_kept_while_renewals_get_through,
        0.5,
    ),
    "does not take answers in": (
        lambda patch: patch.setattr(Keeper, "answered", lambda self, holds, answers, asked: None),
        test_a_lease_is_kept_while_renewals_get_through,
        1.5,
    ),
    "waits for all of io_timeout": (
        lambda patch: patch.setattr(agenda, "renew_limit", lambda now, deadline, io_timeout: io_timeout),
        test_one_lost_renewal_costs_no_lease,
        1.0,
    ),
}


@pytest.mark.control
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, law, *parameters = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(AssertionError):  # noqa: PT012 (one of many)
        for seed in range(2000):
            law.hypothesis.inner_test(seed, *parameters)
