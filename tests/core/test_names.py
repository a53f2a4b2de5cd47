"""Names and numbers: what is allowed, and errors with the value and the rule (law 13)."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.names import MIN_TTL, NAME_BYTES, check_flag, check_name, check_number, check_timeout, check_ttl


@given(st.text(min_size=1, max_size=NAME_BYTES))
def test_a_name_is_taken_as_it_is_or_refused(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = -1
    legal = 1 <= size <= NAME_BYTES and all(unicodedata.category(char) != "Cc" for char in name)
    if legal:
        assert check_name(name) == name  # never normalised
    else:
        with pytest.raises(ValueError, match="resource"):
            check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "a" * 512,
        "é" * 256,
        "😀" * 128,
        " ",
        "order:1/../2",
        "%00",
        "e\u0301",
        "\u200b",
        "\u202e",
        "a\u2028b",
        "🏳️‍🌈",
        "'; DROP TABLE claims; --",
        "*?[]{}",
    ],
)
def test_strange_names_that_are_legal(name: str) -> None:
    assert check_name(name) is name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "0 UTF-8 bytes"),
        ("a" * 513, "513 UTF-8 bytes"),
        ("é" * 257, "514 UTF-8 bytes"),
        ("😀" * 129, "516 UTF-8 bytes"),
        ("a\x00b", "control character"),
        ("a\nb", "control character"),
        ("a\tb", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\x9f", "control character"),
        ("\ud800", "surrogate"),
        ("a\udcffb", "surrogate"),
        (None, "None"),
        (b"bytes", "b'bytes'"),
        (7, "7"),
        (["a"], "['a']"),
    ],
)
def test_names_that_are_refused(name: object, said: str) -> None:
    with pytest.raises(ValueError, match="namespace") as caught:
        check_name(name, "namespace")
    assert said in str(caught.value)
    str(caught.value).encode()  # can be logged: no lone surrogate, and
    assert len(str(caught.value)) < 300  # no page full of it


def test_composed_and_decomposed_names_differ() -> None:
    assert check_name("é") != check_name("e\u0301")


NOT_NUMBERS = [True, False, "1", b"1", None, float("nan"), float("inf"), float("-inf"), -1, -0.001, 1j, [1], Decimal(1)]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
def test_numbers_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="io_timeout must be a finite number") as caught:
        check_number(value, "io_timeout")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.5, 10**9])
def test_numbers_that_are_taken(value: float) -> None:
    taken = check_number(value, "keep")
    assert taken == value
    assert type(taken) is float


@pytest.mark.parametrize("value", [10**400, Fraction(1, 2)], ids=["10**400", "1/2"])
def test_numbers_that_no_float_holds_are_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="ttl"):
        check_ttl(value)


@pytest.mark.parametrize("ttl", [*NOT_NUMBERS, 0, 0.499, MIN_TTL - 1e-9], ids=repr)
def test_a_ttl_is_half_a_second_at_least(ttl: object) -> None:
    with pytest.raises(ValueError, match="ttl") as caught:
        check_ttl(ttl)
    assert "0.5" in str(caught.value)


def test_the_shortest_ttl() -> None:
    assert check_ttl(0.5) == 0.5
    assert check_ttl(1) == 1.0


def test_a_timeout_may_be_none_or_zero() -> None:
    assert check_timeout(None) is None
    assert check_timeout(0) == 0.0
    for bad in (value for value in NOT_NUMBERS if value is not None):
        with pytest.raises(ValueError, match=r"timeout .*None"):
            check_timeout(bad)


@pytest.mark.parametrize("value", [0, 1, "True", None, 1.0])
def test_a_flag_is_a_bool(value: object) -> None:
    with pytest.raises(ValueError, match="fair must be True or False"):
        check_flag(value, "fair")
    assert check_flag(True, "fair") is True
    assert check_flag(False, "fair") is False
