"""What is particular to etcd: shared leases, late claims, offsets, logins, endpoints."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast._async.client import Client, connect
from holdfast._async.store import Store
from holdfast._async.stores import etcd_cluster
from holdfast._async.stores import transport_etcd as transport
from holdfast._async.stores.etcd import EtcdStore
from holdfast._clock import SystemClock
from holdfast._etcd import messages
from holdfast._etcd.keys import OFFSET, Space, guard_key
from holdfast._etcd.leases import Lease
from holdfast.core.claim import LOST, Claim, Granted, Waiting
from holdfast.core.urls import parse_url
from holdfast.errors import LeaseLost, RateLimited, StoreError, StoreUnavailable, Unsupported
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.servers import free_port
from holdfast.testing.servers.etcd import EtcdServer
from tests.servers import needed
from tests.stores.etcd_kit import Place, bad_network

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

TTL = 2.0
SECRET = "hunter2"


@pytest.fixture(scope="module")
def module_place() -> Iterator[Place]:
    with bad_network() as place:
        yield place


@pytest.fixture
def place(module_place: Place) -> Iterator[Place]:
    module_place.clear()
    yield module_place
    module_place.clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls to the server, by method."""
    counted: Counter[str] = Counter()
    real = transport.call

    async def call(peer: Any, method: str, *rest: Any) -> bytes:
        counted[method] += 1
        return await real(peer, method, *rest)

    monkeypatch.setattr(transport, "call", call)
    return counted


def bare(url: str, io_timeout: float = 10.0) -> Store:
    return EtcdStore(parse_url(url), namespace="default", io_timeout=io_timeout, clock=SystemClock())


def claim(number: int, resource: str = "r", **facts: Any) -> Claim:
    return Claim(resource, f"client.{number}", **{"ttl": 30.0, **facts})


async def acquired(locks: Client, count: int, ttl: float) -> list[Any]:
    return [await locks.lock(f"r{number}", ttl=ttl).acquire() for number in range(count)]


# -- what it costs


async def test_a_free_resource_costs_one_transaction_and_one_delete(place: Place, calls: Counter[str]) -> None:
    async with connect(place.one_way) as locks:
        async with locks.lock("warm"):
            pass
        calls.clear()
        for _ in range(5):
            async with locks.lock("r"):
                pass
        assert calls == {messages.TXN: 5, messages.DELETE: 5}


async def test_a_thousand_leases_are_under_one_lease_and_kept_by_one_keep_alive(
    place: Place, calls: Counter[str]
) -> None:
    async with connect(place.one_way, io_timeout=20) as locks:
        held = await acquired(locks, 1000, 9.0)
        assert len({kv.lease for kv in place.stored()}) == 1
        assert calls[messages.LEASE_GRANT] == 1
        calls.clear()
        store: Any = locks._store
        (lease,) = store._cluster.leases
        confirmed = lease.confirmed
        await eventually(lambda: lease.confirmed > confirmed, 20)
        await eventually(lambda: min(one.remaining for one in held) > 5, 20)
        # Leases that were taken one after the other are due one after the other: a few keep-alives, not a thousand.
        assert calls[messages.LEASE_KEEP_ALIVE] <= 5
        assert place.ways[0].accepted >= 1


async def test_waiters_share_one_connection(place: Place) -> None:
    async with connect(place.one_way, io_timeout=20) as holder, connect(place.one_way, io_timeout=20) as locks:
        lease = await holder.lock("r").acquire()
        before = place.ways[0].accepted
        waiting = [spawn(hold_once, locks) for _ in range(100)]
        await eventually(lambda: len(place.stored()) == 101)
        assert place.ways[0].accepted <= before + 1
        await lease.release()
        for call in waiting:
            await call.join(60)


async def hold_once(locks: Client) -> None:
    async with locks.lock("r"):
        pass


# -- the shared lease


