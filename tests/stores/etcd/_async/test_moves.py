"""Keys that are moved: claims that are broken by hand, leases that are made longer, each with the control that shows
what happens without the step that makes it safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast._async.client import connect
from holdfast._clock import SystemClock
from holdfast.core.claim import LOST, Claim, Evicted, Granted, Renewal, Renewed, Unknown, Waiting
from holdfast.core.queue import BROKEN
from holdfast.core.urls import parse_url
from holdfast.errors import AcquireTimeout, StoreUnavailable, Unsupported
from holdfast.stores.etcd import messages, wire
from holdfast.stores.etcd._async import cluster as etcd_cluster
from holdfast.stores.etcd._async import moves, transport
from holdfast.stores.etcd._async.store import EtcdStore
from holdfast.stores.etcd.keys import ENDING, OFFSET, encode, read
from holdfast.stores.etcd.messages import KeyValue, op_put, op_range, put, range_
from holdfast.testing._async.runtime import eventually, pause, spawn
from tests.stores.etcd._async.test_store import Late, bare, claim
from tests.stores.etcd.kit import Rig

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

TTL = 2.0
SLACK = 3.0  # a busy machine


class Calls:
    """Comes between a store and the server: before a call, or instead of its reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.after: Callable[[str, bytes], Awaitable[bytes]] | None = None
        real = transport.call

        async def call(peer: Any, method: str, *rest: Any) -> bytes:
            if (before := self.before) is not None:
                await before(method)
            reply = await real(peer, method, *rest)
            after = self.after
            return reply if after is None else await after(method, reply)

        monkeypatch.setattr(transport, "call", call)

    def lose(self, method: str, number: int = 1) -> None:
        """Lose the reply to the so-manieth call of this method from now on, which is executed."""
        left = [number]

        async def after(called: str, reply: bytes) -> bytes:
            left[0] -= called == method
            if left[0] or called != method:
                return reply
            self.after = None
            raise StoreUnavailable("the reply is lost")

        self.after = after


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def store_of(rig: Rig, io_timeout: float = 10.0) -> EtcdStore:
    store = bare(rig.one_way, io_timeout)
    assert isinstance(store, EtcdStore)
    return store


def key_of(rig: Rig, one: Claim) -> KeyValue:
    (kv,) = [kv for kv in rig.stored() if kv.key.endswith(one.holder.encode())]
    return kv


def latest_end(rig: Rig, one: Claim) -> float:
    """Return when the key of a claim ends at the latest if nobody keeps its lease alive; etcd cuts seconds off."""
    reply = rig.call(messages.LEASE_TIME_TO_LIVE, messages.lease_id(key_of(rig, one).lease))
    return SystemClock().now() + messages.granted(reply).ttl + 1


def believed(asked: float, one: Claim, answer: Renewal | Any, before: float) -> float:
    """Return until when a holder believes in its claim after an answer."""
    return max(before, asked + min(one.ttl, answer.left)) if isinstance(answer, Renewed | Granted) else before


# -- breaking


async def break_with_renewals_in_between(rig: Rig, calls: Calls, steps: int) -> list[Renewal]:
    """Break claims, each with a renewal before another of the calls of a break. Checks that no key ends too early."""
    now, evictor, answers = SystemClock().now, store_of(rig), list[Renewal]()
    held = []
    for number in range(steps):
        store, mine, asked = store_of(rig), claim(number, f"r{number}", ttl=4.0), now()
        held.append((store, mine, believed(asked, mine, await store.claim(mine), 0.0)))
    await evictor.inspect()
    await pause(2.0)
    for number, (store, mine, first) in enumerate(held):
        left, end = [number], [first]

        async def renew(method: str, store: Any = store, mine: Claim = mine, left: Any = left, end: Any = end) -> None:
            left[0] -= 1
            if left[0] < 0:
                calls.before = None
                asked = now()
                answers.extend(await store.renew([mine]))
                end[0] = believed(asked, mine, answers[-1], end[0])

        calls.before = renew
        evicted = await evictor.evict(mine.resource, mine.holder)
        calls.before = None
        assert evicted is not None
        assert latest_end(rig, mine) > end[0], f"a renewal before call {number}: the holder believes in it for longer"
        assert await store.renew([mine]) == [LOST]
        await store.close()
    await evictor.close()
    return answers


