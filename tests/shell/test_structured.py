# ruff: noqa: PT012 (how a `with` ends is what is tested: it has to stand inside)
"""asyncio: leases together with TaskGroup and asyncio.timeout."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import LeaseLost
from holdfast.testing._async.runtime import eventually
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect
from tests.shell.test_cancellation import before_it_is_told, forever, later, unharmed


async def test_a_group_inside_a_lease_is_cancelled_with_it(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        children: list[asyncio.Task[None]] = []
        with pytest.raises(LeaseLost):
            async with locks.lock("r"):
                async with asyncio.TaskGroup() as group:
                    children += [group.create_task(forever()) for _ in range(3)]
                    later(clock.advance, 31)
        assert all(child.cancelled() for child in children)


async def test_a_group_whose_body_waits_is_cancelled_too(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r"):
                async with asyncio.TaskGroup() as group:
                    child = group.create_task(forever())
                    later(clock.advance, 31)
                    await forever()
        assert child.cancelled()


async def test_a_child_that_fails_while_it_is_cancelled(name: str, clock: ManualClock) -> None:
    async def fail_at_the_end() -> None:
        try:
            await forever()
        finally:
            raise ZeroDivisionError

    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(ExceptionGroup) as caught:
            async with locks.lock("r"):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail_at_the_end())
                    later(clock.advance, 31)
        assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
        assert "was lost" in caught.value.__notes__[0]


async def test_a_lease_in_a_child_fails_the_group(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:  # not unharmed(): before 3.13 the group itself leaves its count behind

        async def hold() -> None:
            async with locks.lock("r"):
                later(clock.advance, 31)
                await forever()

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(hold())
                sibling = group.create_task(forever())
        assert [type(error) for error in caught.value.exceptions] == [LeaseLost]
        assert sibling.cancelled()


async def test_a_lease_in_the_body_of_a_group_that_fails(name: str, clock: ManualClock) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.002)
        raise ZeroDivisionError

    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                async with locks.lock("r"):
                    await forever()
        assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
        assert await locks.inspect() == []


async def test_a_lease_in_the_body_of_a_group_is_lost(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                child = group.create_task(forever())
                async with locks.lock("r"):
                    later(clock.advance, 31)
                    await forever()
        assert [type(error) for error in caught.value.exceptions] == [LeaseLost]
        assert child.cancelled()


async def test_a_timeout_around_that_does_not_expire(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(60):
                async with locks.lock("r"):
                    later(clock.advance, 31)
                    await forever()


async def test_a_timeout_inside_that_does_not_expire(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r"):
                async with asyncio.timeout(60):
                    later(clock.advance, 31)
                    await forever()


async def test_a_timeout_around_that_expires(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.005):
                async with locks.lock("r"):
                    await forever()
        assert not isinstance(caught.value, LeaseLost)
        assert await locks.inspect() == []


async def test_a_timeout_inside_that_expires(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, unharmed():
        async with locks.lock("r") as lease:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await forever()
            lease.check()


@pytest.mark.parametrize(("first", "raised"), [("timeout", TimeoutError), ("loss", LeaseLost)])
async def test_a_timeout_around_expires_with_the_loss(
    first: str, raised: type[Exception], name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[asyncio.Timeout] = []

    def expire(*_: object) -> None:
        timeouts[0].reschedule(0)  # long ago: strikes in the next round of the loop

    if first == "timeout":
        before_it_is_told(monkeypatch, expire)
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(raised):
            async with asyncio.timeout(60) as timeout:
                timeouts.append(timeout)
                async with locks.lock("r", on_lost=expire if first == "loss" else None):
                    later(clock.advance, 31)
                    await forever()


@pytest.mark.parametrize("first", ["timeout", "loss"])
async def test_a_timeout_inside_expires_with_the_loss(
    first: str, name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[asyncio.Timeout] = []

    def expire(*_: object) -> None:
        timeouts[0].reschedule(0)

    if first == "timeout":
        before_it_is_told(monkeypatch, expire)
    async with connect(name, clock) as locks, unharmed():
        with pytest.raises(LeaseLost):
            async with locks.lock("r", on_lost=expire if first == "loss" else None):
                async with asyncio.timeout(60) as timeout:
                    timeouts.append(timeout)
                    later(clock.advance, 31)
                    await forever()


async def test_wait_for_around_an_acquire_leaves_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as others, connect(name, clock) as locks, unharmed():
        async with others.lock("r"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await locks.lock("r").acquire()

            async def nobody_waits() -> bool:
                return (await others.inspect("r"))[0].waiters == ()

            await eventually(nobody_waits)
