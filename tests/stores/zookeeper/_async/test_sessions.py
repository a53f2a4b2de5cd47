"""Sessions whose connection is cut, and sessions that end: what leases are told, what waits, and what never happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from holdfast._async.client import connect
from holdfast._async.lease import Lease
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim, Renewed
from holdfast.errors import LeaseLost, StoreUnavailable
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper._sync.store import ZooKeeperStore as BlockingStore
from holdfast.stores.zookeeper.calls import Call
from holdfast.stores.zookeeper.session import Session
from holdfast.stores.zookeeper.wire import Op, Request
from holdfast.testing._async.runtime import eventually, spawn
from tests.stores.zookeeper.rig import Rig, lossy_network
from tests.stores.zookeeper.session_kit import expire, session_of

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

IO = 0.4
LONG = 60.0  # a ttl that no test outlasts
LIMIT = 20.0  # a busy machine
SLACK = 4.0  # a busy machine, once more; far below what an unbounded call takes
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    # Parents stay: they tell that somebody has made a claim, also if it is gone.
    with lossy_network(container_check=600_000) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    module_rig.clear()
    yield module_rig
    module_rig.clear()


def cut(rig: Rig) -> None:
    """End all connections, and turn away new ones."""
    rig.way.refuse = True
    rig.way.reset()


async def renewed(lease: Lease) -> bool:
    """Renew; False if the outcome is unknown.

    Raises: LeaseLost.
    """
    try:
        await lease.renew()
    except StoreUnavailable:
        return False
    return True


# -- suspended and expired


async def test_suspended_is_at_risk_and_expired_is_lost_for_all_leases_of_the_session(rig: Rig) -> None:
    async with connect(rig.url, io_timeout=IO) as locks:
        leases = [await locks.lock(f"r{number}", ttl=12).acquire(LIMIT) for number in range(3)]
        other = await locks.lock("other", ttl=LONG).acquire(LIMIT)  # of another session
        session = session_of(locks, "r0")
        assert [session_of(locks, lease.resource) is session for lease in (*leases, other)] == [True] * 3 + [False]
        cut(rig)
        for lease in (*leases, other):
            assert not await renewed(lease)
        assert [lease.state for lease in (*leases, other)] == ["at risk"] * 4
        expire(rig.server, session)
        assert [lease.state for lease in leases] == ["at risk"] * 3, "nobody can know"
        rig.way.heal()
        await eventually(lambda: all(lease.lost for lease in leases))
        assert CLOCK.now() < session.deadline, "they were told by the server, not by the clock"
        await eventually(lambda: renewed(other))
        assert other.state == "held"
        again = await locks.lock("r0", ttl=12).acquire(LIMIT)
        assert again.token > max(lease.token for lease in leases)
        for lease in (again, other):
            await lease.release()


async def test_a_session_that_is_ended_while_it_is_in_use_is_lost_with_all_leases(rig: Rig) -> None:
    async with connect(rig.url, io_timeout=IO) as locks:
        leases = [await locks.lock(f"r{number}", ttl=12).acquire(LIMIT) for number in range(3)]
        session = session_of(locks, "r0")
        expire(rig.server, session)
        await eventually(lambda: session.over)
        with pytest.raises(LeaseLost):
            await leases[0].renew()
        await eventually(lambda: all(lease.lost for lease in leases))
        assert CLOCK.now() < session.deadline
        async with locks.lock("r0", ttl=12, timeout=LIMIT) as again:
            assert again.token > leases[0].token


# -- cut and healed


@pytest.mark.parametrize(("how", "when"), [("reset", "meanwhile"), ("reset", "afterwards"), ("forget", "meanwhile")])
async def test_what_is_held_and_what_waits_outlives_a_cut_that_is_healed_in_time(rig: Rig, how: str, when: str) -> None:
    """Nobody tells a waiter of what happens meanwhile, and nobody of what happens afterwards unless it asks again."""
    async with connect(rig.url, io_timeout=IO) as locks, connect(rig.server.url) as holder:
        own = await locks.lock("own", ttl=6).acquire(LIMIT)
        held = await holder.lock("r", ttl=LONG).acquire(LIMIT)
        call = spawn(locks.lock("r", ttl=6).acquire, LIMIT)
        await eventually(lambda: len(rig.raw.claims()) == 2)
        (*_, waiting), session = rig.raw.tokens(), session_of(locks, "own")
        connections = session.connections
        if how == "reset":
            cut(rig)
            await eventually(lambda: not session.connected)
        else:
            rig.way.forget()
        if when == "meanwhile":
            await held.release()
        rig.way.heal()
        await eventually(lambda: session.connections > connections)
        if when == "afterwards":
            assert not call.done
            await held.release()
        lease = await call.join(LIMIT)
        assert lease.token == waiting, "it has lost its place in line"
        await eventually(lambda: renewed(own))
        assert (own.state, rig.raw.tokens("own")) == ("held", [own.token])
        await lease.release()
        await own.release()


async def lost_when_its_node_is_gone(rig: Rig) -> bool:
    """Cut a client off for longer than its timeout; return whether its lease was lost when its node was gone. Whoever
    waits is served in the end.
    """
    async with connect(rig.url, io_timeout=IO) as locks, connect(rig.server.url) as holder:
        own = await locks.lock("own", ttl=1).acquire(LIMIT)
        held = await holder.lock("r", ttl=LONG).acquire(LIMIT)
        call = spawn(locks.lock("r", ttl=1).acquire, 2 * LIMIT)
        await eventually(lambda: len(rig.raw.claims()) == 2)
        *_, waiting = rig.raw.tokens()
        rig.way.silence()
        lost: list[bool] = []

        def gone() -> bool:
            if not lost and not rig.raw.claims("own"):
                lost.append(own.lost)
            return bool(lost) and len(rig.raw.claims()) == 1

        await eventually(gone, limit=LIMIT)
        rig.way.heal()
        await eventually(lambda: len(rig.raw.claims()) == 2, limit=LIMIT)
        await held.release()
        lease = await call.join(2 * LIMIT)
        assert lease.token > waiting, "its place in line has gone with its session"
        await lease.release()
        return lost[0]


async def test_a_cut_that_outlasts_the_timeout_is_told_before_the_node_is_gone_and_who_waits_waits_anew(
    rig: Rig,
) -> None:
    assert await lost_when_its_node_is_gone(rig)


@pytest.mark.control
async def test_control_if_a_renewal_counted_that_was_only_sent_the_lease_would_outlive_its_node(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(store: Any, claims: Sequence[Claim], limit: float | None = None) -> list[Renewed]:
        return [Renewed(claim.ttl) for claim in claims]

    monkeypatch.setattr(BlockingStore, "renew", believe)
    assert not await lost_when_its_node_is_gone(rig)


# -- calls during an outage

CALLS = 300


async def call_during_an_outage(rig: Rig, begin: Callable[[], None]) -> None:
    """Make many calls during an outage, and one after it. See that those end in time, and leave nothing."""
    async with connect(rig.url, io_timeout=IO) as locks:
        for name in ("r", "after"):  # their parents are there from now on
            async with locks.lock(name, ttl=LONG, timeout=LIMIT):
                pass
        rig.way.requests.clear()
        begin()
        started = time.monotonic()
        for call in [spawn(locks.lock("r", ttl=LONG).acquire, 0) for _ in range(CALLS)]:
            with pytest.raises(StoreUnavailable):
                await call.join(IO + SLACK)
        assert time.monotonic() - started < IO + SLACK
        rig.way.heal()
        async with locks.lock("after", ttl=LONG, timeout=LIMIT):
            pass
        await eventually(lambda: rig.raw.claims() == [], limit=locks.capabilities.waiting_life + LIMIT)
    assert rig.raw.claims() == []


async def test_many_calls_during_an_outage_end_in_time_and_none_is_sent_afterwards(rig: Rig) -> None:
    await call_during_an_outage(rig, partial(cut, rig))
    assert rig.way.requests[Op.CREATE2] == 1, "that of the call after the outage"


async def test_many_calls_that_are_held_up_end_in_time_and_leave_nothing(rig: Rig) -> None:
    """They were sent, and arrive when the network goes on: nobody wants them any more."""
    await call_during_an_outage(rig, rig.way.silence)


@pytest.mark.control
async def test_control_a_client_that_sends_later_what_it_could_not_send_makes_ghosts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kazoo does."""
    create, send, later = wire.create_sequential, Session._send, list[Request]()

    def create_later(path: str, data: bytes, acl: bytes) -> Request:
        request = create(path, data, acl)
        if not session.connected:
            later.append(request)
        return request

    def send_with_the_rest(session: Session, requests: Sequence[Request], call: Call) -> None:
        send(session, requests, call)
        while later:
            send(session, (later.pop(),), Call(1, bool))

    async with connect(rig.url, io_timeout=IO) as locks:
        async with locks.lock("r", ttl=LONG, timeout=LIMIT):
            session = session_of(locks, "r")
        monkeypatch.setattr(wire, "create_sequential", create_later)
        monkeypatch.setattr(Session, "_send", send_with_the_rest)
        cut(rig)
        await eventually(lambda: not session.connected)
        with pytest.raises(StoreUnavailable):
            await locks.lock("r", ttl=LONG).acquire(0)
        rig.way.requests.clear()
        rig.way.heal()
        await eventually(lambda: rig.way.requests[Op.CREATE2], limit=LIMIT)  # of somebody who has given up
