"""Members of a real ensemble are cut off from each other while sessions prove that they live: whatever a server goes on
answering, nobody believes in a session that the leader has ended.

Times are compared in one direction only. That a node is gone is seen a little after it has gone, on a busy machine a
lot. So a lease that outlives its node may be missed, but none is found that did not; the controls look until they find
one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import NamedTuple

import pytest

from holdfast._clock import SystemClock
from holdfast._sync.client import connect
from holdfast._sync.lease import Lease
from holdfast.core.claim import Claim, Granted
from holdfast.core.urls import parse_url
from holdfast.errors import StoreUnavailable
from holdfast.stores.zookeeper import session as session_module
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper._sync.store import ZooKeeperStore
from holdfast.stores.zookeeper.calls import Proof
from holdfast.stores.zookeeper.proof import THIRD
from holdfast.stores.zookeeper.session import IDLE, Session
from holdfast.stores.zookeeper.shared import Shared
from holdfast.stores.zookeeper.wire import Code
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble
from tests.servers import needed
from tests.stores.zookeeper.rig import Raw
from tests.stores.zookeeper.weaker_proofs import AnyConnect, Rule, SentPlusTimeout, TickOff

VERIFY = bool(os.environ.get("HOLDFAST_VERIFY"))
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900 if VERIFY else 120),
    pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning"),
]

TTL = 0.72
TICKS = 12  # in a TTL: a third of it is far longer than the time by which a leader may know late, and rounds up
IO = 2.0
LIMIT = 20.0
CUTS = 40 if VERIFY else 6
CLOCK = SystemClock()


def members(ticks: int) -> ZooKeeperEnsemble:
    """Return an ensemble by whose clock TTL is so many ticks long.

    Its members bear with a silence of several seconds: a cut that is over by then leaves no trace, and the next can
    come.
    """
    tick = round(TTL / ticks * 1000)
    limit = round(8000 / tick)
    return ZooKeeperEnsemble(
        proxied=True, tick=tick, sync_limit=limit, init_limit=2 * limit, min_session_timeout=2 * tick
    )


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with needed(lambda: members(TICKS)) as found:
        yield found


class Disturbed(Exception):
    """This machine has more to do than sessions bear with that are as short as these."""


def undisturbed(attempt: Callable[[], list[Sample]]) -> list[Sample]:
    """Try something until nothing else interferes."""
    for _ in range(10):
        try:
            return attempt()
        except (Disturbed, StoreUnavailable):
            pass
    raise AssertionError("this machine is too busy")


class Held(NamedTuple):
    """A claim at a follower: its session, its node, and the lease on it, if there is one."""

    session: Session
    path: str
    lease: Lease | None = None

    @property
    def deadline(self) -> float:
        """Until when somebody believes in it. A lease that is lost may be deleted before its session has to end."""
        return self.session.deadline if self.lease is None else self.lease._hold.deadline


class Sample(NamedTuple):
    """What was believed of a node, and when it was seen to be gone."""

    deadline: float
    gone: float
    still_held: bool

    @property
    def violated(self) -> bool:
        return self.gone < self.deadline or self.still_held


class Bench:
    """Claims at one follower, and a look at the leader."""

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self.ensemble = ensemble
        ensemble.wait_ready()
        leader, self.follower, other = ensemble.in_order()
        self.url = ensemble.url_of(self.follower)
        self._raw = Raw(leader.port, other.port)
        self.stack = ExitStack()
        self.stack.callback(self._raw.close)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def store(self) -> ZooKeeperStore:
        """Return a store of its own. Nobody renews its claims but the session itself."""
        store = ZooKeeperStore(parse_url(self.url), namespace="default", io_timeout=IO, clock=CLOCK)
        self.stack.callback(store.close)
        return store

    def leased(self, name: str) -> Held:
        """Take a lock, which the keeper renews, too."""
        locks = connect(self.url, io_timeout=IO)
        self.stack.callback(locks.close)
        lease = locks.lock(name, ttl=TTL).acquire(LIMIT)
        shared: Shared = locks._engine.store._shared  # type: ignore[attr-defined]
        (local,) = shared.claims.values()
        return Held(local.session, local.path, lease)

    def gone(self, held: list[Held]) -> list[Sample]:
        """Wait until the nodes are gone; return what was believed of them at that moment."""
        samples: dict[str, Sample] = {}

        def all_gone() -> bool:
            left = [one for one in held if one.path not in samples]
            for one, reply in zip(left, self._raw.ask(*(wire.exists(one.path) for one in left)), strict=True):
                if reply.code == Code.NO_NODE:
                    still = one.lease is not None and not one.lease.lost
                    samples[one.path] = Sample(one.deadline, CLOCK.now(), still)
            return len(samples) == len(held)

        eventually(all_gone, limit=LIMIT)
        return [samples[one.path] for one in held]


def claim(store: ZooKeeperStore, name: str, ttl: float = TTL) -> Held:
    """Claim something, and leave it to its session."""
    answer = store.claim(Claim(name, f"client.{name}", ttl=ttl))
    assert isinstance(answer, Granted)
    (local,) = store._shared.claims.values()
    local.until = inf  # nobody renews it: the store would delete it
    return Held(local.session, local.path)


def cut_after_a_proof(bench: Bench, number: int, held: list[Held], monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Cut the follower off as soon as the first of these sessions has heard the answer to the proof of that number."""
    session, cut, proofs = held[0].session, threading.Event(), list[Proof]()
    counted = session.proved
    with ExitStack() as network:

        def proved(proof: Proof) -> None:
            counted(proof)
            proofs.append(proof)
            if len(proofs) == number:
                network.enter_context(bench.ensemble.cut_off(bench.follower))
                cut.set()

        monkeypatch.setattr(session, "proved", proved)
        eventually(lambda: cut.is_set() or session.over, limit=LIMIT)
        if session.over:
            raise Disturbed
        return bench.gone(held)


