"""Locks as decorators."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast._async.lease import Lease
from holdfast.errors import AcquireTimeout, LeaseLost
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free


async def test_the_function_runs_under_the_lock(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        @locks.lock("r")
        async def add(a: int, b: int = 1) -> int:
            """Add."""
            assert not await is_free(locks, "r")
            return a + b

        assert await add(1) == 2
        assert await add(1, b=5) == 6
        assert await is_free(locks, "r")


async def test_the_function_keeps_its_name_and_signature(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        async def add(a: int, b: int = 1) -> int:
            """Add."""
            return a + b

        locked = locks.lock("r")(add)
        assert locked.__name__ == "add"
        assert locked.__doc__ == "Add."
        assert inspect.signature(locked) == inspect.signature(add)
        assert inspect.iscoroutinefunction(locked) is inspect.iscoroutinefunction(add)


async def test_the_lease_is_passed_to_a_keyword_only_parameter(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        @locks.lock("r")
        async def work(a: int, *, lease: Lease | None = None) -> tuple[int, str]:
            assert lease is not None
            lease.check()
            return a, lease.resource

        assert await work(1) == (1, "r")


async def test_a_positional_lease_is_refused(name: str, clock: ManualClock) -> None:
    """Nobody would pass it: it was meant to be keyword-only, or it is another's word."""
    async with connect(name, clock) as locks:

        async def ordinary(a: int, lease: Lease) -> None: ...

        async def with_default(lease: Lease | None = None) -> None: ...

        async def positional_only(lease: Lease, /) -> None: ...

        functions: list[Any] = [ordinary, with_default, positional_only]
        for decorator in (locks.lock("r"), locks.semaphore("r", permits=2), locks.lock_all("r"), locks.once("r")):
            for function in functions:
                with pytest.raises(TypeError, match=r"takes `lease` by position.*write `\*, lease` at the end"):
                    decorator(function)
        assert locks.tap.claims == []


async def test_several_leases_of_that_name_are_the_callers(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        @locks.lock("r")
        async def work(*lease: str) -> tuple[str, ...]:
            return lease

        assert await work("a flat", "a house") == ("a flat", "a house")


async def test_extra_keywords_do_not_get_a_lease(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        @locks.lock("r")
        async def work(**facts: int) -> dict[str, int]:
            return facts

        assert await work(a=1) == {"a": 1}


async def test_methods_can_be_decorated(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        class Account:
            balance = 0

            @locks.lock("r")
            async def deposit(self, amount: int, *, lease: Lease | None = None) -> int:
                assert lease is not None
                self.balance += amount
                return self.balance

        account = Account()
        await account.deposit(1)
        assert await account.deposit(2) == 3


async def test_errors_and_loss_come_out(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:

        @locks.lock("r")
        async def work(how: str) -> None:
            if how == "fail":
                raise ZeroDivisionError
            clock.advance(31)

        with pytest.raises(ZeroDivisionError):
            await work("fail")
        assert await is_free(locks, "r")
        with pytest.raises(LeaseLost):
            await work("lose")


async def test_a_busy_lock_keeps_the_function_from_running(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:

        @locks.lock("r", timeout=0)
        async def work() -> None:
            pytest.fail("ran without a lease")

        async with others.lock("r"):
            with pytest.raises(AcquireTimeout):
                await work()


async def test_recursion_with_a_reentrant_lock(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tokens: set[int] = set()

        @locks.lock("r", reentrant=True)
        async def factorial(n: int, *, lease: Lease | None = None) -> int:
            assert lease is not None
            tokens.add(lease.token)
            return n * await factorial(n - 1) if n else 1

        assert await factorial(5) == 120
        assert len(tokens) == 1
        assert await is_free(locks, "r")
