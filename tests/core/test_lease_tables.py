"""The tables of a lease's life and of the end of a `with`, against DESIGN sections 2 and 5."""

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claim import Claim, Lost, Renewal, Renewed, Unknown
from holdfast.core.lease import (
    EXITS,
    HELD,
    RELEASED,
    TRANSITIONS,
    Ending,
    Fact,
    Hold,
    Raise,
    State,
    outcome_of,
    why_late,
)
from holdfast.core.timing import retry_time
from holdfast.keeper.signals import Latch

LIVE = (State.HELD, State.AT_RISK)
FINAL = (State.LOST, State.RELEASED)


def after(state: State, facts: list[Fact]) -> State:
    for fact in facts:
        state = TRANSITIONS[state][fact]
    return state


def test_every_state_knows_every_fact() -> None:
    assert set(TRANSITIONS) == set(State)
    for state in State:
        assert set(TRANSITIONS[state]) == set(Fact), state


@given(st.sampled_from(FINAL), st.lists(st.sampled_from(Fact)))
def test_lost_and_released_are_final_but_for_one_answer(state: State, facts: list[Fact]) -> None:
    """Only the store's own word, in answer to the release, shows that what was released had been lost before."""
    assert after(state, facts) is (State.LOST if Fact.NOT_OURS in facts else state)


@given(st.lists(st.sampled_from(Fact)))
def test_a_lease_is_lost_or_released_by_the_first_fact_that_ends_it(facts: list[Fact]) -> None:
    ends = {
        Fact.GONE: State.LOST,
        Fact.LATE: State.LOST,
        Fact.RELEASED: State.RELEASED,
        Fact.DROPPED: State.RELEASED,
        Fact.NOT_OURS: State.LOST,
    }
    first = next((fact for fact in facts if fact in ends), None)
    state = after(State.HELD, facts)
    if first is not None:
        assert state is (State.LOST if Fact.NOT_OURS in facts else ends[first])
    elif facts:
        assert state is (State.HELD if facts[-1] is Fact.RENEWED else State.AT_RISK)
    else:
        assert state is State.HELD


@pytest.mark.parametrize("state", LIVE)
def test_unknown_is_not_yet_loss(state: State) -> None:
    assert TRANSITIONS[state][Fact.UNKNOWN] is State.AT_RISK


def test_every_end_of_a_with_is_decided() -> None:
    assert set(EXITS) == set(product(Ending, [False, True]))


# DESIGN section 2, "How a `with` ends", line by line.
@pytest.mark.parametrize(
    ("ending", "lost", "leaves"),
    [
        (Ending.RETURN, True, Raise.LEASE_LOST),
        (Ending.ERROR, True, Raise.BODY_WITH_NOTE),
        (Ending.OUR_CANCEL, True, Raise.LEASE_LOST),
        (Ending.OUTER, True, Raise.BODY),
        (Ending.OUTER, False, Raise.BODY),
        # What goes without saying there: a lease that was not lost adds nothing.
        (Ending.RETURN, False, Raise.NOTHING),
        (Ending.ERROR, False, Raise.BODY),
        # We cancel on loss alone.
        (Ending.OUR_CANCEL, False, Raise.LEASE_LOST),
    ],
)
def test_a_with_ends_as_designed(ending: Ending, lost: bool, leaves: Raise) -> None:
    assert EXITS[ending, lost] is leaves


class _Keeper:
    """What a hold needs of its keeper."""

    def __init__(self, inherited: bool = False) -> None:
        self.inherited = inherited
        self.dropped: list[Hold] = []
        self.wake = Latch()


def hold(keeper: _Keeper | None = None, *, ttl: float = 30.0, renew_until: float = inf) -> Hold:
    return Hold(keeper or _Keeper(), Claim("r", "h", ttl=ttl), 7, 100.0, 100.0 + ttl, 1, 0.0, renew_until)


@given(st.lists(st.sampled_from(Fact)))
def test_a_hold_goes_through_the_table_and_says_when_it_ends(facts: list[Fact]) -> None:
    one, state, ends = hold(), State.HELD, 0
    for fact in facts:
        ended = one.apply(fact, f"because {fact}")
        assert one.state is TRANSITIONS[state][fact]
        assert ended is (one.state is not state and one.state in FINAL)
        ends += ended
        state = one.state
    assert ends <= 2  # released, and then it turns out that it was lost
    assert bool(one.cause) is (state is State.LOST)


@pytest.mark.parametrize(
    ("answer", "fact", "deadline"),
    [
        (Renewed(30.0), Fact.RENEWED, 110.0 + 30.0 * 0.99 - 0.002),
        (Renewed(10.0), Fact.RENEWED, 130.0),  # what the holder knows already is never taken back
        (Lost(), Fact.GONE, 130.0),
        (Unknown("cut off"), Fact.UNKNOWN, 130.0),
    ],
)
def test_only_renewed_moves_the_deadline(answer: Renewal, fact: Fact, deadline: float) -> None:
    outcome = outcome_of(hold(), answer, 110.0, 111.0)
    assert outcome.fact is fact
    assert outcome.deadline == pytest.approx(deadline)
    assert outcome.due <= outcome.deadline


@pytest.mark.parametrize("answer", [Renewed(30.0), Lost(), Unknown()])
def test_an_answer_after_the_deadline_comes_too_late(answer: Renewal) -> None:
    assert outcome_of(hold(), answer, 110.0, 130.0).fact is Fact.LATE


@pytest.mark.parametrize(
    ("before", "renew_until", "blocked", "said"),
    [
        (State.HELD, -inf, 0.0, "it is not renewed"),
        (State.HELD, 120.0, 0.0, "max_hold of 20 s has passed"),
        (State.AT_RISK, inf, 0.0, "no renewal was answered within its ttl of 30 s"),
        (State.AT_RISK, inf, 25.0, "the event loop was blocked for 25.0 s"),
        (State.HELD, inf, 0.0, "this process did not run for longer than its ttl of 30 s"),
    ],
)
def test_a_loss_says_why(before: State, renew_until: float, blocked: float, said: str) -> None:
    assert said in why_late(hold(renew_until=renew_until), before, 131.0, blocked)


def test_a_hold_that_is_dropped_is_noted_and_nothing_else_happens() -> None:
    keeper = _Keeper()
    hold(keeper)
    assert [one.state for one in keeper.dropped] == [State.HELD]
    ended, inherited = hold(keeper := _Keeper()), _Keeper(inherited=True)
    ended.apply(Fact.RELEASED)
    del ended
    hold(inherited)
    assert keeper.dropped == inherited.dropped == []


def test_a_retry_after_an_extension_without_an_answer_goes_by_what_the_store_has_confirmed() -> None:
    """By the longer ttl it would come after the old deadline."""
    hold = Hold(None, Claim("r", "h", ttl=6.0), 1, 0.0, 5.9, 0, 0.0, inf)
    hold.state = HELD
    hold.claim = hold.claim._replace(ttl=600.0)
    outcome = outcome_of(hold, Unknown(), 1.0, 2.0)
    assert outcome.due == retry_time(2.0, 6.0)
    hold.state = RELEASED
