"""So many hits in any window, and an exact word on when the next is possible."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast.core import events
from holdfast.core.cancel import Cancel
from holdfast.core.claim import find
from holdfast.errors import AcquireCancelled, LockError, RateLimited, StoreUnavailable, Unsupported
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing._async.tap import times, unanswered
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


async def test_the_window_slides(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 3, per=60)
        for seconds in (0, 10, 10):
            clock.advance(seconds)
            await limit.hit()
        clock.advance(10)  # hits at 0, 10 and 20; it is 30 now
        with pytest.raises(RateLimited, match="3 hits within 60 s") as caught:
            await limit.hit()
        assert caught.value.retry_after == pytest.approx(30, abs=0.05)
        assert not await limit.try_hit()
        clock.advance(caught.value.retry_after)
        assert await limit.try_hit()
        assert not await limit.try_hit()  # the hit of 10 counts for another 10 seconds
        clock.advance(10)
        assert await limit.try_hit()


async def test_a_refused_hit_does_not_count(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=10)
        await limit.hit()
        for _ in range(5):
            clock.advance(1)
            assert not await limit.try_hit()
        clock.advance(5)
        assert await limit.try_hit()


async def test_clients_share_the_limit_and_their_end_gives_nothing_back(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        await locks.rate_limit("user:42", 2, per=60).hit()
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 2, per=60)
        await limit.hit()
        assert not await limit.try_hit()
        assert await locks.rate_limit("user:43", 2, per=60).try_hit()


async def test_the_error_can_be_pickled_with_its_facts(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=60)
        await limit.hit()
        with pytest.raises(RateLimited) as caught:
            await limit.hit()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.retry_after, again.resource, str(again)) == (
        caught.value.retry_after,
        "user:42",
        str(caught.value),
    )


@pytest.mark.parametrize(("limit", "per"), [(0, 60), (1.5, 60), (True, 60), (3, 0), (3, float("inf")), (3, None)])
async def test_bad_numbers(url: str, limit: object, per: object) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match=r"limit must be an int|per must be a finite number"):
            locks.rate_limit("user:42", limit, per=per)  # type: ignore[arg-type]


async def test_a_window_that_the_store_cannot_count_is_refused(url: str) -> None:
    async with Client(url) as locks:
        store: Any = locks._engine.store
        store.capabilities = store.capabilities._replace(min_ttl=2.0)
        with pytest.raises(Unsupported, match=r"keeps claims for 2 to inf s.*per=1"):
            locks.rate_limit("user:42", 1, per=1)


async def test_several_hits_are_counted_all_or_none(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 5, per=60)
        assert await limit.available() == 5
        await limit.hit(hits=3)
        assert await limit.available() == 2
        assert not await limit.try_hit(hits=3)
        with pytest.raises(RateLimited, match=r"no room for 3 hits within its 5 per 60 s; try in 60.00 s") as caught:
            await limit.hit(hits=3)
        assert caught.value.retry_after == pytest.approx(60, abs=0.05)
        assert await limit.available() == 2
        assert await limit.try_hit(hits=2)
        assert await limit.available() == 0
        clock.advance(60)
        assert await limit.try_hit(hits=5)


@pytest.mark.parametrize("hits", [0, -1, 4, 1.5, True, "1", None], ids=repr)
async def test_more_hits_than_there_can_be_are_refused_and_nothing_is_sent(url: str, hits: Any) -> None:
    async with CaseClient(url) as locks:
        limit = locks.rate_limit("user:42", 3, per=60)
        rule = "hits=4 exceeds limit=3" if hits == 4 else "hits must be an int from 1"
        for hit in (limit.hit, limit.try_hit):
            with pytest.raises(ValueError, match=rule):
                await hit(hits=hits)
        for timeout in (-1, True, float("nan"), "5"):
            with pytest.raises(ValueError, match="timeout must be"):
                await limit.hit(timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cancel must be"):
            await limit.hit(cancel=5)  # type: ignore[arg-type]
        assert locks.tap.calls == []


async def test_a_hit_waits_for_its_turn(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=1.5)
        await limit.hit()
        call = spawn(limit.hit, timeout=5)
        await waiting(locks, "user:42")
        clock.advance(1.49)
        await waiting(locks, "user:42")
        assert not call.done
        clock.advance(0.01 + 1e-6)
        await call.join()
        # The first, then once without standing in line, once to stand there, and once when the time has come.
        assert locks.tap.count("claim") == 4
        assert await limit.available() == 0


async def test_without_a_line_the_first_to_ask_is_served(url: str, clock: ManualClock) -> None:
    """The control of the next test: of those who only ask again, whoever needs less room overtakes."""
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 3, per=60)
        await limit.hit(hits=2)
        clock.advance(10)
        await limit.hit()
        assert not await limit.try_hit(hits=3)
        clock.advance(50)
        assert not await limit.try_hit(hits=3)
        assert await limit.try_hit()


async def test_hits_are_served_in_the_order_of_arrival(url: str, clock: ManualClock) -> None:
    """Many at once are not starved by those who come later and need less."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        # Short, so that nobody has to refresh its place in line while the clock jumps.
        limit, same = locks.rate_limit("user:42", 3, per=3), other.rate_limit("user:42", 3, per=3)
        await limit.hit(hits=2)
        clock.advance(1)
        await limit.hit()
        heavy = spawn(limit.hit, hits=3, timeout=None)
        await waiting(locks, "user:42", 1)
        light = spawn(same.hit, timeout=None)
        await waiting(locks, "user:42", 2)
        assert await limit.available() == 0
        clock.advance(2)
        assert not await same.try_hit()  # there is room for two, and three of them are the first in line
        clock.advance(1 + 1e-6)
        await heavy.join()
        assert not light.done
        await eventually(lambda: light.done, lambda: clock.advance(0.05))
        await light.join()


