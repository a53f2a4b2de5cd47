"""What is due when: against a model that looks at everything, every time."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.agenda import EARLY, Agenda, Orphan
from holdfast.core.claim import Claim
from holdfast.core.lease import LIVE, Fact, Hold
from holdfast.core.timing import RENEW_AT, RENEW_BATCH, RENEW_LEAST, backoff
from holdfast.keeper.signals import Latch


class Keeper:
    """What a hold needs of its keeper."""

    inherited = True
    dropped: list[Any] = []  # noqa: RUF012 (nobody looks at it)
    wake = Latch()


def hold(now: float = 0.0, ttl: float = 30.0, renew_until: float = inf) -> Hold:
    return Hold(Keeper(), Claim("r", "h", ttl=ttl), 1, now, now + ttl, 1, 0.0, renew_until)


def test_a_hold_is_renewed_when_a_third_is_over_and_looked_at_again_at_its_deadline() -> None:
    agenda, one = Agenda(1.0), hold()
    agenda.fresh.append(one.ref)
    assert agenda.step(0.0).next == pytest.approx(10.0)
    plan = agenda.step(10.0)
    assert [batch.holds for batch in plan.renew] == [[one]]
    assert one.renewing
    assert plan.next == 30.0
    assert agenda.step(20.0).renew == []  # one renewal at a time
    assert agenda.step(30.0).lost == [one]


def test_what_has_come_and_gone_costs_nothing() -> None:
    agenda = Agenda(1.0)
    for _ in range(1000):
        one = hold()
        agenda.fresh.append(one.ref)
        one.apply(Fact.RELEASED)
    assert agenda.step(0.0).next == inf
    assert not agenda


def test_a_loss_that_nobody_told_is_found() -> None:
    agenda, one = Agenda(1.0), hold()
    agenda.fresh.append(one.ref)
    agenda.step(0.0)
    one.apply(Fact.LATE)
    assert agenda.step(10.0).lost == [one]
    assert agenda.step(40.0).lost == []


def test_a_hold_that_was_told_or_forgotten_is_not_looked_at() -> None:
    agenda, told, dropped = Agenda(1.0), hold(), hold()
    agenda.fresh.extend([told.ref, dropped.ref])
    agenda.step(0.0)
    told.apply(Fact.LATE)
    told.told = True
    del dropped
    assert agenda.step(50.0) == ([], [], [], inf)


def test_those_that_are_due_soon_join_the_batch() -> None:
    agenda, first, soon, later = Agenda(1.0), hold(0.0), hold(EARLY * 0.9), hold(EARLY * 2)
    agenda.fresh.extend([first.ref, soon.ref, later.ref])
    (batch,) = agenda.step(10.0).renew
    assert batch.holds == [first, soon]
    assert not later.renewing


def test_nothing_goes_out_early_alone() -> None:
    agenda, soon = Agenda(1.0), hold(EARLY / 2)
    agenda.fresh.append(soon.ref)
    assert agenda.step(10.0).renew == []


@pytest.mark.parametrize(("ttl", "limit"), [(0.5, 0.5 * 2 / 9), (1.0, 2 / 9), (30.0, 1.0), (3600.0, 1.0)])
def test_a_renewal_may_take_a_third_of_what_is_left(ttl: float, limit: float) -> None:
    agenda, one = Agenda(1.0), hold(ttl=ttl)
    agenda.fresh.append(one.ref)
    (batch,) = agenda.step(ttl * RENEW_AT).renew
    assert batch.limit == pytest.approx(limit)


def test_a_renewal_has_some_time_in_any_case() -> None:
    agenda, one = Agenda(1.0), hold()
    one.due = 29.99
    agenda.fresh.append(one.ref)
    (batch,) = agenda.step(29.99).renew
    assert batch.limit == RENEW_LEAST


def test_one_that_is_urgent_does_not_hurry_the_others() -> None:
    agenda, calm, urgent = Agenda(1.0), [hold() for _ in range(3)], hold(now=9.9, ttl=0.5)
    urgent.due = 10.0
    agenda.fresh.extend(one.ref for one in (*calm, urgent))
    batches = agenda.step(10.0).renew
    assert [batch.holds for batch in batches] == [[urgent], calm]
    assert batches[0].limit < 0.15 < batches[1].limit == 1.0


def test_batches_are_no_larger_than_they_may_be() -> None:
    agenda, many = Agenda(1.0), [hold() for _ in range(2 * RENEW_BATCH + 1)]
    agenda.fresh.extend(one.ref for one in many)
    assert [len(batch.holds) for batch in agenda.step(10.0).renew] == [RENEW_BATCH, RENEW_BATCH, 1]


def test_max_hold_ends_the_renewals() -> None:
    agenda, one = Agenda(1.0), hold(renew_until=5.0)
    agenda.fresh.append(one.ref)
    assert agenda.step(10.0).renew == []
    assert agenda.step(30.0).lost == [one]


def test_one_that_is_never_renewed_is_looked_at_at_its_deadline() -> None:
    agenda, one = Agenda(1.0), hold(renew_until=-inf)
    agenda.fresh.append(one.ref)
    assert agenda.step(0.0).next == 30.0


def test_an_orphan_is_tried_again_until_it_has_ended_anyway() -> None:
    orphan = Orphan("r", "h", 0.0, until=1.0)
    dues = []
    now = 0.0
    while orphan.unanswered(now):
        dues.append(orphan.due - now)
        now = orphan.due
    assert dues == pytest.approx([backoff(n) for n in range(len(dues))])
    assert 3 < len(dues) < 10


def test_an_orphan_with_strays_is_released_once_more() -> None:
    orphan = Orphan("r", "h", 0.0, until=60.0, strays_until=5.0)
    assert orphan.answered(1.0)
    assert orphan.due == 5.0
    assert not orphan.answered(5.0)
    assert not Orphan("r", "h", 0.0, until=60.0).answered(1.0)


def test_the_shortest_ttl_is_that_of_what_is_kept() -> None:
    agenda, short, long = Agenda(1.0), hold(ttl=2.0), hold(ttl=300.0)
    agenda.fresh.extend([short.ref, long.ref])
    agenda.step(0.0)
    assert agenda.shortest == 2.0
    short.apply(Fact.RELEASED)
    long.apply(Fact.RELEASED)
    agenda.step(400.0)
    agenda.fresh.append((later := hold(400.0, ttl=60.0)).ref)
    agenda.step(401.0)
    assert agenda.shortest == 60.0
    assert later.state in LIVE


Step = tuple[str, float]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0.5, 60.0)),
        st.tuples(st.just("pass"), st.floats(0.0, 40.0)),
        st.tuples(st.just("answer"), st.integers(0, 20).map(float)),
        st.tuples(st.just("release"), st.integers(0, 20).map(float)),
    ),
    max_size=40,
)


@given(steps)
def test_nothing_is_missed_and_nothing_is_done_twice(story: list[Step]) -> None:
    """Whatever comes and goes: what is due is found, and the next look is never too late."""
    agenda, now, holds, under_way = Agenda(1.0), 0.0, list[Hold](), list[Hold]()
    for what, number in story:
        if what == "add":
            holds.append(hold(now, number))
            agenda.fresh.append(holds[-1].ref)
        elif what == "pass":
            now += number
        elif what == "answer" and under_way:
            one = under_way.pop(int(number) % len(under_way))
            one.renewing = False
            if one.state in LIVE and now < one.deadline:
                one.deadline, one.due = now + one.claim.ttl, now + one.claim.ttl * RENEW_AT
                agenda.fresh.append(one.ref)
        elif what == "release" and holds:
            holds.pop(int(number) % len(holds)).apply(Fact.RELEASED)
        late = [one for one in holds if one.state in LIVE and now >= one.deadline]
        due = [one for one in holds if one.state in LIVE and one not in late and not one.renewing and one.due <= now]
        plan = agenda.step(now)
        assert sorted(map(id, plan.lost)) == sorted(map(id, late))
        sent = [one for batch in plan.renew for one in batch.holds]
        assert {id(one) for one in due} <= {id(one) for one in sent}
        assert len(sent) == len({id(one) for one in sent})
        assert not any(one in under_way for one in sent)
        under_way += sent
        for one in plan.lost:
            one.apply(Fact.LATE)
            one.told = True
            holds.remove(one)
        live = [one for one in holds if one.state in LIVE]
        assert plan.next <= min((one.deadline if one.renewing else one.due for one in live), default=inf)
        assert plan.next > now or not live


@given(st.integers(1, 400))
def test_renewals_by_hand_do_not_fill_the_heap(count: int) -> None:
    agenda, one = Agenda(1.0), hold()
    agenda.fresh.append(one.ref)
    for number in range(count):
        one.deadline, one.due = 30.0 + number, 10.0 + number
        agenda.fresh.append(one.ref)
        agenda.step(float(number) / 10)
    assert len(agenda._heap) <= 2
