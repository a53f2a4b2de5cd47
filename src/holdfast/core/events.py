"""Events: what the shell tells observers. Plain facts; each says what happened to which resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """Something that happened. `at` is the client's clock (CLOCK_BOOTTIME where there is one).

    Works as a frozen dataclass of keyword arguments, and is none: importing those would cost more than all the rest.
    """

    at: float
    namespace: str
    resource: str
    owner: str

    fields: ClassVar[tuple[str, ...]] = ("at", "namespace", "resource", "owner")

    def __init_subclass__(cls) -> None:
        cls.fields = (*cls.fields, *cls.__annotations__)

    def __init__(self, **facts: Any) -> None:
        if facts.keys() != set(self.fields):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.fields)}, not {', '.join(facts)}")
        self.__dict__.update({name: facts[name] for name in self.fields})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event is a fact: {name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an event is a fact: {name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({facts})"


class Acquired(Event):
    """A claim was granted after `waited` seconds."""

    token: int
    waited: float
    ttl: float


class Queued(Event):
    """A claim has to wait behind `ahead` others."""

    ahead: int


class TimedOut(Event):
    """An acquire gave up: the resource stayed busy."""

    waited: float
    blocker: str


class Abandoned(Event):
    """An acquire was cancelled, interrupted or cut off, and its claim withdrawn."""

    cause: str


class Released(Event):
    """A lease was given back after `held` seconds."""

    token: int
    held: float


class Renewed(Event):
    """A lease was renewed; the answer took `took` seconds."""

    token: int
    took: float


class AtRisk(Event):
    """A renewal went unanswered; the lease is lost in `left` seconds unless a later one succeeds."""

    token: int
    left: float
    cause: str


class Lost(Event):
    """A lease ended before its holder let it go."""

    token: int
    cause: str


class Dropped(Event):
    """A lease object was garbage-collected without a release; it is renewed no more and ends at its ttl."""

    token: int


class Unreleased(Event):
    """A release went unanswered; it is tried again until the lease has ended anyway."""

    token: int
    cause: str


class PermitsDiffer(Event):
    """A claim asked for one of `permits`, and `other` holds or waits by another number; told once a client."""

    permits: int
    others: int
    other: str


Observer = Callable[[Event], None]
