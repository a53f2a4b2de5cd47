"""What only asyncio can do to ZooKeeper: cancel tasks anywhere, and have thousands of calls under way at once."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

from holdfast._async.client import Client, connect
from holdfast._async.lease import Lease
from holdfast.stores.zookeeper.wire import Op
from holdfast.testing._async.runtime import cancelled_at, eventually
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed
from tests.stores.zookeeper.rig import Raw, Rig, lossy_network

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

LONG = 600.0
LIMIT = 20.0
MOST = 40  # await points of one acquire and release


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with lossy_network() as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    module_rig.clear()
    yield module_rig
    module_rig.clear()


async def take(client: Client) -> None:
    lease = await client.lock("r", ttl=LONG).acquire(LIMIT)
    await lease.release()


# -- cancelled


@pytest.mark.parametrize("warm", [True, False])
async def test_an_acquire_of_a_free_resource_that_is_cancelled_at_any_await(rig: Rig, warm: bool) -> None:
    """Also where the first use opens the session and makes the parents."""
    for point in range(MOST):
        rig.raw.clear()
        async with connect(rig.server.url, io_timeout=LIMIT) as client:
            if warm:
                await take(client)
            struck = await cancelled_at(point, lambda client=client: take(client))  # type: ignore[misc]
            await eventually(lambda: rig.raw.claims() == [])
        if not struck:
            assert point > 1
            return
    raise AssertionError(f"there are more than {MOST} await points")


async def test_a_waiter_that_is_cancelled_at_any_await(rig: Rig) -> None:
    async with connect(rig.server.url, io_timeout=LIMIT) as holder:
        async with holder.lock("r", ttl=LONG):
            mine = rig.raw.claims()
            for point in range(8):
                async with connect(rig.server.url, io_timeout=LIMIT) as client:
                    assert await cancelled_at(point, lambda client=client: take(client), patience=0.3)  # type: ignore[misc]
                    await eventually(lambda: rig.raw.claims() == mine)
        await take(holder)


async def test_tasks_that_are_cancelled_at_random_leave_no_node(rig: Rig) -> None:
    """Hundreds of them, some of which hold, some wait, and some give back; those that are not cancelled get through."""
    chance, done, cancelled = random.Random(12), 0, 0
    async with connect(rig.server.url, io_timeout=LIMIT) as locks:

        async def work(name: str) -> None:
            async with locks.lock(name, ttl=LONG, timeout=60):
                await asyncio.sleep(0.001)

        for _ in range(40):
            tasks = [asyncio.create_task(work(f"r{number % 3}")) for number in range(15)]
            for task in chance.sample(tasks, 10):
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended), ended
            done += ended.count(None)
            cancelled += len(ended) - ended.count(None)
        assert done >= 200
        assert cancelled > 100
        await eventually(lambda: rig.raw.all_claims() == [])
        await take(locks)


@pytest.mark.parametrize("what", ["request", "reply", "silence"])
async def test_a_task_that_is_cancelled_after_its_create_was_lost_leaves_no_node(rig: Rig, what: str) -> None:
    async with connect(rig.url, io_timeout=0.4) as locks:
        await take(locks)
        loss = rig.way.lose(Op.CREATE2, what, then_refuse=True)
        task = asyncio.create_task(locks.lock("r", ttl=LONG).acquire(LIMIT))
        await eventually(lambda: loss.done)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.way.heal()
        await eventually(lambda: rig.raw.claims() == [], limit=locks.capabilities.waiting_life + LIMIT)


# -- many at once


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """One of its own: thousands of nodes that are made and deleted are in the way of others."""
    with needed(lambda: ZooKeeperServer(fsync=False)) as server:
        yield server


WAITERS = 2000 if os.environ.get("HOLDFAST_VERIFY") else 1000


async def test_a_thousand_waiters_are_served_in_order(server: ZooKeeperServer) -> None:
    raw, served = Raw(server.port), list[int]()
    async with connect(server.url, io_timeout=LIMIT) as locks:

        async def work() -> None:
            async with locks.lock("r", ttl=LONG, timeout=90) as lease:
                served.append(lease.token)

        held = await locks.lock("r", ttl=LONG).acquire(LIMIT)
        tasks = [asyncio.create_task(work()) for _ in range(WAITERS)]
        await eventually(lambda: len(raw.claims()) == WAITERS + 1, limit=60)
        await held.release()
        await asyncio.gather(*tasks)
        assert len(served) == WAITERS
        assert served == sorted(served)
        assert raw.claims() == []
    raw.close()


FLOOD = 5000
# On a machine that has others to serve a server may take seconds for so much, and a renewal waits behind it.
HEALTHY_TTL = 4 if os.environ.get("HOLDFAST_VERIFY") else 15


async def test_a_flood_of_acquires_is_granted_and_costs_nobody_else_a_lease(server: ZooKeeperServer) -> None:
    raw, lost = Raw(server.port), list[Lease]()
    locks = connect(server.url)
    healthy = await locks.lock("healthy", ttl=HEALTHY_TTL, on_lost=lost.append).acquire(LIMIT)
    leases = await asyncio.gather(*(locks.lock(f"n{number}", ttl=60).acquire(60) for number in range(FLOOD)))
    assert len({lease.token for lease in leases}) == FLOOD
    assert lost == []
    healthy.check()
    await healthy.renew()
    assert len(raw.resources()) == FLOOD + 1
    await locks.close()
    assert raw.all_claims() == []
    raw.close()
