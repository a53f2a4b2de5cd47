"""`async def` as on_lost: a task of the client's loop, which nobody waits for but close()."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast._async import runtime
from holdfast._async.lease import Lease
from holdfast.errors import LeaseLost
from holdfast.testing._async.runtime import eventually
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect
from tests.shell.script import run


class Saver:
    """An on_lost that waits until it is let go on, in each of the forms that people give it."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.begun: list[str] = []
        self.saved: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, lease: Lease) -> None:
        self.loops.append(asyncio.get_running_loop())
        self.begun.append(lease.resource)
        await self.go_on.wait()
        self.saved.append(lease.resource)

    async def save(self, lease: Lease) -> None:
        await self(lease)


FORMS: dict[str, Callable[[Saver], Callable[[Lease], Any]]] = {
    "object": lambda saver: saver,
    "method": lambda saver: saver.save,
    "partial": lambda saver: partial(Saver.save, saver),
    "lambda": lambda saver: lambda lease: saver.save(lease),
}


@pytest.mark.parametrize("form", FORMS)
async def test_it_runs_in_the_loop_of_the_client(form: str, name: str, clock: ManualClock) -> None:
    saver = Saver()
    async with connect(name, clock) as locks:
        lease = await locks.lock("r", renew=False, on_lost=FORMS[form](saver)).acquire()
        clock.advance(31)
        await eventually(lambda: saver.begun)
        assert lease.lost
        saver.go_on.set()
        await eventually(lambda: saver.saved)
    assert saver.saved == ["r"]
    assert saver.loops == [asyncio.get_running_loop()]
    assert not runtime._following


async def test_it_delays_neither_the_keeper_nor_other_leases(name: str, clock: ManualClock) -> None:
    saver, told = Saver(), list[str]()
    async with connect(name, clock) as locks:
        kept = await locks.lock("kept", ttl=30).acquire()
        hung = [await locks.lock(f"r{n}", ttl=20, renew=False, on_lost=saver).acquire() for n in range(3)]
        other = locks.lock("other", ttl=20, renew=False, on_lost=lambda lease: told.append(lease.resource))
        lease = await other.acquire()
        clock.advance(15)
        await eventually(lambda: kept.remaining > 20)
        clock.advance(6)
        await eventually(lambda: len(saver.begun) == 3 and told == ["other"])
        assert all(lease.lost for lease in (*hung, lease))
        for _ in range(3):
            clock.advance(15)
            await eventually(lambda: kept.remaining > 20)
        assert saver.saved == []
        saver.go_on.set()
        await eventually(lambda: len(saver.saved) == 3)
        await kept.release()


async def test_it_is_referred_to_while_it_runs(name: str, clock: ManualClock) -> None:
    """A loop knows its tasks weakly. This one waits for something that nobody else knows."""
    futures: list[weakref.ref[asyncio.Future[None]]] = []
    saved: list[str] = []

    async def save(lease: Lease) -> None:
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        await future
        saved.append(lease.resource)

    locks = connect(name, clock)
    lease = await locks.lock("r", renew=False, on_lost=save).acquire()
    clock.advance(31)
    await eventually(lambda: futures)
    del lease
    gc.collect()
    future = futures[0]()
    assert future is not None
    future.set_result(None)
    await locks.close()
    assert saved == ["r"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
async def test_its_errors_are_logged(
    error: type[BaseException], name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(lease: Lease) -> None:
        await asyncio.sleep(0)
        raise error("of the callback")

    async with connect(name, clock) as locks:
        lease = await locks.lock("r", renew=False, on_lost=fail).acquire()
        clock.advance(31)
        await eventually(lambda: "on_lost of 'r' failed" in caplog.messages)
        assert lease.lost
    assert "of the callback" in caplog.text


async def test_the_body_is_cancelled_whatever_on_lost_does(name: str, clock: ManualClock) -> None:
    saver = Saver()
    async with connect(name, clock) as locks:
        with pytest.raises(LeaseLost):  # noqa: PT012 (it comes out of the `with`)
            async with locks.lock("r", renew=False, on_lost=saver):
                clock.advance(31)
                await asyncio.sleep(60)
        await eventually(lambda: saver.begun)
        saver.go_on.set()
    assert saver.saved == ["r"]


async def test_close_waits_for_it_after_all_was_given_back(name: str, clock: ManualClock) -> None:
    saver = Saver()
    async with connect(name, clock) as others:
        locks = connect(name, clock)
        lost = await locks.lock("lost", renew=False, on_lost=saver).acquire()
        clock.advance(31)
        await eventually(lambda: saver.begun)
        held = await locks.lock("held").acquire()
        closing = asyncio.create_task(locks.close())
        assert (await others.lock("held").acquire(timeout=5)).token > held.token
        await asyncio.sleep(0.05)
        assert not closing.done()
        saver.go_on.set()
        await closing
        assert saver.saved == ["lost"]
        assert lost.lost


async def test_close_cancels_what_takes_too_long(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    saver = Saver()
    locks = connect(name, clock)
    lease = await locks.lock("r", renew=False, on_lost=saver).acquire()
    clock.advance(31)
    await eventually(lambda: saver.begun)
    began = time.monotonic()
    await locks.close(timeout=0.2)
    assert time.monotonic() - began < 3
    await eventually(lambda: "on_lost of 'r' was cancelled before its end" in caplog.messages)
    assert lease.lost
    assert not runtime._following


@pytest.mark.parametrize("helper", [False, True])
async def test_it_may_close_the_client(helper: bool, name: str, clock: ManualClock) -> None:
    """close() waits for it, and is called by it, maybe in a task that it waits for: it must not wait for itself."""
    took: list[float] = []

    async def close(lease: Lease) -> None:
        began = time.monotonic()
        await (asyncio.create_task(locks.close()) if helper else locks.close())
        took.append(time.monotonic() - began)

    locks = connect(name, clock)
    lease = await locks.lock("r", renew=False, on_lost=close).acquire()
    clock.advance(31)
    await eventually(lambda: took)
    assert took[0] < 3
    assert lease.lost
    assert locks.closed


ENDING = """
    import asyncio, sys
    import holdfast

    begun = asyncio.Event()

    async def save(lease):
        print("begun", flush=True)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            print("put in order", flush=True)

    async def main():
        global locks, lease
        locks = holdfast.aio.connect(sys.argv[1])
        lease = await locks.lock("r", ttl=0.5, renew=False, on_lost=save).acquire()
        await lease.wait_lost()
        {then}

    asyncio.run(main())
    """


@pytest.mark.parametrize("then", ["await begun.wait()", "await begun.wait(); await locks.close(0.2)"])
def test_it_is_not_lost_silently_with_its_loop(then: str, tmp_path: Path) -> None:
    """asyncio.run() cancels what still runs, and so does close(): it hears of that, and the log tells."""
    out, err = run(ENDING.format(then=then), f"sqlite://{tmp_path}/locks.db")
    assert out.split("\n") == ["begun", "put in order", ""]
    assert "on_lost of 'r' was cancelled before its end" in err
    assert "never awaited" not in err
    assert "Task was destroyed" not in err


def test_a_loop_that_ends_at_once_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whether on_lost was called at all depends on who was faster. The loss itself is in the log in any case."""
    out, err = run(ENDING.format(then="pass"), f"sqlite://{tmp_path}/locks.db")
    assert "lease on 'r'" in err
    assert ("put in order" in out) is ("begun" in out)
    assert "never awaited" not in err
    assert "Task was destroyed" not in err
