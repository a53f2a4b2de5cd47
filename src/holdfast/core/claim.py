"""What is asked of a store, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

# The weight of an exclusive claim and the capacity that it is judged by. A sum of a million such weights stays
# below 2^53, so that stores which count in doubles (Lua) add without loss.
MAX = 1 << 30


# Makes a named tuple past its constructor, which costs a call: for the few places that every acquire comes through.
unchecked = tuple.__new__

# weight, capacity, ttl, owner, value, fair, detached: what stays the same from one acquire of a lock to the next.
Details = tuple[int, int, float, str, str | None, bool, bool]


class Claim(NamedTuple):
    """What one acquire asks for.

    resource: the name, within the namespace of the store.
    holder: the identity of this claim, random and new for every acquire.
    weight: how much it takes: MAX for all, 1 for a share or a permit.
    capacity: how much there is, by which this claim is judged: MAX, or the number of permits.
    ttl: seconds that the grant lasts, from when the store made it or renewed it.
    owner: the label for people.
    value: what others see of it while it holds, as an election shows it; None for nothing.
    fair: whether it waits its turn; otherwise it may overtake those who wait when the resource is free.
    detached: whether it ends only at its expiry, and not with its client.
    """

    resource: str
    holder: str
    weight: int = MAX
    capacity: int = MAX
    ttl: float = 30.0
    owner: str = ""
    value: str | None = None
    fair: bool = True
    detached: bool = False

    @property
    def shared(self) -> bool:
        """Return whether others may hold the resource at the same time."""
        return self.weight < self.capacity


# Functions of C, for every acquire needs them: make a claim of resource, holder and details; return all of a claim but
# resource and holder, for those who keep something that they made of that.
make_claim: Callable[[tuple[Any, ...]], Claim] = partial(unchecked, Claim)
details_of: Callable[[Claim], Details] = itemgetter(slice(2, None))


def actor_of(holder: str) -> str:
    """Return the actor that a holder belongs to: holders are `<actor>.<random>`."""
    return holder.rpartition(".")[0]


class Granted(NamedTuple):
    """The claim holds the resource.

    token: the fencing token, below 2^53.
    left: seconds until it ends, by the store's clock.
    """

    token: int
    left: float


class Blocker(NamedTuple):
    """Who stands in the way, for messages to people.

    owner: its label.
    token: its fencing token; 0 if it waits itself.
    left: seconds until it ends unless it is renewed.
    capacity: the one that its claim is judged by.
    """

    owner: str
    token: int
    left: float
    capacity: int = MAX


class Waiting(NamedTuple):
    """The claim does not hold the resource.

    ahead: how many claims hold it or wait before this one.
    retry_after: seconds before which asking again is pointless, unless the claim is woken.
    blocker: the first of those ahead, if the store knows it.
    newest: no token up to this one can belong to a grant that comes later; 0 if the store does not say.
    """

    ahead: int
    retry_after: float
    blocker: Blocker | None = None
    newest: int = 0


class Renewed(NamedTuple):
    """The lease lives on.

    left: seconds until it ends, by the store's clock.
    """

    left: float


class Lost(NamedTuple):
    """The store no longer has the claim."""


class Unknown(NamedTuple):
    """No answer: the renewal may or may not have happened, so nothing may be concluded from it.

    cause: what went wrong, for people.
    """

    cause: str = ""


Answer = Granted | Waiting
Renewal = Renewed | Lost | Unknown
LOST = Lost()


class Evicted(NamedTuple):
    """The claim was broken: it is renewed no more.

    left: seconds until it ends, by the store's clock; 0: it has ended.
    """

    left: float


class ClaimState(NamedTuple):
    """One claim as people see it.

    holder: its identity, new for every acquire.
    owner: the label of whoever made it.
    token: its fencing token; 0 while it waits.
    left: seconds until it ends unless it is renewed.
    weight: how much it takes.
    capacity: how much there is, by which it is judged.
    value: what it shows, in an election; None for nothing.
    detached: whether it ends only at its expiry, and not with its client.
    fair: whether it waits its turn.
    broken: whether somebody has broken it: it is renewed no more.
    """

    holder: str
    owner: str
    token: int
    left: float
    weight: int
    capacity: int
    value: str | None
    detached: bool
    fair: bool = True
    broken: bool = False


class Holder(NamedTuple):
    """Who holds a resource, as people see it.

    owner: its label: host, process and thread or task, or a name of its own.
    token: its fencing token.
    since: when it was granted, in seconds since 1970; None where the store does not know.
    left: seconds until it ends unless it is renewed.
    weight, capacity: its share and what that is judged by; both are very large for an exclusive lock.
    value: what an election shows.
    broken: somebody has broken it: it is renewed no more.
    waiting: how many wait for the resource.
    """

    owner: str
    token: int
    since: float | None
    left: float
    weight: int
    capacity: int
    value: str | None
    broken: bool
    waiting: int


def holders_of(state: ResourceState | None, dated: bool) -> list[Holder]:
    """Show who holds a resource. `dated`: its tokens are the times of the grants, in microseconds."""
    if state is None:
        return []
    return [
        Holder(
            seen.owner, seen.token, seen.token / 1e6 if dated else None, seen.left, seen.weight, seen.capacity,
            seen.value, seen.broken, len(state.waiters),
        )
        for seen in state.holders
    ]  # fmt: skip


class ResourceState(NamedTuple):
    """A resource as people see it: a view that is never used to decide.

    resource: its name.
    token: the last fencing token that was given out for it.
    holders: the claims that hold it.
    waiters: the claims that wait for it, the next one first.
    """

    resource: str
    token: int
    holders: tuple[ClaimState, ...]
    waiters: tuple[ClaimState, ...]


def find(states: Iterable[ResourceState], resource: str) -> ResourceState | None:
    """Return the state of exactly this resource."""
    return next((state for state in states if state.resource == resource), None)


def changed(seen: ResourceState | None, state: ResourceState | None) -> bool:
    """Return whether the holders differ, by identity and value; time that passed is no change."""

    def facts(view: ResourceState | None) -> list[tuple[str, int, str | None]]:
        return [(claim.holder, claim.token, claim.value) for claim in view.holders] if view is not None else []

    return facts(seen) != facts(state)


class Record(NamedTuple):
    """What a fenced register holds.

    value: what was written.
    token: the fencing token that wrote it.
    """

    value: str
    token: int
