"""Readers share, writers exclude, and everybody is served in the order of arrival."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast.core.events import Event, Queued
from holdfast.errors import Deadlock
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock


async def take(lock: Lock) -> Lease:
    return await lock.acquire()


async def queued(seen: list[Event], number: int) -> None:
    """Wait until so many claims have got a place in line."""
    await eventually(lambda: sum(isinstance(event, Queued) for event in seen) == number)


async def test_readers_share_and_a_writer_waits_for_all_of_them(url: str, clock: ManualClock) -> None:
    seen = Seen()
    async with Client(url, clock=clock, observers=[seen]) as locks:
        catalog = locks.rwlock("catalog")
        readers = [await spawn(take, catalog.read()).join() for _ in range(3)]
        assert len({reader.token for reader in readers}) == 3
        assert all(reader.fence.shared for reader in readers)
        writer = spawn(take, catalog.write())
        await queued(seen, 1)
        for reader in readers:
            assert not writer.done
            await reader.release()
        lease = await writer.join()
        assert lease.token > max(reader.token for reader in readers)
        assert not lease.fence.shared
        await lease.release()


async def test_a_reader_that_comes_after_a_waiting_writer_waits_behind_it(url: str, clock: ManualClock) -> None:
    seen = Seen()
    async with Client(url, clock=clock, observers=[seen]) as locks:
        catalog = locks.rwlock("catalog")
        first = await spawn(take, catalog.read()).join()
        writer = spawn(take, catalog.write())
        await queued(seen, 1)
        assert await catalog.read().try_acquire() is None  # readers cannot starve the writer
        late = spawn(take, catalog.read())
        await queued(seen, 2)
        await first.release()
        written = await writer.join()
        assert not late.done
        await written.release()
        await (await late.join()).release()


async def test_an_unfair_reader_overtakes_a_waiting_writer(url: str, clock: ManualClock) -> None:
    """The control of the test above: without the queue the reader would be let in."""
    seen = Seen()
    async with Client(url, clock=clock, observers=[seen]) as locks:
        first = await spawn(take, locks.rwlock("catalog").read()).join()
        writer = spawn(take, locks.rwlock("catalog").write())
        await queued(seen, 1)
        overtaker = await spawn(take, locks.rwlock("catalog", fair=False).read()).join()
        assert not writer.done
        await overtaker.release()
        await first.release()
        await (await writer.join()).release()


async def test_a_nested_read_shares_the_first_lease_although_a_writer_waits(url: str, clock: ManualClock) -> None:
    seen = Seen()
    async with Client(url, clock=clock, observers=[seen]) as locks:
        catalog = locks.rwlock("catalog")
        async with catalog.read() as outer:
            writer = spawn(take, catalog.write())
            await queued(seen, 1)
            async with catalog.read() as inner:
                assert inner.token == outer.token
            assert not writer.done
            outer.check()
        await (await writer.join()).release()


async def test_a_reader_does_not_become_a_writer(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        catalog = locks.rwlock("catalog")
        async with catalog.read():
            with pytest.raises(Deadlock, match=r"holds a share of 'catalog'.*leave it first"):
                await catalog.write().acquire()
        async with catalog.write():
            with pytest.raises(Deadlock, match="block holds 'catalog'"):
                await catalog.read().acquire()


async def test_a_lock_and_a_rwlock_of_one_name_exclude_each_other(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        reader = await spawn(take, locks.rwlock("x").read()).join()
        assert await locks.lock("x").try_acquire() is None
        await reader.release()
        async with locks.lock("x"):
            other = spawn(locks.rwlock("x").read().try_acquire)
            assert await other.join() is None
