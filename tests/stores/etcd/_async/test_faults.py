"""etcd behind a bad network: replies that are lost, streams that are cut, history that is compacted away, delays."""

from __future__ import annotations

import time

import pytest

from holdfast._async.client import Client, connect
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim, Granted, Waiting
from holdfast.core.fence import Fence
from holdfast.core.urls import parse_url
from holdfast.errors import StaleToken, StoreUnavailable
from holdfast.stores.etcd import messages
from holdfast.stores.etcd._async.store import EtcdStore
from holdfast.stores.etcd.keys import Space
from holdfast.testing._async.runtime import eventually, pause, spawn
from tests.stores.etcd.kit import Rig

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

IO = 0.4
SLACK = 3.0  # a busy machine; far below what an unbounded call takes
FAR = 1e6


def bare(rig: Rig, io_timeout: float = 10.0) -> EtcdStore:
    return EtcdStore(parse_url(rig.one_way), namespace="default", io_timeout=io_timeout, clock=SystemClock())


def claim(number: int, resource: str = "r") -> Claim:
    return Claim(resource, f"client.{number}", ttl=30.0)


async def warm(locks: Client) -> None:
    async with locks.lock("warm"):
        pass


async def test_a_grant_whose_reply_was_lost_is_found_again(rig: Rig) -> None:
    async with connect(rig.one_way, io_timeout=IO) as locks:
        await warm(locks)
        rig.ways[0].down.mode = "drop"
        call = spawn(locks.lock("r").acquire, 20)
        await eventually(lambda: bool(rig.stored()))
        (kept,) = rig.stored()
        await pause(2 * IO)
        rig.ways[0].heal()
        rig.ways[0].reset()
        lease = await call.join()
        assert lease.token == kept.create, "the second try was taken for another claim"
        await lease.release()
        assert rig.stored() == []


async def test_a_release_whose_reply_was_lost_is_done_and_raises_nothing(rig: Rig) -> None:
    async with connect(rig.one_way, io_timeout=IO) as locks:
        lease = await locks.lock("r").acquire()
        rig.ways[0].down.mode = "drop"
        await lease.release()
        assert lease.state == "released"
        await eventually(lambda: rig.stored() == [])
        rig.ways[0].heal()
        rig.ways[0].reset()
        async with locks.lock("r", timeout=10):
            pass


async def test_a_release_that_is_sent_twice_is_not_taken_for_a_loss(rig: Rig) -> None:
    """The first endpoint deletes and its reply is cut off; the second finds nothing, and that is no loss."""
    async with connect(rig.url, io_timeout=5) as locks:
        lease = await locks.lock("r").acquire()
        rig.ways[0].down.limit = 1
        await lease.release()
        assert rig.stored() == []


@pytest.mark.parametrize("cut", ["reset", "silence"])
async def test_a_waiter_outlives_its_watch(rig: Rig, cut: str) -> None:
    url = parse_url(rig.server.url)
    holder = EtcdStore(url, namespace="default", io_timeout=10, clock=SystemClock())
    await holder.claim(claim(1))
    async with connect(rig.url, io_timeout=IO) as locks:
        call = spawn(locks.lock("r").acquire, 30)
        await eventually(lambda: len(rig.stored()) == 2)
        getattr(rig.ways[0], cut)()
        await holder.release("r", "client.1")
        lease = await call.join(20)
        await lease.release()
    await holder.close()


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_change_before_the_watch_is_not_missed(rig: Rig, compacted: bool) -> None:
    """Not even if the watch begins at a revision whose history is gone: asking again settles it."""
    store, other = bare(rig), bare(rig)
    await other.claim(claim(1))
    waiting = await store.claim(claim(2))
    assert isinstance(waiting, Waiting)
    await other.release("r", "client.1")
    if compacted:
        compact(rig)
    started = time.monotonic()
    await store.wait(claim(2), waiting, SystemClock().now() + 60)
    assert time.monotonic() - started < SLACK
    assert isinstance(await store.claim(claim(2)), Granted)
    await store.close()
    await other.close()


def compact(rig: Rig) -> None:
    """Make some history, and throw all of it away."""
    for _ in range(3):
        reply = rig.call(messages.PUT, messages.put(b"elsewhere", b""))
    rig.server.ask("kv/compaction", revision=messages.header(reply).revision)


