"""The loop that claims, waits and tries again, as callers see it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.claim import Answer, Claim
from holdfast.errors import AcquireTimeout, StoreError, StoreUnavailable
from tests.shell._async.kit import Tap, connect, is_free
from tests.shell._async.runtime import Gate, eventually, spawn
from tests.shell.clock import ManualClock


async def test_try_acquire_returns_none_only_when_busy(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        tap = Tap(locks)
        async with others.lock("r"):
            assert await locks.lock("r").try_acquire() is None
        tap.cut_off("claim")
        with pytest.raises(StoreUnavailable):
            await locks.lock("r").try_acquire()
        tap.fail["claim"] = StoreError("damaged")
        with pytest.raises(StoreError, match="damaged"):
            await locks.lock("r").try_acquire()
        tap.fail.clear()
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
        tap = Tap(locks)
        tap.cut_off("claim")
        waiting = spawn(locks.lock("r").try_acquire, timeout)
        await eventually(lambda: waiting.done, lambda: clock.advance(0.05))
        with pytest.raises(StoreUnavailable, match="the store does not answer: cut off"):
            await waiting.join()
        assert least <= clock.now() - 1000 <= most
        assert len(tap.claims) > 3


async def test_an_outage_that_ends_is_no_error(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = Tap(locks)
        tap.cut_off("claim")
        waiting = spawn(locks.lock("r").try_acquire, 5)
        await eventually(lambda: len(tap.claims) == 3, lambda: clock.advance(0.02))
        tap.fail.clear()
        await eventually(lambda: waiting.done, lambda: clock.advance(0.02))
        lease = await waiting.join()
        assert lease is not None
        lease.check()
        await lease.release()


async def test_a_grant_that_took_longer_than_its_ttl_starts_no_body(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = Tap(locks)
        claim, calls = tap._claim, [0]

        async def slow_once(*args: Any) -> Any:
            answer = await claim(*args)
            calls[0] += 1
            if calls[0] == 1:
                clock.advance(31)
            return answer

        tap._claim = slow_once
        async with await locks.lock("r").acquire() as lease:
            assert calls[0] == 2
            assert lease.remaining > 29


async def test_a_slow_grant_shortens_the_lease(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = Tap(locks)
        gate = tap.hold_up["claim"] = Gate()
        waiting = spawn(locks.lock("r").try_acquire)
        await eventually(lambda: gate.arrived)
        claim = tap._claim

        async def slow(*args: Any) -> Any:
            answer = await claim(*args)
            clock.advance(5)
            return answer

        tap._claim = slow
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

        first = spawn(work, 0)
        await eventually(lambda: gate.arrived)
        tap = Tap(locks)
        rest = []
        for number in (1, 2, 3):
            rest.append(spawn(work, number))
            await tap.count("claims", number)
        gate.open()
        for worker in (first, *rest):
            await worker.join()
        assert order == [0, 1, 2, 3]
        assert clock.now() == 1000
        assert await is_free(locks, "r")


async def test_a_claim_that_comes_after_its_withdrawal_is_released_all_the_same(name: str, clock: ManualClock) -> None:
    """A stopped server goes on, and runs what two connections have brought: first the withdrawal, then the claim."""
    async with connect(name, clock) as locks, connect(name, clock) as other:
        tap = Tap(locks)
        sent: list[Claim] = []

        async def lose(claim: Claim, queue: bool = True) -> Answer:
            sent.append(claim)
            raise StoreUnavailable("cut off")

        locks._store.claim = lose  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await locks.lock("r", ttl=60).acquire(0)
        await tap.count("releases", 1)
        assert await other._store.claim(sent[0])
        assert not await is_free(other, "r")
        await eventually(lambda: len(tap.released) > 1, lambda: clock.advance(0.5))
        assert await is_free(other, "r")


async def test_a_name_whose_release_went_unanswered_is_not_used_again(name: str, clock: ManualClock) -> None:
    """The grant ran out on its way. Its release may arrive late, and would end what the name was granted next."""
    async with connect(name, clock) as locks:
        tap = Tap(locks)
        ask = tap.claim

        async def slow(claim: Claim, queue: bool = True) -> Answer:
            answer = await ask(claim, queue)
            clock.advance(2.0)
            return answer

        locks._store.claim = slow  # type: ignore[method-assign]
        tap.cut_off("release")
        with pytest.raises(StoreUnavailable, match="longer than the ttl"):
            await locks.lock("r", ttl=1.0).acquire(60)
        assert len(tap.claims) == 1
        tap.fail.clear()
