"""Events: what the shell tells observers. Plain facts; each says what happened to which resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `at` is the client's clock (CLOCK_BOOTTIME where there is one)."""

    at: float
    namespace: str
    resource: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired(Event):
    """A claim was granted after `waited` seconds."""

    token: int
    waited: float
    ttl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(Event):
    """A claim has to wait behind `ahead` others."""

    ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(Event):
    """An acquire gave up: the resource stayed busy."""

    waited: float
    blocker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned(Event):
    """An acquire was cancelled, interrupted or cut off, and its claim withdrawn."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """A lease was given back after `held` seconds."""

    token: int
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(Event):
    """A lease was renewed; the answer took `took` seconds."""

    token: int
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk(Event):
    """A renewal went unanswered; the lease is lost in `left` seconds unless a later one succeeds."""

    token: int
    left: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A lease ended before its holder let it go."""

    token: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """A lease object was garbage-collected without a release; it is renewed no more and ends at its ttl."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreleased(Event):
    """A release went unanswered; it is tried again until the lease has ended anyway."""

    token: int
    cause: str


Observer = Callable[[Event], None]
