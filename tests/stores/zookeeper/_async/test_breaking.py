"""Claims in ZooKeeper that somebody breaks by hand: who learns of it, who comes next, and what becomes of the marks.

A holder *believes* in its claim until the end that its last answer has told. Nobody else may be granted before that.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast._async.client import connect
from holdfast._clock import SystemClock
from holdfast.core.claim import LOST, Claim, Evicted, Granted, Renewal, Renewed, Waiting
from holdfast.core.urls import parse_url
from holdfast.errors import AcquireTimeout, LeaseLost, StoreUnavailable
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper._async.store import ZooKeeperStore
from holdfast.stores.zookeeper.calls import Call, Proof
from holdfast.stores.zookeeper.nodes import Line
from holdfast.stores.zookeeper.wire import Op
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.child import Child
from tests.stores.zookeeper.chroots import Chroot
from tests.stores.zookeeper.rig import Rig, lossy_network

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

TTL = 2.0
LEASE = 3.0
LONG = 60.0
LIMIT = 30.0  # a busy machine
now = SystemClock().now


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with lossy_network(container_check=200) as rig:
        yield rig


@pytest.fixture
def chroot(module_rig: Rig) -> Iterator[Chroot]:
    module_rig.way.heal()
    yield Chroot(module_rig)
    module_rig.way.heal()


def store_of(chroot: Chroot, url: str = "", io_timeout: float = 20.0) -> ZooKeeperStore:
    return ZooKeeperStore(
        parse_url(url or chroot.direct), namespace="default", io_timeout=io_timeout, clock=SystemClock()
    )


def claim(number: int, resource: str = "r", **facts: Any) -> Claim:
    return Claim(resource, f"client.{number}", **{"ttl": TTL, **facts})


def node_of(chroot: Chroot, one: Claim) -> str:
    """Return the node of a claim; empty if it has none."""
    names = chroot.children(f"claims/default/{one.resource}")
    return next((name for name in names if name.startswith(f"{one.holder}-")), "")


def marks(chroot: Chroot) -> list[str]:
    """Return the marks that are there, without the sessions."""
    return sorted(mark for session in chroot.children("broken") for mark in chroot.children(f"broken/{session}"))


@contextmanager
def before_exchange(store: ZooKeeperStore, number: int, act: Callable[[], Awaitable[object]]) -> Iterator[None]:
    """Have something happen before the so-manieth exchange of a store, if it comes to that."""
    ensemble: Any = store._ensemble
    real, left = ensemble.ask, number

    async def ask(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            await act()
        return await real(*args)

    ensemble.ask = ask
    try:
        yield
    finally:
        ensemble.ask = real


async def end_sessions(store: ZooKeeperStore) -> None:
    """Have ZooKeeper end the sessions of a client that knows nothing of it, as it does when they have run out."""
    for session in store._shared.sessions:
        session.send((wire.CLOSE,), Call(1, bool))


class Believer:
    """A holder that knows until when it believes in its claim, and whoever looks when its node goes."""

    def __init__(self, chroot: Chroot, number: int) -> None:
        self.chroot = chroot
        self.store = store_of(chroot)
        self.claim = claim(number, f"r{number}", ttl=LEASE)
        self.end = 0.0
        self.gone = 0.0
        self.answers: list[Renewal] = []

    async def begin(self) -> None:
        asked = now()
        answer = await self.store.claim(self.claim)
        assert isinstance(answer, Granted)
        self.end = asked + min(LEASE, answer.left)

    async def renew(self) -> None:
        asked = now()
        (answer,) = await self.store.renew([self.claim])
        self.answers.append(answer)
        if isinstance(answer, Renewed):
            self.end = max(self.end, asked + min(LEASE, answer.left))

    def look(self) -> bool:
        """Return whether its node has gone; and note the time."""
        if not self.gone and not node_of(self.chroot, self.claim):
            self.gone = now()
        return bool(self.gone)


async def break_with_renewals_in_between(chroot: Chroot, steps: int, at_once: bool = False) -> list[Renewal | None]:
    """Break claims, each with a renewal before another of the exchanges of a break. Checks that no claim ends before
    its holder believes that it does. Returns how each renewal was answered.
    """
    believers = [Believer(chroot, number) for number in range(steps)]
    evictors = [store_of(chroot) for _ in believers]
    for one, evictor in zip(believers, evictors, strict=True):
        await evictor.state("r")
        await one.begin()

    async def break_it(number: int) -> None:
        one, evictor = believers[number], evictors[number]
        await one.renew()
        assert isinstance(one.answers.pop(), Renewed)
        with before_exchange(evictor, number, one.renew):
            assert await evictor.evict(one.claim.resource, one.claim.holder, at_once) is not None
        assert await one.store.renew([one.claim]) == [LOST]

    await pause(LEASE / 3)  # the next renewal has something to prolong
    # At the same time: a claim that nobody renews ends by itself, and ten breaks may take long.
    for call in [spawn(break_it, number) for number in range(steps)]:
        await call.join(LIMIT)

    def all_gone() -> bool:
        left = [one for one in believers if not one.look()]
        return not left

    await eventually(all_gone, limit=LIMIT)
    for number, one in enumerate(believers):
        assert one.gone >= one.end, f"a renewal before exchange {number}: the holder believes in it for longer"
    await eventually(lambda: marks(chroot) == [], limit=LIMIT)
    for store in (*evictors, *(one.store for one in believers)):
        await store.close()
    return [one.answers[0] if one.answers else None for one in believers]


async def test_a_renewal_at_any_point_of_a_break_does_not_make_the_claim_end_too_early(chroot: Chroot) -> None:
    answers = await break_with_renewals_in_between(chroot, 10)
    kinds = [type(answer).__name__ for answer in answers]
    # Before the mark it is renewed, and after it lost; some of the breaks had fewer exchanges.
    assert kinds[0] == "Renewed"
    assert "Lost" in kinds
    assert kinds == sorted(kinds, key=["Renewed", "Lost", "NoneType"].index)


@pytest.mark.control
async def test_control_a_claim_that_is_ended_at_once_ends_too_early(chroot: Chroot) -> None:
    with pytest.raises(AssertionError, match="believes in it for longer"):
        await break_with_renewals_in_between(chroot, 2, at_once=True)


# -- who learns of it


async def broken_and_renewed(chroot: Chroot) -> None:
    """Break one of the claims of a session, by a client that ends at once."""
    store, evictor = store_of(chroot), store_of(chroot)
    mine, other = claim(1, ttl=LONG), claim(2, "other", ttl=LONG)
    for one in (mine, other):
        await store.claim(one)
    evicted = await evictor.evict("r", mine.holder)
    await evictor.close()
    assert evicted == Evicted(LONG)
    answers = await store.renew([mine, other])
    assert answers[0] == LOST, "the holder does not learn of it"
    assert isinstance(answers[1], Renewed)
    assert (await store.renew([mine]))[0] == LOST
    assert node_of(chroot, mine), "it ends where its last renewal has put the end"
    await store.close()


async def test_the_next_renewal_of_a_broken_claim_says_that_it_is_lost_and_others_live_on(chroot: Chroot) -> None:
    await broken_and_renewed(chroot)


@pytest.mark.control
async def test_control_without_a_look_at_the_marks_it_is_renewed(
    chroot: Chroot, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Proof.complete

    def complete(proof: Proof, session: Any) -> None:
        real(proof, session)
        proof.broken = frozenset()

    monkeypatch.setattr(Proof, "complete", complete)
    with pytest.raises(AssertionError, match="does not learn"):
        await broken_and_renewed(chroot)


async def test_people_see_that_a_claim_was_broken(chroot: Chroot) -> None:
    async with connect(chroot.direct) as locks, connect(chroot.direct) as operator:
        lease = await locks.lock("r", ttl=LONG, on_lost=bool).acquire()
        other = await locks.lock("r2", ttl=LONG).acquire()
        assert [seen.broken for seen in await operator.holders("r")] == [False]
        (broken,) = await operator.break_lock("r", reason="hung")
        assert (broken.token, broken.broken) == (lease.token, True)
        assert [(seen.token, seen.broken) for seen in await operator.holders("r")] == [(lease.token, True)]
        states = {state.resource: state.holders[0].broken for state in await operator.inspect()}
        assert states == {"r": True, "r2": False}
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert other.state == "held"
        assert [seen.broken for seen in await operator.holders("r2")] == [False]


async def test_whoever_waits_for_a_broken_lock_gets_it_after_its_holder_knows(chroot: Chroot) -> None:
    async with connect(chroot.direct) as locks, connect(chroot.direct) as operator:
        lease = await locks.lock("r", ttl=TTL, on_lost=bool).acquire()
        kept = await locks.lock("kept", ttl=TTL).acquire()
        call = spawn(operator.lock("r", ttl=TTL).acquire, LIMIT)
        await eventually(lambda: len(chroot.children("claims/default/r")) == 2)
        await operator.break_lock("r", reason="hung")
        successor = await call.join(LIMIT)
        assert lease.lost
        assert successor.token > lease.token
        assert kept.state == "held"
        await eventually(lambda: marks(chroot) == [], limit=LIMIT)


async def test_readers_and_permits_are_broken_one_by_one(chroot: Chroot) -> None:
    store, evictor = store_of(chroot), store_of(chroot)
    permits = [claim(number, weight=1, capacity=3, ttl=LONG) for number in range(3)]
    for one in permits:
        assert isinstance(await store.claim(one), Granted)
    assert await evictor.evict("r", permits[1].holder) is not None
    answers = await store.renew(permits)
    assert [answer == LOST for answer in answers] == [False, True, False]
    assert await evictor.evict("r", permits[0].holder) is not None
    answers = await store.renew(permits)
    assert [answer == LOST for answer in answers] == [True, True, False]
    assert marks(chroot) == [permits[0].holder, permits[1].holder]
    await store.close()
    await evictor.close()


# -- at once


async def test_ending_a_claim_at_once_wakes_whoever_waits_and_its_holder_finds_it_lost(chroot: Chroot) -> None:
    store, other = store_of(chroot), store_of(chroot)
    mine, rival = claim(1, ttl=LONG), claim(2, ttl=LONG)
    await store.claim(mine)
    waiting = await other.claim(rival)
    assert isinstance(waiting, Waiting)
    call = spawn(other.wait, rival, waiting, now() + LONG)
    assert await other.evict("r", mine.holder, True) == Evicted(0.0)
    await call.join(LIMIT)
    assert isinstance(await other.claim(rival), Granted)
    assert await store.renew([mine]) == [LOST]
    assert not await store.release("r", mine.holder)
    assert node_of(chroot, rival)
    await store.close()
    await other.close()


async def test_what_was_broken_can_be_ended_at_once(chroot: Chroot) -> None:
    store, evictor = store_of(chroot), store_of(chroot)
    mine = claim(1, ttl=LONG)
    await store.claim(mine)
    assert await evictor.evict("r", mine.holder) == Evicted(LONG)
    assert await evictor.evict("r", mine.holder, True) == Evicted(0.0)
    assert not node_of(chroot, mine)
    assert await store.renew([mine]) == [LOST]
    await store.close()
    await evictor.close()


# -- nobody else is broken


async def change_holder_in_between(chroot: Chroot, at_once: bool) -> int:
    """Let the holder change before each of the exchanges of a break. Returns how many breaks have found nobody."""
    evictor, other, found_nobody = store_of(chroot), store_of(chroot), 0
    await evictor.state("r")
    for number in range(4):
        store = store_of(chroot)
        mine, next_one = claim(number, f"r{number}", ttl=LONG), claim(100 + number, f"r{number}", ttl=LONG)
        await store.claim(mine)
        assert isinstance(await other.claim(next_one), Waiting)
        node = node_of(chroot, next_one)

        async def change(store: Any = store, mine: Claim = mine) -> None:
            assert await store.release(mine.resource, mine.holder)

        with before_exchange(evictor, number, change):
            found_nobody += await evictor.evict(mine.resource, mine.holder, at_once) is None

        async def granted(next_one: Claim = next_one) -> bool:
            return isinstance(await other.claim(next_one), Granted)

        await eventually(granted, limit=LIMIT)  # when it has been woken
        (renewed,) = await other.renew([next_one])
        same = isinstance(renewed, Renewed) and node_of(chroot, next_one) == node
        assert same, f"a change before exchange {number}: another is broken"
        await store.close()
    await other.close()
    await evictor.close()
    return found_nobody


@pytest.mark.parametrize("at_once", [False, True], ids=["soft", "at once"])
async def test_a_lock_that_changed_hands_during_a_break_breaks_nobody(chroot: Chroot, at_once: bool) -> None:
    assert await change_holder_in_between(chroot, at_once) >= (2 if at_once else 3)


@pytest.mark.control
async def test_control_whoever_is_first_in_line_by_then_would_be_broken(
    chroot: Chroot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A break that takes the first of the line, and not who was named."""
    monkeypatch.setattr(Line, "of", lambda line, holder: [node.name for node in line.nodes])
    with pytest.raises(AssertionError, match="another is broken"):
        await change_holder_in_between(chroot, True)


