"""The fenced register against a naive one, which remembers everything and computes each answer from that."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claim import Record
from holdfast.core.fence import Fence, Seen
from holdfast.core.register import Register
from holdfast.errors import StaleToken


class Visit(NamedTuple):
    """Somebody comes with a fence, `after` seconds after the one before: to read, or to write for `keep` seconds."""

    token: int
    shared: bool
    after: float
    keep: float | None  # None: a read


class Naive:
    """All visits that were let in, with their times."""

    def __init__(self) -> None:
        self.let_in: list[tuple[float, Visit]] = []

    def admits(self, visit: Visit) -> bool:
        return all(visit.token >= was.token for _, was in self.let_in if not (visit.shared and was.shared))

    def value(self, now: float) -> Record | None:
        writes = [(at, was) for at, was in self.let_in if was.keep is not None]
        if not writes:
            return None
        at, last = writes[-1]
        assert last.keep is not None
        return Record(f"by {last.token}", last.token) if at + last.keep > now else None


visits = st.lists(
    st.builds(
        Visit,
        st.integers(1, 6),
        st.booleans(),
        st.sampled_from([0.0, 1.0, 3.0]),
        st.sampled_from([None, 1.0, 2.0, inf]),
    ),
    max_size=20,
)


def visited(register: Register, visit: Visit, now: float) -> Register:
    fence = Fence("n", "r", visit.token, visit.shared)
    if visit.keep is None:
        return register.entered(fence, now)
    return register.written(f"by {visit.token}", fence, now + visit.keep)


@given(visits)
def test_a_register_is_what_a_naive_one_is(story: list[Visit]) -> None:
    register, naive, now = Register(), Naive(), 100.0
    for visit in story:
        now += visit.after
        if naive.admits(visit):
            register = visited(register, visit, now)
            naive.let_in.append((now, visit))
        else:
            with pytest.raises(StaleToken):
                visited(register, visit, now)
        for later in (0.0, 0.999, 1.0, 5.0):
            assert register.read(now + later) == naive.value(now + later)
        assert register.seen.newest == max((was.token for _, was in naive.let_in), default=0)


@given(visits)
def test_the_numbers_are_not_older_than_the_last_visit(story: list[Visit]) -> None:
    """A store forgets a register by its `expires`: who has just entered must not be forgotten with an old value."""
    register, now = Register(), 100.0
    for visit in story:
        now += visit.after
        try:
            register = visited(register, visit, now)
        except StaleToken:
            continue
        assert register.expires >= now


def test_the_fence_outlives_the_value() -> None:
    register = Register().written("v", Fence("n", "r", 20), 110.0)
    assert register.read(109.0) == Record("v", 20)
    assert register.read(110.0) is None
    with pytest.raises(StaleToken, match="19"):
        register.written("old", Fence("n", "r", 19), 200.0)


def test_entering_touches_no_value() -> None:
    empty = Register().entered(Fence("n", "r", 20), 100.0)
    assert empty.read(100.0) is None
    assert empty.seen == Seen(20, 20)
    full = Register().written("v", Fence("n", "r", 10), inf).entered(Fence("n", "r", 20), 100.0)
    assert full.read(1e9) == Record("v", 10)
    with pytest.raises(StaleToken):
        full.written("late", Fence("n", "r", 19), inf)
