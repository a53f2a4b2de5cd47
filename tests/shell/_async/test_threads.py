"""The keeper's threads under attack: what users do in their own must not reach them, and there may be none to have."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast._async.lease import Lease
from holdfast.core import events
from holdfast.core.events import Event
from holdfast.core.urls import parse_url
from holdfast.errors import Deadlock, LockError
from holdfast.keeper import threads
from holdfast.testing._async.case import TappedClient
from holdfast.testing._async.runtime import eventually
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, kinds
from tests.shell.threads import left, running

STORES = pytest.mark.parametrize("url", ["memory://{name}", "sqlite://{folder}/locks.db"], ids=["memory", "sqlite"])


@pytest.fixture
def make(name: str, tmp_path: Path, clock: ManualClock) -> Callable[..., TappedClient]:
    """Make clients of one store, on the driven clock."""

    def make(url: str, **options: Any) -> TappedClient:
        return TappedClient(parse_url(url.format(name=name, folder=tmp_path)), clock=clock, **options)

    return make


# -- no more threads


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Have every start of a thread fail, as it does when the limit is reached."""

    def fail(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "start_new_thread", fail)
        yield


@STORES
async def test_without_a_thread_to_keep_it_nothing_is_acquired(
    url: str, make: Callable[..., TappedClient], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    before, seen = running(), Seen()
    async with make(url) as other, make(url, observers=[seen]) as locks:
        await other.ready()
        lock = locks.lock("r", ttl=30)
        errors = []
        with no_more_threads():
            for _ in range(3):
                with pytest.raises(LockError, match=r"no thread could be started \(can't start new thread\); raise"):
                    await lock.acquire()
                with pytest.raises(LockError, match="no thread could be started") as caught:
                    async with lock:
                        pytest.fail("the body has started")
                errors.append(caught.value)  # and with it everything that its traceback refers to
        assert await is_free(other, "r")
        assert kinds(seen).count("Acquired") == 0
        async with lock.acquire(0) as lease:  # the same actor: it holds nothing of what has failed
            clock.advance(10.01)
            await locks.tap.reached("renewals", 1)
            await eventually(lambda: lease.remaining > 29)
        assert await is_free(other, "r")
        del errors, caught
        gc.collect()
        clock.advance(60)
        async with locks.lock("s"):
            pass
    assert not any(kind in kinds(seen) for kind in ("Dropped", "Lost"))
    assert not any("dropped" in message or "lost" in message for message in caplog.messages)
    await eventually(lambda: not left(before), complaint=lambda: left(before))


async def test_leases_are_kept_although_there_are_no_more_threads(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit may be reached after the acquire: what runs by then has to do."""
    async with connect(name, clock) as locks:
        lease = await locks.lock("r", ttl=30).acquire()
        await eventually(lambda: locks._engine.keeper.next < float("inf"))
        with no_more_threads():
            for _ in range(9):
                clock.advance(10.01)
                await eventually(lambda: lease.remaining > 20 or lease.lost)
            assert lease.state == "held"
        await lease.release()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_losses_are_told_although_there_are_no_more_threads(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Lease] = []
    seen: list[Event] = []
    async with connect(name, clock, observers=[seen.append]) as locks:
        lease = await locks.lock("r", ttl=30, renew=False, on_lost=told.append).acquire()
        await eventually(lambda: "Acquired" in kinds(seen))
        await eventually(lambda: locks._engine.keeper.next < float("inf"))
        with no_more_threads():
            clock.advance(31)
            await eventually(lambda: told == [lease])
            await eventually(lambda: "Lost" in kinds(seen))
    assert any("is lost" in message for message in caplog.messages)


# -- foreign code


async def test_an_observer_with_a_lock_survives_the_collector(name: str, clock: ManualClock) -> None:
    """The collector may find a dropped lease in any thread, also in one that has taken the observer's own lock."""
    mutex = threading.Lock()
    seen: list[Event] = []

    def observe(event: Event) -> None:
        with mutex:
            seen.append(event)

    def collect() -> None:
        with mutex:
            gc.collect()

    async with connect(name, clock, observers=[observe]) as locks:
        lease: Any = await locks.lock("r").acquire()
        cycle: list[Any] = [lease]
        cycle.append(cycle)
        del lease, cycle
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *args, **options: None)
            thread = threading.Thread(target=collect, daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            await eventually(lambda: any(isinstance(event, events.Dropped) for event in seen))


class Slow:
    """A callback that does not return before it is allowed to."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.may_return = threading.Event()

    def __call__(self, what: object) -> None:
        self.called.set()
        assert self.may_return.wait(30)


def pass_time(clock: ManualClock, lease: Lease, slow: Slow, states: list[str]) -> None:
    """Once the callback hangs, let three ttls pass in small steps; then let it return."""
    assert slow.called.wait(10)
    for _ in range(30):
        clock.advance(lease.ttl / 10)
        give_up = threading.Event()
        for _ in range(1000):
            if lease.remaining > lease.ttl / 2 or lease.lost:
                break
            give_up.wait(0.003)
        states.append(lease.state)
    slow.may_return.set()


@pytest.mark.parametrize("kind", ["on_lost", "observer"])
async def test_a_slow_callback_costs_no_other_lease(kind: str, name: str, clock: ManualClock) -> None:
    slow, states = Slow(), list[str]()

    def observe(event: Event) -> None:
        if kind == "observer" and isinstance(event, events.Lost):
            slow(event)

    async with connect(name, clock, observers=[observe]) as locks:
        other = await locks.lock("other", ttl=30).acquire()
        lost = await locks.lock("lost", ttl=1, renew=False, on_lost=slow if kind == "on_lost" else None).acquire()
        time = threading.Thread(target=pass_time, args=(clock, other, slow, states))
        time.start()
        clock.advance(1.5)
        await eventually(lambda: not time.is_alive(), limit=30)
        assert lost.lost
        assert states == ["held"] * 30
        other.check()
        await other.release()


# -- who holds what


@pytest.mark.parametrize("first", [0, 1])
async def test_one_of_two_permits_given_back_leaves_the_other(first: int, name: str, clock: ManualClock) -> None:
    """All of the name would be a wait for oneself as long as one permit is left, whichever that is."""
    async with connect(name, clock) as locks:
        permits = locks.semaphore("r", permits=3)
        async with permits as one, permits as two:
            leases = [one, two]
            await leases.pop(first).release()
            with pytest.raises(Deadlock, match="holds a share of 'r'"):
                await locks.lock("r").acquire()
            async with permits.acquire(0) as more:
                await leases.pop().release()
                with pytest.raises(Deadlock, match="holds a share of 'r'"):
                    await locks.lock("r").acquire()
                await more.release()
                async with locks.lock("r", timeout=0):
                    pass
        async with permits, permits, permits:
            assert await permits.try_acquire() is None
        assert await is_free(locks, "r")
        assert not locks._engine.keeper.held
