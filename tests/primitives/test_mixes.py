"""Locks, readers, writers, permits, trees and multi-locks on the same names, in schedules that nobody thought of.

Actors are tasks: each takes a lock of some kind, or gives one back, when the story says so. After every sentence, when
everybody either rests or waits in line, the one rule must explain what the store shows.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast._async.acquirable import Acquirable
from holdfast.core.claim import MAX, Answer, Claim, ClaimState, Granted, ResourceState
from holdfast.core.urls import parse_url
from holdfast.errors import AcquireTimeout, Deadlock, LeaseLost
from holdfast.stores.memory.room import Room
from holdfast.testing._async.case import CaseClient
from holdfast.testing.clock import ManualClock
from tests.contract import mutant_stores
from tests.core.naive_deadlock import Line, never_served

ACTORS = 4
LIMIT = 10.0  # real seconds in which everybody has come to rest
TTL = 10_000.0


class Take(NamedTuple):
    """An actor asks for something, and waits for it: for ever, or for so long."""

    actor: int
    kind: int
    timeout: float | None


class Give(NamedTuple):
    """An actor gives back what it took last."""

    actor: int


class Pass(NamedTuple):
    """Time passes."""

    seconds: float


Step = Take | Give | Pass

# Few names, so that they meet: "a" is a lock, a reader's, a parent and a member of several.
KINDS: list[Callable[[CaseClient], Acquirable[Any]]] = [
    lambda locks: locks.lock("a", ttl=TTL),
    lambda locks: locks.lock("a/1", ttl=TTL),
    lambda locks: locks.lock("b", ttl=TTL),
    lambda locks: locks.lock("b", ttl=3.0, renew=False),
    lambda locks: locks.lock("a", ttl=TTL, fair=False),
    lambda locks: locks.rwlock("a", ttl=TTL).read(),
    lambda locks: locks.rwlock("b", ttl=TTL).read(),
    lambda locks: locks.rwlock("a", ttl=TTL).write(),
    lambda locks: locks.semaphore("b", permits=2, ttl=TTL),
    lambda locks: locks.semaphore("b", permits=3, ttl=TTL),
    lambda locks: locks.tree("a", ttl=TTL),
    lambda locks: locks.tree("a/1", ttl=TTL),
    lambda locks: locks.tree("a/2", ttl=TTL),
    lambda locks: locks.tree("a/1/x", ttl=TTL),
    lambda locks: locks.lock_all("b", "a", ttl=TTL),
    lambda locks: locks.lock_all("a/1", "b", "a/2", ttl=TTL),
]

actors = st.integers(0, ACTORS - 1)
takes = st.builds(Take, actors, st.integers(0, len(KINDS) - 1), st.sampled_from([None, None, None, 1.0, 0.0]))
steps: st.SearchStrategy[Step] = st.one_of(
    takes,
    takes,
    takes,
    st.builds(Give, actors),
    st.builds(Give, actors),
    st.builds(Pass, st.sampled_from([0.5, 2.5, 7.0])),
)
stories = st.lists(steps, min_size=8, max_size=25)


class Book:
    """What was asked for and granted, as the clients saw it: a second opinion on what the store shows."""

    def __init__(self) -> None:
        self._highest: dict[str, tuple[int, int]] = {}  # tokens: of any kind, and exclusive
        self._asked: dict[str, Claim] = {}  # by holder
        self._came: dict[str, int] = {}  # by holder, the step of the story
        self.step = 0

    def listen(self, client: CaseClient) -> None:
        """Note what this client asks for and what it is granted."""
        claim_of = client.tap.claim

        async def claim(claim: Claim, queue: bool = True) -> Answer:
            if claim.holder not in self._asked:
                self._asked[claim.holder] = claim
                self._came[claim.holder] = self.step
            answer = await claim_of(claim, queue)
            if isinstance(answer, Granted):
                self._granted(claim, answer.token)
            return answer

        client.tap.claim = claim  # type: ignore[method-assign]

    def _granted(self, claim: Claim, token: int) -> None:
        """Law 2: an exclusive token exceeds every earlier one, and every token every earlier exclusive one."""
        newest, exclusive = self._highest.get(claim.resource, (0, 0))
        if claim.weight == MAX:
            assert token > newest, f"{claim} has token {token} after {newest}"
            exclusive = token
        else:
            assert token > exclusive, f"{claim} has token {token} after the exclusive {exclusive}"
        self._highest[claim.resource] = (max(newest, token), exclusive)

    def shown(self, states: list[ResourceState]) -> list[ResourceState]:
        """Return what a store shows, but with the weights and capacities that were asked for."""

        def told(claims: tuple[ClaimState, ...]) -> tuple[ClaimState, ...]:
            asked = [(claim, self._asked[claim.holder]) for claim in claims]
            return tuple(c._replace(weight=a.weight, capacity=a.capacity, fair=a.fair) for c, a in asked)

        return [state._replace(holders=told(state.holders), waiters=told(state.waiters)) for state in states]

    def check_order(self, state: ResourceState) -> None:
        """Law 7: of those that are judged by the same capacity nobody has come in past one who waits."""
        for waiter in state.waiters:
            for holder in state.holders:
                if waiter.fair and holder.fair and waiter.capacity == holder.capacity:
                    here, there = self._came.get(waiter.holder), self._came.get(holder.holder)
                    assert here is None or there is None or here >= there, f"overtaken: {state}"

    def forget_order(self) -> None:
        """Take note that places in line were given up, for nobody has refreshed them in time."""
        self._came.clear()


class Actor:
    """A task that takes and gives back as it is told."""

    def __init__(self, client: CaseClient) -> None:
        self.client = client
        self.held: list[Any] = []
        self.deadlocks = 0
        self.busy = False
        self._orders: asyncio.Queue[Take | Give] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    def tell(self, what: Take | Give) -> None:
        self.busy = True
        self._orders.put_nowait(what)

    async def _run(self) -> None:
        while True:
            await self._take_until_told_to_give()
            self.busy = False

    async def _take_until_told_to_give(self) -> None:
        """Take what it is told, each inside of the one before."""
        while isinstance(what := await self._orders.get(), Take):
            taken = len(self.held)
            try:
                async with KINDS[what.kind](self.client).acquire(what.timeout) as lease:
                    self.held.append(lease)
                    self.busy = False
                    await self._take_until_told_to_give()
            except Deadlock:
                self.deadlocks += 1
            except (AcquireTimeout, LeaseLost):
                pass
            del self.held[taken:]
            self.busy = False


class Stage:
    """The actors, in two clients of one store, and what must be true of them whenever all have come to rest."""

    def __init__(self, url: str, most: int, detect_deadlocks: bool) -> None:
        self.clock = ManualClock()
        self.most = most  # locks that an actor takes at once
        self.book = Book()
        self._asleep: set[object] = set()
        self.clients = [self._client(url, detect_deadlocks) for _ in range(2)]
        self.actors = [Actor(self.clients[number % 2]) for number in range(ACTORS)]

    def _client(self, url: str, detect_deadlocks: bool) -> CaseClient:
        client = CaseClient(parse_url(url), clock=self.clock, detect_deadlocks=detect_deadlocks, io_timeout=30)

        async def lies_down() -> None:
            self._asleep.add(asyncio.current_task())

        async def gets_up() -> None:
            self._asleep.discard(asyncio.current_task())

        client.tap.before["wait"], client.tap.after["wait"] = lies_down, gets_up
        self.book.listen(client)
        return client

    async def play(self, story: list[Step]) -> None:
        try:
            for self.book.step, step in enumerate(story):
                if isinstance(step, Pass):
                    self._pass(step.seconds)
                elif self._may(step):
                    self.actors[step.actor].tell(step)
                await self._rest()
            await self._end()
        finally:
            await self.close()

    def _pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if seconds >= self.clients[0].capabilities.waiting_life:
            self.book.forget_order()

    async def _look(self) -> list[ResourceState]:
        return self.book.shown(await self.clients[0].inspect())

    def _may(self, step: Take | Give) -> bool:
        actor = self.actors[step.actor]
        return not actor.busy and (isinstance(step, Give) or len(actor.held) < self.most)

    async def close(self) -> None:
        for actor in self.actors:
            actor.task.cancel()
        await asyncio.wait([actor.task for actor in self.actors])
        for client in self.clients:
            await client.close()

    async def _rest(self) -> None:
        """Wait until everybody rests, or waits and has to. Who could go and was not woken is never at rest."""
        give_up = time.monotonic() + LIMIT
        while (states := await self._states_at_rest()) is None:
            assert time.monotonic() < give_up, f"no rest: {await self._look()}"
            await asyncio.sleep(0.0005)
        self._check(states)

    async def _states_at_rest(self) -> list[ResourceState] | None:
        """Return what the store shows, if nothing has moved while it was looked at."""
        before = self._moves()
        if any(actor.busy and actor.task not in self._asleep for actor in self.actors):
            return None
        states = await self._look()
        # Who waits refreshes its place after a third of its waiting life.
        fresh = self.clients[0].capabilities.waiting_life * 2 / 3 - 1e-6
        if any(claim.left < fresh for state in states for claim in state.waiters):
            return None
        if any(Line(state).grant() for state in states) or self._moves() != before:
            return None
        return states

    def _moves(self) -> int:
        """Count what was asked of the store, looks aside."""
        for actor in self.actors:
            if actor.task.done():
                actor.task.result()  # it has failed
        return sum(len(client.tap.calls) - client.tap.count("inspect") for client in self.clients)

    def _check(self, states: list[ResourceState]) -> None:
        for state in states:
            self.book.check_order(state)
            weights = [claim.weight for claim in state.holders]
            assert sum(weights) <= max([claim.capacity for claim in state.holders], default=0), state
            assert MAX not in weights or len(weights) == 1, state
        shown = {claim.token for state in states for claim in state.holders}
        for actor in self.actors:
            for lease in actor.held:
                # All or nothing: whoever has been given something has all of it, as long as it is not lost.
                leases = lease.values() if hasattr(lease, "values") else [lease]
                assert all(one.token in shown for one in leases if not one.lost)
        assert never_served(states) == set(), f"deadlock: {states}"

    async def _end(self) -> None:
        """Let everybody give back everything: then everybody has had its turn, and nothing is left."""
        give_up = time.monotonic() + LIMIT
        while any(actor.busy or actor.held for actor in self.actors):
            assert time.monotonic() < give_up, f"no end: {await self.clients[0].inspect()}"
            for number, actor in enumerate(self.actors):
                if not actor.busy and actor.held:
                    actor.tell(Give(number))
            await self._rest()
            self.clock.advance(0.25)  # what is not renewed runs out, also where its holder has given it up already
            await asyncio.sleep(0.001)
        self.clock.advance(3.0)
        assert await self.clients[0].inspect() == []


def play(store: str, story: list[Step], most: int = 1, detect_deadlocks: bool = False) -> Stage:
    """Play a story on a store of its own."""

    async def run(url: str) -> Stage:
        stage = Stage(url, most, detect_deadlocks)
        await stage.play(story)
        return stage

    if store == "memory":
        return asyncio.run(run(f"memory://{os.urandom(8).hex()}"))
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        return asyncio.run(run(f"sqlite://{folder}/locks.db"))


EXAMPLES = {"memory": 50, "sqlite": 15}


@pytest.mark.parametrize("store", EXAMPLES)
def test_the_rule_explains_every_mix_and_nobody_waits_for_ever(store: str) -> None:
    """Whoever takes one at a time never deadlocks: members of several are taken in one order, parents first."""

    @settings(max_examples=EXAMPLES[store], deadline=None)
    @given(stories)
    def run(story: list[Step]) -> None:
        stage = play(store, story)
        assert not any(actor.deadlocks for actor in stage.actors)

    run()


@pytest.mark.parametrize("store", EXAMPLES)
def test_who_looks_for_deadlocks_never_stays_in_one(store: str) -> None:
    """With two at a time there are deadlocks; whoever would close one is told."""

    @settings(max_examples=EXAMPLES[store], deadline=None)
    @given(stories)
    def run(story: list[Step]) -> None:
        play(store, story, most=2, detect_deadlocks=True)

    run()


def first_failure(most: int) -> bool:
    """Return whether one of many stories fails; the first that does is enough."""

    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(stories)
    def run(story: list[Step]) -> None:
        play("memory", story, most)

    try:
        run()
    except (AssertionError, BaseExceptionGroup):
        return True
    return False


MUTANTS = [
    mutant_stores.GrantsWhatIsHeld,
    mutant_stores.CountsHeads,
    mutant_stores.ForgetsItsCounter,
    mutant_stores.LosesWakeUps,
    mutant_stores.NeverWithdraws,
    mutant_stores.KnowsNoOrder,
]


@pytest.mark.control
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_store_with_a_mistake_is_noticed(mutant: type[Room], monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: dict[str, Room] = {}
    monkeypatch.setattr("holdfast.stores.memory._async.store.room", lambda name: rooms.setdefault(name, mutant()))
    monkeypatch.setattr(f"{__name__}.LIMIT", 0.2)
    assert first_failure(1)


@pytest.mark.control
def test_without_looking_there_are_deadlocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: the stories have them."""
    monkeypatch.setattr(f"{__name__}.LIMIT", 0.2)
    assert first_failure(2)