async def test_break_lock_breaks_nobody_who_came_after_its_look(chroot: Chroot) -> None:
    async with connect(chroot.direct) as locks, connect(chroot.direct) as operator:
        lease = await locks.lock("r", ttl=LONG).acquire()
        store: Any = operator._engine.store
        real = store.evict
        newer = []

        async def evict(*args: Any) -> Any:
            await lease.release()
            newer.append(await locks.lock("r", ttl=LONG).acquire())
            return await real(*args)

        store.evict = evict
        assert await operator.break_lock("r", reason="hung", now=True) == []
        await newer[0].renew()
        assert [seen.broken for seen in await operator.holders("r")] == [False]
        assert marks(chroot) == []


async def test_a_claim_that_waits_cannot_be_broken(chroot: Chroot) -> None:
    store, evictor = store_of(chroot), store_of(chroot)
    mine, waiting = claim(1, ttl=LONG), claim(2, ttl=LONG)
    await store.claim(mine)
    assert isinstance(await store.claim(waiting), Waiting)
    for at_once in (False, True):
        assert await evictor.evict("r", waiting.holder, at_once) is None
        assert await evictor.evict("r", "nobody.1", at_once) is None
        assert await evictor.evict("unheard", mine.holder, at_once) is None
    assert marks(chroot) == []
    assert len(chroot.children("claims/default/r")) == 2
    await store.close()
    await evictor.close()


