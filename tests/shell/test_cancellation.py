# ruff: noqa: PT012 (how a `with` ends is what is tested: it has to stand inside)
"""asyncio: a loss cancels the task that entered, once, and the cancellation never leaks out of the `with`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast._async.lease import Lease
from holdfast.core.claim import Lost
from holdfast.errors import LeaseLost
from holdfast.testing._async.case import TappedClient
from holdfast.testing._async.runtime import Gate, eventually
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import WAYS, Way, connect
from tests.shell._async.runtime import activities


async def forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def unharmed() -> AsyncIterator[None]:
    """Check that no cancellation is left over in this task."""
    yield
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.sleep(0.005)


def before_it_is_told(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Do it in the loop just before a loss is told to a lease, in the same step."""
    hear = Lease._hear

    def heard(lease: Lease) -> None:
        function()
        hear(lease)

    monkeypatch.setattr(Lease, "_hear", heard)


def later(function: Callable[..., object], *args: object) -> None:
    """Do it when the body has come to rest."""
    asyncio.get_running_loop().call_later(0.002, function, *args)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_loss_cancels_the_body_and_raises_lease_lost(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost) as caught:
            async with await way(locks.lock("r")):
                later(clock.advance, 31)
                await forever()
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)


async def test_the_body_may_clean_up(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        cleaned = []
        with pytest.raises(LeaseLost):
            async with locks.lock("r"):
                later(clock.advance, 31)
                try:
                    await forever()
                finally:
                    await asyncio.sleep(0.001)
                    cleaned.append("up")
        assert cleaned == ["up"]


async def test_an_error_while_cleaning_up_gets_a_note(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(ZeroDivisionError) as caught:
            async with locks.lock("r"):
                later(clock.advance, 31)
                try:
                    await forever()
                finally:
                    raise ZeroDivisionError
        assert "was lost" in caught.value.__notes__[0]


async def test_only_the_task_that_entered_is_cancelled(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        helper = asyncio.create_task(forever())

        async def body() -> None:
            async with locks.lock("r"):
                await helper

        entering = asyncio.create_task(body())
        bystander = asyncio.create_task(forever())
        later(clock.advance, 31)
        with pytest.raises(LeaseLost):
            await entering
        assert helper.cancelled()  # what the body awaited, as with every cancellation
        assert not bystander.done()
        bystander.cancel()


async def test_a_lease_that_is_not_entered_cancels_nobody(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        lease = await locks.lock("r").acquire()
        clock.advance(31)
        assert await lease.wait_lost(1)
        await asyncio.sleep(0.005)


async def test_a_body_that_swallows_the_cancellation(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r"):
                later(clock.advance, 31)
                try:
                    await forever()
                except asyncio.CancelledError:
                    pass
                await asyncio.sleep(0.001)


async def test_a_body_that_swallows_it_and_fails(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(ZeroDivisionError):
            async with locks.lock("r"):
                later(clock.advance, 31)
                try:
                    await forever()
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None


async def test_a_body_that_ends_before_the_cancellation_reaches_it(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r") as lease:
                clock.advance(31)
                await asyncio.create_task(look(lease))  # somebody else finds out
                assert lease._body is not None
                lease._body.cancel("told while the body runs")  # and the body returns before its next await


async def look(lease: Lease) -> bool:
    return lease.lost


@pytest.mark.parametrize("first", [True, False])
async def test_the_task_is_told_while_the_body_is_ready_to_run(
    first: bool, name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the body waits for is done in the same moment in which the loss is told, in either order."""
    async with connect(name, clock) as locks, unharmed():
        done = asyncio.get_running_loop().create_future()

        def come(*_: object) -> None:
            if not done.done():
                done.set_result(None)

        if first:
            before_it_is_told(monkeypatch, come)
        with pytest.raises(LeaseLost):
            async with locks.lock("r", on_lost=None if first else come):
                later(clock.advance, 31)
                await done


@pytest.mark.parametrize("look", ["lost", "check", "renew", "state", "release"])
async def test_a_loss_found_by_the_body_never_cancels_it(look: str, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r") as lease:
                clock.advance(31)
                if look == "lost":
                    assert lease.lost
                elif look == "state":
                    assert lease.state == "lost"
                else:
                    with pytest.raises(LeaseLost):
                        if look == "check":
                            lease.check()
                        else:
                            await (lease.renew() if look == "renew" else lease.release())
                await asyncio.sleep(0.02)  # the keeper tells, but does not cancel


async def test_a_loss_that_the_keeper_knew_first_but_the_body_was_told_by_its_own_call(
    name: str, clock: ManualClock
) -> None:
    async with connect(name, clock) as locks, unharmed():
        tap = locks.tap
        with pytest.raises(LeaseLost):
            async with locks.lock("r") as lease:
                tap.answers["renew"] = Lost()
                await asyncio.create_task(renewed_by_another(lease))  # learnt, not yet told
                with pytest.raises(LeaseLost):
                    lease.check()
                await asyncio.sleep(0.02)


async def renewed_by_another(lease: Lease) -> None:
    with pytest.raises(LeaseLost):
        await lease.renew()


async def test_a_loss_found_by_another_task_cancels_the_body(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r") as lease:

                async def meddle() -> None:
                    clock.advance(31)
                    assert lease.lost

                meddler = asyncio.create_task(meddle())
                await forever()
        await meddler


async def outcome(body: Callable[[], Awaitable[None]]) -> tuple[asyncio.Task[None], str]:
    """Run the body in a task of its own and say how it ended."""

    async def run() -> None:
        await body()

    task = asyncio.create_task(run())
    await asyncio.wait((task,), timeout=10)
    assert task.done()
    if task.cancelled():
        return task, "CancelledError"
    error = task.exception()
    return task, "return" if error is None else type(error).__name__


async def test_outer_cancellation_is_passed_on(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        async def body() -> None:
            async with locks.lock("r") as lease:
                task = asyncio.current_task()
                assert task is not None
                later(task.cancel)
                await forever()
            lease.check()

        assert (await outcome(body))[1] == "CancelledError"
        assert await locks.inspect() == []


@pytest.mark.parametrize("first", ["ours", "outer"])
async def test_outer_cancellation_wins_over_ours(
    first: str, name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Task[object]] = []

    def cancel(*_: object) -> None:
        tasks[0].cancel("outer")

    if first == "outer":  # on_lost comes just after our own: both before the task runs again
        before_it_is_told(monkeypatch, cancel)
    async with connect(name, clock) as locks:

        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            async with locks.lock("r", on_lost=cancel if first == "ours" else None):
                later(clock.advance, 31)
                await forever()

        task, how = await outcome(body)
        assert how == "CancelledError"
        assert task.cancelling() == 1


async def test_outer_cancellation_after_a_swallowed_one(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            async with locks.lock("r"):
                later(clock.advance, 31)
                try:
                    await forever()
                except asyncio.CancelledError:
                    # Comes while the `with` ends: somebody else's, and not ours to swallow.
                    asyncio.get_running_loop().call_soon(task.cancel)

        assert (await outcome(body))[1] == "CancelledError"


async def test_outer_cancellation_during_the_release(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap, gate = locks.tap, Gate()

        async def body() -> None:
            async with locks.lock("r"):
                tap.before["release"] = gate.wait
                task = asyncio.current_task()
                assert task is not None
                later(task.cancel)

        assert (await outcome(body))[1] == "CancelledError"
        gate.open()
        await eventually(lambda: tap.released)  # the keeper goes on with it
        assert await locks.inspect() == []


async def test_a_cancelled_acquire_leaves_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as others, connect(name, clock) as locks:
        async with others.lock("r"):
            task = asyncio.create_task(locks.lock("r").try_acquire(None))
            await asyncio.sleep(0.005)
            assert len((await others.inspect("r"))[0].waiters) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            tap = locks.tap
            await eventually(lambda: tap.released or not locks._engine.keeper.orphans)
            assert (await others.inspect("r"))[0].waiters == ()


class Nested:
    """Two leases, one inside the other, in one task."""

    def __init__(self, locks: TappedClient) -> None:
        self.outer = locks.lock("outer")
        self.inner = locks.lock("inner")
        self.trace: list[str] = []

    async def run(self) -> None:
        try:
            async with self.outer:
                try:
                    async with self.inner:
                        await forever()
                except BaseException as error:
                    self.trace.append(f"inner: {type(error).__name__}")
                    raise
        except BaseException as error:
            resource = getattr(error, "resource", "")
            self.trace.append(f"outer: {type(error).__name__} {resource}".rstrip())


def forget(locks: TappedClient, *resources: str) -> None:
    """Let the store lose these before the next renewal, so that the keeper finds out in one go."""
    store = locks.tap.store

    async def lose() -> None:
        for state in await store.inspect():
            if state.resource in resources:
                await store.release(state.resource, state.holders[0].holder)

    locks.tap.before["renew"] = lose


@pytest.mark.parametrize(
    ("lost", "trace"),
    [
        (["inner"], ["inner: LeaseLost", "outer: LeaseLost inner"]),
        (["outer"], ["inner: CancelledError", "outer: LeaseLost outer"]),
        (["inner", "outer"], ["inner: CancelledError", "outer: LeaseLost outer"]),
    ],
    ids=["inner", "outer", "both"],
)
async def test_nested_leases(lost: list[str], trace: list[str], name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        nested = Nested(locks)
        forget(locks, *lost)
        later(clock.advance, 10.01)

        async def run() -> None:
            async with unharmed():
                await nested.run()

        assert (await outcome(run))[1] == "return"
        assert nested.trace == trace
        assert await locks.inspect() == []


async def test_inner_loss_handled_outer_goes_on(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        forget(locks, "inner")
        async with locks.lock("outer") as outer:
            with pytest.raises(LeaseLost):
                async with locks.lock("inner"):
                    later(clock.advance, 10.01)
                    await forever()
            outer.check()
            await asyncio.sleep(0.005)


async def test_entered_in_one_task_and_left_in_another(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        lease = await locks.lock("r").acquire()
        await asyncio.create_task(lease.__aenter__())
        clock.advance(31)
        await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost):
            await lease.__aexit__(None, None, None)


async def test_entered_in_a_task_that_lives_on(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        lease = await locks.lock("r").acquire()

        async def enter_and_stay() -> None:
            await lease.__aenter__()
            await forever()

        entered = asyncio.create_task(enter_and_stay())
        await asyncio.sleep(0.002)
        clock.advance(31)
        await asyncio.wait((entered,), timeout=5)
        assert entered.cancelled()
        with pytest.raises(LeaseLost):
            await lease.__aexit__(None, None, None)


async def test_a_loss_that_is_told_while_the_body_closes_the_client(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as others, unharmed():
        locks = connect(name, clock)
        kept = await locks.lock("kept").acquire()
        gate = locks.tap.hold_up("release")
        with pytest.raises(LeaseLost):
            async with locks.lock("r", ttl=3) as lease:
                clock.advance(4)
                asyncio.get_running_loop().call_soon(lambda: lease.lost)
                later(gate.open)
                await locks.close()  # must not be cut short by the news
        assert kept.state == "released"
        assert await others.inspect() == []
        assert activities() == []
