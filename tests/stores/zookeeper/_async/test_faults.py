"""ZooKeeper when things go wrong: lost messages, members that die or stop, parents that go, full disks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf

import pytest

from holdfast import Cancel
from holdfast._async.client import Client, connect
from holdfast.errors import AcquireCancelled, AcquireTimeout, LockError, StoreUnavailable
from holdfast.stores.zookeeper.link import Link
from holdfast.stores.zookeeper.shared import LocalClaim, Shared
from holdfast.stores.zookeeper.wire import Code, Op
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.check import Ledger, raises
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.servers import needed
from tests.stores.zookeeper.rig import Raw, Rig, filling_disk, lossy_network

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

IO = 0.4
LONG = 60.0  # a ttl that no test outlasts: what goes before does not go with its session
LIMIT = 20.0  # a busy machine; far below the ttl
SLACK = 4.0  # a busy machine, once more; far below what an unbounded call takes
WAYS = ("request", "reply", "silence")


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    # No parent goes while a test runs: the message that is lost is the one that makes a node.
    with lossy_network(container_check=600_000) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    module_rig.clear()
    yield module_rig
    module_rig.clear()


async def warm(locks: Client) -> None:
    """Have a session, and the parent of the claims."""
    async with locks.lock("r", ttl=LONG, timeout=LIMIT):
        pass


# -- messages that are lost


@pytest.mark.parametrize(("what", "times"), [("request", 1), ("request", 3), ("reply", 1), ("silence", 1)])
async def test_a_claim_whose_create_was_lost_has_one_node(rig: Rig, what: str, times: int) -> None:
    async with connect(rig.url, io_timeout=IO) as locks:
        await warm(locks)
        loss = rig.way.lose(Op.CREATE2, what, times)
        lease = await locks.lock("r", ttl=LONG).acquire(LIMIT)
        assert loss.done
        assert rig.raw.tokens() == [lease.token]
        await lease.release()
        await eventually(lambda: rig.raw.claims() == [])


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("op", [Op.SYNC, Op.GET_CHILDREN, Op.EXISTS], ids=lambda op: op.name)
async def test_a_create_that_was_lost_is_found_although_the_search_is_lost_too(rig: Rig, op: Op, what: str) -> None:
    async with connect(rig.url, io_timeout=IO) as locks:
        await warm(locks)
        loss = rig.way.lose(op, what, after=rig.way.lose(Op.CREATE2, "reply"))
        lease = await locks.lock("r", ttl=LONG).acquire(LIMIT)
        assert loss.done
        assert rig.raw.tokens() == [lease.token]
        await lease.release()
        await eventually(lambda: rig.raw.claims() == [])


def forget_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a create without an answer for one that was not done."""
    monkeypatch.setattr(LocalClaim, "doubtful", property(lambda local: False, lambda local, value: None))