# -- marks


async def test_a_mark_goes_with_its_claim(chroot: Chroot) -> None:
    """At the end of its time; when its holder gives it back, knowing or not; when it is ended at once."""
    store, evictor = store_of(chroot), store_of(chroot)
    lapses, released, unknowing, ended = (claim(number, f"r{number}") for number in range(4))
    for one in (lapses, released, unknowing, ended):
        await store.claim(one)
        assert await evictor.evict(one.resource, one.holder) is not None
    assert len(marks(chroot)) == 4
    assert await store.renew([lapses, released]) == [LOST, LOST]
    assert await store.release(released.resource, released.holder)
    assert await store.release(unknowing.resource, unknowing.holder)
    assert await evictor.evict(ended.resource, ended.holder, True) == Evicted(0.0)
    await eventually(lambda: marks(chroot) == [], limit=LIMIT, complaint=lambda: str(marks(chroot)))
    assert chroot.children("claims/default/r0") == []
    await eventually(lambda: chroot.children("broken") == [], limit=LIMIT)
    await store.close()
    await evictor.close()


async def test_a_break_sweeps_marks_of_sessions_that_are_dead(chroot: Chroot) -> None:
    dead, store, evictor = store_of(chroot), store_of(chroot), store_of(chroot)
    claims = [claim(number, f"r{number}", ttl=LONG) for number in range(60)]
    for one in claims:
        await dead.claim(one)
    for one in claims:
        assert await evictor.evict(one.resource, one.holder) is not None
    await end_sessions(dead)
    await eventually(lambda: not any(node_of(chroot, one) for one in claims), limit=LIMIT)
    assert len(marks(chroot)) == 60
    mine = claim(100, ttl=LONG)
    await store.claim(mine)
    for _ in range(2):  # one looks at some of them
        await evictor.evict("r", mine.holder)
    assert marks(chroot) == [mine.holder]
    await eventually(lambda: len(chroot.children("broken")) == 1, limit=LIMIT)
    for one_store in (dead, store, evictor):
        await one_store.close()


