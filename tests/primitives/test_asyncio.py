"""What only asyncio has: cancellation of the work, and generators that are closed later."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast.errors import LeaseLost, NotHeld
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import cancelled_at, eventually
from holdfast.testing._async.tap import unanswered
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting

MOST_POINTS = 40


async def test_the_body_of_a_lost_term_is_cancelled_and_the_loop_goes_on(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        terms: list[int] = []

        async def campaign() -> None:
            async for term in locks.election("scheduler").terms():
                async with term:
                    terms.append(term.token)
                    if len(terms) == 2:
                        return
                    await asyncio.sleep(1000)
                assert term.lost

        task = asyncio.create_task(campaign())
        await eventually(lambda: len(terms) == 1)
        locks.tap.before["renew"] = unanswered
        clock.advance(31)
        await asyncio.wait_for(task, 10)
        assert terms[0] < terms[1]


async def test_a_cancelled_campaign_ends_and_leaves_nothing(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:

        async def campaign() -> None:
            async with aclosing(locks.election("scheduler").terms()) as terms:
                async for term in terms:
                    async with term:
                        await asyncio.sleep(1000)

        async with other.lock("scheduler", ttl=1000):
            waits = asyncio.create_task(campaign())
            await waiting(other, "scheduler")
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        leads = asyncio.create_task(campaign())

        async def led() -> bool:
            return await other.election("scheduler").leader() is not None

        await eventually(led)
        leads.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leads
        assert await other.inspect() == []


async def test_once_cancelled_at_any_await_leaves_nothing_or_its_result(url: str, clock: ManualClock) -> None:
    """Wherever the cancellation strikes, the next call gets a result: its own or, if that was recorded, the first."""
    async with Client(url, clock=clock) as locks:
        for point in range(MOST_POINTS):
            runs: list[int] = []

            @locks.once(f"job {point}")
            async def work(runs: list[int] = runs, *, lease: Lease | None = None) -> int:
                assert lease is not None
                runs.append(lease.token)
                await asyncio.sleep(0)
                return lease.token

            struck = await cancelled_at(point, work)

            async def free() -> bool:
                return await locks.inspect() == []

            await eventually(free)
            assert await work() == runs[-1]
            assert len(runs) <= 2
            assert await work() == runs[-1]
            if not struck:
                return
        raise AssertionError(f"once has more than {MOST_POINTS} await points")


@pytest.mark.parametrize("order", ["sorted", "given"])
async def test_lock_all_cancelled_at_any_await_leaves_nothing(url: str, clock: ManualClock, order: str) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:

        async def take() -> None:
            async with locks.lock_all("a", "b", "c", order=order, ttl=1000) as leases:
                leases.check()

        async def free() -> bool:
            return await other.inspect() == []

        for point in range(MOST_POINTS):
            struck = await cancelled_at(point, take)
            await eventually(free)
            if not struck:
                return
        raise AssertionError(f"lock_all has more than {MOST_POINTS} await points")


async def test_lock_all_cancelled_twice_gives_back_what_is_left(url: str, clock: ManualClock) -> None:
    """The second cancellation strikes while the first is being tidied up."""
    async with CaseClient(url, clock=clock) as locks, Client(url, clock=clock) as other:
        leases = await locks.lock_all("a", "b", "c", ttl=1000).acquire()
        reached = asyncio.Event()

        async def slow() -> None:
            reached.set()
            await asyncio.sleep(1000)

        locks.tap.before["release"] = slow
        task = asyncio.create_task(leases.release())
        await reached.wait()
        locks.tap.heal()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def free() -> bool:
            return await other.inspect() == []

        await eventually(free)
        with pytest.raises(NotHeld):
            leases.check()


async def test_the_loss_of_one_cancels_the_body_of_all(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        for lost in (["a"], ["b"], ["a", "b"]):
            started = asyncio.Event()

            async def body(started: asyncio.Event = started) -> None:
                async with locks.lock_all("a", "b", ttl=1000):
                    started.set()
                    await asyncio.sleep(1000)

            task = asyncio.create_task(body())
            await started.wait()
            for state in await locks.inspect():
                if state.resource in lost:
                    await locks.tap.release(state.resource, state.holders[0].holder)
            clock.advance(340)  # the next renewal finds out
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(task, 10)
            assert task.cancelling() == 0
            assert await locks.inspect() == []


async def test_a_cancelled_hit_leaves_no_place_in_line(url: str, clock: ManualClock) -> None:
    """Wherever it was cancelled: while it asked, stood in line, or slept."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        limit = locks.rate_limit("user:42", 1, per=1000)
        await limit.hit()
        for point in range(MOST_POINTS):
            assert await cancelled_at(point, lambda: limit.hit(timeout=None), patience=0.05)
            await waiting(other, "user:42", 0)
