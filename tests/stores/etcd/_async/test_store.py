"""What is particular to etcd: shared leases, late claims, offsets, logins, endpoints."""

from __future__ import annotations

import gc
import time
import warnings
from collections import Counter
from typing import Any, ClassVar

import pytest

from holdfast._async.client import Client, connect
from holdfast._async.store import Store
from holdfast._clock import SystemClock
from holdfast.core.claim import LOST, Claim, Granted, Waiting
from holdfast.core.urls import parse_url
from holdfast.errors import LeaseLost, RateLimited, StoreError, StoreUnavailable, Unsupported
from holdfast.stores.etcd import messages
from holdfast.stores.etcd._async import cluster as etcd_cluster
from holdfast.stores.etcd._async import transport
from holdfast.stores.etcd._async.store import EtcdStore
from holdfast.stores.etcd.keys import OFFSET, Space, guard_key
from holdfast.stores.etcd.leases import Lease, LocalClaim
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.servers import free_port
from holdfast.testing.servers.etcd import EtcdServer
from tests.servers import needed
from tests.stores.etcd.kit import Rig

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

TTL = 2.0
SECRET = "hunter2"


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


async def test_a_free_resource_costs_one_transaction_and_one_delete(rig: Rig, calls: Counter[str]) -> None:
    async with connect(rig.one_way) as locks:
        async with locks.lock("warm"):
            pass
        calls.clear()
        for _ in range(5):
            async with locks.lock("r"):
                pass
        assert calls == {messages.TXN: 5, messages.DELETE: 5}


async def test_a_thousand_leases_are_under_one_lease_and_kept_by_one_keep_alive(rig: Rig, calls: Counter[str]) -> None:
    async with connect(rig.one_way, io_timeout=20) as locks:
        held = await acquired(locks, 1000, 9.0)
        assert len({kv.lease for kv in rig.stored()}) == 1
        assert calls[messages.LEASE_GRANT] == 1
        calls.clear()
        store: Any = locks._engine.store
        (lease,) = store._cluster.leases
        confirmed = lease.confirmed
        await eventually(lambda: lease.confirmed > confirmed, limit=20)
        await eventually(lambda: min(one.remaining for one in held) > 5, limit=20)
        # Leases that were taken one after the other are due one after the other: a few keep-alives, not a thousand.
        assert calls[messages.LEASE_KEEP_ALIVE] <= 5
        assert rig.ways[0].accepted >= 1


async def test_waiters_share_one_connection(rig: Rig) -> None:
    async with connect(rig.one_way, io_timeout=20) as holder, connect(rig.one_way, io_timeout=20) as locks:
        lease = await holder.lock("r").acquire()
        before = rig.ways[0].accepted
        waiting = [spawn(hold_once, locks) for _ in range(100)]
        await eventually(lambda: len(rig.stored()) == 101)
        assert rig.ways[0].accepted <= before + 1
        await lease.release()
        for call in waiting:
            await call.join(60)


async def hold_once(locks: Client) -> None:
    async with locks.lock("r"):
        pass


# -- the shared lease


async def test_a_new_claim_does_not_prolong_the_shared_lease(rig: Rig) -> None:
    store = bare(rig.one_way)
    first = await store.claim(claim(1, "r1", ttl=9.0))
    await pause(1.0)
    second = await store.claim(claim(2, "r2", ttl=9.0))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.left < 8.1
    await store.close()


async def test_a_claim_never_comes_under_a_lease_that_is_nearly_over(rig: Rig) -> None:
    store = bare(rig.one_way)
    await store.claim(claim(1, "r1", ttl=3.0))
    await pause(1.5)
    second = await store.claim(claim(2, "r2", ttl=3.0))
    assert isinstance(second, Granted)
    assert second.left >= 2.0
    await store.close()


async def test_a_lost_session_is_the_loss_of_all_its_leases(rig: Rig) -> None:
    async with connect(rig.one_way) as locks:
        held = await acquired(locks, 3, 6.0)
        rig.call(messages.LEASE_REVOKE, messages.lease_id(rig.stored()[0].lease))
        for lease in held:
            with pytest.raises(LeaseLost):
                await lease.renew()
        async with locks.lock("r0", ttl=6.0, timeout=5):
            pass


async def test_the_resource_of_a_dropped_lease_becomes_free_although_others_are_kept(rig: Rig) -> None:
    async with connect(rig.one_way) as locks, connect(rig.one_way) as rival:
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


