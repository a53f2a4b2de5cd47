"""The stream of events: what observers see, in order; and that they can do no harm."""

from __future__ import annotations

import logging

import pytest

from holdfast.core import events
from holdfast.core.claim import Unknown
from holdfast.core.events import Event
from holdfast.errors import AcquireTimeout, LeaseLost, StoreUnavailable
from tests.shell._async.kit import Tap, connect, is_free, kinds
from tests.shell._async.runtime import Gate, eventually, spawn
from tests.shell.clock import ManualClock


def facts(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.fields}


async def test_acquire_and_release(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, namespace="billing", observers=[seen.append]) as locks:
        async with locks.lock("r", owner="me", ttl=20) as lease:
            clock.advance(5)
        same = {"namespace": "billing", "resource": "r", "owner": "me", "token": lease.token}
        assert kinds(seen) == ["Acquired", "Released"]
        assert facts(seen[0]) == same | {"at": 1000.0, "waited": 0.0, "ttl": 20.0}
        assert facts(seen[1]) == same | {"at": 1005.0, "held": 5.0}


async def test_waiting(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock) as others, connect(name, clock, observers=[seen.append]) as locks:
        lock, gate = locks.lock("r", owner="me"), Gate()

        async def work() -> None:
            async with lock:
                await gate.wait()

        async with others.lock("r"):
            worker = spawn(work)
            await eventually(lambda: seen)
            clock.advance(3)
        await eventually(lambda: gate.arrived)
        gate.open()
        await worker.join()
        assert kinds(seen) == ["Queued", "Acquired", "Released"]
        queued, acquired, _ = seen
        assert isinstance(queued, events.Queued)
        assert isinstance(acquired, events.Acquired)
        assert (queued.at, queued.ahead, acquired.waited) == (1000, 1, 3)


async def test_a_long_wait_is_told_once(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock) as others, connect(name, clock, observers=[seen.append]) as locks:
        tap = Tap(locks)
        async with others.lock("r"):
            waiting = spawn(locks.lock("r").try_acquire, 60)
            await eventually(lambda: len(tap.claims) >= 5, lambda: clock.advance(0.1))
            assert kinds(seen) == ["Queued"]
        lease = await waiting.join()
        assert lease is not None
        await lease.release()


async def test_timeout(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, owner="web-3") as others, connect(name, clock, observers=[seen.append]) as locks:
        async with others.lock("r") as held:
            waiting = spawn(locks.lock("r").try_acquire, 5)
            await eventually(lambda: waiting.done, lambda: clock.advance(0.1))
            assert await waiting.join() is None
            assert kinds(seen) == ["Queued", "TimedOut"]
            timed_out = seen.pop()
            assert isinstance(timed_out, events.TimedOut)
            assert timed_out.blocker == "web-3"
            assert 5 <= timed_out.waited < 6
            seen.clear()
            with pytest.raises(AcquireTimeout, match=rf"'r' is busy; held by web-3 \(token {held.token}, \d+ s left\)"):
                await locks.lock("r").acquire(timeout=0)
            assert kinds(seen) == ["TimedOut"]
            assert not (await others.inspect("r"))[0].waiters


async def test_outage(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, observers=[seen.append]) as locks:
        tap = Tap(locks)
        tap.cut_off("claim")
        with pytest.raises(StoreUnavailable, match="could not acquire 'r'"):
            await locks.lock("r").acquire(timeout=0)
        assert kinds(seen) == ["Abandoned"]
        await eventually(lambda: tap.released == ["r"])  # whatever became of the claim


async def test_renewal_risk_and_loss(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, observers=[seen.append]) as locks:
        tap = Tap(locks)
        lease = await locks.lock("r").acquire()
        clock.advance(10)
        await eventually(lambda: len(seen) == 2)
        tap.renewal = Unknown("cut off")
        clock.advance(10)
        await eventually(lambda: len(seen) == 3)
        tap.renewal = None
        await eventually(lambda: len(seen) == 4, lambda: clock.advance(0.1))
        clock.advance(31)
        assert lease.lost
        await eventually(lambda: len(seen) == 5)
        assert kinds(seen) == ["Acquired", "Renewed", "AtRisk", "Renewed", "Lost"]
        risk = seen[2]
        assert isinstance(risk, events.AtRisk)
        assert (risk.at, risk.cause, risk.token) == (1020, "cut off", lease.token)
        assert risk.left == pytest.approx(29.698 - 10)
        with pytest.raises(LeaseLost):
            await lease.release()
        assert len(seen) == 5


async def test_unanswered_release(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, observers=[seen.append]) as locks:
        tap = Tap(locks)
        tap.cut_off("release")
        async with locks.lock("r"):
            pass
        assert kinds(seen) == ["Acquired", "Unreleased"]
        tap.fail.clear()
        await eventually(lambda: tap.released, lambda: clock.advance(0.02))


async def test_reentry_is_no_event(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []
    async with connect(name, clock, observers=[seen.append]) as locks:
        lock = locks.lock("r", reentrant=True)
        async with lock, lock:
            pass
        assert kinds(seen) == ["Acquired", "Released"]


async def test_an_observer_that_fails_is_logged_and_harmless(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError(type(event).__name__)

    async with connect(name, clock, observers=[broken, seen.append]) as locks:
        async with locks.lock("r") as lease:
            lease.check()
        assert kinds(seen) == ["Acquired", "Released"]
        assert await is_free(locks, "r")
        assert "ZeroDivisionError: Acquired" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
