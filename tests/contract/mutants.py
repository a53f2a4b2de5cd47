"""Stores and clients with one thing wrong each. A law that cannot tell them from the real ones is worth nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from holdfast.core.urls import parse_url
from holdfast.testing.contract import Target

LIMIT = 0.4  # real seconds after which a law gives up waiting for what the fault prevents


@contextmanager
def locked_file(url: str) -> Iterator[None]:
    """Make SQLite silent, as a process does that was stopped in the middle of a write."""
    connection = sqlite3.connect(parse_url(url).path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


def restart(url: str) -> None:
    """Restart what has no server: nothing happens."""


MEMORY = Target("memory://", driven=True)
# It has everything that a law may need: every law is among its laws.
SQLITE = Target("sqlite://{folder}/locks.db", driven=True, restart=restart, silence=locked_file)


class Mutant(NamedTuple):
    """How to break something, and the laws that must notice."""

    name: str
    apply: Callable[[pytest.MonkeyPatch, str], None]  # the str: "sync" or "async"
    laws: tuple[str, ...]
    store: Target = MEMORY  # a law that is none of its laws runs on SQLite
    flavours: tuple[str, ...] = ("sync", "async")  # in which the mistake can be made
    limit: float = LIMIT

    def __str__(self) -> str:
        return self.name


def replace(patch: pytest.MonkeyPatch, module: str, target: str, make: Callable[[Any], Any]) -> None:
    """Put what is made of the original in its place. The target is a name, or a path like Class.method."""
    holder: Any = import_module(f"holdfast.{module}")
    *path, name = target.split(".")
    for part in path:
        holder = getattr(holder, part)
    patch.setattr(holder, name, make(getattr(holder, name)))


def shell(
    into: list[Mutant], module: str, target: str, *laws: str, **options: Any
) -> Callable[[Callable[[Any, bool], Any]], Callable[[Any, bool], Any]]:
    """Make a mutant of what there is in two flavours: the function is given the original, and whether it has to be a
    coroutine function. `{}` in the module stands for the flavour.
    """

    def register(make: Callable[[Any, bool], Any]) -> Callable[[Any, bool], Any]:
        def apply(patch: pytest.MonkeyPatch, flavour: str) -> None:
            replace(patch, module.format(flavour), target, lambda original: make(original, flavour == "async"))

        into.append(Mutant(make.__name__, apply, laws, **options))
        return make

    return register


def shared(
    into: list[Mutant], module: str, target: str, *laws: str, **options: Any
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Make a mutant of what both flavours share: the function is given the original."""

    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def apply(patch: pytest.MonkeyPatch, flavour: str) -> None:
            replace(patch, module, target, make)

        into.append(Mutant(make.__name__, apply, laws, **options))
        return make

    return register


def either(asynchronous: bool, plain: Callable[..., Any]) -> Any:
    """Return a function that is plain, or awaited, and does the same."""

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return awaited if asynchronous else plain


def afterwards(original: Any, change: Callable[..., None]) -> Any:
    """Return a constructor that changes what the original has made."""

    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        change(self, *args)

    return init
