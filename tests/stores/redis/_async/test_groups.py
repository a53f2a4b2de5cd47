"""Redis with several servers: a replica is promoted, sentinels fail over, slots move from one server to another."""

from __future__ import annotations

import contextlib

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import Claim, Granted, Renewed, Unknown
from holdfast.core.fence import Fence
from holdfast.errors import LeaseLost, StaleToken, StoreUnavailable
from holdfast.stores.redis._async.servers import slot_of
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.redis import RedisCluster, RedisServer, SentinelGroup
from tests.servers import needed

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]


async def test_tokens_rise_although_the_promoted_replica_has_not_got_the_write() -> None:
    """Two may believe to hold, as the promises say (law 1 on failover); the fence refuses the older one."""
    with (
        needed(RedisServer) as master,
        Proxy(master.port) as network,
        needed(lambda: RedisServer("--replicaof", "127.0.0.1", str(network.port))) as replica,
    ):
        await eventually(lambda: replica.info("replication").get("master_link_status") == "up")
        async with connect(master.url) as locks, connect(replica.url) as rival:
            before = await locks.lock("r").acquire()
            master.call("INCR", "plain counter")
            await before.release()
            await eventually(lambda: replica.call("GET", "plain counter") == b"1")
            network.silence()
            lease = await locks.lock("r", ttl=60).acquire()
            plain = master.call("INCR", "plain counter")
            replica.call("REPLICAOF", "NO", "ONE")
            successor = await rival.lock("r", ttl=60).acquire()
            assert not lease.lost
            assert successor.token > lease.token
            assert replica.call("INCR", "plain counter") == plain, "control: a bare counter gives the same number twice"
            await rival._engine.store.write("k", "new", successor.fence)
            with pytest.raises(StaleToken):
                await rival._engine.store.write("k", "old", lease.fence)
            await successor.release()


@pytest.mark.slow
async def test_sentinels_fail_over_and_everybody_goes_on() -> None:
    """The master dies: who waits gets the resource from the new one, with a higher token; who held is told."""
    with needed(lambda: SentinelGroup(down_after=0.5)) as group:
        async with connect(group.url) as locks, connect(group.url) as waiter:
            lease = await locks.lock("r", ttl=4).acquire()
            call = spawn(waiter.lock("r", ttl=4).acquire, 60)
            await eventually(lambda: len(group.master.call("PUBSUB", "CHANNELS", "holdfast.wake:*")) == 1)
            old, new = group.master, group.replica
            old.kill()
            await eventually(lambda: group.master is new, limit=30)
            try:  # the write may have reached the replica in time, or not
                await lease.release()
            except LeaseLost:
                pass
            after = await call.join(60)
            assert after.token > lease.token
            await after.release()


class Move:
    """A slot that is moved from the server that has it to another one; its keys are for the test to move."""

    def __init__(self, cluster: RedisCluster, slot: int) -> None:
        self._servers, self._slot = cluster.servers, slot
        self._ids = {server: server.call("CLUSTER", "MYID").decode() for server in cluster.servers}
        self.owner = next(server for server in cluster.servers if _has(server, slot, self._ids[server]))
        self.target = next(server for server in cluster.servers if server is not self.owner)

    def begin(self) -> None:
        """From now on keys that are not at the owner are asked for at the target."""
        self.target.call("CLUSTER", "SETSLOT", self._slot, "IMPORTING", self._ids[self.owner])
        self.owner.call("CLUSTER", "SETSLOT", self._slot, "MIGRATING", self._ids[self.target])

    def left(self) -> list[str]:
        """Return the keys that are still at the owner."""
        return [key.decode() for key in self.owner.call("CLUSTER", "GETKEYSINSLOT", self._slot, 100)]

    def end(self) -> None:
        """Tell everybody, the new owner first."""
        for server in (self.target, self.owner, *self._servers):
            server.call("CLUSTER", "SETSLOT", self._slot, "NODE", self._ids[self.target])


def _has(server: RedisServer, slot: int, own: str) -> bool:
    for first, last, master, *_ in server.call("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return bool(master[2].decode() == own)
    return False


async def test_a_slot_that_moves_is_followed() -> None:
    """While it moves its keys are at two servers (ASK), then at the new one (MOVED); leases live on."""
    with needed(RedisCluster) as cluster:
        move = Move(cluster, slot_of("holdfast:{default:r}"))
        owner, target = move.owner, move.target
        async with connect(cluster.url) as locks, connect(cluster.url) as rival:
            lease = await locks.lock("r", ttl=60).acquire()
            move.begin()
            await lease.renew()
            for key in move.left():
                owner.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            await lease.renew()
            assert await rival.lock("r").try_acquire() is None
            move.end()
            await lease.renew()
            await rival._engine.store.write("r", "v", Fence("default", "r", lease.token))
            call = spawn(rival.lock("r").acquire, 20)
            await eventually(lambda: target.call("EXISTS", "holdfast:{default:r}:line") == 1)
            await lease.release()
            await (await call.join()).release()


async def test_nothing_is_granted_while_the_keys_of_those_who_share_are_on_the_move() -> None:
    """A slot moves key by key: the hash is at the new server already, and those who share are not."""
    with needed(RedisCluster) as cluster:
        move = Move(cluster, slot_of("holdfast:{default:r}"))
        owner, target = move.owner, move.target
        async with connect(cluster.url) as locks, connect(cluster.url) as rival:
            reader = await locks.rwlock("r", ttl=60).read().acquire()
            move.begin()
            keys = sorted(move.left())
            assert len(keys) == 3
            for key in keys:
                for _ in range(3):
                    with contextlib.suppress(StoreUnavailable):
                        assert await rival.lock("r").try_acquire() is None
                    with contextlib.suppress(StoreUnavailable):
                        await reader.renew()
                assert owner.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000) == b"OK"
            move.end()
            await reader.renew()
            assert await rival.lock("r").try_acquire() is None
            await reader.release()
            async with rival.lock("r", timeout=20):
                pass


def _owner(cluster: RedisCluster, key: str) -> RedisServer:
    return next(server for server in cluster.servers if server.call("KEYS", key))


@pytest.mark.parametrize("paused", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_server_of_a_cluster_that_is_away_costs_no_lease_on_the_others(paused: bool) -> None:
    with needed(RedisCluster) as cluster:
        async with connect(cluster.url, io_timeout=4) as locks:
            store = locks._engine.store
            claims = [Claim(f"r{number}", f"client.{number}") for number in range(30)]
            for claim in claims:
                assert isinstance(await store.claim(claim), Granted)
            owners = [_owner(cluster, f"holdfast:{{default:{claim.resource}}}") for claim in claims]
            *others, gone = dict.fromkeys(owners)  # the last to be asked: nothing is left after it
            kept = [owner is not gone for owner in owners]
            assert len(others) == 2
            with cluster.silence(gone) if paused else contextlib.nullcontext():
                if not paused:
                    gone.kill()
                for _ in range(2):  # the first finds out, the second knows
                    for server in others:
                        server.call("SCRIPT", "FLUSH")  # as after its restart
                    answers = await store.renew(claims)
                    assert [isinstance(answer, Renewed) for answer in answers] == kept
                    assert all(isinstance(answer, Renewed | Unknown) for answer in answers)
                with pytest.raises(StoreUnavailable):
                    await store.inspect()
