"""Keys of calls: different arguments never share one, and what would let them is refused when it is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, Flag, IntEnum
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.keys import parse_template

NAMES = ("x", "y")


class Colour(Enum):
    RED = "a:b"
    BLUE = "b"


class Size(IntEnum):
    SMALL = 1


class Access(Flag):
    READ = 1
    WRITE = 2


def words(alphabet: str, most: int) -> Iterator[str]:
    """All texts of up to so many of these characters."""
    for size in range(most + 1):
        yield from map("".join, product(alphabet, repeat=size))


def fill(template: str, x: object, y: object = "") -> str:
    return parse_template(template, NAMES).fill({"x": x, "y": y})


# -- no two calls share a key


@pytest.mark.parametrize("between", [":", "/", " ", "é", "a:", ":a", "%3A:", "{{", "}}", "a{{b", "::"])
def test_different_arguments_have_different_keys(between: str) -> None:
    """Tried with all short texts of the characters that could be taken for a separator or for an escape."""
    values = list(words("a:%3é{", 2))
    template = parse_template(f"job/{{x}}{between}{{y}}", NAMES)
    keys = {template.fill({"x": x, "y": y}) for x, y in product(values, values)}
    assert len(keys) == len(values) ** 2


@given(st.text(), st.text(), st.text(), st.text())
def test_different_texts_have_different_keys(x: str, y: str, other_x: str, other_y: str) -> None:
    same = fill("a:{x}:{y}", x, y) == fill("a:{x}:{y}", other_x, other_y)
    assert same is ((x, y) == (other_x, other_y))


@pytest.mark.parametrize("between", ["", "a", "-", "_", ".", "a1"])
def test_a_template_that_would_mix_arguments_up_is_refused(between: str) -> None:
    with pytest.raises(ValueError, match="put a ':' or a '/' between two names"):
        parse_template(f"{{x}}{between}{{y}}", NAMES)
    # The control: two calls would share a key.
    values = list(words("a1-_.", 2))
    keys = [x + between + y for x, y in product(values, values)]
    assert len(set(keys)) < len(keys)


def test_plain_formatting_would_mix_arguments_up() -> None:
    """The control of the escapes."""
    assert "{x}:{y}".format(x="a:b", y="c") == "{x}:{y}".format(x="a", y="b:c")
    assert fill("{x}:{y}", "a:b", "c") != fill("{x}:{y}", "a", "b:c")


dates = st.dates() | st.datetimes(timezones=st.none() | st.sampled_from([UTC, timezone(timedelta(hours=2))]))


@given(st.one_of(*(st.tuples(kind, kind) for kind in (st.integers(), st.uuids(), st.dates(), dates, st.booleans()))))
def test_different_values_of_one_type_have_different_keys(pair: tuple[object, object]) -> None:
    one, other = pair
    if one != other:
        assert fill("{x}", one) != fill("{x}", other)


# -- what they look like


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("plain-1._~", "k:plain-1._~"),
        ("a:b/c d%", "k:a%3Ab%2Fc%20d%25"),
        ("ü", "k:%C3%BC"),
        ("", "k:"),
        (-17, "k:-17"),
        (True, "k:True"),
        (UUID(int=5), "k:00000000-0000-0000-0000-000000000005"),
        (date(2024, 2, 29), "k:2024-02-29"),
        (datetime(2024, 2, 29, 13, tzinfo=UTC), "k:2024-02-29T13%3A00%3A00%2B00%3A00"),
        (Colour.RED, "k:RED"),
        (Size.SMALL, "k:SMALL"),
        (Access.READ | Access.WRITE, "k:READ%7CWRITE"),
    ],
    ids=repr,
)
def test_a_value_has_one_text(value: object, key: str) -> None:
    assert fill("k:{x}", value) == key


def test_braces_are_literal_when_doubled() -> None:
    assert fill("{{x}}-{x}", 5) == "{x}-5"
    assert fill("a{{b{x}", 5) == "a{b5"  # one name needs nothing before it
    assert fill("{x}", 5) == "5"
    assert fill("nothing", 5) == "nothing"
    assert fill("{x}:{x}!", 5) == "5:5!"


@pytest.mark.parametrize("value", [1.5, None, b"a", ("a",), ["a"], object(), timedelta(1), Access(0)], ids=type)
def test_a_value_without_a_text_of_its_own_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"x must be a str, int, UUID, date or Enum .* use key= for anything else"):
        fill("{x}", value)


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        (5, "must be a str"),
        (None, "must be a str"),
        ("{", "cannot be parsed"),
        ("{x", "cannot be parsed"),
        ("}", "cannot be parsed"),
        ("{}", "plain {names} only"),
        ("{0}", "plain {names} only"),
        ("{x.y}", "plain {names} only"),
        ("{x[0]}", "plain {names} only"),
        ("{x!r}", "plain {names} only"),
        ("{x:>5}", "plain {names} only"),
        ("{z}", "names 'z', which is no parameter; there are: x, y"),
    ],
    ids=repr,
)
def test_a_bad_template_is_refused_with_the_rule(template: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        parse_template(template, NAMES)


def test_a_function_without_parameters_has_none_to_name() -> None:
    with pytest.raises(ValueError, match="there are: none"):
        parse_template("{x}", ())


def test_a_template_tells_what_it_names() -> None:
    template = parse_template("{x}:{y}/{x}{{z}}")
    assert template.names == ["x", "y", "x"]
    assert template.fill({"x": 1, "y": "a:b"}) == "1:a%3Ab/1{z}"