async def test_what_cannot_come_in_time_is_not_waited_for(url: str, clock: ManualClock) -> None:
    seen = Seen()
    async with CaseClient(url, clock=clock, observers=[seen]) as locks:
        limit = locks.rate_limit("user:42", 1, per=60)
        await limit.hit()
        with pytest.raises(RateLimited, match=r"the next is possible in 60.00 s") as caught:
            await limit.hit(timeout=59)
        assert caught.value.retry_after == pytest.approx(60, abs=0.05)
        assert locks.tap.calls == ["claim", "claim"]
        assert [type(event) for event in seen] == [events.Acquired, events.Busy]
        assert {event.kind for event in seen} == {"rate limit"}


async def test_a_hit_that_waits_in_vain_is_told_when_to_come_again(url: str, clock: ManualClock) -> None:
    """The first hit leaves the window in time, and the second does not."""
    seen = Seen()
    async with CaseClient(url, clock=clock, observers=[seen]) as locks:
        limit = locks.rate_limit("user:42", 2, per=3)
        await limit.hit()
        clock.advance(1)
        await limit.hit()
        call = spawn(limit.hit, hits=2, timeout=2.5)
        await waiting(locks, "user:42")
        asked = len(locks.tap.claims)
        clock.advance(2 + 1e-6)  # there is room for one
        await locks.tap.reached("claims", asked + 1)
        await eventually(lambda: locks.tap.calls[-1] == "wait")
        assert not call.done
        clock.advance(0.5)
        with pytest.raises(RateLimited) as caught:
            await call.join()
        assert caught.value.retry_after == pytest.approx(0.5, abs=0.05)
        assert await limit.available() == 1  # nobody stands in line
        assert [type(event) for event in seen[2:]] == [events.Queued, events.TimedOut]


