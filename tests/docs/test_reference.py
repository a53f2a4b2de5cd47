"""Everything public explains its arguments and fields, so that help(), an editor and docs/reference.md can tell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import events, stores
from holdfast._sync.lock import LockOptions
from holdfast._sync.once import Once
from tests.docs import pages, reference

KINDS = {**{name: kind for kind, name in reference.shown().items()}, "AsyncStore": stores.AsyncStore}
# What users make themselves. Everything else comes from a client, and its docstring says from where.
MADE_BY_USERS = ("Client", "LockError")


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function and method, in both flavours."""
    for module in (holdfast, holdfast.aio, holdfast.observe, stores):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif inspect.isclass(value) and not issubclass(value, BaseException | events.Event):
                for member, method in reference.members(value).items():
                    if not isinstance(method, property):
                        yield f"{module.__name__}.{name}.{member}", method
    for member, method in reference.members(Once).items():
        yield f"Once.{member}", method


FUNCTIONS = dict(functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_explained(name: str) -> None:
    doc = reference.parse(FUNCTIONS[name])
    assert doc.paragraphs, f"{name} has no docstring"
    missing = reference.unexplained(FUNCTIONS[name], doc)
    assert not missing, (
        f"the docstring of {name} does not explain {missing}: add a line `name: what it means, default, cost`"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_explained_that_is_not_there(name: str) -> None:
    there = set(inspect.signature(FUNCTIONS[name]).parameters)
    assert reference.parse(FUNCTIONS[name]).names <= there


@pytest.mark.parametrize("name", KINDS)
def test_every_class_and_field_is_explained(name: str) -> None:
    doc = reference.parse(KINDS[name])
    assert doc.paragraphs, f"{name} has no docstring"
    assert doc.names >= set(reference.fields(KINDS[name])), f"{name} does not explain all of its fields"


@pytest.mark.parametrize("name", MADE_BY_USERS)
def test_arguments_of_a_constructor_are_explained(name: str) -> None:
    assert reference.unexplained(KINDS[name], reference.parse(KINDS[name])) == []


@pytest.mark.parametrize("name", reference.LOCKS)
def test_what_a_client_makes_says_so(name: str) -> None:
    text = reference.parse(KINDS[name]).paragraphs[0]
    maker = text.partition("made by `Client.")[2].partition("`")[0]
    assert callable(getattr(holdfast.Client, maker)), f"{name} does not say which method makes it"


def test_the_options_of_every_lock_are_explained_at_lock() -> None:
    explained = reference.parse(holdfast.Client.lock).names
    assert set(LockOptions.__annotations__) == explained - {"resource"}


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if name not in reference.MODULES])
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert f"\n### {name}\n" in (pages.ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


@pytest.mark.control
def test_what_is_not_explained_is_noticed() -> None:
    def bare(one: int, two: int) -> None:
        """Do something.

        one: is explained,
            at length.
        """

    def lazy(**options: Any) -> None:
        """Do something."""

    assert reference.unexplained(bare, reference.parse(bare)) == ["two"]
    assert reference.unexplained(lazy, reference.parse(lazy)) == ["**options (options of `lock`)"]
    assert reference.parse(bare).arguments == {("one",): "is explained, at length."}
