"""Three members of etcd when things go wrong with them: killed, paused, cut off, their clocks moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from holdfast._async.client import Client, connect
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim, Renewal, Renewed
from holdfast.core.urls import parse_url
from holdfast.errors import AcquireTimeout, LeaseLost, LockError, StaleToken, StoreUnavailable
from holdfast.stores.etcd import messages
from holdfast.stores.etcd._async import cluster as etcd_cluster
from holdfast.stores.etcd._async.store import EtcdStore
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.check import Ledger
from holdfast.testing.servers.etcd import EtcdCluster, EtcdServer
from tests.faults.clock import moved, why_not
from tests.servers import needed

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

TTL = 6.0  # several elections long: a lease outlives them
LONG = 30.0  # longer than any fault here: see the test of a leader that is paused for longer
SLACK = 4.0  # a busy machine


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[EtcdCluster]:
    with needed(lambda: EtcdCluster(proxied=True)) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    module_cluster.wait_ready()
    module_cluster.members[0].ask("kv/deleterange", key="AA==", range_end="AA==")  # base64 of \0: everything
    yield module_cluster
    for member in module_cluster.members:
        if member.alive:
            member.resume()
        else:
            member.start(wait=False)


@contextmanager
def killed(cluster: EtcdCluster, member: EtcdServer) -> Iterator[None]:
    member.kill()
    yield
    member.start(wait=False)


@contextmanager
def paused(cluster: EtcdCluster, member: EtcdServer) -> Iterator[None]:
    member.pause()
    yield
    member.resume()


def cut_off(cluster: EtcdCluster, member: EtcdServer) -> AbstractContextManager[None]:
    return cluster.cut_off(member)


FAULTS: dict[str, Callable[[EtcdCluster, EtcdServer], AbstractContextManager[None]]] = {
    "killed": killed,
    "paused": paused,
    "cut off": cut_off,
}


async def contend(locks: Client, ledger: Ledger, name: str, tokens: list[int], stop: list[bool]) -> None:
    """Lock again and again, whatever happens, and note who is inside."""
    while not stop:
        try:
            async with locks.lock("r", ttl=LONG, timeout=30) as lease:
                ledger.enter(name, 1, 1)
                tokens.append(lease.token)
                await pause(0.002)
                ledger.leave(name)
        except LockError:
            await pause(0.05)


@pytest.mark.parametrize("fault", FAULTS)
async def test_leases_and_order_outlive_the_loss_of_the_leader(cluster: EtcdCluster, fault: str) -> None:
    """What is held stays held, what waits is served, nobody is inside together, and tokens rise throughout."""
    leader, *others = cluster.in_order()
    ledger, tokens, stop = Ledger(), list[int](), list[bool]()
    clients = [connect(cluster.url_of(*order), io_timeout=1) for order in ([leader, *others], [*others, leader])]
    held = await clients[0].lock("held", ttl=LONG).acquire()
    token = held.token
    calls = [spawn(contend, clients[number % 2], ledger, f"worker-{number}", tokens, stop) for number in range(4)]
    await eventually(lambda: len(tokens) > 20)
    with FAULTS[fault](cluster, leader):
        cluster.new_leader(leader)
        before = len(tokens)
        await eventually(lambda: len(tokens) > before + 20, limit=30)
        await held.renew()
        assert held.token == token
    cluster.wait_ready()
    before = len(tokens)
    await eventually(lambda: len(tokens) > before + 20, limit=30)
    stop.append(True)
    for call in calls:
        await call.join(40)
    assert tokens == sorted(set(tokens))
    await held.release()
    for client in clients:
        await client.close()


async def test_a_leader_that_was_paused_for_longer_than_a_ttl_breaks_no_fence(cluster: EtcdCluster) -> None:
    """When it goes on it may end leases that its successor keeps (etcd 3.4.23 does so). Whoever comes then has a larger
    token, and the former holder learns of its loss.
    """
    leader, *others = cluster.in_order()
    async with connect(cluster.url_of(*others)) as locks, connect(cluster.url_of(*others)) as rival:
        lease = await locks.lock("r", ttl=2.0).acquire()
        call = spawn(rival.lock("r", ttl=2.0).acquire, 20)
        with paused(cluster, leader):
            cluster.new_leader(leader)
            await pause(5.0)
            assert lease.state in ("held", "at risk")
        await pause(3.0)
        if lease.lost:
            successor = await call.join(30)
            assert successor.token > lease.token
            await rival._engine.store.write("k", "new", successor.fence)
            with pytest.raises(StaleToken):
                await locks._engine.store.write("k", "old", lease.fence)
        else:
            assert not call.done
            await lease.release()
            successor = await call.join(30)
        await successor.release()


async def test_a_waiter_is_served_although_its_member_is_cut_off(cluster: EtcdCluster) -> None:
    leader, follower, other = cluster.in_order()
    async with (
        connect(cluster.url_of(follower, other, leader), io_timeout=1) as locks,
        connect(cluster.url_of(leader), io_timeout=1) as holder,
    ):
        lease = await holder.lock("r", ttl=30).acquire()
        call = spawn(locks.lock("r", ttl=30).acquire)

        async def queued() -> bool:
            return any(state.waiters for state in await holder.inspect())

        await eventually(queued)
        with cluster.cut_off(follower):
            await lease.release()
            started = time.monotonic()
            await (await call.join(20)).release()
            # At the latest when it refreshes its place in line, and finds that this member answers no more.
            assert time.monotonic() - started < 2.0 + 2 * 1.0 + SLACK


async def test_calls_end_in_time_and_leases_are_lost_without_a_majority(cluster: EtcdCluster) -> None:
    _, one, other = cluster.in_order()
    io = 0.5
    async with connect(cluster.url, io_timeout=io) as locks:
        lease = await locks.lock("r", ttl=3.0).acquire()
        deadline = time.monotonic() + lease.remaining
        one.kill()
        other.kill()
        for wait, call in ((0.0, locks.lock("other").acquire), (1.0, locks.lock("other").acquire)):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await call(wait)
            assert time.monotonic() - started < wait + io + SLACK
        with pytest.raises(StoreUnavailable):
            await locks.inspect()
        assert await lease.wait_lost(10)
        assert time.monotonic() < deadline + 3.0 + SLACK  # at its last confirmed keep-alive + ttl at the latest
        with pytest.raises(LeaseLost):
            lease.check()
        for member in (one, other):
            member.start(wait=False)
        cluster.wait_ready()
        again = await locks.lock("r", ttl=3.0).acquire(15)
        assert again.token > lease.token
        await again.release()


async def renewals_while_cut_off(cluster: EtcdCluster) -> list[Renewal]:
    """Renew at a leader that is none any more, as long as it does not know that; return the answers."""
    leader = cluster.leader
    assert leader is not None
    store = EtcdStore(parse_url(cluster.url_of(leader)), namespace="default", io_timeout=0.3, clock=SystemClock())
    claim = Claim("r", "client.1", ttl=30.0)
    await store.claim(claim)
    answers: list[Renewal] = []
    with cluster.cut_off(leader):
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            for lease in store._cluster.leases:
                lease.confirmed -= lease.ttl / 6  # due again
            answers += await store.renew([claim])
    await store.close()
    return answers


async def test_a_leader_that_is_cut_off_renews_nothing(cluster: EtcdCluster) -> None:
    assert not [answer for answer in await renewals_while_cut_off(cluster) if isinstance(answer, Renewed)]


@pytest.mark.control
async def test_control_its_keep_alive_alone_would_be_believed(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def believe(self: Any, exchange: Any, lease: Any) -> bool:
        reply = await self.call(exchange, messages.LEASE_KEEP_ALIVE, messages.lease_id(lease.id))
        return messages.granted(reply).ttl > 0

    async def there(self: Any, exchange: Any, lease: Any, held: Any, asked: float, answers: Any) -> None:
        if await self._cluster.keep(exchange, lease):
            answers.update((local.claim.holder, Renewed(1.0)) for local in held)

    monkeypatch.setattr(etcd_cluster.Cluster, "keep", believe)
    monkeypatch.setattr(EtcdStore, "_renew", there)
    assert [answer for answer in await renewals_while_cut_off(cluster) if isinstance(answer, Renewed)]


def clock_of(member: EtcdServer, **jump: float) -> AbstractContextManager[None]:
    if reason := why_not():
        pytest.skip(reason)
    return moved(member.pid, **jump)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_wall_clock_that_is_set_changes_nothing(cluster: EtcdCluster, jump: float) -> None:
    leader, *_ = cluster.in_order()
    async with connect(cluster.url, io_timeout=2) as locks, connect(cluster.url, io_timeout=2) as rival:
        lease = await locks.lock("r", ttl=TTL).acquire()
        with clock_of(leader, realtime=jump):
            await pause(TTL / 2)
            assert lease.state == "held"
            with pytest.raises(AcquireTimeout):
                await rival.lock("r", ttl=TTL).acquire(1.0)
            await lease.renew()
        await lease.release()


async def test_a_leader_whose_every_clock_jumps_breaks_exclusion_and_not_fencing(cluster: EtcdCluster) -> None:
    """No lease can help against that; the token does: the register refuses the one that was overtaken."""
    leader, *_ = cluster.in_order()
    async with connect(cluster.url, io_timeout=2) as locks, connect(cluster.url, io_timeout=2) as rival:
        lease = await locks.lock("r", ttl=60).acquire()
        with clock_of(leader, realtime=600.0, monotonic=600.0):
            successor = await rival.lock("r", ttl=60).acquire(20)
            assert successor.token > lease.token
            await rival._engine.store.write("k", "new", successor.fence)
            with pytest.raises(StaleToken):
                await locks._engine.store.write("k", "old", lease.fence)
        with pytest.raises(LeaseLost):
            await lease.renew()
        await successor.release()