async def test_a_new_claim_does_not_prolong_the_shared_lease(place: Place) -> None:
    store = bare(place.one_way)
    first = await store.claim(claim(1, "r1", ttl=9.0))
    await pause(1.0)
    second = await store.claim(claim(2, "r2", ttl=9.0))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.left < 8.1
    await store.close()


async def test_a_claim_never_comes_under_a_lease_that_is_nearly_over(place: Place) -> None:
    store = bare(place.one_way)
    await store.claim(claim(1, "r1", ttl=3.0))
    await pause(1.5)
    second = await store.claim(claim(2, "r2", ttl=3.0))
    assert isinstance(second, Granted)
    assert second.left >= 2.0
    await store.close()


async def test_a_lost_session_is_the_loss_of_all_its_leases(place: Place) -> None:
    async with connect(place.one_way) as locks:
        held = await acquired(locks, 3, 6.0)
        place.call(messages.LEASE_REVOKE, messages.lease_id(place.stored()[0].lease))
        for lease in held:
            with pytest.raises(LeaseLost):
                await lease.renew()
        async with locks.lock("r0", ttl=6.0, timeout=5):
            pass


async def test_the_resource_of_a_dropped_lease_becomes_free_although_others_are_kept(place: Place) -> None:
    async with connect(place.one_way) as locks, connect(place.one_way) as rival:
        kept = await locks.lock("kept", ttl=TTL).acquire()
        dropped = await locks.lock("r", ttl=TTL).acquire()
        assert dropped.token
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del dropped
            gc.collect()
        async with rival.lock("r", ttl=TTL, timeout=3 * TTL):
            pass
        assert kept.state == "held"


async def test_the_resource_of_a_hung_body_becomes_free_although_others_are_kept(place: Place) -> None:
    async with connect(place.one_way) as locks, connect(place.one_way) as rival:
        kept = await locks.lock("kept", ttl=TTL).acquire()
        hung = await locks.lock("r", ttl=TTL, max_hold=0.5).acquire()
        async with rival.lock("r", ttl=TTL, timeout=4 * TTL):
            assert hung.lost
        assert kept.state == "held"


async def test_a_forgotten_waiter_does_not_block_although_others_wait(place: Place) -> None:
    store, other = bare(place.one_way), bare(place.one_way)
    await other.claim(claim(1))
    await other.claim(claim(2, "busy"))
    forgotten, waiting = claim(3), claim(4, "busy")
    assert isinstance(await store.claim(forgotten), Waiting)
    assert isinstance(await store.claim(waiting), Waiting)
    await other.release("r", "client.1")

    async def freed() -> bool:
        await store.claim(waiting)
        await pause(0.5)
        return isinstance(await other.claim(claim(5), False), Granted)

    await eventually(freed, 12)
    assert isinstance(await store.claim(waiting), Waiting), "the one that asks keeps its place"
    await store.close()
    await other.close()


async def test_close_leaves_no_lease_behind_that_nobody_uses(place: Place) -> None:
    async with connect(place.one_way) as locks:
        async with locks.lock("r"):
            pass
        assert len(place.stored("guards")) == 1
    assert place.stored("guards") == []
    store = bare(place.one_way)
    await store.claim(claim(1))
    await store.close()
    assert len(place.stored()) == 1, "a claim stays as it is"


async def test_a_lease_that_is_too_short_for_the_cluster_is_refused() -> None:
    arguments = ("--heartbeat-interval", "500", "--election-timeout", "5000")
    with needed(lambda: EtcdServer(*arguments)) as server:
        async with connect(server.url, io_timeout=10) as locks:
            with pytest.raises(Unsupported, match="at least 8 s"):
                await locks.lock("r", ttl=3).acquire()
            async with locks.lock("r", ttl=8):
                pass


async def test_a_rate_limit_says_when_the_next_hit_is_possible(place: Place) -> None:
    async with connect(place.one_way) as locks:
        limit = locks.rate_limit("r", 2, per=8)
        await limit.hit()
        await pause(3.0)
        await limit.hit()
        with pytest.raises(RateLimited) as caught:
            await limit.hit()
        assert 2.0 < caught.value.retry_after <= 6.0
        assert len(place.stored()) == 2