async def test_marks_that_are_none_do_not_stand_in_the_way(chroot: Chroot) -> None:
    store, evictor = store_of(chroot), store_of(chroot)
    mine = claim(1, ttl=LONG)
    await store.claim(mine)
    for number, data in enumerate((b"", b"\xff\xfe", b"no path", b"/", b"//", b"/a/../b", b"\0")):
        chroot.put(f"broken/stranger/{number}", data)
    assert await evictor.evict("r", mine.holder) == Evicted(LONG)
    assert await store.renew([mine]) == [LOST]
    await store.close()
    await evictor.close()


@pytest.mark.parametrize("what", ["request", "reply"])
async def test_a_break_whose_message_was_lost_is_finished_by_the_next(chroot: Chroot, what: str) -> None:
    store, evictor = store_of(chroot), store_of(chroot, chroot.url, 2.0)
    mine = claim(1, ttl=LONG)
    await store.claim(mine)
    await evictor.state("r")
    loss = chroot.rig.way.lose(Op.CREATE, what)
    with pytest.raises(StoreUnavailable):
        await evictor.evict("r", mine.holder)
    assert loss.done
    for _ in range(2):
        assert await evictor.evict("r", mine.holder) == Evicted(LONG)
    assert await store.renew([mine]) == [LOST]
    assert marks(chroot) == [mine.holder]
    await store.close()
    await evictor.close()


