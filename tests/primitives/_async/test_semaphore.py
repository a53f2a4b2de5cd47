"""Permits: never more than there are, in the order of arrival, and their number may change."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast.core.events import PermitsDiffer
from holdfast.errors import AcquireTimeout, Deadlock, Unsupported
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock


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