@pytest.mark.control
async def test_control_without_the_search_a_claim_waits_behind_itself(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_doubts(monkeypatch)
    async with connect(rig.url, io_timeout=IO) as locks:
        await warm(locks)
        loss = rig.way.lose(Op.CREATE2, "reply")
        call = spawn(locks.lock("r", ttl=LONG).acquire, 2)
        await eventually(lambda: loss.done and len(rig.raw.claims()) == 2)
        with pytest.raises(AcquireTimeout):
            await call.join()


@pytest.mark.parametrize("what", WAYS)
async def test_a_waiter_whose_create_was_lost_has_one_place_in_line(rig: Rig, what: str) -> None:
    async with connect(rig.server.url) as holder, connect(rig.url, io_timeout=IO) as locks:
        await warm(locks)
        held = await holder.lock("r", ttl=LONG).acquire(LIMIT)
        loss = rig.way.lose(Op.CREATE2, what)
        first = spawn(locks.lock("r", ttl=LONG).acquire, LIMIT)
        await eventually(lambda: loss.done and len(rig.raw.claims()) == 2)
        last = spawn(holder.lock("r", ttl=LONG).acquire, LIMIT)
        await eventually(lambda: len(rig.raw.claims()) == 3)
        tokens = rig.raw.tokens()
        await held.release()
        lease = await first.join(LIMIT)
        assert [held.token, lease.token] == tokens[:2]
        assert not last.done
        await lease.release()
        lease = await last.join(LIMIT)
        assert lease.token == tokens[2]
        await lease.release()
        await eventually(lambda: rig.raw.claims() == [])


@pytest.mark.parametrize("what", WAYS)
async def test_whoever_asks_once_and_hears_nothing_leaves_nothing(rig: Rig, what: str) -> None:
    async with connect(rig.server.url) as holder, connect(rig.url, io_timeout=IO) as locks:
        await warm(locks)
        held = await holder.lock("r", ttl=LONG).acquire(LIMIT)
        mine = rig.raw.claims()
        loss = rig.way.lose(Op.CREATE2, what)
        with pytest.raises(StoreUnavailable):
            await locks.lock("r", ttl=LONG).acquire(0)
        assert loss.done
        await eventually(lambda: rig.raw.claims() == mine)
        await held.release()


async def abandon(rig: Rig, locks: Client, what: str, end: str) -> None:
    """Lose the create of an acquire, and everybody with it; then end the acquire, and after it the outage."""
    await warm(locks)
    loss = rig.way.lose(Op.CREATE2, what, then_refuse=True)
    cancel = Cancel()
    call = spawn(locks.lock("r", ttl=LONG).acquire, 1.0 if end == "timeout" else LIMIT, cancel=cancel)
    await eventually(lambda: loss.done)
    assert len(rig.raw.claims()) == (what != "request")
    if end == "cancel":
        cancel.cancel()
    if end != "close":
        with pytest.raises(StoreUnavailable if end == "timeout" else AcquireCancelled):
            await call.join()
    rig.way.heal()
    if end == "close":
        await locks.close()
        with pytest.raises(LockError, match="closed"):
            await call.join()


@pytest.mark.parametrize("end", ["timeout", "cancel", "close"])
@pytest.mark.parametrize("what", WAYS)
async def test_an_acquire_that_ends_before_it_knows_leaves_no_node(rig: Rig, what: str, end: str) -> None:
    """Its create may have been done, and while it lasts nobody can be asked."""
    async with connect(rig.url, io_timeout=IO) as locks:
        await abandon(rig, locks, what, end)
        await eventually(lambda: rig.raw.claims() == [], limit=locks.capabilities.waiting_life + LIMIT)


@pytest.mark.control
async def test_control_without_search_and_tidying_the_node_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_doubts(monkeypatch)
    monkeypatch.setattr(Shared, "tidy", lambda shared, session, proof, now: ((), inf))
    async with connect(rig.url, io_timeout=IO) as locks:
        await abandon(rig, locks, "reply", "timeout")
        await eventually(lambda: not locks._engine.keeper.orphans, limit=LIMIT)
        assert len(rig.raw.claims()) == 1


@pytest.mark.parametrize("outage", [False, True], ids=["cut", "outage"])
@pytest.mark.parametrize("what", WAYS)
async def test_a_release_that_was_lost_is_repeated_and_raises_nothing(rig: Rig, what: str, outage: bool) -> None:
    async with connect(rig.url, io_timeout=IO) as locks:
        lease = await locks.lock("r", ttl=LONG).acquire(LIMIT)
        loss = rig.way.lose(Op.DELETE, what, then_refuse=outage)
        await lease.release()
        assert loss.done
        assert lease.state == "released"
        rig.way.heal()
        await eventually(lambda: rig.raw.claims() == [], limit=LIMIT)
        async with locks.lock("r", ttl=LONG, timeout=LIMIT) as later:
            assert later.token > lease.token


async def test_a_release_that_has_to_wait_for_a_connection_is_no_loss(rig: Rig) -> None:
    """The session tidies when it is connected again: it must not be ahead of the release itself, and be taken for
    somebody who broke the lease.
    """
    async with connect(rig.url, io_timeout=LIMIT) as locks:
        for _ in range(6):
            lease = await locks.lock("r", ttl=LONG).acquire(LIMIT)
            rig.way.refuse = True
            rig.way.reset()
            await pause(0.02)
            call = spawn(lease.release)
            await pause(0.02)
            rig.way.heal()
            await call.join(LIMIT)
            assert lease.state == "released"
            await eventually(lambda: rig.raw.claims() == [])


@pytest.mark.parametrize("what", WAYS)
async def test_a_withdrawal_that_was_lost_is_repeated(rig: Rig, what: str) -> None:
    async with connect(rig.server.url) as holder, connect(rig.url, io_timeout=IO) as locks:
        held = await holder.lock("r", ttl=LONG).acquire(LIMIT)
        mine = rig.raw.claims()
        loss = rig.way.lose(Op.DELETE, what)
        with pytest.raises(AcquireTimeout):
            await locks.lock("r", ttl=LONG).acquire(0.5)
        await eventually(lambda: loss.done and rig.raw.claims() == mine, limit=LIMIT)
        await held.release()


# -- parents that go


@pytest.mark.parametrize("times", [1, 3, 20])
async def test_a_parent_that_goes_just_before_the_create_is_made_anew(rig: Rig, times: int) -> None:
    """Also if it goes again and again, between the request that makes it and the one for the node."""
    async with connect(rig.url, io_timeout=5) as locks:
        await warm(locks)
        gone = rig.remove_parent(times)
        lease = await locks.lock("r", ttl=LONG).acquire(LIMIT)
        assert len(gone) == rig.way.codes[Op.CREATE2, Code.NO_NODE] == times
        assert rig.raw.tokens() == [lease.token]
        await lease.release()


async def test_parents_that_the_server_removes_all_the_time_disturb_nobody_and_none_is_left() -> None:
    with lossy_network(container_check=50) as rig:

        async def work(locks: Client, number: int) -> None:
            for turn in range(60):
                name = ("same", f"own-{number}", f"new-{number}-{turn}")[turn % 3]
                async with locks.lock(name, ttl=LONG, timeout=LIMIT):
                    pass
                await pause(0.01)

        async with connect(rig.url, io_timeout=5) as locks:
            for call in [spawn(work, locks, number) for number in range(4)]:
                await call.join(LIMIT + 10)
            # Each of the 85 names has no parent at first; what is above that was removed while it was in use.
            assert rig.way.codes[Op.CREATE2, Code.NO_NODE] > 100
        await eventually(lambda: rig.raw.children("/holdfast/claims") == [], limit=LIMIT)


# -- many that wait


async def cost_of_a_hand_off(rig: Rig, waiters: int) -> float:
    """Return how many requests a client sends for each hand-off among so many of its own."""
    served: list[int] = []
    async with connect(rig.url, io_timeout=10) as locks:

        async def work() -> None:
            async with locks.lock("r", ttl=600, timeout=60) as lease:
                served.append(lease.token)

        held = await locks.lock("r", ttl=600).acquire(LIMIT)
        calls = [spawn(work) for _ in range(waiters)]
        await eventually(lambda: len(rig.raw.claims()) == waiters + 1, limit=30)
        await pause(0.5)  # all watch
        tokens, before = rig.raw.tokens()[1:], rig.way.requests.total()
        await held.release()
        for call in calls:
            await call.join(60)
        assert served == tokens
        return (rig.way.requests.total() - before) / waiters


async def test_a_hand_off_costs_the_same_with_few_and_with_many_waiters(rig: Rig) -> None:
    few = min([await cost_of_a_hand_off(rig, 2) for _ in range(3)])
    assert await cost_of_a_hand_off(rig, 300) <= few * 1.5


# -- members that die or stop


@pytest.fixture(scope="module")
def module_ensemble() -> Iterator[ZooKeeperEnsemble]:
    with needed(ZooKeeperEnsemble) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(module_ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    module_ensemble.wait_ready()
    yield module_ensemble
    for member in module_ensemble.members:
        if member.alive:
            member.resume()
        else:
            member.start(wait=False)


@contextmanager
def killed(member: ZooKeeperServer) -> Iterator[None]:
    member.kill()
    yield
    member.start(wait=False)


@contextmanager
def paused(member: ZooKeeperServer) -> Iterator[None]:
    member.pause()
    yield
    member.resume()


FAULTS = {"killed": killed, "paused": paused}


async def contend(locks: Client, ledger: Ledger, name: str, tokens: list[int], stop: list[bool]) -> None:
    """Lock again and again, whatever happens, and note who is inside."""
    while not stop:
        try:
            async with locks.lock("busy", ttl=LONG, timeout=LIMIT) as lease:
                ledger.enter(name, 1, 1)
                tokens.append(lease.token)
                await pause(0.002)
                ledger.leave(name)
        except LockError:
            await pause(0.05)


@pytest.mark.parametrize("fault", FAULTS)
async def test_leases_and_order_outlive_the_loss_of_the_leader(
    ensemble: ZooKeeperEnsemble, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is renewed by another member, what waits is served in order, and nobody is inside together."""
    monkeypatch.setattr(Link, "first", lambda link: 0)  # not any member, but the first of the URL
    leader, *others = ensemble.in_order()
    raw = Raw(*(member.port for member in others))
    ledger, tokens, stop, served = Ledger(), list[int](), list[bool](), list[int]()
    clients = [connect(ensemble.url_of(*order), io_timeout=1) for order in ([leader, *others], [*others, leader])]
    # Each with a session at the leader: it has to move.
    held = await clients[0].lock("held", ttl=LONG).acquire(LIMIT)
    head = await clients[0].lock("line", ttl=LONG).acquire(LIMIT)

    async def wait_in_line(locks: Client) -> None:
        async with locks.lock("line", ttl=LONG, timeout=2 * LIMIT) as lease:
            served.append(lease.token)

    line = []
    for number in range(6):
        line.append(spawn(wait_in_line, clients[number % 2]))
        await eventually(lambda: len(raw.claims("line")) == len(line) + 1, limit=LIMIT)
    queued = raw.tokens("line")
    busy = [spawn(contend, clients[number % 2], ledger, f"worker-{number}", tokens, stop) for number in range(4)]
    await eventually(lambda: len(tokens) > 20, limit=LIMIT)
    ends = time.monotonic() + held.remaining
    with FAULTS[fault](leader):
        ensemble.new_leader(leader)
        before = len(tokens)
        await eventually(lambda: len(tokens) > before + 20, limit=LIMIT)
        await held.renew()
        assert time.monotonic() + held.remaining > ends
        assert (held.state, raw.tokens("held")) == ("held", [held.token])
        await head.release()
        for call in line:
            await call.join(2 * LIMIT)
        assert served == queued[1:]
    ensemble.wait_ready()
    before = len(tokens)
    await eventually(lambda: len(tokens) > before + 20, limit=LIMIT)
    stop.append(True)
    for call in busy:
        await call.join(2 * LIMIT)
    assert tokens == sorted(set(tokens))
    await held.release()
    for client in clients:
        await client.close()
    assert [raw.claims(name) for name in ("held", "line", "busy")] == [[], [], []]
    raw.close()


# -- ensembles that do not write


async def test_a_read_only_member_takes_no_claims_and_that_is_told_in_time() -> None:
    with needed(lambda: ZooKeeperEnsemble(read_only=True)) as ensemble:
        last, *others = ensemble.members
        async with connect(ensemble.url_of(last), io_timeout=IO) as locks:
            lease = await locks.lock("r", ttl=4.0).acquire(LIMIT)
            for member in others:
                member.kill()
            await eventually(lambda: last.mode() == "read-only", limit=LIMIT)
            await unavailable(locks)
            assert await lease.wait_lost(LIMIT)
            for member in others:
                member.start(wait=False)
            async with locks.lock("r", ttl=4.0, timeout=2 * LIMIT) as later:
                assert later.token > lease.token


@pytest.mark.parametrize("kind", ["small disk", "small files"])
async def test_a_full_disk_is_told_in_time(kind: str) -> None:
    with filling_disk(kind) as server:
        async with connect(server.url, io_timeout=IO) as locks:
            tokens: list[int] = []

            async def fill() -> None:
                while len(tokens) < 5000:
                    async with locks.lock("r", ttl=4.0, timeout=0.5) as lease:
                        tokens.append(lease.token)

            with pytest.raises(StoreUnavailable):
                await fill()
            assert len(tokens) > 20
            assert tokens == sorted(set(tokens))
            await unavailable(locks)


async def unavailable(locks: Client) -> None:
    """See that each verb says in time that the store cannot be used."""
    verbs: list[tuple[float, Callable[[], Awaitable[object]]]] = [
        (0.0, partial(locks.lock("other").acquire, 0)),
        (0.5, partial(locks.lock("other").acquire, 0.5)),
        (0.0, locks.inspect),
        (0.0, locks.register("k").read),
    ]
    for timeout, verb in verbs:
        started = time.monotonic()
        with raises(StoreUnavailable):  # and not a kind of it that no page knows
            await verb()
        assert time.monotonic() - started < timeout + IO + SLACK