async def test_a_hit_that_waits_can_be_cancelled(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit, cancel = locks.rate_limit("user:42", 1, per=60), Cancel()
        await limit.hit(cancel=cancel)
        call = spawn(limit.hit, timeout=None, cancel=cancel)
        await waiting(locks, "user:42")
        cancel.cancel()
        with pytest.raises(AcquireCancelled, match="'user:42' was cancelled"):
            await call.join()
        await waiting(locks, "user:42", 0)
        with pytest.raises(AcquireCancelled):
            await locks.rate_limit("user:43", 1, per=60).hit(cancel=cancel)
        assert await locks.rate_limit("user:43", 1, per=60).available() == 1


async def test_closing_ends_a_hit_that_waits(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        limit = locks.rate_limit("user:42", 1, per=60)
        await limit.hit()
        call = spawn(limit.hit, timeout=None)
        await waiting(other, "user:42")
        await locks.close()
        with pytest.raises(LockError, match="closed while 'user:42' was waited for"):
            await call.join()
        await waiting(other, "user:42", 0)
        with pytest.raises(LockError, match="is closed"):
            await limit.hit()


async def test_draining_ends_a_hit_that_waits_outside_of_bodies(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        limit, gate = locks.rate_limit("user:42", 1, per=1.5), Gate()
        await limit.hit()

        async def body() -> bool:
            async with locks.lock("r"):
                await gate.wait()
                await limit.hit(timeout=None)
                return await locks.rate_limit("user:43", 1, per=60).try_hit()

        working = spawn(body)
        await eventually(lambda: gate.arrived)
        call = spawn(limit.hit, timeout=None)
        await waiting(other, "user:42")
        draining = spawn(locks.drain, 30)
        with pytest.raises(LockError, match="draining"):
            await call.join()
        with pytest.raises(LockError, match="draining"):
            await limit.hit()
        gate.open()
        await eventually(lambda: working.done, lambda: clock.advance(0.05))
        assert await working.join() is True
        assert await draining.join() is True


@pytest.mark.parametrize("acted", [False, True])
async def test_an_outage_is_tolerated_while_it_waits_and_a_hit_counts_once(
    url: str, clock: ManualClock, acted: bool
) -> None:
    async with CaseClient(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 3, per=1000)
        hooks = locks.tap.after if acted else locks.tap.before
        hooks["claim"] = times(1, unanswered)
        with pytest.raises(StoreUnavailable):
            await limit.hit()
        assert await limit.available() == (2 if acted else 3)  # it is not known, and nobody sees to it
        for holder in await holders(locks):
            await locks._engine.store.release("user:42", holder)
        for failures in (1, 3):
            hooks["claim"] = times(failures, unanswered)
            call = spawn(limit.hit, timeout=100)
            await eventually(lambda call=call: call.done, lambda: clock.advance(0.05))  # type: ignore[misc]
            await call.join()

        async def counted() -> bool:
            return len(await holders(locks)) == 2

        await eventually(counted, lambda: clock.advance(0.05))


async def holders(locks: Client) -> list[str]:
    state = find(await locks.inspect("user:42"), "user:42")
    return [] if state is None else [claim.holder for claim in (*state.holders, *state.waiters)]


async def test_a_store_that_stays_silent_is_told(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        locks.tap.before["claim"] = unanswered
        began = clock.now()
        call = spawn(locks.rate_limit("user:42", 1, per=60).hit, timeout=5)
        await locks.tap.reached("claims", 1)
        # The clock stops when the timeout has passed: it has ended by then, or never does.
        await eventually(lambda: call.done, lambda: clock.advance(0.05 if clock.now() < began + 5 else 0))
        with pytest.raises(StoreUnavailable, match="'user:42'"):
            await call.join()
        locks.tap.heal()


async def test_a_hit_counts_however_late_the_answer_comes(url: str, clock: ManualClock) -> None:
    """It is not held, so nothing has to be left of it: to give it back and ask anew could go on for ever."""
    async with CaseClient(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=1.5)
        await limit.hit()

        async def dawdle() -> None:
            clock.advance(1.4)

        locks.tap.after["claim"] = dawdle
        await spawn(limit.hit, timeout=10).join()
        assert locks.tap.releases == []
