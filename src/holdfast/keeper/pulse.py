"""Whether the event loop of an asyncio client runs: its leases are kept without it, but its bodies are not served."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol


class Loop(Protocol):
    """An event loop as the keeper's threads see it. None of this waits."""

    def closed(self) -> bool:
        """Return whether it was closed, and will never run again."""
        ...

    def post(self, function: Callable[[], None]) -> None:
        """Have the loop call this soon; not at all if it is closed."""
        ...

    def whereabouts(self) -> str:
        """Say which line of code keeps it from running."""
        ...


class Blocked(NamedTuple):
    """The loop has not run for so long, and this is what it does instead."""

    seconds: float
    where: str


class Pulse:
    """Asks the loop for a sign of life every third of the shortest ttl, and finds that it owes one."""

    __slots__ = ("_answered", "_asked", "_looked", "_told", "loop")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._looked = -inf
        self._asked = -inf
        self._answered = True
        self._told = False

    def due(self, ttl: float) -> float:
        """Return when to look at it next, if this is the shortest ttl by now."""
        return self._looked + ttl / 3

    @property
    def owes(self) -> bool:
        """Whether it owes an answer, and nobody was told of that."""
        return not self._answered and not self._told

    def look(self, now: float, ttl: float) -> Blocked | None:
        """Ask, or return for how long it has owed an answer; once for each time that it is blocked."""
        if now < self.due(ttl):
            return None
        self._looked = now
        if self._answered:
            self._answered, self._told, self._asked = False, False, now
            self.loop.post(self._answer)
            return None
        if self._told:
            return None
        self._told = True
        return Blocked(now - self._asked, self.loop.whereabouts())

    def silence(self, now: float) -> float:
        """Return for how long the loop has owed an answer."""
        return 0.0 if self._answered else now - self._asked

    def rest(self) -> None:
        """Stop asking: nothing is held."""
        self._looked = -inf

    def _answer(self) -> None:
        self._answered = True