async def test_the_resource_of_a_hung_body_becomes_free_although_others_are_kept(rig: Rig) -> None:
    async with connect(rig.one_way) as locks, connect(rig.one_way) as rival:
        kept = await locks.lock("kept", ttl=TTL).acquire()
        hung = await locks.lock("r", ttl=TTL, max_hold=0.5).acquire()
        async with rival.lock("r", ttl=TTL, timeout=4 * TTL):
            assert hung.lost
        assert kept.state == "held"


async def test_a_forgotten_waiter_does_not_block_although_others_wait(rig: Rig) -> None:
    store, other = bare(rig.one_way), bare(rig.one_way)
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

    await eventually(freed, limit=12)
    assert isinstance(await store.claim(waiting), Waiting), "the one that asks keeps its place"
    await store.close()
    await other.close()


async def test_close_leaves_no_lease_behind_that_nobody_uses(rig: Rig) -> None:
    async with connect(rig.one_way) as locks:
        async with locks.lock("r"):
            pass
        assert len(rig.stored("guards")) == 1
    assert rig.stored("guards") == []
    store = bare(rig.one_way)
    await store.claim(claim(1))
    await store.close()
    assert len(rig.stored()) == 1, "a claim stays as it is"


async def test_a_lease_that_is_too_short_for_the_cluster_is_refused() -> None:
    arguments = ("--heartbeat-interval", "500", "--election-timeout", "5000")
    with needed(lambda: EtcdServer(*arguments)) as server:
        async with connect(server.url, io_timeout=10) as locks:
            with pytest.raises(Unsupported, match="at least 8 s"):
                await locks.lock("r", ttl=3).acquire()
            async with locks.lock("r", ttl=8):
                pass


async def test_a_rate_limit_says_when_the_next_hit_is_possible(rig: Rig) -> None:
    async with connect(rig.one_way) as locks:
        limit = locks.rate_limit("r", 2, per=8)
        await limit.hit()
        await pause(3.0)
        await limit.hit()
        with pytest.raises(RateLimited) as caught:
            await limit.hit()
        assert 2.0 < caught.value.retry_after <= 6.0
        assert len(rig.stored()) == 2


# -- late claims


async def ghosts(rig: Rig, count: int = 40) -> int:
    """Withdraw claims whose requests are still on their way, let them arrive, and count what stands there then."""
    store = bare(rig.url, 0.4)
    await store.claim(claim(0, "warm"))
    rig.ways[0].up.mode = "hold"
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
    rig.ways[0].heal()
    await pause(1.0)
    await store.close()
    return len(rig.stored()) - 1


async def test_claims_that_arrive_after_their_withdrawal_leave_no_ghosts(rig: Rig) -> None:
    assert await ghosts(rig) == 0


@pytest.mark.control
async def test_control_without_the_guard_there_are_ghosts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(cluster: Any, exchange: Any, lease: Any) -> None: ...

    monkeypatch.setattr(etcd_cluster.Cluster, "raise_guard", nothing)
    found = 0
    for _ in range(5):
        found += await ghosts(rig)
        rig.clear()
        if found:
            return
    raise AssertionError("no ghost in five rounds: the test cannot see any")


