"""drain(): takes nothing new, lets bodies end, and then closes."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast.errors import LockError, NotHeld
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free


async def body(locks: Client, gate: Gate, nested: str = "") -> str:
    """Hold `r` until the gate opens; perhaps take another inside."""
    async with locks.lock("r") as lease:
        await gate.wait()
        if nested:
            async with locks.lock(nested, timeout=30):
                pass
        lease.check()
    return "ended"


async def test_bodies_end_and_nothing_new_begins(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        gate = Gate()
        working = spawn(body, locks, gate, "s")
        await eventually(lambda: gate.arrived)
        waiting = spawn(locks.lock("r").acquire)
        await eventually(lambda: locks.tap.count("wait") >= 1)
        draining = spawn(locks.drain, 30)
        with pytest.raises(LockError, match="is draining, and 'r' was waited for outside of any `with` block"):
            await waiting.join()
        with pytest.raises(LockError, match="is draining, and takes nothing new"):
            await locks.lock("t").acquire()
        assert not draining.done
        gate.open()
        assert await working.join() == "ended"  # it has taken another, inside of its body
        assert await draining.join() is True
        assert locks.closed
        assert await is_free(other, "r")
        with pytest.raises(LockError, match="is closed"):
            await locks.lock("t").acquire()
        assert await locks.drain(1) is True


async def test_what_does_not_end_in_time_is_released_under_it(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        gate = Gate()
        working = spawn(body, locks, gate)
        await eventually(lambda: gate.arrived)
        assert await locks.drain(0.05) is False
        assert await is_free(other, "r")
        gate.open()
        with pytest.raises(NotHeld, match="was released when its client was closed"):
            await working.join()


async def test_leases_that_are_not_renewed_are_not_waited_for(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        lease = await locks.lock("r", renew=False).acquire()
        assert await locks.drain(60) is True
        assert not await is_free(other, "r")  # it runs to its ttl
        assert lease.state == "released"


@pytest.mark.parametrize("wrong", [None, -1, "5", float("inf")])
async def test_a_timeout_is_needed(wrong: object, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(ValueError, match="timeout must be a finite number of seconds"):
            await locks.drain(wrong)  # type: ignore[arg-type]
        async with locks.lock("r"):
            pass


async def test_a_body_of_another_client_is_none_of_this_one(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        gate = Gate()
        working = spawn(body, locks, gate)
        await eventually(lambda: gate.arrived)
        draining = spawn(locks.drain, 30)
        await eventually(lambda: locks._engine.draining)
        async with other.lock("t"):
            with pytest.raises(LockError, match="takes nothing new"):
                await locks.lock("u").acquire()
        gate.open()
        await working.join()
        assert await draining.join() is True


async def test_a_body_that_drains_is_not_waited_for(name: str, clock: ManualClock) -> None:
    """It could not end meanwhile: that would take the whole timeout."""
    async with connect(name, clock) as locks:
        async with locks.lock("r") as lease:
            assert await locks.drain(3600) is False
            with pytest.raises(NotHeld, match="was released when its client was closed"):
                lease.check()
