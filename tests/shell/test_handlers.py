"""What runs in the middle of anything: a signal handler that closes, and the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.errors import LockError
from holdfast.testing._async.runtime import eventually as eventually_in_loop
from holdfast.testing._sync.runtime import Gate, eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.shell._sync.kit import connect

STORES = ["memory://{name}", "sqlite://{path}/locks.db"]


@pytest.fixture(params=STORES, ids=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> str:
    """Name a store that several clients may open."""
    found: str = request.param.format(name=name, path=tmp_path)
    return found


def is_free(url: str, resource: str) -> bool:
    """Return whether nobody holds it."""
    with holdfast.connect(url) as rival:
        return not rival.inspect(resource)


def test_an_acquire_that_was_just_granted_gives_no_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = holdfast.connect(url)
    make = locks._engine._lease

    def handler_strikes(*args: Any) -> Any:
        locks.close()
        return make(*args)

    monkeypatch.setattr(locks._engine, "_lease", handler_strikes)
    with pytest.raises(LockError, match="the client was closed while 'r' was waited for"):
        locks.lock("r").acquire()
    assert is_free(url, "r")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("exits", [False, True])
def test_a_release_under_way_is_done(
    exits: bool, when: str, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locks = holdfast.connect(url)
    release: Callable[..., bool] = locks._engine.store.release

    def handler_strikes(*args: Any) -> bool:
        had = when == "after" and release(*args)
        locks.close()
        if exits:
            raise SystemExit
        return had if when == "after" else release(*args)

    lease = locks.lock("r").acquire()
    monkeypatch.setattr(locks._engine.store, "release", handler_strikes)
    if exits:
        with pytest.raises(SystemExit):
            lease.release()
    else:
        lease.release()
    assert is_free(url, "r")
    assert caplog.records == []


def test_close_waits_for_a_release_in_another_thread(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locks = holdfast.connect(url)
    release: Callable[..., bool] = locks._engine.store.release
    lease = locks.lock("r").acquire()
    gate = Gate()

    def held_up(*args: Any) -> bool:
        gate.wait()
        return release(*args)

    monkeypatch.setattr(locks._engine.store, "release", held_up)
    releasing = spawn(lease.release)
    eventually(lambda: gate.arrived)
    closing = spawn(locks.close)
    eventually(lambda: locks._engine.keeper.end_by < inf)
    time.sleep(0.1)  # without a wait for the release all is over by then
    assert not closing.done
    gate.open()
    closing.join()
    releasing.join()
    assert is_free(url, "r")
    assert caplog.records == []


def test_close_waits_for_no_lock_that_its_thread_has(tmp_path: Path) -> None:
    """SQLite makes the wake-up of a claim that has to wait, and the signal strikes there."""
    locks = holdfast.connect(f"sqlite://{tmp_path}/locks.db")
    claims = locks._engine.store._claims  # type: ignore[attr-defined]

    def handler_strikes() -> None:
        with claims._wakeups_mutex:
            locks.close(0.2)

    locks.ready()
    spawn(handler_strikes).join(5)


def test_the_collector_may_leave_a_with_inside_of_our_locks(name: str, clock: ManualClock) -> None:
    """A generator that stands in a `with` is collected in a thread that has just taken the lock it would wait for."""
    with connect(name, clock) as locks:

        def abandon_a_generator() -> None:
            def standing() -> Iterator[object]:
                with locks.lock("r"):
                    yield itself

            itself = standing()
            next(itself)

        def collect() -> None:
            with locks._engine.keeper._mutex:
                gc.collect()

        abandon_a_generator()
        assert locks.inspect("r")
        spawn(collect).join(5)
        eventually(lambda: not locks.inspect("r"))


def test_a_generator_that_is_closed_releases_at_once(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:

        def standing() -> Iterator[None]:
            with locks.lock("r"):
                yield

        for _ in standing():
            assert locks.inspect("r")
            break
        assert locks.inspect("r") == []


@pytest.mark.parametrize("end", ["close", "drain"])
@pytest.mark.parametrize("url", ["memory://{}", "sqlite:{}/locks.db"])
def test_a_handler_that_ends_the_client_withdraws_what_its_thread_waits_for(
    url: str, end: str, name: str, tmp_path: Path
) -> None:
    """The wait goes on when the handler has returned: it must not ask again, for nobody would withdraw that claim."""
    where = url.format(name if url.startswith("memory") else tmp_path)
    with holdfast.connect(where) as holder, holder.lock("r"):
        locks = holdfast.connect(where)
        took: list[float] = []

        def handler(number: int, frame: object) -> None:
            began = time.monotonic()
            getattr(locks, end)(5)
            took.append(time.monotonic() - began)

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(LockError, match="the client was closed while 'r' was waited for"):
                locks.lock("r").acquire()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert took[0] < 4
        assert [state.waiters for state in holder.inspect("r")] == [()]


def test_a_handler_that_drains_does_not_wait_for_the_body_below_it(name: str) -> None:
    locks = holdfast.connect(f"memory://{name}")
    drained: list[bool] = []
    before = signal.signal(signal.SIGALRM, lambda *_: drained.append(locks.drain(3600)))
    try:
        with locks.lock("r") as lease:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            eventually(lambda: drained)
            with pytest.raises(holdfast.NotHeld):
                lease.check()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert drained == [False]


@pytest.mark.parametrize("url", ["memory://{}", "sqlite:{}/locks.db"])
def test_a_release_in_a_handler_that_has_interrupted_the_store_is_done_later(
    url: str, name: str, tmp_path: Path
) -> None:
    """It would wait for its own thread, for ever: the keeper does it, when the handler has returned."""
    where = url.format(name if url.startswith("memory") else tmp_path)
    with holdfast.connect(where) as locks:
        lease = locks.lock("r", ttl=60).acquire()
        store: Any = locks._engine.store
        guarded = store._room if url.startswith("memory") else store._claims._database

        def handler_strikes() -> None:
            with locks._engine.keeper._mutex, guarded._mutex:
                guarded._inside = threading.get_ident()
                lease.release()

        spawn(handler_strikes).join(5)
        assert lease.state == "released"
        eventually(lambda: locks.inspect() == [])


def test_a_lease_that_several_threads_release_at_once_is_not_lost(name: str) -> None:
    """One of them reaches the store first, and the others are told that it is not theirs."""
    with holdfast.connect(f"memory://{name}") as locks:
        lease = locks.lock("r").acquire()
        store: Any = locks._engine.store
        calls: list[None] = []
        release, gate = store.release, Gate()

        def late(*arguments: Any) -> Any:
            calls.append(None)
            if len(calls) == 1:  # the first to ask is the last to reach the store
                second.append(spawn(lease.release))
                eventually(lambda: gate.arrived)
                return release(*arguments)
            had = release(*arguments)
            gate.wait()
            return had

        second: list[Any] = []
        store.release = late
        lease.release()
        gate.open()
        second[0].join()
        assert lease.state == "released"


def test_an_async_generator_that_the_collector_has_found_gives_its_lease_back(name: str) -> None:
    """The keeper has noted that nobody refers to it; then asyncio revives the generator, and leaves its `with`."""

    async def main() -> list[Any]:
        async with holdfast.aio.connect(f"memory://{name}") as locks:

            async def standing() -> Any:
                async with locks.lock("r", ttl=60):
                    yield itself

            itself = standing()
            await anext(itself)
            hold = next(iter(locks._engine.keeper.held))()
            assert hold is not None
            locks._engine.keeper.dropped.append(hold)  # as its finalizer does
            locks._engine.keeper.wake.set()
            await eventually_in_loop(lambda: hold.dropped)
            await itself.aclose()
            return await locks.inspect()

    assert asyncio.run(main()) == []
