"""One acquire as a machine: what it does next, and what it leaves behind. Whole schedules: tests/core/simulation."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from holdfast.core.acquisition import (
    LEAST_LEFT,
    OUTAGE,
    Acquisition,
    Action,
    Ask,
    AskAnew,
    Fail,
    Failure,
    Fate,
    GiveBack,
    Held,
    Limits,
    Look,
    Pause,
    Wait,
)
from holdfast.core.claim import Claim, Granted, Waiting
from holdfast.core.timing import LATENESS, local_deadline

TTL, IO, LIFE = 30.0, 1.0, 6.0
CLAIM = Claim("r", "c.1.x", ttl=TTL)
BUSY = Waiting(1, 12.0, None, 5)


def begin(timeout: float | None = None, *, detects: bool = False, claim: Claim = CLAIM) -> Acquisition:
    return Acquisition(claim, timeout, 100.0, Limits(IO, LIFE), detects)


def test_a_grant_is_held_from_before_the_question() -> None:
    one = begin()
    assert one.answered(Granted(7, TTL), 103.0) == Held(7, 100.0, local_deadline(100.0, TTL, TTL))


def test_busy_and_asked_once_leaves_nothing() -> None:
    one = begin(0)
    assert one.answered(BUSY, 100.1) == Fail(Failure.BUSY)
    assert one.leftover(100.1) is None


def test_a_waiter_asks_again_when_it_is_woken_and_to_keep_its_place() -> None:
    one = begin()
    assert one.answered(BUSY, 100.1) == Wait(BUSY, 100.0 + LIFE / 3)
    assert one.woken(None, 101.0) == Ask()
    assert one.answered(BUSY._replace(retry_after=0.5), 101.1) == Wait(BUSY._replace(retry_after=0.5), 101.5)


def test_a_wait_ends_with_the_timeout_and_the_claim_is_withdrawn() -> None:
    one = begin(1.0)
    assert one.answered(BUSY, 100.1) == Wait(BUSY, 101.0)
    assert one.woken(None, 101.01) == GiveBack()
    assert one.given_back(True, 101.02) == Fail(Failure.BUSY)
    assert one.leftover(101.02) is None


@pytest.mark.parametrize(("now", "action"), [(101.04, GiveBack()), (101.06, Fail(Failure.BUSY))])
def test_it_is_withdrawn_in_the_foreground_only_in_time(now: float, action: object) -> None:
    one = begin(1.0)
    one.answered(BUSY, 100.1)
    assert one.woken(None, now) == action
    assert one.leftover(now) is not None


def test_a_withdrawal_without_an_answer_is_left_to_the_background() -> None:
    one = begin(1.0)
    one.answered(BUSY, 100.1)
    one.woken(None, 101.0)
    assert one.given_back(False, 102.0) == Fail(Failure.BUSY)
    assert one.leftover(102.0) == (102.0 + TTL, -inf)


def test_a_grant_that_was_handed_over_is_held_from_now() -> None:
    one = begin()
    one.answered(BUSY, 100.1)
    assert one.woken(Granted(9, TTL), 104.0) == Held(9, 104.0, local_deadline(100.0, TTL, TTL))


def test_a_grant_that_was_handed_over_late_or_cannot_be_renewed_is_asked_for() -> None:
    late, detached = begin(), begin(claim=CLAIM._replace(detached=True))
    for one, now in ((late, 100.0 + TTL / 2), (detached, 101.0)):
        one.answered(BUSY, 100.1)
        assert one.woken(Granted(9, TTL), now) == Ask()


@pytest.mark.parametrize("took", [TTL, TTL * (1 - LEAST_LEFT)])
def test_a_grant_that_is_over_or_nearly_is_given_back_and_asked_for_under_a_new_name(took: float) -> None:
    one = begin()
    assert one.answered(Granted(7, TTL), 100.0 + took) == GiveBack()
    assert one.given_back(True, 131.0) == AskAnew()
    assert one.leftover(131.0) is None
    new = CLAIM._replace(holder="c.1.y")
    assert one.renamed(new, 131.0) == Ask()
    assert one.claim is new
    assert isinstance(one.answered(Granted(8, TTL), 131.1), Held)


def test_a_grant_that_came_too_late_for_the_timeout_fails() -> None:
    one = begin(5.0)
    assert one.answered(Granted(7, TTL), 131.0) == Fail(Failure.TOO_SLOW)
    assert one.leftover(131.0) is not None
    slow = begin(40.0)
    slow.answered(Granted(7, TTL), 131.0)
    assert slow.given_back(False, 132.0) == Fail(Failure.TOO_SLOW)  # a late release would end what is granted next
    assert slow.leftover(132.0) is not None


def test_silence_is_tolerated_until_the_timeout() -> None:
    one, now, pauses = begin(5.0), 100.0, 0
    while isinstance(action := one.silent(now), Pause):
        assert now < action.until < 105.0
        pauses += 1
        now = action.until
        assert one.rested(now) == Ask()
        now += 0.2
    assert action == Fail(Failure.UNAVAILABLE)
    assert pauses > 3
    assert now < 105.0 + IO


def test_without_a_timeout_silence_is_tolerated_for_a_few_exchanges() -> None:
    one, now = begin(), 100.0
    while isinstance(action := one.silent(now), Pause):
        one.rested(now := action.until)
    assert action == Fail(Failure.UNAVAILABLE)
    assert 100.0 + (OUTAGE - 1) * IO < now < 100.0 + (OUTAGE + 1) * IO


def test_an_answer_ends_an_outage() -> None:
    one = begin()
    for _ in range(4):
        one.silent(101.0)
    one.answered(BUSY, 102.5)
    assert isinstance(one.silent(102.9), Pause)


def test_a_question_that_went_unanswered_may_still_arrive() -> None:
    one = begin()
    one.silent(101.0)
    one.rested(101.02)
    held = one.answered(Granted(7, TTL), 101.1)
    assert isinstance(held, Held)
    assert one.strays_until == 100.0 + IO + LATENESS


def test_a_wait_that_went_unanswered_leaves_no_strays() -> None:
    one = begin()
    one.answered(BUSY, 100.1)
    one.silent(101.0)
    assert one.strays_until == -inf
    assert one.leftover(101.0) == (101.0 + TTL, -inf)


@pytest.mark.parametrize(
    ("fate", "leaves"),
    [(Fate.NOTHING, False), (Fate.ASKED, True), (Fate.IN_LINE, True), (Fate.GRANTED, True)],
)
def test_what_is_left_follows_from_what_the_store_may_have(fate: Fate, leaves: bool) -> None:
    one = begin()
    one.fate = fate
    assert (one.leftover(100.5) is not None) is leaves


def test_what_is_left_lasts_until_it_has_ended_anyway() -> None:
    short = begin(claim=CLAIM._replace(ttl=1.0))
    left = short.leftover(100.5)  # while the first question is under way
    assert left == (100.0 + IO + LATENESS + LIFE, 100.0 + IO + LATENESS)


def test_a_deadlock_is_looked_for_at_every_answer_and_withdrawn() -> None:
    one = begin(detects=True)
    assert one.answered(BUSY, 100.1) == Look()
    assert isinstance(one.looked(False, 100.2), Wait)
    one.woken(None, 101.0)
    assert one.answered(BUSY, 101.1) == Look()
    assert one.looked(True, 101.2) == GiveBack()
    assert one.given_back(True, 101.3) == Fail(Failure.DEADLOCK)


@pytest.mark.parametrize(
    "step",
    [
        lambda one: one.woken(None, 101.0),
        lambda one: one.rested(101.0),
        lambda one: one.looked(False, 101.0),
        lambda one: one.silent(101.0),
        lambda one: one.answered(BUSY, 101.0),
    ],
    ids=["woken", "rested", "looked", "silent", "answered"],
)
def test_a_client_that_is_closed_ends_it_at_the_next_step(step: Callable[[Acquisition], Action]) -> None:
    one = begin()
    one.answered(BUSY, 100.1)
    one.stop(Failure.CLOSED)
    assert step(one) == Fail(Failure.CLOSED)
    assert one.leftover(101.0) is not None


def test_a_grant_for_a_client_that_is_closed_is_given_back() -> None:
    one = begin()
    one.stop(Failure.CLOSED)
    assert one.answered(Granted(7, TTL), 100.1) == GiveBack()
    assert one.given_back(True, 100.2) == Fail(Failure.CLOSED)
    assert one.leftover(100.2) is None