class Late:
    """Holds back one transaction, which its client then takes for lost; `arrive` lets it arrive after all."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rig = rig
        self._countdown = 0
        self._held = b""
        real = transport.call

        async def call(peer: Any, method: str, request: bytes, *rest: Any) -> bytes:
            if method == messages.TXN:
                self._countdown -= 1
                if self._countdown == 0:
                    self._held = request
                    raise StoreUnavailable("held back")
            return await real(peer, method, request, *rest)

        monkeypatch.setattr(transport, "call", call)

    def hold(self, number: int) -> None:
        """Hold back so-manieth transaction from now on."""
        self._countdown = number

    def arrive(self) -> None:
        assert self._held
        self._rig.call(messages.TXN, self._held)


async def test_a_claim_that_was_released_and_kept_does_not_come_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store, late = bare(rig.one_way), Late(rig, monkeypatch)
    await store.claim(claim(0, "warm"))
    late.hold(1)
    with pytest.raises(StoreUnavailable):
        await store.claim(claim(1))
    assert isinstance(await store.claim(claim(1)), Granted)
    assert await store.release("r", "client.1", 30.0)
    (kept,) = [kv for kv in rig.stored() if kv.key.endswith(b"client.1")]
    rig.call(messages.LEASE_REVOKE, messages.lease_id(kept.lease))  # as if the time to keep it were over
    late.arrive()
    assert [kv.key.rpartition(b"/")[2] for kv in rig.stored()] == [b"client.0"]
    await store.close()


@pytest.mark.parametrize("noticed_by", ["a renewal", "a keep-alive"])
async def test_what_is_on_its_way_under_another_lease_is_withdrawn_when_a_claim_ends_with_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    store, late = bare(rig.one_way), Late(rig, monkeypatch)
    cluster: Any = store._cluster  # type: ignore[attr-defined]
    await store.claim(claim(0))
    detached = claim(1, detached=True)
    late.hold(2)  # the one that puts it in line, under the lease of those that wait
    with pytest.raises(StoreUnavailable):
        await store.claim(detached)
    await store.release("r", "client.0")
    assert isinstance(await store.claim(detached), Granted)
    own: Lease = store._claims["client.1"].under  # type: ignore[attr-defined]
    rig.call(messages.LEASE_REVOKE, messages.lease_id(own.id))
    if noticed_by == "a renewal":
        assert await store.renew([detached]) == [LOST]
    else:
        assert not await cluster.keep(cluster.exchange(), own)
    assert isinstance(await store.claim(claim(2)), Granted)
    late.arrive()
    for lease in cluster.leases:
        await cluster.keep(cluster.exchange(), lease)
    assert [kv.key.rpartition(b"/")[2] for kv in rig.stored()] == [b"client.2"]
    assert list(store._claims) == ["client.2"], "nothing is remembered for ever"  # type: ignore[attr-defined]
    await store.close()


async def test_claims_of_others_survive_a_raised_guard(rig: Rig) -> None:
    store = bare(rig.one_way)
    await store.claim(claim(1, "r1"))
    cluster: Any = store._cluster  # type: ignore[attr-defined]
    (lease,) = cluster.leases
    rig.call(messages.PUT, messages.put(lease.guard_key, b"", lease.id))  # by another thread, as it were
    assert isinstance(await store.claim(claim(2, "r2")), Granted)
    assert isinstance(await store.claim(claim(3, "r2")), Waiting)
    await store.close()


async def test_a_guard_that_somebody_deleted_is_the_end_of_its_lease(rig: Rig) -> None:
    async with connect(rig.one_way, io_timeout=5) as locks:
        lease = await locks.lock("r").acquire()
        rig.call(messages.DELETE, messages.delete(rig.stored("guards")[0].key))
        async with locks.lock("r2", timeout=5):
            pass
        with pytest.raises(LeaseLost):
            await lease.renew()


async def test_a_stale_release_cannot_end_a_newer_claim(rig: Rig) -> None:
    store = bare(rig.one_way)
    await store.claim(claim(1))
    assert await store.release("r", "client.1")
    await store.claim(claim(2))
    assert not await store.release("r", "client.1")
    assert [kv.key.rpartition(b"/")[2] for kv in rig.stored()] == [b"client.2"]
    await store.close()


# -- tokens


async def test_a_raised_offset_is_seen_by_clients_at_once(rig: Rig) -> None:
    store = bare(rig.one_way)
    first = await store.claim(claim(1))
    waiting = claim(2)
    await store.claim(waiting)
    rig.call(messages.PUT, messages.put(OFFSET, b"1000000"))
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
async def test_an_offset_that_makes_no_tokens_is_refused(rig: Rig, offset: bytes, said: str) -> None:
    rig.call(messages.PUT, messages.put(OFFSET, offset))
    async with connect(rig.one_way) as locks:
        with pytest.raises(StoreError, match=said):
            await locks.lock("r").acquire()
    assert rig.stored() == []


async def test_what_others_put_there_is_named(rig: Rig) -> None:
    key = Space("default").claim("r", "stranger")
    for value in (b"x", b"[1]", b"{}", b"\xff"):
        rig.call(messages.PUT, messages.put(key, value))
        store = bare(rig.one_way)
        with pytest.raises(StoreError, match="claims/default/r/stranger"):
            await store.claim(claim(1))
        await store.close()


# -- endpoints, logins, certificates


async def test_an_endpoint_that_is_down_does_not_matter(rig: Rig) -> None:
    async with connect(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{rig.server.port}") as locks:
        lease = await locks.lock("r").try_acquire()
        assert lease is not None
        await lease.release()
        assert await locks.lock("r").try_acquire() is not None


async def test_an_endpoint_that_falls_silent_is_left(rig: Rig) -> None:
    async with connect(rig.url, io_timeout=0.4) as locks:
        lease = await locks.lock("r", ttl=6).acquire()
        rig.ways[0].silence()
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
            store: Any = locks._engine.store
            store._shared.token = "stale.7"  # as if its five minutes were over
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


# -- the end


async def test_who_comes_after_the_end_opens_no_channel(rig: Rig) -> None:
    """An acquire may outlast close(), which is bounded: nobody would close what it opens."""
    store: Any = bare(rig.one_way)
    await store.claim(claim(1))
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.claim(claim(2))
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.release("r", claim(1).holder)
    assert store._shared.link._peer is None
    await store.close()


class Racing(LocalClaim):
    """Whenever it is looked at, another thread notes one more claim."""

    __slots__ = ()
    others: ClassVar[dict[str, LocalClaim]]

    @property
    def under(self) -> Lease | None:
        self.others[f"client.{len(self.others) + 10}"] = LocalClaim(self.claim, self.key)
        return None

    @under.setter
    def under(self, lease: Lease | None) -> None: ...


async def test_claims_that_come_and_go_meanwhile_do_not_keep_the_store_from_closing(rig: Rig) -> None:
    store: Any = bare(rig.one_way)
    await store.inspect()
    Racing.others = store._claims
    store._claims["client.1"] = Racing(claim(1), b"key")
    await store.close()
    assert store._shared.link._peer is None


# -- logging in


async def test_one_login_renews_the_token_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd takes a tenth of a second to check a password: a login for each call would keep it from everything else."""
    calls, send = Counter[str](), transport.call

    async def count(peer: Any, method: str, *rest: Any) -> bytes:
        calls[method] += 1
        return await send(peer, method, *rest)

    with needed(EtcdServer) as server:
        server.lock_up(SECRET)
        async with connect(server.url.replace("//", f"//root:{SECRET}@"), io_timeout=30) as locks:
            first = await locks.lock("first").acquire()
            store: Any = locks._engine.store
            monkeypatch.setattr(transport, "call", count)
            store._shared.token = "stale.7"
            acquires = [spawn(locks.lock(f"r{number}").acquire) for number in range(20)]
            for acquire in acquires:
                await (await acquire.join()).release()
            await first.release()
    assert 1 <= calls[messages.AUTHENTICATE] < 5


