"""What `once` records: the decoded result for everybody, or that there is none to record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claim import Record
from holdfast.core.outcome import FORGOTTEN, Outcome, outcome_of, read_outcome
from holdfast.core.register import MOST_BYTES
from holdfast.errors import StoreError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def read(value: str) -> Outcome:
    found = read_outcome(Record(value, 7), "r")
    assert found is not None
    return found


@given(values)
def test_a_result_comes_back_as_it_was(result: object) -> None:
    outcome = outcome_of(result)
    assert read(outcome.packed()) == outcome
    assert read(outcome.packed()).result("r") == result


@pytest.mark.parametrize(
    ("result", "decoded"),
    [((1, (2,)), [1, [2]]), ({1: "a"}, {"1": "a"}), ({None: True}, {"null": True}), ("\ud800", "\ud800")],
    ids=repr,
)
def test_everybody_gets_the_decoded_form(result: object, decoded: object) -> None:
    """The first caller, too: a result must not depend on who did the work."""
    assert outcome_of(result).result("r") == decoded
    assert read(outcome_of(result).packed()).result("r") == decoded


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
    for found in (outcome, read(outcome.packed())):
        with pytest.raises(TypeError, match=r"'r' was completed, and its result cannot be recorded: .+; return what"):
            found.result("r")


def test_what_is_recorded_is_plain_ascii() -> None:
    """Any store can keep it."""
    packed = outcome_of("ü🔒\0\n").packed()
    assert packed.isascii()
    assert packed.isprintable()
    assert json.loads(packed)[1] is None


def test_a_result_that_is_too_long_for_a_register_is_recorded_as_completed() -> None:
    long = "x" * (MOST_BYTES - 14)  # with its own quotes, those around them, escaped, and what follows
    assert len(outcome_of(long).packed()) == MOST_BYTES
    assert read(outcome_of(long).packed()).result("r") == long
    outcome = outcome_of(long + "x")
    assert len(outcome.packed()) < 200
    with pytest.raises(TypeError, match="it takes 262145 bytes, and at most 262144 are kept"):
        outcome.result("r")


def test_an_error_that_tells_too_much_is_cut() -> None:
    class Talkative(dict[str, int]):
        def items(self) -> Any:
            raise KeyError("x" * 10**6)

    assert len(outcome_of(Talkative(a=1)).packed()) < 2000


def test_what_is_forgotten_is_not_there() -> None:
    assert read_outcome(None, "r") is None
    assert read_outcome(Record(FORGOTTEN, 7), "r") is None


@pytest.mark.parametrize("value", ["x", "null", "5", '"ab"', "[]", '["a"]', '["a", null, 1]', "[1, null]", '["a", 1]'])
def test_what_once_did_not_write_is_refused(value: str) -> None:
    with pytest.raises(StoreError, match=r"register 'r' has a value that `once` did not write \(token 7\)"):
        read_outcome(Record(value, 7), "r")
