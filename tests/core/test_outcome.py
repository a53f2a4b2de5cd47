"""What `once` records: the decoded result for everybody, or that there is none to record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.outcome import outcome_of, read_outcome

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values)
def test_a_result_comes_back_as_it_was(result: object) -> None:
    outcome = outcome_of(result)
    assert read_outcome(outcome.packed()) == outcome
    assert read_outcome(outcome.packed()).result("r") == result


@pytest.mark.parametrize(
    ("result", "decoded"),
    [((1, (2,)), [1, [2]]), ({1: "a"}, {"1": "a"}), ({None: True}, {"null": True}), ("\ud800", "\ud800")],
    ids=repr,
)
def test_everybody_gets_the_decoded_form(result: object, decoded: object) -> None:
    """The first caller, too: a result must not depend on who did the work."""
    assert outcome_of(result).result("r") == decoded
    assert read_outcome(outcome_of(result).packed()).result("r") == decoded


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


class Hostile(dict[str, int]):
    def items(self) -> Any:
        raise KeyError("not today")


@pytest.mark.parametrize(
    "result",
    [{1, 2}, object(), b"bytes", float("nan"), float("inf"), 10**5000, {(1, 2): 3}, circle(), deep(), Hostile(a=1)],
    ids=lambda result: type(result).__name__,
)
def test_a_result_that_cannot_be_written_down_is_recorded_as_completed(result: object) -> None:
    outcome = outcome_of(result)
    for found in (outcome, read_outcome(outcome.packed())):
        with pytest.raises(TypeError, match=r"'r' was completed, and its result cannot be recorded: .+; return what"):
            found.result("r")


def test_what_is_recorded_is_plain_ascii() -> None:
    """Any store can keep it."""
    packed = outcome_of("ü🔒\0\n").packed()
    assert packed.isascii()
    assert packed.isprintable()
    assert json.loads(packed)[1] is None