async def test_a_token_that_another_call_has_just_found_stale_does_not_fail_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sides of an asyncio client, and all threads of a blocking one, share the token."""
    with needed(EtcdServer) as server:
        server.lock_up(SECRET)
        async with connect(server.url.replace("//", f"//root:{SECRET}@")) as locks:
            store: Any = locks._engine.store
            authenticate = store._cluster._authenticate

            async def and_lose_it(exchange: Any) -> Any:
                token = await authenticate(exchange)
                store._shared.token = None
                return token

            monkeypatch.setattr(store._cluster, "_authenticate", and_lose_it)
            async with locks.lock("r"):
                pass


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


async def test_renewals_of_strangers_and_waiters_are_lost(rig: Rig) -> None:
    store = bare(rig.one_way)
    await store.claim(claim(1))
    await store.claim(claim(2))
    assert await store.renew([claim(2), claim(3)]) == [LOST, LOST]
    await store.close()


async def test_hits_that_are_over_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody releases them."""
    monkeypatch.setattr("holdfast.stores.etcd.shared._MANY", 10)
    async with connect(rig.one_way, io_timeout=10) as locks:
        limit = locks.rate_limit("r", 100, per=2)
        store: Any = locks._engine.store
        for _ in range(25):
            await limit.hit()
        assert len(store._claims) >= 25
        await pause(4.5)
        for _ in range(25):
            await limit.hit()
        assert len(store._claims) <= 30


async def test_a_time_that_etcd_cannot_count_is_refused(rig: Rig) -> None:
    async with connect(rig.one_way, io_timeout=10) as locks:
        for make in (lambda: locks.lock("r", ttl=1e10), lambda: locks.rate_limit("r", 1, per=1e10)):
            with pytest.raises(Unsupported, match="1e"):
                make()
        lease = await locks.lock("r", ttl=5).acquire()
        with pytest.raises(Unsupported, match="keeps leases of 1e"):
            await lease.extend(1e10)
        await lease.release()


async def test_hits_that_do_not_wait_leave_nothing_in_line(rig: Rig) -> None:
    """However many ask at once, and although the oldest may be over when its time is asked for."""
    async with connect(rig.one_way, io_timeout=10) as locks:
        limit = locks.rate_limit("r", 2, per=2)
        until = time.monotonic() + 5

        async def knock() -> None:
            while time.monotonic() < until:
                await limit.try_hit()

        for call in [spawn(knock) for _ in range(10)]:
            await call.join(30)
        assert [state.waiters for state in await locks.inspect("r") if state.waiters] == []
