"""Until when a session lives for certain: in virtual time, against an ensemble that does its best to prove us wrong.

The model. A client has one connection at a time, to some server, and sends writes. A request may be held up on its way,
and so may its answer; they stay in order. A follower notes that it has heard of the session, and says so to its leader
every half tick or sooner. At any moment it may be cut off from the leader: from then on it says nothing, and answers no
write. The leader ends the session one timeout after it last learned of it; it does not round up, as ZooKeeper does. A
connect is answered by the leader itself. But that may be a leader that is none any more: it answers connects, and
syncs, and nobody ever learns of it.

The law: whatever a client has been shown, the leader ends the session no earlier than `Proofs.deadline`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain, count, product, repeat
from math import ceil, inf
from typing import NamedTuple

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from holdfast.stores.zookeeper.proof import QUARTER, THIRD, Proofs
from tests.stores.zookeeper.weaker_proofs import (
    AnyConnect,
    HeardLongAgo,
    Rule,
    SentLongAgo,
    SentPlusTimeout,
    Synced,
    TickOff,
)

TICK = 240  # in units of time, which are whole numbers: what happens at the same time has an order
HALF = TICK // 2


class Request(NamedTuple):
    """A connect or a write: how long after the last one it is sent, and how long it and its answer are held up."""

    after: int
    there: int = 0
    back: int = 0


class Leg(NamedTuple):
    """A connection to a server."""

    connect: Request  # after the last write of the leg before
    writes: tuple[Request, ...]
    reports: tuple[int, ...]  # times between two words of the server to its leader; the last one goes on
    cut: int | None = None  # when the server is cut off: so long after the last write came, or before if negative
    deposed: bool = False  # whether it is, or follows, a leader that is none any more


class Case(NamedTuple):
    """All that happens."""

    timeout: int
    legs: tuple[Leg, ...]


CONNECT, WRITE, REPORT, CUT, ANSWER = range(5)  # what happens at the same time happens in this order


class Event(NamedTuple):
    time: float
    kind: int
    leg: int
    number: int = -1  # of a request and its answer
    sent: float = 0.0
    heard: float = 0.0


def schedule(case: Case) -> Iterator[Event]:
    """Say what happens when, as far as that does not depend on what happened before."""
    numbers, now = count(), 0.0
    for number, leg in enumerate(case.legs):
        sent = now + leg.connect.after
        came = reported = sent + leg.connect.there
        heard = came + leg.connect.back
        sends = [(CONNECT, came, sent, heard)]
        sent = heard
        for write in leg.writes:
            sent += write.after
            came = max(came, sent + write.there)
            heard = max(heard, came + write.back)
            sends.append((WRITE, came, sent, heard))
        now = sent
        # What a follower could still tell of a connection that was left would only help us: it is not told.
        end = now + case.timeout if number + 1 == len(case.legs) else now
        for kind, came_at, sent_at, heard_at in sends:
            call = next(numbers)
            yield Event(came_at, kind, number, call, sent_at, heard_at)
            if heard_at <= end:
                yield Event(heard_at, ANSWER, number, call, sent_at, heard_at)
        for gap in chain(leg.reports, repeat(leg.reports[-1])):
            reported += gap
            if reported > end:
                break
            yield Event(reported, REPORT, number)
        if leg.cut is not None:
            yield Event(came + leg.cut, CUT, number)


def play(case: Case, rule: Rule) -> float:
    """Let it happen; return when the leader ends the session."""
    ends = inf
    current, out_of_touch, heard_of, known = -1, False, False, False
    answered: dict[int, int] = {}
    for event in sorted(schedule(case)):
        leg = case.legs[event.leg]
        if event.time >= ends and event.kind != ANSWER:
            break
        if event.kind == CONNECT:
            answered[event.number] = CONNECT
            current, out_of_touch, heard_of = event.leg, leg.deposed, False
            if not leg.deposed:
                ends = event.time + case.timeout
        elif event.kind == ANSWER and answered.get(event.number) == CONNECT:
            rule.connected(event.sent, event.heard, case.timeout, new=not known)
            known = True
        elif event.kind == ANSWER and event.number in answered:
            rule.wrote(event.sent, event.heard)
        elif event.leg != current:
            continue
        elif event.kind == WRITE:
            heard_of = True
            if not out_of_touch or (leg.deposed and rule.by_sync):
                answered[event.number] = WRITE
        elif event.kind == REPORT:
            if heard_of and not out_of_touch:
                ends, heard_of = event.time + case.timeout, False
        elif event.kind == CUT:
            out_of_touch = True
    return ends


def violated(case: Case, make: Callable[[], Rule]) -> bool:
    """Return whether the client believes in a session that the leader has ended."""
    rule = make()
    return play(case, rule) < rule.deadline


# In parts of a timeout. Mostly at regular times, and not held up: that is how a session proves itself.
AFTER = (THIRD, THIRD, THIRD, THIRD, 0, 1 / 24, 1 / 12, 1 / 8, 1 / 6, QUARTER, 3 / 8, 1 / 2)
HELD_UP = (0, 0, 0, 0, 0, 1 / 24, 1 / 12, QUARTER, THIRD, 1 / 2)
PARTS = list(product(AFTER, HELD_UP, HELD_UP))
TIMEOUTS = [number * HALF for number in (4, 4, 4, 5, 6, 8, 9, 12, 20, 24)]  # ZooKeeper gives two ticks at least


def legs(timeout: int, deposed: st.SearchStrategy[bool]) -> st.SearchStrategy[Leg]:
    requests = st.sampled_from([Request(*(ceil(part * timeout) for part in parts)) for parts in PARTS])
    return st.builds(
        Leg,
        requests,
        st.lists(requests, max_size=4).map(tuple),
        st.tuples(st.integers(1, HALF), st.sampled_from([HALF, HALF - 1, HALF // 2])),
        st.sampled_from([None, 0, 0, 1, HALF // 2, -timeout // 3, -timeout]),
        deposed,
    )


def of(timeout: int) -> st.SearchStrategy[Case]:
    first = legs(timeout, st.just(False))  # who is no leader opens no session
    later = st.lists(legs(timeout, st.booleans()), max_size=2)
    return st.builds(lambda leg, more: Case(timeout, (leg, *more)), first, later)


CASES = st.sampled_from([of(timeout) for timeout in TIMEOUTS]).flatmap(lambda found: found)


AT_ONCE = Request(0)
NAMED = {
    "cut off right after a write, a third of the timeout after the write before": Case(
        9 * TICK, (Leg(AT_ONCE, (Request(3 * TICK + 1), Request(3 * TICK)), (HALF,), 0),)
    ),
    "a write is held up, and comes together with the next": Case(
        6 * TICK, (Leg(AT_ONCE, (Request(HALF + 1, 2 * TICK), Request(2 * TICK)), (HALF,), 0),)
    ),
    "taken up by a leader that is none any more": Case(
        3 * TICK, (Leg(AT_ONCE, (), (HALF,)), Leg(Request(2 * TICK), (Request(TICK),), (HALF,), None, True))
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_known_to_deceive_clients_does_not_deceive_a_proof(name: str) -> None:
    assert not violated(NAMED[name], Rule)


@settings(max_examples=20_000 if os.environ.get("HOLDFAST_VERIFY") else 1000, deadline=None)
@given(CASES)
def test_no_leader_has_ended_a_session_before_its_deadline(case: Case) -> None:
    assert not violated(case, Rule)


WEAKER: dict[str, Callable[[], Rule]] = {
    "sent + timeout": SentPlusTimeout,
    "a tick off": lambda: TickOff(TICK),
    "sent long ago, and held up": SentLongAgo,
    "counted from its answer": HeardLongAgo,
    "any connect": AnyConnect,
    "sync": Synced,
}


def search(cases: st.SearchStrategy[Case], rule: Callable[[], Rule]) -> None:
    """Look for a case that violates a rule.

    Raises: NoSuchExample if there is none.
    """
    # The cases are the same every time: those that are tried for the rule itself are not.
    found = settings(max_examples=10_000, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    find(cases, lambda case: violated(case, rule), settings=found)


@pytest.mark.control
@pytest.mark.parametrize("weaker", WEAKER)
def test_control_any_weaker_rule_is_violated(weaker: str) -> None:
    search(CASES, WEAKER[weaker])


@pytest.mark.control
def test_control_the_rule_needs_a_timeout_of_two_ticks() -> None:
    """As ZooKeeper gives them, unless its minSessionTimeout was lowered."""
    search(of(2 * HALF), Rule)


@pytest.mark.control
@pytest.mark.parametrize(
    ("name", "weaker"),
    list(zip(NAMED, ("a tick off", "sent long ago, and held up", "any connect"), strict=True)),
)
def test_control_it_would_deceive_the_rule_that_does_not_know_of_it(name: str, weaker: str) -> None:
    assert violated(NAMED[name], WEAKER[weaker])


THIRDS = 1200  # a timeout whose third, quarter and twelfth are whole numbers


@settings(deadline=None)
@given(st.lists(st.integers(0, THIRDS // 12), min_size=2, max_size=20))
def test_a_proof_every_third_leaves_a_third_at_any_time(delays: list[int]) -> None:
    """If each is answered within a twelfth. So a claim finds enough to count on, also if nothing was held for long."""
    proofs, now = Proofs(), 1000.0
    proofs.connected(now, now, THIRDS, new=True)
    for delay in delays:
        now += THIRDS / 3
        assert proofs.deadline - now >= THIRDS / 3 - 1e-6
        proofs.wrote(now, now + delay)


def test_a_session_that_was_taken_up_counts_on_that_with_the_next_write_and_not_before() -> None:
    proofs = Proofs()
    proofs.connected(0.0, 0.0, 9.0, new=True)
    assert proofs.deadline == 9.0
    proofs.connected(5.0, 5.1, 9.0, new=False)
    assert proofs.deadline == 9.0
    proofs.wrote(5.1, 5.2)
    assert proofs.deadline == 5.0 + 9.0


def test_however_often_it_is_asked_a_session_remembers_little_and_proves_as_much() -> None:
    proofs, step = Proofs(), 0.001
    proofs.connected(0.0, 0.0, 1.0, new=True)
    for number in range(1, 5000):
        now = number * step
        proofs.wrote(now, now)
        assert proofs.deadline - now > 1 - THIRD - 0.06
        assert len(proofs._answered) < 30
