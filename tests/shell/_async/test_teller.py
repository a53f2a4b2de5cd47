"""The teller: events reach observers in order, in a thread where they delay nothing; and what if they are too many."""

from __future__ import annotations

import logging
import threading
import time
from _thread import start_new_thread
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast._async.lease import Lease
from holdfast.core import events
from holdfast.core.events import Event
from holdfast.keeper import threads
from holdfast.observe.stream import MOST
from holdfast.testing._async.runtime import eventually
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, kinds
from tests.shell.threads import left, running


class Stuck:
    """An observer that hangs at its first event until it is let go, and then notes everything."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.threads: set[int] = set()
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, event: Event) -> None:
        self.hangs.set()
        assert self.go_on.wait(60)
        self.seen.append(event)
        self.threads.add(threading.get_ident())

    @property
    def missed(self) -> list[int]:
        """The numbers that were told of events that were not."""
        return [event.count for event in self.seen if isinstance(event, events.EventsMissed)]


async def test_events_are_told_in_order_and_elsewhere(name: str, clock: ManualClock) -> None:
    observer = Stuck()
    observer.go_on.set()
    async with connect(name, clock, observers=[observer]) as locks:
        for number in range(100):
            async with locks.lock(f"r{number}"):
                pass
    wanted = [(kind, f"r{number}") for number in range(100) for kind in ("Acquired", "Released")]
    assert [(type(event).__name__, event.resource) for event in observer.seen] == wanted
    assert threading.get_ident() not in observer.threads


async def test_inline_observers_are_called_where_it_happens(name: str, clock: ManualClock) -> None:
    called: list[int] = []

    class Inline:
        inline = True

        def __call__(self, event: Event) -> None:
            called.append(threading.get_ident())

    stuck = Stuck()
    async with connect(name, clock, observers=[Inline(), stuck]) as locks:
        async with locks.lock("r"):
            assert called == [threading.get_ident()]
        assert called == [threading.get_ident()] * 2
        stuck.go_on.set()
    assert kinds(stuck.seen) == ["Acquired", "Released"]


async def test_a_crowd_of_events_is_bounded_and_what_was_dropped_is_counted(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, exact = Stuck(), Seen()
    pairs = MOST // 2 + 500
    async with connect(name, clock, observers=[stuck, exact]) as locks:
        lock = locks.lock("r")
        for _ in range(pairs):
            async with lock:
                pass
        assert len(exact) == 2 * pairs
        assert len(locks._engine.stream._queue) == MOST
        stuck.go_on.set()
        await eventually(lambda: len(stuck.seen) > MOST)
    told = Counter(kinds(stuck.seen))
    dropped = 2 * pairs - MOST - 1  # one was being told
    assert told["Acquired"] + told["Released"] == MOST + 1
    assert stuck.missed == [dropped]
    said = [record for record in caplog.records if "events were not told" in record.message]
    assert [(record.levelno, record.message.split()[0]) for record in said] == [(logging.WARNING, str(dropped))]


async def test_drops_are_told_once_a_minute(name: str, clock: ManualClock) -> None:
    stuck = Stuck()
    async with connect(name, clock, observers=[stuck]) as locks:
        stream = locks._engine.stream
        told = 0

        async def drop(count: int) -> None:
            """Drop so many events while the observer hangs; then let it come after."""
            nonlocal told
            stuck.hangs.clear()
            stuck.go_on.clear()
            kind: type[Event] = events.Queued
            same = {"store": "memory", "namespace": "n", "resource": "r", "kind": "lock", "owner": "o", "ttl": 30.0}
            event = kind(at=clock.now(), ahead=1, **same)
            stream.emit(event)
            await eventually(stuck.hangs.is_set)
            for _ in range(MOST + count):
                stream.emit(event)
            stuck.go_on.set()
            told += 1 + MOST
            await eventually(lambda: kinds(stuck.seen).count("Queued") == told)

        await drop(5)
        await eventually(lambda: stuck.missed == [5])
        clock.advance(30)
        await drop(7)
        assert stuck.missed == [5]
        clock.advance(31)
        await drop(2)
        await eventually(lambda: stuck.missed == [5, 9])
        await drop(3)
        assert stuck.missed == [5, 9]
    assert stuck.missed == [5, 9, 3]  # the rest at the end: nothing goes uncounted


async def test_close_empties_the_queue(name: str, clock: ManualClock) -> None:
    seen: list[Event] = []

    def slow(event: Event) -> None:
        time.sleep(0.002)
        seen.append(event)

    async with connect(name, clock, observers=[slow]) as locks:
        for _ in range(50):
            async with locks.lock("r"):
                pass
        lease = await locks.lock("held").acquire()
    assert kinds(seen) == ["Acquired", "Released"] * 51
    assert seen[-1].resource == lease.resource


async def test_close_empties_the_queue_although_the_thread_comes_late(name: str, clock: ManualClock) -> None:
    """On a busy machine close() may look for the teller before its thread has run a single line."""

    def late(function: Callable[[], None], arguments: tuple[()]) -> int:
        def run() -> None:
            time.sleep(0.05)
            function()

        return start_new_thread(run, arguments)

    seen: list[Event] = []
    with pytest.MonkeyPatch.context() as patch:
        async with connect(name, clock, observers=[seen.append]) as locks:
            lease = await locks.lock("r").acquire()
            await eventually(lambda: seen)
            clock.advance(2.5)
            await eventually(lambda: "teller" not in locks._engine.keeper._running)  # it had nothing to do
            patch.setattr(threads, "start_new_thread", late)
    assert lease.state == "released"
    assert kinds(seen) == ["Acquired", "Released"]


async def test_an_observer_that_never_returns_does_not_hang_close(name: str, clock: ManualClock) -> None:
    stuck, before = Stuck(), running()
    try:
        locks = connect(name, clock, observers=[stuck])
        async with connect(name, clock) as others:
            lease = await locks.lock("r").acquire()
            await eventually(stuck.hangs.is_set)
            started = time.monotonic()
            await locks.close(timeout=0.3)
            assert time.monotonic() - started < 3
            assert lease.state == "released"
            assert await others.inspect() == []
    finally:
        stuck.go_on.set()
    await eventually(lambda: not left(before), complaint=lambda: left(before))
    assert kinds(stuck.seen) == ["Acquired"]  # what came too late for close() is not told


@pytest.mark.parametrize("error", [ValueError, SystemExit, CancelledError, KeyboardInterrupt])
async def test_an_observer_that_raises_costs_nothing_but_its_event(
    error: type[BaseException], name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def observe(event: Event) -> None:
        if not seen:
            seen.append(event)
            raise error
        seen.append(event)

    async with connect(name, clock, observers=[observe]) as locks:
        async with locks.lock("a"):
            pass
        await eventually(lambda: len(seen) == 2)
        lease = await locks.lock("b", ttl=30).acquire()
        clock.advance(10.01)
        await eventually(lambda: "Renewed" in kinds(seen))
        await lease.release()
    assert kinds(seen) == ["Acquired", "Released", "Acquired", "Renewed", "Released"]
    assert any("failed" in message for message in caplog.messages)


@pytest.mark.parametrize("error", [ValueError, SystemExit, CancelledError])
async def test_an_inline_observer_that_raises_costs_no_lease(
    error: type[BaseException], name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        inline = True

        def __call__(self, event: Event) -> None:
            raise error

    async with connect(name, clock, observers=[Failing()]) as locks:
        leases = [await locks.lock(f"r{number}", ttl=30).acquire() for number in range(3)]
        for _ in range(6):
            clock.advance(10.01)
            await eventually(lambda: min(lease.remaining for lease in leases) > 20 or any(s.lost for s in leases))
        assert {lease.state for lease in leases} == {"held"}
        for lease in leases:
            await lease.release()
    assert any("failed on Renewed" in message for message in caplog.messages)


@pytest.mark.parametrize("error", [ValueError, SystemExit, CancelledError])
async def test_on_lost_that_raises_does_not_keep_the_others_from_being_told(
    error: type[BaseException], name: str, clock: ManualClock
) -> None:
    told: list[str] = []

    def fail(lease: Lease) -> None:
        told.append(lease.resource)
        raise error

    async with connect(name, clock) as locks:
        leases = [await locks.lock(f"r{number}", ttl=30, renew=False, on_lost=fail).acquire() for number in range(3)]
        clock.advance(31)
        await eventually(lambda: len(told) >= len(leases))
    assert sorted(told) == ["r0", "r1", "r2"]
