"""The stream of events: what observers see, in order; and that they can do no harm."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

import holdfast
from holdfast.core import events
from holdfast.core.claim import Unknown
from holdfast.core.events import Event
from holdfast.errors import AcquireTimeout, LeaseLost, StoreUnavailable
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, kinds


def facts(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.fields}


async def test_acquire_and_release(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, namespace="billing", observers=[seen]) as locks:
        async with locks.lock("r", owner="me", ttl=20) as lease:
            clock.advance(5)
        same = {"store": "memory", "namespace": "billing", "resource": "r", "kind": "lock", "owner": "me", "ttl": 20.0}
        assert kinds(seen) == ["Acquired", "Released"]
        assert facts(seen[0]) == same | {"token": lease.token, "at": 1000.0, "waited": 0.0}
        assert facts(seen[1]) == same | {"token": lease.token, "at": 1005.0, "held": 5.0}


async def test_every_event_says_what_asked(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        for lock in (
            locks.lock("r"), locks.rwlock("r").read(), locks.rwlock("r").write(), locks.semaphore("r", permits=2),
            locks.lock_all("r"), locks.tree("r"), locks.election("r").lead(),
        ):  # fmt: skip
            async with lock.acquire():
                pass

        @locks.once("r")
        async def work() -> None:
            pass

        await work()
    wanted = ["lock", "read", "write", "semaphore", "lock_all", "tree", "election", "once"]
    assert [event.kind for event in seen] == [kind for kind in wanted for _ in ("Acquired", "Released")]


async def test_waiting(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock) as others, connect(name, clock, observers=[seen]) as locks:
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
    seen = Seen()
    async with connect(name, clock) as others, connect(name, clock, observers=[seen]) as locks:
        tap = locks.tap
        async with others.lock("r"):
            waiting = spawn(locks.lock("r").try_acquire, 60)
            await eventually(lambda: len(tap.claims) >= 5, lambda: clock.advance(0.1))
            assert kinds(seen) == ["Queued"]
        lease = await waiting.join()
        assert lease is not None
        await lease.release()


def still_waiting(seen: list[Event]) -> list[events.StillWaiting]:
    return [event for event in seen if isinstance(event, events.StillWaiting)]


async def test_who_waits_for_long_says_why(name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    seen = Seen()
    async with connect(name, clock, owner="web-3") as others, connect(name, clock, observers=[seen]) as locks:
        async with others.lock("r") as held:
            waiting = spawn(locks.lock("r", owner="me").acquire)
            await eventually(lambda: len(still_waiting(seen)) == 3, lambda: clock.advance(0.5))
        await (await waiting.join()).release()
    waited = [event.waited for event in still_waiting(seen)]
    assert 10 <= waited[0] < 15
    assert all(60 <= later - earlier < 65 for earlier, later in pairwise(waited))
    assert {(event.ahead, event.blocker, event.token) for event in still_waiting(seen)} == {(1, "web-3", held.token)}
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 3
    assert lines[0].startswith("me has waited 1")
    assert lines[0].endswith(f"s for 'r'; 1 ahead, first web-3 (token {held.token})")


async def test_a_logger_that_takes_debug_is_told_everything(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    async with connect(name, clock) as locks, connect(name, clock) as others:
        async with locks.lock("r", owner="me") as lease:
            assert await others.lock("r", owner="you").try_acquire() is None
    assert {record.getMessage() for record in caplog.records} == {
        f"me holds 'r' (lock, token {lease.token}) after 0.000 s",
        "'r' is busy, and you does not wait for it; first me",
        f"me has released 'r' (token {lease.token}) after 0.000 s",
    }


async def test_observers_of_the_process_see_every_client(name: str, clock: ManualClock) -> None:
    seen, own = Seen(), Seen()
    async with connect(name, clock, observers=[own]) as early:
        assert holdfast.observe.add(seen) is seen
        try:
            async with connect(name, clock) as late:
                async with early.lock("a"), late.lock("b"):
                    pass
                await eventually(lambda: len(seen) == 4)
        finally:
            holdfast.observe.remove(seen)
        async with early.lock("c"):
            pass
    assert sorted((type(event).__name__, event.resource) for event in seen) == [
        *(("Acquired", "a"), ("Acquired", "b"), ("Released", "a"), ("Released", "b")),
    ]
    assert [event.resource for event in own] == ["a", "a", "c", "c"]


def test_what_cannot_observe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"observers must be a list of callables, like \[print\]"):
        holdfast.connect("memory://", observers=print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"an observer is called with each event; 5 cannot be called"):
        holdfast.connect("memory://", observers=[5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"an observer is called with each event; 5 cannot be called"):
        holdfast.observe.add(5)  # type: ignore[arg-type]


async def test_timeout(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, owner="web-3") as others, connect(name, clock, observers=[seen]) as locks:
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
            assert await locks.lock("r").try_acquire() is None
            assert kinds(seen) == ["Busy", "Busy"]
            assert not (await others.inspect("r"))[0].waiters


async def test_outage(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        tap = locks.tap
        tap.cut_off("claim")
        with pytest.raises(StoreUnavailable, match="could not acquire 'r'"):
            await locks.lock("r").acquire(timeout=0)
        assert kinds(seen) == ["Abandoned"]
        await eventually(lambda: tap.released == ["r"])  # whatever became of the claim


async def test_renewal_risk_and_loss(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        tap = locks.tap
        lease = await locks.lock("r").acquire()
        clock.advance(10)
        await eventually(lambda: len(seen) == 2)
        tap.answers["renew"] = Unknown("cut off")
        clock.advance(10)
        await eventually(lambda: len(seen) == 3)
        tap.answers.clear()
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
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        tap = locks.tap
        tap.cut_off("release")
        async with locks.lock("r"):
            pass
        assert kinds(seen) == ["Acquired", "Unreleased"]
        tap.heal()
        await eventually(lambda: tap.released, lambda: clock.advance(0.02))


async def test_reentry_is_no_event(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        lock = locks.lock("r", reentrant=True)
        async with lock, lock:
            pass
        assert kinds(seen) == ["Acquired", "Released"]


async def test_an_observer_that_fails_is_logged_and_harmless(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    def broken(event: Event) -> None:
        raise ZeroDivisionError(type(event).__name__)

    async with connect(name, clock, observers=[broken, seen]) as locks:
        async with locks.lock("r") as lease:
            lease.check()
        assert kinds(seen) == ["Acquired", "Released"]
        assert await is_free(locks, "r")
        await eventually(lambda: len(caplog.records) == 2)
        assert "ZeroDivisionError: Acquired" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