async def test_a_renewal_at_any_point_of_a_break_does_not_make_it_end_too_early(rig: Rig, calls: Calls) -> None:
    answers = await break_with_renewals_in_between(rig, calls, 8)
    # Look and mark; then look again, the time left, a read, a lease, the move. There is no eighth call.
    assert [isinstance(answer, Renewed) for answer in answers] == [True, True, *[False] * 5]


@pytest.mark.control
async def test_control_what_was_left_at_the_look_is_too_short(
    rig: Rig, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def naive(cluster: Any, exchange: Any, key: bytes, at_once: bool) -> Evicted:
        kv, facts = await moves._granted(cluster, exchange, key)
        assert kv is not None
        assert facts is not None
        lease = await moves._last_lease(cluster, exchange, kv, facts)
        assert lease is not None
        step = op_put(put(key, encode(facts._replace(ending=ENDING)), lease.id))
        await cluster.transact(exchange, (step,))
        return Evicted(float(lease.ttl))

    monkeypatch.setattr(moves, "evict", naive)
    with pytest.raises(AssertionError, match="believes in it for longer"):
        await break_with_renewals_in_between(rig, calls, 5)


async def test_a_keep_alive_after_the_break_prolongs_no_answer_from_before(rig: Rig, calls: Calls) -> None:
    """A renewal has read the key; before it goes on, the claim is broken, and the lease is kept alive for others."""
    now, store, evictor = SystemClock().now, store_of(rig), store_of(rig)
    mine = claim(1, ttl=60.0)
    await store.claim(mine)
    await evictor.inspect()
    (lease,) = store._cluster.leases
    await pause(3.2)  # recent, so that the renewal itself keeps nothing alive

    async def break_it(method: str, reply: bytes) -> bytes:
        calls.after = None
        await evictor.evict("r", mine.holder)
        assert await store._cluster.keep(store._cluster.exchange(), lease)
        return reply

    calls.after = break_it
    asked = now()
    (answer,) = await store.renew([mine])
    end = latest_end(rig, mine)
    assert isinstance(answer, Renewed)
    assert believed(asked, mine, answer, 0.0) < end
    # The control: what is left, if it is read after the key.
    assert believed(asked, mine, Renewed(lease.left(asked)), 0.0) > end
    await store.close()
    await evictor.close()


async def test_of_several_claims_of_a_session_one_is_broken_and_the_others_live_on(rig: Rig) -> None:
    async with connect(rig.one_way) as locks, connect(rig.one_way) as rival:
        held = [await locks.lock(f"r{number}", ttl=TTL, on_lost=bool).acquire() for number in range(3)]
        (broken,) = await rival.break_lock("r1", reason="hung")
        assert (broken.token, broken.broken) == (held[1].token, True)
        (seen,) = await rival.holders("r1")
        assert (seen.broken, seen.left) == (True, broken.left)
        call = spawn(rival.lock("r1", ttl=TTL).acquire, 20)
        successor = await call.join(30)
        assert held[1].lost
        assert successor.token > held[1].token
        await pause(TTL)
        assert [one.state for one in held] == ["held", "lost", "held"]
        assert not any(seen.broken for seen in await rival.holders("r0"))


async def cut_after_the_mark(store: EtcdStore, calls: Calls, one: Claim) -> None:
    """Break a claim and die after the first step."""

    async def die(method: str) -> None:
        if method == messages.LEASE_TIME_TO_LIVE:
            raise StoreUnavailable("whoever breaks it dies here")

    calls.before = die
    with pytest.raises(StoreUnavailable):
        await store.evict(one.resource, one.holder)
    calls.before = None


async def marked_and_left(rig: Rig, calls: Calls) -> None:
    """Die after the mark; the client of the claim, which keeps others alive, has to end it."""
    store, evictor = store_of(rig), store_of(rig)
    mine, kept, rival = claim(1, ttl=TTL), claim(2, "kept", ttl=TTL), claim(3)
    await store.claim(kept)
    await store.claim(mine)
    lease = key_of(rig, mine).lease
    await cut_after_the_mark(evictor, calls, mine)
    kv = key_of(rig, mine)
    assert (kv.lease, read(kv).ending) == (lease, BROKEN)

    async def free() -> bool:
        answers = await store.renew([mine, kept])
        assert answers[0] == LOST
        assert isinstance(answers[1], Renewed)
        await pause(TTL / 4)
        return isinstance(await evictor.claim(rival, False), Granted)

    await eventually(free, limit=3 * TTL + SLACK, complaint=lambda: "it does not end")
    await store.close()
    await evictor.close()


async def test_a_claim_that_was_marked_and_not_moved_is_ended_by_its_own_client(rig: Rig, calls: Calls) -> None:
    await marked_and_left(rig, calls)


@pytest.mark.control
async def test_control_the_lease_that_others_use_would_keep_it(
    rig: Rig, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_cluster, "lapsed", lambda *known: [])
    with pytest.raises(AssertionError, match="it does not end"):
        await marked_and_left(rig, calls)


async def test_a_break_that_was_interrupted_is_finished_by_the_next(rig: Rig, calls: Calls) -> None:
    store, evictor = store_of(rig), store_of(rig)
    mine = claim(1)
    await store.claim(mine)
    before = key_of(rig, mine)
    await cut_after_the_mark(evictor, calls, mine)
    evicted = await evictor.evict("r", mine.holder)
    assert evicted is not None
    kv = key_of(rig, mine)
    assert (read(kv).ending, read(kv).ttl, kv.create) == (ENDING, evicted.left, before.create)
    assert kv.lease != before.lease
    await evictor.evict("r", mine.holder)
    assert key_of(rig, mine) == kv, "once it is moved its end stays"
    await store.close()
    await evictor.close()


async def test_what_a_former_leader_says_of_the_time_left_is_not_believed(rig: Rig, calls: Calls) -> None:
    """It does not know of the latest keep-alives: that would be too short."""
    store, evictor, asked = store_of(rig), store_of(rig), list[str]()
    mine = claim(1)
    await store.claim(mine)

    async def former(method: str, reply: bytes) -> bytes:
        if method != messages.LEASE_TIME_TO_LIVE:
            return reply
        asked.append(method)
        if len(asked) > 1:
            return reply
        term = messages.header(reply).term - 1
        return wire.message(1, wire.number(4, term)) + wire.number(3, 1)

    calls.after = former
    evicted = await evictor.evict("r", mine.holder)
    assert len(asked) == 2
    assert evicted is not None
    assert evicted.left > 25
    await store.close()
    await evictor.close()


async def test_a_claim_that_was_broken_before_its_grant_was_known_is_as_good_as_lost(rig: Rig, calls: Calls) -> None:
    for at, soft in enumerate((True, False)):
        store, evictor = store_of(rig), store_of(rig)
        mine = claim(at)
        await store.claim(claim(9, "warm"))
        calls.lose(messages.TXN)
        with pytest.raises(StoreUnavailable):
            await store.claim(mine)
        if soft:
            await cut_after_the_mark(evictor, calls, mine)
        else:
            await evictor.evict("r", mine.holder)
        for _ in range(2):
            answer = await store.claim(mine)
            assert isinstance(answer, Granted)
            assert answer.left == 0.0
        assert await store.release("r", mine.holder)
        await store.close()
        await evictor.close()
        rig.clear()


async def test_a_broken_claim_is_not_kept_taken_after_its_release(rig: Rig) -> None:
    store = store_of(rig)
    await store.claim(claim(1))
    await store.evict("r", "client.1")
    assert await store.release("r", "client.1", 30.0)
    assert rig.stored() == []
    await store.close()


async def test_a_detached_claim_is_broken_as_well(rig: Rig) -> None:
    store, evictor = store_of(rig), store_of(rig)
    mine = claim(1, detached=True)
    await store.claim(mine)
    assert await evictor.evict("r", mine.holder) is not None
    assert await store.renew([mine]) == [LOST]
    assert latest_end(rig, mine) > SystemClock().now() + 25
    await store.close()
    await evictor.close()


async def test_ending_a_claim_at_once_wakes_whoever_waits_for_it(rig: Rig) -> None:
    store, other = store_of(rig), store_of(rig)
    await other.claim(claim(1, ttl=600.0))
    waiting = await store.claim(claim(2))
    assert isinstance(waiting, Waiting)
    call = spawn(store.wait, claim(2), waiting, SystemClock().now() + 60)
    await pause(0.2)
    assert await store.evict("r", "client.1", True) == Evicted(0.0)
    await call.join(SLACK)
    assert isinstance(await store.claim(claim(2)), Granted)
    await store.close()
    await other.close()


async def test_an_end_at_once_whose_reply_was_lost_is_told_all_the_same(rig: Rig) -> None:
    """The first endpoint deletes and its reply is cut off; the second finds nothing, and that is no miss."""
    store = EtcdStore(parse_url(rig.url), namespace="default", io_timeout=5, clock=SystemClock())
    await store.claim(claim(1))

    async def cut(exchange: Any, key: bytes) -> Any:
        del store._cluster.get
        kv = await store._cluster.get(exchange, key)
        rig.ways[0].down.limit = 1
        return kv

    store._cluster.get = cut  # type: ignore[method-assign]
    assert await store.evict("r", "client.1", True) == Evicted(0.0)
    assert rig.stored() == []
    await store.close()


# -- late requests of the claim itself


async def granted_from_the_line_with_one_on_its_way(rig: Rig, late: Late, one: Claim) -> EtcdStore:
    """Grant a claim that waited, with an earlier transaction of its grant on its way."""
    store, other = store_of(rig), store_of(rig)
    await store.claim(claim(8, "warm", ttl=one.ttl))
    await other.claim(claim(9))
    assert isinstance(await store.claim(one), Waiting)
    await other.release("r", "client.9")
    late.hold(2)  # the first one reads whether it still waits
    with pytest.raises(StoreUnavailable):
        await store.claim(one)
    assert isinstance(await store.claim(one), Granted)
    await other.close()
    return store


async def late_claim_after_a_break(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late, mine = Late(rig, monkeypatch), claim(1)
    store = await granted_from_the_line_with_one_on_its_way(rig, late, mine)
    await store.evict("r", mine.holder)
    broken = key_of(rig, mine)
    late.arrive()
    assert key_of(rig, mine) == broken, "it is as if nobody had broken it"
    await store.close()


async def late_claim_after_an_end_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late, mine, store = Late(rig, monkeypatch), claim(1), store_of(rig)
    await store.claim(claim(8, "warm"))
    late.hold(1)
    with pytest.raises(StoreUnavailable):
        await store.claim(mine)
    assert isinstance(await store.claim(mine), Granted)
    assert await store.evict("r", mine.holder, True) == Evicted(0.0)
    late.arrive()
    assert len(rig.stored()) == 1, "it has come back"
    await store.close()


LATE = [late_claim_after_a_break, late_claim_after_an_end_at_once]


@pytest.mark.parametrize("arrives", LATE)
async def test_a_late_request_does_not_undo_a_break(rig: Rig, monkeypatch: pytest.MonkeyPatch, arrives: Any) -> None:
    await arrives(rig, monkeypatch)


@pytest.mark.control
@pytest.mark.parametrize("arrives", LATE)
async def test_control_without_a_new_guard_it_does(rig: Rig, monkeypatch: pytest.MonkeyPatch, arrives: Any) -> None:
    monkeypatch.setattr(moves, "_shut_out", lambda lease: op_range(range_(OFFSET)))
    with pytest.raises(AssertionError, match=r"as if nobody|come back"):
        await arrives(rig, monkeypatch)


async def test_what_comes_back_under_the_same_name_is_not_renewed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another place in line, and so another token."""
    store, mine = store_of(rig), claim(1)
    await store.claim(mine)
    kv = key_of(rig, mine)
    rig.call(messages.DELETE, messages.delete(kv.key))
    rig.call(messages.PUT, messages.put(kv.key, kv.value, kv.lease))
    assert await store.renew([mine]) == [LOST]
    assert rig.stored() == []
    await store.close()


# -- longer leases


async def test_a_longer_lease_keeps_place_and_token_and_costs_one_lease_for_all(rig: Rig) -> None:
    store = store_of(rig)
    first, second = claim(1, "r1", ttl=6.0), claim(2, "r2", ttl=6.0)
    for one in (first, second):
        await store.claim(one)
    before = key_of(rig, first)
    for one in (first, second):
        (answer,) = await store.renew([one._replace(ttl=20.5)])
        assert isinstance(answer, Renewed)
        assert answer.left > 19
    after = key_of(rig, first)
    assert (after.create, read(after).ttl) == (before.create, 20.5)
    assert after.lease == key_of(rig, second).lease != before.lease
    (answer,) = await store.renew([first])  # somebody who does not know of it does not make it shorter
    assert isinstance(answer, Renewed)
    assert answer.left > 19
    state = await store.state("r1")
    assert state is not None
    assert state.holders[0].left == 20.5
    await store.close()


async def extended_without_an_answer(rig: Rig, calls: Calls) -> None:
    """Lose the reply to the move to a lease that was there already, and is not much longer."""
    now, store = SystemClock().now, store_of(rig)
    await store.claim(claim(8, "other", ttl=7.0))
    await pause(2.1)
    mine, asked = claim(1, ttl=6.0), now()
    end = believed(asked, mine, await store.claim(mine), 0.0)
    before = key_of(rig, mine)
    longer = mine._replace(ttl=7.0)
    calls.lose(messages.TXN, 2)  # the first one reads the key
    (answer,) = await store.renew([longer])
    assert isinstance(answer, Unknown)
    moved = key_of(rig, mine)
    assert moved.lease != before.lease
    assert latest_end(rig, mine) > end, "the holder believes in it for longer"
    (answer,) = await store.renew([longer])
    assert isinstance(answer, Renewed)
    assert key_of(rig, mine) == moved, "it is not moved again"
    assert await store.release("r", mine.holder)
    await store.close()


async def test_an_extension_whose_reply_was_lost_is_found_and_never_cuts_the_lease_short(
    rig: Rig, calls: Calls
) -> None:
    await extended_without_an_answer(rig, calls)


@pytest.mark.control
async def test_control_the_longer_lease_may_have_less_left(
    rig: Rig, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(cluster: Any, exchange: Any, lease: Any) -> bool:
        return True

    monkeypatch.setattr(etcd_cluster.Cluster, "keep", keep)
    with pytest.raises(AssertionError, match="believes in it for longer"):
        await extended_without_an_answer(rig, calls)


async def test_an_extension_that_arrives_late_makes_no_ghost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late, mine, store = Late(rig, monkeypatch), claim(1, ttl=6.0), store_of(rig)
    await store.claim(mine)
    late.hold(2)
    (answer,) = await store.renew([mine._replace(ttl=20.0)])
    assert isinstance(answer, Unknown)
    assert await store.release("r", mine.holder)
    late.arrive()
    assert rig.stored() == []
    await store.close()


async def test_what_may_be_under_the_longer_lease_is_withdrawn_when_the_shorter_ends(rig: Rig, calls: Calls) -> None:
    store, mine = store_of(rig), claim(1, ttl=6.0)
    cluster = store._cluster
    await store.claim(mine)
    (shorter,) = cluster.leases
    calls.lose(messages.TXN, 2)
    await store.renew([mine._replace(ttl=20.0)])
    rig.call(messages.LEASE_REVOKE, messages.lease_id(shorter.id))
    assert not await cluster.keep(cluster.exchange(), shorter)
    assert len(rig.stored()) == 1
    for lease in cluster.leases:
        await cluster.keep(cluster.exchange(), lease)
    assert rig.stored() == []
    assert not store._claims, "nothing is remembered for ever"
    await store.close()


async def late_claim_after_an_extension(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late, mine = Late(rig, monkeypatch), claim(1, ttl=6.0)
    store = await granted_from_the_line_with_one_on_its_way(rig, late, mine)
    (answer,) = await store.renew([mine._replace(ttl=20.0)])
    assert isinstance(answer, Renewed)
    moved = key_of(rig, mine)
    late.arrive()
    assert key_of(rig, mine) == moved, "it is back under the shorter lease"
    await store.close()


async def test_a_late_request_does_not_undo_an_extension(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await late_claim_after_an_extension(rig, monkeypatch)


@pytest.mark.control
async def test_control_without_a_new_guard_the_lease_is_short_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(cluster: Any, exchange: Any, local: Any) -> None: ...

    monkeypatch.setattr(etcd_cluster.Cluster, "shut_out", nothing)
    with pytest.raises(AssertionError, match="under the shorter lease"):
        await late_claim_after_an_extension(rig, monkeypatch)


async def test_a_renewal_that_an_extension_overtakes_is_no_loss(rig: Rig, calls: Calls) -> None:
    store, mine = store_of(rig), claim(1, ttl=6.0)
    await store.claim(mine)

    async def extend(method: str) -> None:
        calls.before = None
        assert isinstance((await store.renew([mine._replace(ttl=20.0)]))[0], Renewed)

    calls.before = extend  # before the renewal reads the key
    (answer,) = await store.renew([mine])
    assert isinstance(answer, Unknown)
    (answer,) = await store.renew([mine])
    assert isinstance(answer, Renewed)
    await store.close()


async def test_a_longer_lease_that_etcd_has_lost_is_replaced(rig: Rig) -> None:
    store, mine = store_of(rig), claim(1, ttl=6.0)
    await store.claim(claim(8, "other", ttl=20.0))
    await store.claim(mine)
    rig.call(messages.LEASE_REVOKE, messages.lease_id(key_of(rig, claim(8)).lease))
    (answer,) = await store.renew([mine._replace(ttl=20.0)])
    assert isinstance(answer, Renewed)
    assert answer.left > 19
    await store.close()


async def test_a_broken_claim_is_not_made_longer(rig: Rig) -> None:
    store, mine = store_of(rig), claim(1, ttl=6.0)
    await store.claim(mine)
    await store.evict("r", mine.holder)
    broken = key_of(rig, mine)
    assert await store.renew([mine._replace(ttl=20.0)]) == [LOST]
    assert key_of(rig, mine) == broken
    await store.close()


async def test_a_detached_claim_gets_a_longer_lease_of_its_own(
    rig: Rig, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mine = store_of(rig), claim(1, ttl=6.0, detached=True)
    await store.claim(mine)
    calls.lose(messages.TXN, 2)
    assert isinstance((await store.renew([mine._replace(ttl=20.0)]))[0], Unknown)
    (answer,) = await store.renew([mine._replace(ttl=20.0)])
    assert isinstance(answer, Renewed)
    assert answer.left > 18
    assert await store.release("r", mine.holder)
    # A transaction of its grant that may still arrive has no guard: it would put it back.
    late, other = Late(rig, monkeypatch), claim(2, ttl=6.0, detached=True)
    late.hold(1)
    with pytest.raises(StoreUnavailable):
        await store.claim(other)
    await store.claim(other)
    before = key_of(rig, other)
    assert isinstance((await store.renew([other._replace(ttl=20.0)]))[0], Unknown)
    assert key_of(rig, other) == before
    await store.close()


# -- looking, and what etcd does not tell


async def test_a_state_is_that_of_one_name_alone(rig: Rig) -> None:
    store = store_of(rig)
    for number, name in enumerate(("r", "rr", "r/x", "r%2F")):
        await store.claim(claim(number, name))
    state = await store.state("r")
    assert state is not None
    assert [seen.holder for seen in state.holders] == ["client.0"]
    assert await store.state("x") is None
    await store.close()


async def test_etcd_tells_no_time(rig: Rig) -> None:
    async with connect(rig.one_way) as locks:
        with pytest.raises(Unsupported, match="etcd does not tell its time"):
            await locks.time()


async def test_a_wait_for_a_broken_lock_ends_with_its_time(rig: Rig) -> None:
    """Nobody gives it back: its holder is stopped, as it were."""
    store = store_of(rig)
    await store.claim(claim(1, ttl=TTL))
    async with connect(rig.one_way) as locks:
        assert len(await locks.break_lock("r", reason="hung")) == 1
        with pytest.raises(AcquireTimeout):
            await locks.lock("r", ttl=TTL).acquire(0.5)
        async with locks.lock("r", ttl=TTL, timeout=TTL + 2 + SLACK):
            pass
    await store.close()