# -- holders that do not run


@pytest.mark.slow
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_the_broken_claim_of_a_process_that_does_not_run_ends_with_its_session(
    chroot: Chroot, tmp_path: Path, fate: signal.Signals
) -> None:
    look = tmp_path / "look"
    child = Child(tmp_path, "sync", "hold", url=chroot.direct, namespace="default", ttl=TTL, look=str(look))
    try:
        await eventually(child.heard, limit=LIMIT)
        async with connect(chroot.direct) as locks:
            (held,) = await locks.holders("r")
            other = await locks.lock("other", ttl=LONG).acquire()
            child.signal(fate)
            (broken,) = await locks.break_lock("r", reason="it does not answer")
            assert broken.token == held.token
            with pytest.raises(AcquireTimeout):
                await locks.lock("r", ttl=LONG).acquire(0.01)
            async with locks.lock("r", ttl=LONG, timeout=LIMIT) as lease:
                assert lease.token > held.token
                assert len(marks(chroot)) == 1  # it is left, for whoever breaks the next one
                (broken,) = await locks.break_lock("other", reason="to see it swept", now=False)
                assert broken.token == other.token
                (left,) = marks(chroot)
                (state,) = await locks.inspect("other")
                assert left == state.holders[0].holder
                if fate == signal.SIGSTOP:
                    child.signal(signal.SIGCONT)
                    look.touch()
                    await eventually(lambda: ["lost", True] in child.said, limit=LIMIT)
                    (seen,) = await locks.holders("r")
                    assert seen.token == lease.token
    finally:
        child.kill()