# -- late claims


async def ghosts(place: Place, count: int = 40) -> int:
    """Withdraw claims whose requests are still on their way, let them arrive, and count what stands there then."""
    store = bare(place.url, 0.4)
    await store.claim(claim(0, "warm"))
    place.ways[0].up.mode = "hold"
    claims = [claim(number, f"r{number}") for number in range(1, count)]

    async def ask(one: Claim) -> None:
        try:
            await store.claim(one)
        except StoreUnavailable:
            pass

    for call in [spawn(ask, one) for one in claims]:
        await call.join()

    async def withdrawn(one: Claim) -> bool:
        try:
            await store.release(one.resource, one.holder)
        except StoreUnavailable:
            return False
        return True

    for one in claims:
        await eventually(lambda one=one: withdrawn(one))  # type: ignore[misc]
    place.ways[0].heal()
    await pause(1.0)
    await store.close()
    return len(place.stored()) - 1


async def test_claims_that_arrive_after_their_withdrawal_leave_no_ghosts(place: Place) -> None:
    assert await ghosts(place) == 0


async def test_control_without_the_guard_there_are_ghosts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(cluster: Any, exchange: Any, lease: Any) -> None: ...

    monkeypatch.setattr(etcd_cluster.Cluster, "raise_guard", nothing)
    found = 0
    for _ in range(5):
        found += await ghosts(place)
        place.clear()
        if found:
            return
    raise AssertionError("no ghost in five rounds: the test cannot see any")


async def test_claims_of_others_survive_a_raised_guard(place: Place) -> None:
    store = bare(place.one_way)
    await store.claim(claim(1, "r1"))
    cluster: Any = store._cluster  # type: ignore[attr-defined]
    (lease,) = cluster.leases
    place.call(messages.PUT, messages.put(lease.guard_key, b"", lease.id))  # by another thread, as it were
    assert isinstance(await store.claim(claim(2, "r2")), Granted)
    assert isinstance(await store.claim(claim(3, "r2")), Waiting)
    await store.close()


async def test_a_guard_that_somebody_deleted_is_the_end_of_its_lease(place: Place) -> None:
    async with connect(place.one_way, io_timeout=5) as locks:
        lease = await locks.lock("r").acquire()
        place.call(messages.DELETE, messages.delete(place.stored("guards")[0].key))
        async with locks.lock("r2", timeout=5):
            pass
        with pytest.raises(LeaseLost):
            await lease.renew()


async def test_a_stale_release_cannot_end_a_newer_claim(place: Place) -> None:
    store = bare(place.one_way)
    await store.claim(claim(1))
    assert await store.release("r", "client.1")
    await store.claim(claim(2))
    assert not await store.release("r", "client.1")
    assert [kv.key.rpartition(b"/")[2] for kv in place.stored()] == [b"client.2"]
    await store.close()


# -- tokens


async def test_a_raised_offset_is_seen_by_clients_at_once(place: Place) -> None:
    store = bare(place.one_way)
    first = await store.claim(claim(1))
    waiting = claim(2)
    await store.claim(waiting)
    place.call(messages.PUT, messages.put(OFFSET, b"1000000"))
    assert isinstance(first, Granted)
    assert await store.claim(claim(1)) == pytest.approx((first.token, 30), abs=5), "a token does not change"
    await store.release("r", "client.1")
    second = await store.claim(waiting)
    assert isinstance(second, Granted)
    assert 1_000_000 < second.token < 1_000_000 + 10_000_000
    (state,) = await store.inspect()
    assert state.holders[0].token == second.token
    await store.close()


@pytest.mark.parametrize(("offset", "said"), [(b"9007199254740992", "2\\^53"), (b"many", "number"), (b"-1", "number")])
async def test_an_offset_that_makes_no_tokens_is_refused(place: Place, offset: bytes, said: str) -> None:
    place.call(messages.PUT, messages.put(OFFSET, offset))
    async with connect(place.one_way) as locks:
        with pytest.raises(StoreError, match=said):
            await locks.lock("r").acquire()
    assert place.stored() == []


