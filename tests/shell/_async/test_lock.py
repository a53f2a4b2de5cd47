# ruff: noqa: PT012 (what happens inside of a `with` is what is tested: it has to stand inside)
"""A lock object shared by actors: nobody frees what another holds, and nobody waits for itself."""

from __future__ import annotations

import pytest

from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast.errors import AcquireTimeout, Deadlock, LeaseLost, NotHeld
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free


async def hold(lock: Lock, gate: Gate) -> int:
    """Hold the lock until the gate opens; return the token."""
    async with lock as lease:
        await gate.wait()
        return lease.token


async def enter(lock: Lock) -> Lease:
    return await lock.__aenter__()


async def take(lock: Lock) -> Lease:
    return await lock.acquire()


async def leave(lock: Lock) -> None:
    await lock.__aexit__(None, None, None)


async def test_one_actor_cannot_free_what_another_holds(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock, gate = locks.lock("r"), Gate()
        holder = spawn(hold, lock, gate)
        await eventually(lambda: gate.arrived)
        with pytest.raises(AcquireTimeout, match="'r' is busy; held by"):
            async with locks.lock("r", timeout=0):
                pytest.fail("entered without a lease")
        assert await lock.try_acquire() is None
        assert not await is_free(locks, "r")
        gate.open()
        await holder.join()
        assert await is_free(locks, "r")


async def test_each_actor_has_a_lease_of_its_own(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock, gate = locks.lock("r"), Gate()
        gate.open()
        actors = [spawn(hold, lock, gate) for _ in range(8)]
        tokens = [await actor.join() for actor in actors]
        assert len(set(tokens)) == 8
        assert await is_free(locks, "r")


async def test_leaving_frees_the_own_lease_and_not_the_newer_one(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock, first, second = locks.lock("r"), Gate(), Gate()
        older = spawn(hold, lock, first)
        await eventually(lambda: first.arrived)
        clock.advance(31)
        newer = spawn(hold, lock, second)
        await eventually(lambda: second.arrived)
        first.open()
        with pytest.raises(LeaseLost):
            await older.join()
        assert not await is_free(locks, "r")
        second.open()
        await newer.join()


async def test_exit_elsewhere_takes_the_only_lease(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        lease = await spawn(enter, lock).join()
        await leave(lock)
        assert lease.state == "released"
        assert await is_free(locks, "r")


async def test_exit_elsewhere_with_two_actors_inside_names_the_alternative(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        await spawn(enter, lock).join()
        clock.advance(31)
        newer = await spawn(enter, lock).join()
        with pytest.raises(NotHeld, match=r"with lock\.acquire\(\) as lease"):
            await leave(lock)
        newer.check()
        await newer.release()


async def test_exit_elsewhere_with_two_leases_of_one_actor_names_the_alternative(name: str, clock: ManualClock) -> None:
    async def enter_twice(lock: Lock) -> tuple[Lease, Lease]:
        return await lock.__aenter__(), await lock.__aenter__()

    async with connect(name, clock) as locks:
        lock = locks.semaphore("r", permits=2)
        leases = await spawn(enter_twice, lock).join()
        with pytest.raises(NotHeld, match=r"with lock\.acquire\(\) as lease"):
            await leave(lock)
        for lease in leases:
            lease.check()
            await lease.release()


async def test_exit_without_enter(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(NotHeld):
            await leave(locks.lock("r"))


async def test_a_lease_may_be_entered_and_left_by_different_actors(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r").acquire()
        await spawn(lease.__aenter__).join()
        await spawn(lease.__aexit__, None, None, None).join()
        assert lease.state == "released"
        assert await is_free(locks, "r")


async def test_waiting_for_oneself_for_ever_raises_at_once(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            sent = len(tap.claims)
            again = locks.lock("r")
            with pytest.raises(Deadlock, match=r"this `with` block holds 'r' .*reentrant=True") as caught:
                await again.acquire()
            with pytest.raises(Deadlock):
                await again.try_acquire(timeout=None)
            with pytest.raises(Deadlock):
                async with again:
                    pytest.fail("entered")
            assert caught.value.token == lease.token
            assert len(tap.claims) == sent
            lease.check()


async def test_waiting_for_oneself_with_a_timeout_times_out(name: str, clock: ManualClock) -> None:
    async def pass_time() -> None:
        await eventually(lambda: locks.tap.count("wait") > 0)
        clock.advance(1)

    async with connect(name, clock) as locks:
        async with locks.lock("r") as lease:
            assert await locks.lock("r").try_acquire() is None
            with pytest.raises(AcquireTimeout, match=r"'r' is busy; held by"):
                async with locks.lock("r", timeout=0):
                    pytest.fail("entered")
            time = spawn(pass_time)
            with pytest.raises(AcquireTimeout, match=r"waited 1\.0 s for 'r'"):
                await locks.lock("r").acquire(timeout=1)
            await time.join()
            lease.check()


async def test_a_bare_acquire_is_no_body(name: str, clock: ManualClock) -> None:
    """Nobody knows who will release it: whoever asks again waits like everybody else, re-entrant or not."""
    async with connect(name, clock) as locks:
        lock = locks.lock("r", reentrant=True)
        lease = await lock.acquire()
        assert await lock.try_acquire() is None
        waiter = spawn(take, lock)
        async with lease:
            assert await locks.lock("r").try_acquire() is None
            async with lock as inner:
                assert inner.token == lease.token
        async with await waiter.join() as next_one:
            assert next_one.token > lease.token


async def test_no_deadlock_after_release_or_loss(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        await (await lock.acquire()).release()
        lost = await lock.acquire()
        clock.advance(31)
        async with await lock.acquire(timeout=0) as lease:
            assert lease.token > lost.token
            assert lost.lost


async def test_no_deadlock_for_another_actor_or_resource_or_client(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        async with locks.lock("r"), locks.lock("s"):
            assert await others.lock("r").try_acquire() is None
            assert await spawn(locks.lock("r").try_acquire).join() is None


async def test_a_new_actor_is_not_taken_for_a_dead_one(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        lease = await spawn(enter, lock).join()
        # The dead actor's ident is free for the next one; it must wait, not be told that it holds the lock.
        for _ in range(20):
            assert await spawn(lock.try_acquire).join() is None
        await lease.release()


async def test_reentrant_keeps_the_token_and_releases_last(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lock = locks.lock("r", reentrant=True)
        async with lock as outer:
            async with lock as inner:
                assert inner is not outer
                assert inner.token == outer.token
                assert inner.fence == outer.fence
                async with lock.acquire(timeout=0) as third:
                    assert third.token == outer.token
                assert third.state == "released"
            outer.check()
            assert inner.state == "released"
            with pytest.raises(NotHeld):
                inner.check()
            assert tap.releases == []
        assert tap.claims == ["r"]
        assert tap.releases == ["r"]
        assert await is_free(locks, "r")


async def test_reentrant_handles_may_be_released_in_any_order(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r", reentrant=True)
        outer = await lock.acquire()
        async with outer:
            inner = await lock.acquire()
        await outer.release()
        inner.check()
        assert not await is_free(locks, "r")
        await inner.release()
        assert await is_free(locks, "r")


async def test_reentrant_is_for_the_same_actor_only(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r", reentrant=True)
        async with lock:
            assert await spawn(lock.try_acquire).join() is None


async def test_loss_tells_every_reentrant_handle(name: str, clock: ManualClock) -> None:
    told: list[Lease] = []
    async with connect(name, clock) as locks:
        lock = locks.lock("r", reentrant=True, on_lost=told.append)
        with pytest.raises(LeaseLost):
            async with lock as outer:
                inner = await lock.acquire()
                clock.advance(31)
                await eventually(lambda: len(told) == 2)
        assert told == [outer, inner]
        with pytest.raises(LeaseLost):
            await inner.release()


async def test_a_handle_that_was_released_in_time_is_not_lost_later(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r", reentrant=True)
        with pytest.raises(LeaseLost):
            async with lock as outer:
                inner = await lock.acquire()
                await inner.release()
                clock.advance(31)
                assert outer.lost
        assert not inner.lost
        assert inner.state == "released"


async def test_what_a_lock_and_a_lease_show(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r", ttl=20)
        assert repr(lock) == "<Lock 'r' ttl=20>"
        async with lock as lease:
            assert repr(lease) == f"<Lease 'r' token={lease.token} held>"
            assert (lease.resource, lease.ttl) == ("r", 20)
            assert lease.remaining == pytest.approx(20 - 0.2 - 0.002)
        assert lease.remaining == 0
