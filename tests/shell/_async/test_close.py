"""close(): releases what is held, withdraws what waits, and leaves nothing running."""

from __future__ import annotations

import time

import pytest

from holdfast.errors import LockError, NotHeld
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing._async.tap import failing, times
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, kinds
from tests.shell._async.runtime import activities


async def test_releases_what_is_held(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock) as others:
        locks = connect(name, clock, observers=[seen])
        leases = [await locks.lock(f"r{n}").acquire() for n in range(3)]
        waiting = spawn(leases[0].wait_lost)
        await locks.close()
        assert await others.inspect() == []
        assert kinds(seen) == ["Acquired"] * 3 + ["Released"] * 3
        assert await waiting.join() is False
        for lease in leases:
            assert lease.state == "released"
            assert not lease.lost
            with pytest.raises(NotHeld, match="client was closed"):
                lease.check()
            await lease.release()
        assert activities() == []


async def test_inside_a_with(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    async with locks.lock("r") as lease:
        await locks.close()
        assert lease.state == "released"


async def test_twice(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    async with locks.lock("r"):
        pass
    await locks.close()
    await locks.close()
    async with connect(name, clock) as unused:
        await unused.close()


async def test_use_after_close(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
    with pytest.raises(LockError, match=rf"client of memory://{name} is closed; connect\(\) again"):
        await lock.acquire()
    with pytest.raises(LockError, match="closed"):
        await lock.try_acquire()
    with pytest.raises(LockError, match="closed"):
        await locks.ready()
    with pytest.raises(LockError, match="closed"):
        await locks.inspect()
    with pytest.raises(LockError, match="closed"):
        async with locks:
            pytest.fail("entered a closed client")


async def test_those_who_wait_are_told_promptly(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock) as others:
        locks = connect(name, clock, observers=[seen])
        async with others.lock("r"):
            waiting = [spawn(locks.lock("r").try_acquire, None) for _ in range(5)]
            await eventually(lambda: len(seen) == 5)
            await locks.close()
            for one in waiting:
                with pytest.raises(LockError, match="the client was closed while 'r' was waited for"):
                    await one.join()
            assert not (await others.inspect("r"))[0].waiters
            assert activities() == ["holdfast-timekeeper"]  # that of the others


async def test_detached_leases_stay(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as others:
        locks = connect(name, clock)
        lease = await locks.lock("a", ttl=30, renew=False).acquire()
        kept = await locks.lock("b", ttl=30, min_hold=20).acquire()
        await locks.close()
        assert not await is_free(others, "a")
        assert not await is_free(others, "b")
        clock.advance(20.1)
        assert not await is_free(others, "a")
        assert await is_free(others, "b")
        clock.advance(10)
        assert await is_free(others, "a")
        assert lease.state == kept.state == "released"


async def test_ends_in_time_when_a_renewal_hangs(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    tap = locks.tap
    gate = tap.hold_up("renew")
    lease = await locks.lock("r").acquire()
    clock.advance(10.01)
    await eventually(lambda: gate.arrived)
    started = time.monotonic()
    await locks.close(timeout=0.2)
    assert time.monotonic() - started < 1.2
    assert lease.state == "released"
    gate.open()
    await eventually(lambda: not activities())


async def test_ends_in_time_when_a_claim_hangs(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    tap = locks.tap
    gate = tap.hold_up("claim")
    waiting = spawn(locks.lock("r").try_acquire)
    await eventually(lambda: gate.arrived)
    started = time.monotonic()
    await locks.close(timeout=0.2)
    assert time.monotonic() - started < 1.2
    gate.open()
    with pytest.raises(LockError):
        await waiting.join()
    async with connect(name, clock) as others:
        await eventually(lambda: tap.releases)
        assert await is_free(others, "r")
    assert activities() == []


async def test_ends_in_time_when_releases_go_unanswered(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    locks = connect(name, clock)
    tap = locks.tap
    tap.cut_off("release")
    leases = [await locks.lock(f"r{n}").acquire() for n in range(10)]
    await locks.close()
    await eventually(lambda: caplog.records)
    assert all(record.levelname == "WARNING" for record in caplog.records)
    assert all(lease.state == "released" for lease in leases)
    assert activities() == []


async def test_one_release_that_fails_does_not_keep_the_others(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    tap = locks.tap
    leases = [await locks.lock(f"r{n}").acquire() for n in range(3)]
    tap.before["release"] = times(1, failing(RuntimeError("a bug in the store")))
    await locks.close()
    assert len(tap.releases) >= 3
    assert [lease.state for lease in leases] == ["released"] * 3
    assert activities() == []


async def test_nothing_starts_before_it_is_needed(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        locks.lock("r")
        await locks.ready()
        assert await locks.inspect() == []
        assert activities() == []
    assert activities() == []
