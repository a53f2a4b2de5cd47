"""The loop that claims, waits and tries again, as callers see it."""

from __future__ import annotations

import pytest

from holdfast.core.claim import Answer, Claim
from holdfast.errors import AcquireTimeout, StoreError, StoreUnavailable
from holdfast.testing._async.runtime import Gate, eventually, pause, spawn
from holdfast.testing._async.tap import failing, times
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free


async def test_try_acquire_returns_none_only_when_busy(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        tap = locks.tap
        async with others.lock("r"):
            assert await locks.lock("r").try_acquire() is None
        tap.cut_off("claim")
        with pytest.raises(StoreUnavailable):
            await locks.lock("r").try_acquire()
        tap.before["claim"] = failing(StoreError("damaged"))
        with pytest.raises(StoreError, match="damaged"):
            await locks.lock("r").try_acquire()
        tap.heal()
        lease = await locks.lock("r").try_acquire()
        assert lease
        await lease.release()


async def test_timeout_of_the_call_overrides_that_of_the_lock(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        async with others.lock("r"):
            with pytest.raises(AcquireTimeout):
                await locks.lock("r", timeout=None).acquire(timeout=0)
            waiting = spawn(locks.lock("r", timeout=0).try_acquire, 5)
            await eventually(lambda: waiting.done, lambda: clock.advance(0.1))
            assert await waiting.join() is None
            assert clock.now() >= 1005


async def test_a_timeout_says_how_long_and_for_whom(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock, owner="web-3:81") as others:
        async with others.lock("r") as held:
            lock = locks.lock("r")

            async def take() -> None:
                await lock.acquire(timeout=5)

            waiting = spawn(take)
            await eventually(lambda: waiting.done, lambda: clock.advance(0.1))
            with pytest.raises(
                AcquireTimeout, match=rf"waited 5\.\d s for 'r'; held by web-3:81 \(token {held.token}, \d+ s"
            ):
                await waiting.join()
            with pytest.raises(TimeoutError):
                await waiting.join()


@pytest.mark.parametrize(("timeout", "least", "most"), [(5, 4.4, 6), (None, 1.5, 4)], ids=str)
async def test_an_outage_is_borne_for_a_while(
    timeout: float | None, least: float, most: float, name: str, clock: ManualClock
) -> None:
    async with connect(name, clock, io_timeout=1) as locks:
        tap = locks.tap
        tap.cut_off("claim")
        waiting = spawn(locks.lock("r").try_acquire, timeout)
        await eventually(lambda: waiting.done, lambda: clock.advance(0.05))
        with pytest.raises(StoreUnavailable, match="the store does not answer: the tap"):
            await waiting.join()
        assert least <= clock.now() - 1000 <= most
        assert len(tap.claims) > 3


async def test_an_outage_that_ends_is_no_error(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        tap.cut_off("claim")
        waiting = spawn(locks.lock("r").try_acquire, 5)
        await eventually(lambda: len(tap.claims) == 3, lambda: clock.advance(0.02))
        tap.heal()
        await eventually(lambda: waiting.done, lambda: clock.advance(0.02))
        lease = await waiting.join()
        assert lease is not None
        lease.check()
        await lease.release()


async def test_a_grant_that_took_longer_than_its_ttl_starts_no_body(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        async def slow() -> None:
            clock.advance(31)

        locks.tap.after["claim"] = times(1, slow)
        async with await locks.lock("r").acquire() as lease:
            assert locks.tap.claims == ["r", "r"]
            assert lease.remaining > 29


async def test_a_grant_that_is_nearly_over_starts_no_body(name: str, clock: ManualClock) -> None:
    """The keeper could hardly renew it in time."""
    async with connect(name, clock) as locks:

        async def slow() -> None:
            clock.advance(26)

        locks.tap.after["claim"] = times(1, slow)
        async with await locks.lock("r").acquire() as lease:
            assert lease.remaining > 29


async def test_what_was_given_back_is_asked_for_under_another_name(name: str, clock: ManualClock) -> None:
    """A copy of the release may arrive later, and would end what is granted next under the same name."""
    async with connect(name, clock) as locks:
        holders: list[str] = []

        async def slow() -> None:
            (state,) = await locks.tap.store.inspect()
            holders.append(state.holders[0].holder)
            if len(holders) == 1:
                clock.advance(29)

        locks.tap.after["claim"] = slow
        async with locks.lock("r"):
            assert len(set(holders)) == 2


async def test_a_slow_grant_shortens_the_lease(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        gate = tap.hold_up("claim")
        waiting = spawn(locks.lock("r").try_acquire)
        await eventually(lambda: gate.arrived)

        async def slow() -> None:
            clock.advance(5)

        tap.after["claim"] = slow
        gate.open()
        lease = await waiting.join()
        assert lease is not None
        assert lease.remaining == pytest.approx(29.698 - 5)
        await lease.release()


async def test_a_release_wakes_the_next_without_the_clock(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        gate = Gate()
        order: list[int] = []

        async def work(number: int) -> None:
            async with locks.lock("r"):
                order.append(number)
                await gate.wait()

        async def in_line() -> int:
            return len((await locks.inspect("r"))[0].waiters)

        first = spawn(work, 0)
        await eventually(lambda: gate.arrived)
        rest = []
        for number in (1, 2, 3):
            rest.append(spawn(work, number))
            while await in_line() < number:
                await pause(0.002)
        gate.open()
        for worker in (first, *rest):
            await worker.join()
        assert order == [0, 1, 2, 3]
        assert clock.now() == 1000
        assert await is_free(locks, "r")


async def test_a_claim_that_comes_after_its_withdrawal_is_released_all_the_same(name: str, clock: ManualClock) -> None:
    """A stopped server goes on, and runs what two connections have brought: first the withdrawal, then the claim."""
    async with connect(name, clock) as locks, connect(name, clock) as other:
        tap = locks.tap
        sent: list[Claim] = []

        async def lose(claim: Claim, queue: bool = True) -> Answer:
            sent.append(claim)
            raise StoreUnavailable("cut off")

        locks._engine.store.claim = lose  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await locks.lock("r", ttl=60).acquire(0)
        await tap.reached("releases", 1)
        assert await other._engine.store.claim(sent[0])
        assert not await is_free(other, "r")
        await eventually(lambda: len(tap.released) > 1, lambda: clock.advance(0.5))
        assert await is_free(other, "r")


async def test_a_name_whose_release_went_unanswered_is_not_used_again(name: str, clock: ManualClock) -> None:
    """The grant ran out on its way. Its release may arrive late, and would end what the name was granted next."""
    async with connect(name, clock) as locks:
        tap = locks.tap
        ask = tap.claim

        async def slow(claim: Claim, queue: bool = True) -> Answer:
            answer = await ask(claim, queue)
            clock.advance(2.0)
            return answer

        locks._engine.store.claim = slow  # type: ignore[method-assign]
        tap.cut_off("release")
        with pytest.raises(StoreUnavailable, match="longer than the ttl"):
            await locks.lock("r", ttl=1.0).acquire(60)
        assert len(tap.claims) == 1
        tap.heal()