async def test_what_others_put_there_is_named(place: Place) -> None:
    key = Space("default").claim("r", "stranger")
    for value in (b"x", b"[1]", b"{}", b"\xff"):
        place.call(messages.PUT, messages.put(key, value))
        store = bare(place.one_way)
        with pytest.raises(StoreError, match="claims/default/r/stranger"):
            await store.claim(claim(1))
        await store.close()


# -- endpoints, logins, certificates


async def test_an_endpoint_that_is_down_does_not_matter(place: Place) -> None:
    async with connect(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{place.server.port}") as locks:
        lease = await locks.lock("r").try_acquire()
        assert lease is not None
        await lease.release()
        assert await locks.lock("r").try_acquire() is not None


async def test_an_endpoint_that_falls_silent_is_left(place: Place) -> None:
    async with connect(place.url, io_timeout=0.4) as locks:
        lease = await locks.lock("r", ttl=6).acquire()
        place.ways[0].silence()
        with pytest.raises(StoreUnavailable):
            await lease.renew()
        await lease.renew()
        async with locks.lock("r2", ttl=6):
            pass


async def test_a_cluster_that_is_down_is_told() -> None:
    async with connect(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}", io_timeout=0.5) as locks:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
            await locks.lock("r").acquire(0)


@pytest.mark.parametrize("url", ["etcd://", "etcd://h/path", "etcd://h?ca=x", "etcds://h?what=1", "etcd:relative"])
async def test_bad_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="etcd"):
        connect(url)


async def test_tls() -> None:
    with needed(lambda: EtcdServer(tls=True)) as server:
        async with connect(server.url) as locks:
            async with locks.lock("r"):
                pass
        async with connect(server.url.partition("?")[0]) as stranger:
            with pytest.raises(StoreUnavailable):
                await stranger.lock("r").acquire(0)
        async with connect(server.url + ".missing") as wrong:
            with pytest.raises(StoreError, match="cannot be read"):
                await wrong.lock("r").acquire(0)


async def test_login_and_its_renewal(caplog: pytest.LogCaptureFixture) -> None:
    with needed(EtcdServer) as server:
        server.lock_up(SECRET)
        address = server.url.partition("//")[2]
        async with connect(f"etcd://root:{SECRET}@{address}") as locks:
            lease = await locks.lock("r").acquire()
            call = spawn(locks.lock("r2").acquire)
            await call.join()
            store: Any = locks._store
            store._cluster._token = "stale.7"  # as if its five minutes were over
            await lease.renew()
            server.stop()
            server.start()  # it forgets its tokens
            await lease.renew()
            shown = repr(locks)
        for login in ("root:wrong@", ""):
            async with connect(f"etcd://{login}{address}") as stranger:
                with pytest.raises(StoreError) as caught:
                    await stranger.lock("r").acquire(0)
                assert not isinstance(caught.value, StoreUnavailable)
                shown += str(caught.value)
    assert SECRET not in shown + caplog.text
    assert "wrong" not in shown


# -- the lease itself


def test_a_lease_lives_from_when_its_keep_alive_was_sent() -> None:
    lease = Lease(2.5)
    assert lease.ttl == 3
    assert lease.guard_key == guard_key(lease.id)
    assert lease.left(0.0) < 0
    assert lease.confirm(10.0)
    assert lease.confirm(9.0), "an answer that was overtaken takes nothing back"
    assert lease.left(11.0) == 2.0
    assert lease.fresh(11.0)
    assert not lease.fresh(11.1)
    lease.end()
    assert not lease.confirm(11.0), "what was given up does not come back"
    assert lease.left(10.0) == 0.0


async def test_renewals_of_strangers_and_waiters_are_lost(place: Place) -> None:
    store = bare(place.one_way)
    await store.claim(claim(1))
    await store.claim(claim(2))
    assert await store.renew([claim(2), claim(3)]) == [LOST, LOST]
    await store.close()
