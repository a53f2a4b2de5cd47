"""Several resources at once: all or nothing, under one deadline, without deadlock."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast._async.multi import MultiLock
from holdfast.errors import AcquireTimeout, Deadlock, LeaseLost
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing.clock import ManualClock


async def test_all_are_held_in_sorted_order_and_given_back(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        async with locks.lock_all("b", "a", "b", "c") as leases:
            assert list(leases) == ["a", "b", "c"]
            assert [state.resource for state in await locks.inspect()] == ["a", "b", "c"]
            assert leases["b"].resource == "b"
            leases.check()
        assert await locks.inspect() == []
        assert locks.lock_all("b", "a", order="given").resources == ["b", "a"]


async def test_nothing_is_kept_when_one_stays_busy(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        async with other.lock("b"):
            waiting = spawn(locks.lock_all("a", "b", "c", timeout=5).acquire)
            await eventually(lambda: waiting.done, lambda: clock.advance(0.5))
            with pytest.raises(AcquireTimeout, match="'b'"):
                await waiting.join()
            assert [state.resource for state in await other.inspect()] == ["b"]


async def test_one_deadline_for_all(url: str, clock: ManualClock) -> None:
    """The second member does not get the whole timeout again."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        first, second = await other.lock("a").acquire(), await other.lock("b").acquire()
        began = clock.now()
        waiting = spawn(locks.lock_all("a", "b", timeout=10).acquire)
        await eventually(lambda: clock.now() >= began + 6, lambda: clock.advance(0.5))
        await first.release()
        await eventually(lambda: waiting.done, lambda: clock.advance(0.25))
        with pytest.raises(AcquireTimeout, match="'b'"):
            await waiting.join()
        assert clock.now() - began < 16
        await second.release()


async def test_loss_of_one_is_loss_of_all(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        leases = await locks.lock_all("a", "b", renew=False).acquire()
        await leases["a"].release()
        clock.advance(31)
        assert leases.lost
        with pytest.raises(LeaseLost, match="'b'"):
            await leases.release()
        with pytest.raises(LeaseLost, match="'d'"):
            async with locks.lock_all("c", "d", renew=False):
                clock.advance(31)


async def test_what_this_actor_holds_already_raises_and_gives_back(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, locks.lock("b"):
        with pytest.raises(Deadlock, match="'b'"):
            await locks.lock_all("a", "b").acquire()
        assert [state.resource for state in await locks.inspect()] == ["b"]


async def hold_both(described: MultiLock, rounds: int) -> int:
    for _ in range(rounds):
        async with described as leases:
            leases.check()
    return rounds


@pytest.mark.parametrize("order", ["sorted", "given"])
async def test_opposite_orders_do_not_deadlock(url: str, order: str) -> None:
    async with Client(url) as one, Client(url) as two:
        first = spawn(hold_both, one.lock_all("a", "b", timeout=20, order=order), 10)
        second = spawn(hold_both, two.lock_all("b", "a", timeout=20, order=order), 10)
        assert (await first.join(), await second.join()) == (10, 10)


async def test_the_naive_way_deadlocks(url: str, clock: ManualClock) -> None:
    """The control of the test above: each takes one and waits for the other's, until its timeout."""

    async def naive(locks: Client, first: str, second: str, gate: Gate) -> bool:
        async with locks.lock(first):
            await gate.wait()
            second_lease = await locks.lock(second).try_acquire(5)
            if second_lease is None:
                return False
            await second_lease.release()
            return True

    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        gate = Gate()
        calls = [spawn(naive, one, "a", "b", gate), spawn(naive, two, "b", "a", gate)]
        await eventually(lambda: gate.arrived == 2)
        gate.open()
        await eventually(lambda: all(call.done for call in calls), lambda: clock.advance(0.5))
        assert False in [await call.join() for call in calls]


async def test_bad_arguments(url: str) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match="at least one resource"):
            locks.lock_all()
        with pytest.raises(ValueError, match="order must be 'sorted' or 'given', not 'random'"):
            locks.lock_all("a", order="random")
        with pytest.raises(ValueError, match="resource must be a str"):
            locks.lock_all("a", 5)  # type: ignore[arg-type]
