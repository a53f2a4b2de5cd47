"""Things that are remembered for as long as they live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class Living(Generic[T]):
    """A weak set that one thread may go through while others add to it, as a WeakSet does not allow."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: set[ref[T]] = set()

    def add(self, thing: T) -> None:
        """Remember it until it dies."""
        self._refs.add(ref(thing, self._refs.discard))

    def discard(self, thing: T) -> None:
        """Forget it."""
        self._refs.discard(ref(thing))

    def __iter__(self) -> Iterator[T]:
        # The copy is one call of C, and so nothing comes between.
        return iter([thing for noted in list(self._refs) if (thing := noted()) is not None])
