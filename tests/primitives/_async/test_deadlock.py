"""With detect_deadlocks a waiter that closes a cycle raises, instead of waiting for its timeout."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast.core.claim import ResourceState, find
from holdfast.core.deadlock import find_deadlock
from holdfast.errors import AcquireTimeout, Deadlock, StoreUnavailable
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import Call, Gate, eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


class Actor:
    """Takes one lock, and when the gate opens another, or fails; then gives both back."""

    def __init__(self, locks: Client, first: str, second: str, detect: bool | None = None) -> None:
        self.gate = Gate()
        self._call: Call[bool] = spawn(self._run, locks, first, second, detect)

    async def _run(self, locks: Client, first: str, second: str, detect: bool | None) -> bool:
        async with locks.lock(first, ttl=1000):
            await self.gate.wait()
            async with locks.lock(second, ttl=1000, timeout=60, detect_deadlocks=detect):
                return True

    async def ready(self) -> None:
        await eventually(lambda: self.gate.arrived)

    @property
    def done(self) -> bool:
        return self._call.done

    async def join(self) -> bool:
        return await self._call.join()


async def meet(one: Client, two: Client, detect: bool | None = None) -> tuple[Actor, Actor]:
    """Let one hold a and wait for b, then two hold b and want a."""
    first, second = Actor(one, "a", "b"), Actor(two, "b", "a", detect)
    for actor in (first, second):
        await actor.ready()
    first.gate.open()
    await waiting(one, "b")
    second.gate.open()
    return first, second


async def test_who_closes_the_cycle_raises_and_the_other_goes_on(url: str, clock: ManualClock) -> None:
    async with (
        Client(url, clock=clock, owner="one") as one,
        Client(url, clock=clock, owner="two", detect_deadlocks=True) as two,
    ):
        first, second = await meet(one, two)
        began = clock.now()
        with pytest.raises(Deadlock) as caught:
            await second.join()
        assert "two waits for 'a' held by one, one waits for 'b' held by two" in str(caught.value)
        assert "take them in one order everywhere" in str(caught.value)
        assert (caught.value.resource, caught.value.owner) == ("a", "one")
        assert caught.value.token is not None
        assert await first.join()
        assert clock.now() == began  # nobody has waited for a timeout
        assert await one.inspect() == []


async def test_without_it_both_wait_for_their_timeout(url: str, clock: ManualClock) -> None:
    """The control of the test above; the lock's own option has the last word."""
    async with Client(url, clock=clock) as one, Client(url, clock=clock, detect_deadlocks=True) as two:
        first, second = await meet(one, two, detect=False)
        await waiting(one, "a")
        clock.advance(30)
        assert not first.done
        assert not second.done
        await eventually(lambda: first.done and second.done, lambda: clock.advance(1))
        ended = []
        for actor in (first, second):
            try:
                ended.append(await actor.join())
            except AcquireTimeout:
                ended.append(False)
        assert False in ended


async def test_an_option_of_one_lock_is_enough(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        first, second = await meet(one, two, detect=True)
        with pytest.raises(Deadlock):
            await second.join()
        assert await first.join()


async def test_of_two_who_see_the_same_cycle_the_last_to_ask_raises(url: str, clock: ManualClock) -> None:
    """Both look after both have asked; without a rule both would raise, and nothing would go on."""
    async with (
        CaseClient(url, clock=clock, detect_deadlocks=True) as one,
        CaseClient(url, clock=clock, detect_deadlocks=True) as two,
    ):
        looks = Gate()
        one.tap.before["inspect"] = two.tap.before["inspect"] = looks.wait
        actors = [Actor(one, "a", "b"), Actor(two, "b", "a")]
        for actor in actors:
            await actor.ready()
        for number, actor in enumerate(actors, 1):
            clock.advance(0.1)
            actor.gate.open()
            await eventually(lambda number=number: looks.arrived == number)  # type: ignore[misc]
        looks.open()
        with pytest.raises(Deadlock):
            await actors[1].join()
        assert await actors[0].join()


async def test_a_plain_wait_is_no_deadlock(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock, detect_deadlocks=True) as locks:
        lease = await locks.lock("a").acquire()
        calls = [spawn(take, locks, "a") for _ in range(3)]
        await waiting(locks, "a", 3)
        await lease.release()
        for call in calls:
            await call.join()


async def take(locks: Client, resource: str) -> None:
    async with locks.lock(resource):
        pass


async def test_who_took_all_permits_does_not_wait_for_itself(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock, detect_deadlocks=True) as locks:
        gpu = locks.semaphore("gpu", permits=2)
        async with gpu, gpu:
            with pytest.raises(Deadlock, match="waits for 'gpu' held by"):
                await gpu.acquire()
        assert await locks.inspect() == []


async def test_a_lease_that_runs_out_by_itself_is_no_deadlock(url: str, clock: ManualClock) -> None:
    """Its holder waits, but the lease is not renewed: it ends although nobody lets go."""
    async with Client(url, clock=clock) as one, Client(url, clock=clock, detect_deadlocks=True) as two:

        async def first() -> bool:
            unrenewed = await one.lock("a", renew=False, ttl=5).acquire()
            async with one.lock("b", ttl=1000):
                return unrenewed.lost

        async def second() -> None:
            async with two.lock("b", ttl=1000):
                call.append(spawn(first))
                await waiting(two, "b")
                async with two.lock("a", ttl=1000):
                    pass

        call: list[Call[bool]] = []
        other = spawn(second)
        await eventually(lambda: other.done, lambda: clock.advance(0.1))
        await other.join()
        assert await call[0].join()


async def test_a_cycle_that_is_not_seen_twice_is_not_believed(url: str, clock: ManualClock) -> None:
    """What `inspect` shows need not have been there all at once: here the first gives up between two looks."""
    async with Client(url, clock=clock) as one, Client(url, clock=clock, detect_deadlocks=True) as two:
        inspect, looks = two._engine.store.inspect, []

        async def look(prefix: str = "") -> list[ResourceState]:
            states = await inspect(prefix)
            looks.append(states)
            if len(looks) == 1:
                state = find(states, "b")
                assert state is not None
                await two._engine.store.release("b", state.waiters[0].holder)
            return states

        first, second = Actor(one, "a", "b"), Actor(two, "b", "a")
        for actor in (first, second):
            await actor.ready()
        first.gate.open()
        await waiting(one, "b")
        two._engine.store.inspect = look  # type: ignore[method-assign]
        second.gate.open()
        await eventually(lambda: len(looks) == 2)
        assert find_deadlock(looks[0], looks[0][0].waiters[0].holder)
        assert not second.done  # it saw a cycle, and waits nevertheless
        two._engine.store.inspect = inspect  # type: ignore[method-assign]
        await eventually(lambda: first.done or second.done, lambda: clock.advance(0.1))


async def test_a_look_that_goes_unanswered_is_an_outage(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock, detect_deadlocks=True) as two:
        failures: list[str] = []
        inspect = two._engine.store.inspect

        async def look(prefix: str = "") -> list[ResourceState]:
            if len(failures) < 2:
                failures.append(prefix)
                raise StoreUnavailable("not now")
            return await inspect(prefix)

        two._engine.store.inspect = look  # type: ignore[method-assign]
        first, second = await meet(one, two)
        await eventually(lambda: second.done, lambda: clock.advance(0.01))
        with pytest.raises(Deadlock):
            await second.join()
        assert len(failures) == 2
        assert await first.join()
