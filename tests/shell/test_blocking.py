"""What exists with threads only: idents that come again, exits in other threads, and what cannot be decorated."""

from __future__ import annotations

import _thread
import functools
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.claim import Lost
from holdfast.errors import Deadlock, LeaseLost
from holdfast.keeper import threads
from holdfast.testing._sync.runtime import eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.shell._sync.kit import connect, keeper_passes
from tests.shell._sync.runtime import activities


def test_acquire_returns_the_lease(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        lease = locks.lock("r").acquire()
        assert isinstance(lease, holdfast.Lease)
        with lease:
            lease.check()


def test_a_thread_ident_that_comes_again_is_another_actor(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        lock = locks.lock("r")
        idents: list[int] = []

        def take() -> object:
            idents.append(threading.get_ident())
            return lock.try_acquire()

        lease = spawn(take).join()
        assert lease is not None
        for _ in range(50):  # CPython hands the ident of a dead thread on soon
            try:
                assert spawn(take).join() is None
            except Deadlock:
                pytest.fail("a new thread was taken for the dead one")
            if idents[-1] == idents[0]:
                break
        assert isinstance(lease, holdfast.Lease)
        lease.release()


async def coroutine() -> None: ...


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


class AsyncCallable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (coroutine, r"coroutine function: use holdfast\.aio\.connect\(\)"),
        (functools.partial(coroutine), r"coroutine function: use holdfast\.aio\.connect\(\)"),
        (AsyncCallable(), r"coroutine function: use holdfast\.aio\.connect\(\)"),
        (generator, "generator: hold the lease inside it"),
        (async_generator, "async generator: hold the lease inside it"),
        (5, "decorates functions, not 5"),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)[:20]),
)
def test_what_would_run_without_the_lease_is_not_decorated(
    function: Any, advice: str, name: str, clock: ManualClock
) -> None:
    with connect(name, clock) as locks, pytest.raises(TypeError, match=advice):
        locks.lock("r")(function)


def test_on_lost_that_exits_does_not_end_the_keeper(name: str, clock: ManualClock) -> None:
    def leave(lease: holdfast.Lease) -> None:
        raise SystemExit(1)  # in a thread: this ends nothing but the thread

    with connect(name, clock) as locks:
        tap = locks.tap
        kept = locks.lock("kept2", ttl=300).acquire()
        bad = locks.lock("bad", ttl=3, on_lost=leave).acquire()
        clock.advance(4)
        assert bad.lost
        clock.advance(97)
        eventually(lambda: any("kept2" in batch for batch in tap.renewals))
        kept.check()


def test_a_body_is_not_interrupted_but_may_look(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        tap = locks.tap
        with pytest.raises(LeaseLost), locks.lock("r") as lease:  # noqa: PT012
            tap.answers["renew"] = Lost()
            clock.advance(10.01)
            eventually(lambda: lease.lost)
        tap.answers.clear()
        keeper_passes(locks, clock, tap)


def test_threads_are_daemons_and_gone_after_close(name: str, clock: ManualClock) -> None:
    before = set(threading.enumerate())
    with connect(name, clock) as locks:
        tap = locks.tap
        with locks.lock("r"):
            clock.advance(10.01)
            eventually(lambda: tap.renewals)
            ours = set(threading.enumerate()) - before
            assert sorted(thread.name for thread in ours) == activities() == ["holdfast-renewer", "holdfast-timekeeper"]
            assert all(thread.daemon for thread in ours)
    assert set(threading.enumerate()) <= before


def test_many_threads_share_a_client_and_a_lock(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        lock, inside, tokens = locks.lock("r"), [0], list[int]()

        def work() -> None:
            for _ in range(25):
                with lock as lease:
                    inside[0] += 1
                    assert inside[0] == 1
                    tokens.append(lease.token)
                    inside[0] -= 1

        workers = [spawn(work) for _ in range(8)]
        for worker in workers:
            worker.join()
        assert len(tokens) == 200
        assert tokens == sorted(set(tokens))
        assert clock.now() == 1000  # nobody waited for the clock


def test_an_interrupt_after_the_grant_gives_the_resource_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the keeper's first thread starts: the lease is nobody's, and must not last for its ttl."""
    start = _thread.start_new_thread

    def interrupted(*arguments: Any) -> None:
        start(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    url = f"sqlite:{tmp_path}/locks.db"
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        monkeypatch.setattr(threads, "start_new_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locks.lock("r", ttl=600).acquire()
        with other.lock("r", timeout=5):
            pass
        with locks.lock("r", timeout=5):  # and this thread does not count as its holder
            pass
