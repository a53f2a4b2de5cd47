"""Permits: never more than there are, in the order of arrival, and their number may change."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock, Semaphore
from holdfast.core.events import PermitsDiffer
from holdfast.errors import AcquireTimeout, Deadlock, Unsupported
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


async def take(lock: Lock) -> Lease:
    return await lock.acquire()


async def test_as_many_as_there_are_permits(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        gpu = locks.semaphore("gpu", permits=3)
        leases = [await spawn(take, gpu).join() for _ in range(3)]
        with pytest.raises(AcquireTimeout, match="'gpu' is busy"):
            await gpu.acquire(timeout=0)
        waiting = spawn(take, gpu)
        await leases[1].release()
        leases[1] = await waiting.join()
        for lease in leases:
            await lease.release()


async def test_one_actor_may_hold_several_permits(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        gpu = locks.semaphore("gpu", permits=2)
        async with gpu as first, gpu as second:
            assert first.token != second.token
            assert await gpu.try_acquire() is None
        assert await locks.inspect() == []


async def test_a_single_permit_is_a_lock(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        one = locks.semaphore("one", permits=1)
        async with one:
            with pytest.raises(Deadlock, match="block holds 'one'"):
                await one.acquire()


async def test_each_claim_is_judged_by_its_own_number(url: str, clock: ManualClock) -> None:
    """A rolling deploy raises the number of permits from 2 to 3, and back."""
    async with Client(url, clock=clock) as old, Client(url, clock=clock) as new:
        leases = [await spawn(take, old.semaphore("gpu", permits=2)).join() for _ in range(2)]
        assert await old.semaphore("gpu", permits=2).try_acquire() is None
        third = await spawn(take, new.semaphore("gpu", permits=3)).join()
        await leases[0].release()
        assert await old.semaphore("gpu", permits=2).try_acquire() is None
        await third.release()
        await leases[1].release()


async def test_permits_cannot_be_fenced(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, locks.semaphore("gpu", permits=2) as lease:
        with pytest.raises(Unsupported, match="2 permits"):
            assert lease.fence


@pytest.mark.parametrize("permits", [0, -1, 1.5, True, "2", None, 10**7], ids=repr)
async def test_permits_are_a_whole_number(url: str, permits: object) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match="permits must be an int from 1 to 1000000"):
            locks.semaphore("gpu", permits=permits)  # type: ignore[arg-type]


async def differing(url: str, clock: ManualClock, ours: int, theirs: int) -> list[PermitsDiffer]:
    """Ask three times, in vain, for one of `ours` while another holds all of `theirs`; return what was told of it."""
    seen = Seen()
    async with (
        Client(url, clock=clock, owner="other") as other,
        Client(url, clock=clock, observers=[seen]) as locks,
    ):
        leases = [await other.semaphore("gpu", permits=theirs, ttl=1000).acquire() for _ in range(theirs)]
        for _ in range(3):
            call = spawn(locks.semaphore("gpu", permits=ours, ttl=1000).try_acquire, 1)
            await eventually(lambda call=call: call.done, lambda: clock.advance(0.1))  # type: ignore[misc]
            assert await call.join() is None
        for lease in leases:
            await lease.release()
    return [event for event in seen if isinstance(event, PermitsDiffer)]


async def test_differing_numbers_are_told_once_a_client(
    url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    (event,) = await differing(url, clock, 2, 3)
    assert (event.resource, event.permits, event.others, event.other) == ("gpu", 2, 3, "other")
    assert "'gpu' is asked for with 2 permits here and 3 by other" in caplog.text


async def test_equal_numbers_are_not_told(url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    assert await differing(url, clock, 2, 2) == []
    assert "permits" not in caplog.text


async def test_a_permit_under_its_own_lock_raises(url: str) -> None:
    """It would wait for itself."""
    async with Client(url) as locks, locks.lock("gpu"):
        with pytest.raises(Deadlock, match="block holds 'gpu'"):
            await locks.semaphore("gpu", permits=2).acquire()


async def test_several_permits_are_taken_at_once_or_not_at_all(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        gpu = locks.semaphore("gpu", permits=4)
        async with await gpu.acquire(weight=3):
            assert await gpu.try_acquire(weight=2) is None
            with pytest.raises(AcquireTimeout, match="'gpu' is busy"):
                await gpu.acquire(0, weight=2)
            one = await gpu.try_acquire()
            assert one is not None
            assert await gpu.try_acquire() is None
        three = await gpu.try_acquire(weight=3)  # a release gives back what was taken
        assert three is not None
        await three.release()
        await one.release()
        async with gpu.acquire(weight=4):
            assert await gpu.try_acquire() is None
        assert await locks.inspect() == []


async def test_a_semaphore_may_have_a_weight_of_its_own(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        gpu = locks.semaphore("gpu", permits=4, weight=3)
        assert repr(gpu) == "<Lock 'gpu' 3 of 4 ttl=30>"
        async with gpu:
            assert await gpu.try_acquire() is None
            one = await gpu.try_acquire(weight=1)
            assert one is not None
            await one.release()

        @gpu
        async def work() -> list[int]:
            return [claim.weight for state in await locks.inspect() for claim in state.holders]

        assert await work() == [3]


async def heavy(gpu: Semaphore) -> Lease:
    return await gpu.acquire(weight=3)


async def test_many_permits_at_the_head_of_the_line_are_not_starved(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        gpu, same = locks.semaphore("gpu", permits=4), other.semaphore("gpu", permits=4)
        leases = [await gpu.acquire() for _ in range(3)]
        call = spawn(heavy, gpu)
        await waiting(locks, "gpu", 1)
        light = spawn(take, same)
        await waiting(locks, "gpu", 2)
        assert await same.try_acquire() is None  # one permit is free, and three are waited for
        await leases[0].release()
        assert await same.try_acquire() is None
        await leases[1].release()
        three = await call.join()
        assert not light.done
        await leases[2].release()
        await (await light.join()).release()
        await three.release()


async def test_unfair_claims_starve_them(url: str, clock: ManualClock) -> None:
    """The control of the test above."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        gpu, hasty = locks.semaphore("gpu", permits=4), other.semaphore("gpu", permits=4, fair=False)
        leases = [await gpu.acquire() for _ in range(3)]
        call = spawn(heavy, gpu)
        await waiting(locks, "gpu", 1)
        overtaking = await hasty.try_acquire()
        assert overtaking is not None
        await overtaking.release()
        for lease in leases:
            await lease.release()
        await (await call.join()).release()


@pytest.mark.parametrize("weight", [0, -1, 5, 1.5, True, "2", 10**7], ids=repr)
async def test_a_weight_that_could_never_be_granted_is_refused(url: str, weight: object) -> None:
    async with CaseClient(url) as locks:
        gpu = locks.semaphore("gpu", permits=4)
        rule = "weight=5 exceeds permits=4: it could never be granted" if weight == 5 else "weight must be an int"
        with pytest.raises(ValueError, match=rule):
            locks.semaphore("gpu", permits=4, weight=weight)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rule):
            await gpu.acquire(weight=weight)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rule):
            await gpu.try_acquire(weight=weight)  # type: ignore[arg-type]
        assert locks.tap.calls == []


async def test_a_block_that_has_some_and_asks_for_all_raises(url: str) -> None:
    async with Client(url) as locks:
        gpu = locks.semaphore("gpu", permits=4)
        async with gpu:
            with pytest.raises(Deadlock, match="holds a share of 'gpu'"):
                await gpu.acquire(weight=4)
            async with gpu.acquire(weight=3):
                pass
        async with gpu.acquire(weight=4):
            with pytest.raises(Deadlock, match="block holds 'gpu'"):
                await gpu.acquire()