def cut_off(ensemble: ZooKeeperEnsemble, turn: int, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Have two sessions that nobody else uses, and a lease; cut their follower off after a proof."""
    with Bench(ensemble) as bench:
        held = [claim(bench.store(), f"bare-{number}") for number in range(2)]
        held.append(bench.leased("leased"))
        return cut_after_a_proof(bench, 2 + turn % 2, held, monkeypatch)


def test_a_lease_is_lost_before_its_node_is_gone_however_soon_after_a_proof_its_follower_is_cut_off(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(CUTS):
        samples = undisturbed(lambda: cut_off(ensemble, turn, monkeypatch))  # noqa: B023 (called at once)
        assert not [sample for sample in samples if sample.violated], samples


@pytest.mark.skipif(not VERIFY, reason="takes a minute: set HOLDFAST_VERIFY")
def test_a_timeout_of_two_ticks_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that ZooKeeper gives: what a client says may reach the leader a quarter of it later."""
    with needed(lambda: members(2)) as ensemble:
        for turn in range(CUTS):
            samples = undisturbed(lambda: cut_off(ensemble, turn, monkeypatch))  # noqa: B023 (called at once)
            assert not [sample for sample in samples if sample.violated], samples


def see_violated(attempt: Callable[[], list[Sample]]) -> None:
    """Try something until somebody believes in a session that has ended."""
    for _ in range(20):
        if any(sample.violated for sample in undisturbed(attempt)):
            return
    raise AssertionError("nobody ever did")


@pytest.mark.control
@pytest.mark.parametrize("rule", [SentPlusTimeout, partial(TickOff, TTL / TICKS)], ids=["sent + timeout", "a tick off"])
def test_control_by_a_weaker_rule_a_lease_outlives_its_node(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch, rule: Callable[[], Rule]
) -> None:
    monkeypatch.setattr(session_module, "Proofs", rule)
    see_violated(lambda: cut_off(ensemble, 0, monkeypatch))


def cut_off_after_idling(ensemble: ZooKeeperEnsemble, timeouts: float) -> list[Sample]:
    """Have sessions of which nobody holds anything for so long; claim, just before the next proof is due, and cut the
    follower off at once. The first of them is not kept open meanwhile.
    """
    with Bench(ensemble) as bench:
        stores = [bench.store() for _ in range(4)]
        sessions = [store._shared.session(TTL) for store in stores]
        eventually(lambda: all(session.connected for session in sessions))
        until, soon = CLOCK.now() + timeouts * TTL, TTL * THIRD / 8

        def use() -> None:
            for store in stores[1:]:
                store._shared.session(TTL)  # which sends nothing

        eventually(lambda: CLOCK.now() > until and 0 < sessions[1]._prove_at - CLOCK.now() < soon, use, limit=LIMIT)
        asked = CLOCK.now()
        held = [claim(store, f"idle-{number}") for number, store in enumerate(stores)]
        with ensemble.cut_off(bench.follower):
            assert min(one.deadline for one in held) >= asked + TTL * THIRD
            if [one.session for one in held[1:]] != sessions[1:]:
                raise Disturbed
            assert bool(sessions[0].over) == (timeouts > IDLE), "it is closed when nobody has needed it for a while"
            return bench.gone(held)


@pytest.mark.parametrize("turn", range(10 if VERIFY else 1))
def test_a_lease_after_five_timeouts_without_one_is_lost_before_its_node_is_gone(
    ensemble: ZooKeeperEnsemble, turn: int
) -> None:
    """If its follower is cut off at once; and it begins with a third of its timeout at least."""
    samples = undisturbed(lambda: cut_off_after_idling(ensemble, 5))
    assert not [sample for sample in samples if sample.violated], samples


@pytest.mark.control
def test_control_if_a_claim_prolonged_its_session_a_lease_would_outlive_its_node(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "deadline", property(lambda session: session.used + session.timeout))
    see_violated(lambda: cut_off_after_idling(ensemble, 1))


# -- a leader that is cut off goes on answering, while the others elect a new one

ELECTION_TICK = 1.0  # long: a leader that is none any more answers for about one


def take_up_again_and_again(ensemble: ZooKeeperEnsemble) -> list[Sample]:
    """Cut the leader off, and have it take up a session again for as long as it does."""
    ensemble.wait_ready()
    leader, *others = ensemble.in_order()
    url = parse_url(ensemble.url_of(leader))
    store = ZooKeeperStore(url, namespace="default", io_timeout=IO, clock=CLOCK)
    raw = Raw(*(member.port for member in others))
    held = claim(store, "r", 2 * ELECTION_TICK)

    def reconnect() -> None:
        held.session.reconnect("a test wants it")
        time.sleep(0.05)

    def gone() -> bool:
        try:
            return raw.ask(wire.exists(held.path))[0].code == Code.NO_NODE
        except AssertionError:  # nobody answers during an election
            return False

    with ensemble.cut_off(leader):
        eventually(gone, reconnect, limit=60)
        sample = Sample(held.deadline, CLOCK.now(), False)
    raw.close()
    store.close()
    return [sample]


@pytest.fixture(scope="module")
def slow_ensemble() -> Iterator[ZooKeeperEnsemble]:
    tick = round(ELECTION_TICK * 1000)
    with needed(
        lambda: ZooKeeperEnsemble(proxied=True, tick=tick, sync_limit=2, min_session_timeout=2 * tick)
    ) as found:
        yield found


@pytest.mark.skipif(not VERIFY, reason="takes minutes: set HOLDFAST_VERIFY. The model has the case, too")
def test_nobody_counts_on_a_session_that_was_taken_up_by_a_leader_that_is_none_any_more(
    slow_ensemble: ZooKeeperEnsemble,
) -> None:
    for _ in range(10):
        (sample,) = take_up_again_and_again(slow_ensemble)
        assert not sample.violated, sample


@pytest.mark.control
@pytest.mark.skipif(not VERIFY, reason="takes minutes: set HOLDFAST_VERIFY. The model has the case, too")
def test_control_whoever_counts_on_it_outlives_its_node(
    slow_ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "Proofs", AnyConnect)
    see_violated(lambda: take_up_again_and_again(slow_ensemble))
