"""What exists with asyncio only: loops, awaitable acquires, and coroutine functions."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import holdfast.aio
from holdfast._async.lease import Lease
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect
from tests.shell._async.runtime import activities
from tests.shell.script import run


async def test_acquire_can_be_awaited_and_entered(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        lease = await lock.acquire()
        assert isinstance(lease, Lease)
        await lease.release()
        async with lock.acquire() as lease:
            lease.check()
        async with await lock.acquire() as lease:
            lease.check()
        lease = await asyncio.wait_for(lock.acquire(), 5)
        await lease.release()


async def test_an_acquire_may_be_a_task(name: str) -> None:
    """People write create_task(lock.acquire()), which takes nothing but a coroutine."""
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        lock = locks.lock("r")
        lease = await asyncio.create_task(lock.acquire())
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.TaskGroup() as group:
            second = group.create_task(lock.acquire(5))
            await asyncio.sleep(0.01)
            await lease.release()
        await second.result().release()
        lock.acquire().close()  # asked for and never awaited: that nobody wants it can be said


async def test_gather_takes_acquires(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        leases = await asyncio.gather(*(locks.lock(f"r{n}").acquire() for n in range(3)))
        assert [lease.resource for lease in leases] == ["r0", "r1", "r2"]
        for lease in leases:
            await lease.release()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_never_awaited_acquire_leaves_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lock = locks.lock("r")
        lock.acquire()
        gc.collect()
        assert tap.claims == []
        async with lock.acquire(timeout=0):
            pass


async def test_an_acquire_is_used_once(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        acquiring = locks.lock("r").acquire()
        async with acquiring:
            pass
        with pytest.raises(RuntimeError):
            await acquiring


def test_a_second_loop_is_refused(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)

    async def use() -> None:
        async with locks.lock("r"):
            pass

    asyncio.run(use())
    for call in (use, locks.ready, locks.inspect, locks.close):
        with pytest.raises(
            RuntimeError, match=r"belongs to another event loop.*holdfast\.aio\.connect\(\) once in each"
        ):
            asyncio.run(call())


def test_a_client_may_be_made_outside_of_any_loop(name: str, clock: ManualClock) -> None:
    locks = connect(name, clock)
    lock = locks.lock("r")

    async def use() -> None:
        async with lock:
            pass
        await locks.close()

    asyncio.run(use())


def test_close_is_the_first_await(name: str, clock: ManualClock) -> None:
    asyncio.run(connect(name, clock).close())


def test_one_client_for_each_loop(name: str, clock: ManualClock) -> None:
    async def use() -> None:
        async with connect(name, clock) as locks, locks.lock("r", timeout=0):
            pass

    asyncio.run(use())
    asyncio.run(use())


def plain() -> None: ...


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


@pytest.mark.parametrize(
    "function", [plain, generator, async_generator, 5], ids=["plain", "generator", "async generator", "5"]
)
def test_only_coroutine_functions_can_be_decorated(function: Any, name: str, clock: ManualClock) -> None:
    lock = connect(name, clock).lock("r")
    with pytest.raises(TypeError, match=r"lock\('r'\) of an asyncio client decorates coroutine functions"):
        lock(function)


async def test_tasks_are_named_in_the_owner(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await asyncio.create_task(locks.lock("r").try_acquire(), name="worker-7")
        assert lease is not None
        assert lease.owner.endswith(":worker-7")
        await lease.release()


async def test_nothing_runs_after_close(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r"):
            clock.advance(10.01)
            await tap.reached("renewals", 1)
        assert activities() == ["holdfast-renewer", "holdfast-timekeeper"]
    assert activities() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_public_connect() -> None:
    async with holdfast.aio.connect("memory://") as locks, locks.lock("r") as lease:
        assert isinstance(locks, holdfast.aio.Client)
        assert isinstance(lease, holdfast.aio.Lease)
        assert isinstance(locks.lock("s"), holdfast.aio.Lock)


def test_a_program_that_closed_ends_silently() -> None:
    out, err = run(
        """
        import asyncio
        import holdfast

        async def main():
            async with holdfast.aio.connect("memory://") as locks:
                lease = await locks.lock("a", ttl=0.5).acquire()
                async with locks.lock("b") as other:
                    await asyncio.sleep(0.4)  # a renewal
                    other.check()
                print(lease.state)

        asyncio.run(main())
        """
    )
    assert out.split() == ["held"]
    assert err == ""


def test_a_program_that_did_not_close_ends_in_peace() -> None:
    _, err = run(
        """
        import asyncio, logging
        import holdfast

        logging.getLogger("holdfast").setLevel(logging.CRITICAL)
        locks = holdfast.aio.connect("memory://")

        async def main():
            global lease
            lease = await locks.lock("a").acquire()
            await asyncio.sleep(0.01)

        asyncio.run(main())
        """
    )
    assert err == ""


async def test_claims_of_one_task_share_an_actor(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("a"), locks.lock("b"):
            seen = [state.holders[0].holder for state in await locks.inspect()]
        first, second = (holder.rsplit(".", 1) for holder in seen)
        assert first[0] == second[0]
        assert first[1] != second[1]
