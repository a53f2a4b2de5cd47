"""Events: what the shell tells observers. Plain facts; each says what happened to which resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """Something that happened.

    at: when, by the client's clock (CLOCK_BOOTTIME where there is one, seconds).
    store: the store, as its capabilities call it: `redis`, `etcd` ...
    namespace, resource: what it is about. Events about a whole client have no resource: it is empty.
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
    """A claim was granted: emitted by every acquire that succeeds. Entering a reentrant lock again is none.

    token: the fencing token.
    waited: seconds from the call to the grant.
    """

    token: int
    waited: float


class Queued(Event):
    """A claim has to wait: emitted once, when it gets its place in line.

    ahead: how many claims hold the resource or wait before it.
    """

    ahead: int


class StillWaiting(Event):
    """A claim still waits: emitted after 10 s, then every minute. Logged as INFO.

    waited: seconds since the call.
    ahead: how many claims hold the resource or wait before it.
    blocker: the owner of the first of them; empty if the store does not know.
    token: the token of the blocker; 0 if it waits itself.
    """

    waited: float
    ahead: int
    blocker: str
    token: int


class Busy(Event):
    """An acquire that asks once (`timeout=0`, a bare `try_acquire()`) found the resource busy.

    blocker: the owner of whoever stood in the way; empty if the store does not know.
    """

    blocker: str


class TimedOut(Event):
    """An acquire gave up: the resource stayed busy for its whole timeout.

    waited: seconds since the call.
    blocker: the owner of whoever stood in the way; empty if the store does not know.
    """

    waited: float
    blocker: str


class Abandoned(Event):
    """An acquire was cancelled, interrupted or cut off, and its claim withdrawn.

    cause: what ended it.
    """

    cause: str


class Released(Event):
    """A lease was given back, by the end of its `with` or by `release()`.

    token: the fencing token.
    held: seconds since the grant.
    """

    token: int
    held: float


class Renewed(Event):
    """A lease was renewed: emitted for each lease, after every third of its ttl.

    token: the fencing token.
    took: seconds until the store had answered.
    """

    token: int
    took: float


class AtRisk(Event):
    """A renewal went unanswered, and the lease may be lost. Logged as a WARNING.

    token: the fencing token.
    left: seconds until it is lost unless a later renewal succeeds.
    cause: what went wrong.
    """

    token: int
    left: float
    cause: str


class Lost(Event):
    """A lease ended before its holder let it go: another may hold the resource now. Logged as an ERROR.

    token: the fencing token.
    cause: why: a pause, a silent store, a claim that is no longer there.
    """

    token: int
    cause: str


class Dropped(Event):
    """A lease object was garbage-collected without a release; it is renewed no more and ends at its ttl.

    Logged as a WARNING, with a ResourceWarning.

    token: the fencing token.
    """

    token: int


class Unreleased(Event):
    """A release went unanswered; it is tried again until the lease has ended anyway. Logged as a WARNING.

    token: the fencing token.
    cause: what went wrong.
    """

    token: int
    cause: str


class Broken(Event):
    """Somebody broke the lock of `owner` by hand: emitted by the client that broke it. Logged as a WARNING.

    token: the fencing token of the lease that was broken.
    by: the owner of the client that broke it.
    reason: what was given as the reason.
    left: seconds that the resource stays taken.
    """

    token: int
    by: str
    reason: str
    left: float


class TokenRejected(Event):
    """A guard refused a token: its holder had lost the lease, and tried to go on. Logged as a WARNING.

    `resource` is the lock that the token is of; `owner` is empty: a fence does not tell whose it is.

    guard: what refused it, like `register 'name'`.
    token: the one that was refused.
    newest: the one that was there before; 0 if that is not known.
    """

    guard: str
    token: int
    newest: int


class PermitsDiffer(Event):
    """Two claims of one semaphore differ in how many permits there are. Once per client. Logged as a WARNING.

    permits: the number of this client.
    others: that of the other claim; 2^30 for one that wants all of the resource.
    other: the owner of the other claim.
    """

    permits: int
    others: int
    other: str


class LoopBlocked(Event):
    """The event loop of an asyncio client does not run. Logged as a WARNING.

    Its leases are kept nevertheless; its bodies do not go on, and cannot be told of a loss. `resource` and `owner` are
    empty: it is about all of them.

    seconds: how long it has not run, at least a third of the ttl of a lease that is held.
    where: the line that it stands at.
    """

    seconds: float
    where: str


class EventsMissed(Event):
    """Observers were slower than events came, and some were dropped. At most once a minute. Logged as a WARNING.

    `resource` and `owner` are empty.

    count: how many were dropped.
    """

    count: int


Observer = Callable[[Event], None]
