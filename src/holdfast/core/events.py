"""Events: what the shell tells observers. Plain facts; each says what happened to which resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """Something that happened.

    at: when, by the client's clock (CLOCK_BOOTTIME where there is one).
    store: the store, as its capabilities call it: `redis`, `etcd` ...
    namespace, resource: what it is about. Events about a whole client have no resource.
    kind: what asked: `lock`, `read`, `write`, `semaphore`, `lock_all`, `tree`, `election`, `once`, `rate limit` or
        `register`.
    owner: the label of whoever holds or asks.
    ttl: the length of the lease in seconds; 0 where there is none.

    Works as a frozen dataclass of keyword arguments, and is none: importing those would cost more than all the rest.
    """

    at: float
    store: str
    namespace: str
    resource: str
    kind: str
    owner: str
    ttl: float

    fields: ClassVar[tuple[str, ...]] = ("at", "store", "namespace", "resource", "kind", "owner", "ttl")

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


class Queued(Event):
    """A claim has to wait behind `ahead` others."""

    ahead: int


class StillWaiting(Event):
    """A claim has waited for `waited` seconds, 10 at first and then a minute more each time, behind `ahead` others.

    `blocker` is the owner of the first of them; its token is 0 if it waits itself.
    """

    waited: float
    ahead: int
    blocker: str
    token: int


class Busy(Event):
    """An acquire that asks once (timeout=0) found the resource busy."""

    blocker: str


class TimedOut(Event):
    """An acquire gave up after `waited` seconds: the resource stayed busy."""

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


class Broken(Event):
    """Somebody, `by`, broke the lock of `owner` by hand, for a `reason`. It stays taken for `left` seconds more."""

    token: int
    by: str
    reason: str
    left: float


class TokenRejected(Event):
    """A `guard` refused a token, for it has seen a newer one: its holder lost the lease, and tried to go on.

    `resource` is the lock that the token is of, `guard` says what refused it (`register 'name'`), `newest` is the token
    that it has seen, 0 if that is not known. `owner` is empty: a fence does not tell whose it is.
    """

    guard: str
    token: int
    newest: int


class PermitsDiffer(Event):
    """A claim asked for one of `permits`, and `other` holds or waits by another number; told once a client."""

    permits: int
    others: int
    other: str


class LoopBlocked(Event):
    """The event loop of an asyncio client has not run for `seconds`, because of what it does at `where`.

    Its leases are kept nevertheless; its bodies do not go on, and cannot be told of a loss. `resource` and `owner` are
    empty: it is about all of them.
    """

    seconds: float
    where: str


class EventsMissed(Event):
    """So many events were not told: observers were slower than they came. `resource` and `owner` are empty."""

    count: int


Observer = Callable[[Event], None]