async def test_compaction_while_waiting_harms_nobody(rig: Rig) -> None:
    store = bare(rig)
    await store.claim(claim(1))
    async with connect(rig.one_way, io_timeout=10) as locks:
        call = spawn(locks.lock("r").acquire, 30)
        await eventually(lambda: len(rig.stored()) == 2)
        compact(rig)
        await store.release("r", "client.1")
        await (await call.join()).release()
    await store.close()


async def test_a_slow_network_shortens_leases_and_breaks_nothing(rig: Rig) -> None:
    way = rig.ways[0]
    async with connect(rig.one_way, io_timeout=20) as locks:
        await warm(locks)
        way.up.delay = way.down.delay = 0.2
        lease = await locks.lock("r", ttl=9.0).acquire()
        assert lease.remaining < 9.0 - 0.4
        await lease.renew()
        assert lease.remaining < 9.0 - 0.4
        call = spawn(locks.lock("r", ttl=9.0).acquire, 30)
        await eventually(lambda: len(rig.stored()) == 2)
        await lease.release()
        await (await call.join()).release()


async def test_an_outage_of_the_watch_alone_is_told(rig: Rig) -> None:
    """A wait that nobody can end any more says so, and the acquire asks again, as after any outage."""
    store = bare(rig, IO)
    await store.claim(claim(1))
    waiting = await store.claim(claim(2))
    assert isinstance(waiting, Waiting)
    call = spawn(store.wait, claim(2), waiting, SystemClock().now() + FAR)
    await pause(0.3)
    rig.ways[0].refuse = True
    rig.ways[0].reset()
    with pytest.raises(StoreUnavailable):
        await call.join()
    await store.close()


async def test_registers_keep_the_newest_of_writers_that_race(rig: Rig) -> None:
    """Writers with different tokens, all at once: the largest stands in the end, and none was lost to a smaller one."""
    store = bare(rig)

    async def write(token: int) -> None:
        try:
            await store.write("k", str(token), Fence("default", "r", token))
        except StaleToken:
            pass

    for call in [spawn(write, token) for token in range(1, 21)]:
        await call.join(30)
    record = await store.read("k")
    assert record is not None
    assert (record.value, record.token) == ("20", 20)
    await store.close()


async def test_names_with_slashes_and_percents_have_keys_of_their_own() -> None:
    space = Space("a/b")
    assert space.queue("c").startswith(b"holdfast/claims/a%2Fb/c")
    for name in ("a", "a/", "a%2F", "a%252F", "%", "é/%"):
        assert space.resource(space.claim(name, "holder")) == name
        assert not space.queue(name + "x").startswith(space.queue(name))


@pytest.mark.slow
async def test_etcd_accepts_our_pings(rig: Rig) -> None:
    """A connection with nothing but a silent watch lives: etcd does not close it for being pinged too often."""
    store, other = bare(rig), bare(rig)
    await other.claim(claim(1)._replace(ttl=600.0))
    waiting = await store.claim(claim(2))
    assert isinstance(waiting, Waiting)
    accepted = rig.ways[0].accepted
    started = time.monotonic()
    await store.wait(claim(2), waiting, SystemClock().now() + 35)  # raises if the stream breaks
    assert time.monotonic() - started > 30
    assert rig.ways[0].accepted == accepted
    await store.close()
    await other.close()


async def kept_on_a_new_connection(rig: Rig) -> bool:
    """Return whether a lease is kept although its connection goes silent: a new one would work at once."""
    async with connect(rig.one_way, io_timeout=IO) as locks:
        lease = await locks.lock("r", ttl=3).acquire()
        rig.ways[0].forget()
        until = time.monotonic() + 6
        while time.monotonic() < until and not lease.lost:
            await pause(0.1)
        return not lease.lost


async def test_the_only_endpoint_gets_a_new_channel_when_it_falls_silent(rig: Rig) -> None:
    assert await kept_on_a_new_connection(rig)


@pytest.mark.control
async def test_by_a_channel_that_is_never_given_up_the_lease_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.etcd.link.Link.leave", lambda link, peer, asked: False)
    assert not await kept_on_a_new_connection(rig)
