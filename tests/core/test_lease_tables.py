"""The tables of a lease's life and of the end of a `with`, against DESIGN sections 2 and 5."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import EXITS, TRANSITIONS, Ending, Fact, Raise, State

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
def test_lost_and_released_are_final(state: State, facts: list[Fact]) -> None:
    assert after(state, facts) is state


@given(st.lists(st.sampled_from(Fact)))
def test_a_lease_is_lost_or_released_by_the_first_fact_that_ends_it(facts: list[Fact]) -> None:
    ends = {Fact.GONE: State.LOST, Fact.LATE: State.LOST, Fact.RELEASED: State.RELEASED}
    first = next((fact for fact in facts if fact in ends), None)
    state = after(State.HELD, facts)
    if first is not None:
        assert state is ends[first]
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
