"""Deadlocks: who waits for whom, found in what `inspect` shows.

Found by reduction: whoever does not wait will let go one day, which lets others go, and so on. Those that can never go
are in a deadlock. Unlike a search for cycles this is exact for permits, too, where it is enough that one of several
holders lets go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .claim import ClaimState, ResourceState, actor_of


class Wait(NamedTuple):
    """One link of the chain: a waiting claim, and a granted one that keeps it (or those before it) from going."""

    resource: str
    waiter: ClaimState
    blocker: ClaimState

    @property
    def identity(self) -> tuple[str, str]:
        """Names the link: holders are new for every acquire, so the same names mean the same wait."""
        return self.waiter.holder, self.blocker.holder


def find_deadlock(states: Sequence[ResourceState], holder: str) -> tuple[Wait, ...]:
    """Return the chain of waits that begins with the waiting claim of this holder and never ends; () if it does.

    The chain leads into a cycle, and goes once around it. An actor waits for one claim at a time.
    """
    stuck = _stuck(states)
    chain: list[Wait] = []
    while holder in stuck and holder not in [link.waiter.holder for link in chain]:
        chain.append(stuck[holder])
        actor = actor_of(stuck[holder].blocker.holder)
        holder = next(waiting for waiting in stuck if actor_of(waiting) == actor)
    return tuple(chain)


def asked_last(chain: Sequence[Wait]) -> bool:
    """Return whether nobody in the chain asked after its first: of all who see it one raises, and the others go on.

    Whoever asks begins its waiting life anew, so the last to ask has the most of it left.
    """
    return all(link.waiter.left <= chain[0].waiter.left for link in chain)


def describe(chain: Sequence[Wait]) -> str:
    """Say a chain for people: who waits for what that who has."""
    return ", ".join(
        f"{waiter.owner} waits for {resource!r} held by {blocker.owner}" for resource, waiter, blocker in chain
    )


def _stuck(states: Sequence[ResourceState]) -> dict[str, Wait]:
    """Let everybody go who can, until nobody else can; return the waits that never end, by holder."""
    waiting = {claim.holder for state in states for claim in state.waiters}
    while True:
        blocked = {actor_of(holder) for holder in waiting}
        stuck = {wait.waiter.holder: wait for state in states for wait in _blocked(state, waiting, blocked)}
        if len(stuck) == len(waiting):
            return stuck
        waiting = set(stuck)


def _blocked(state: ResourceState, waiting: set[str], blocked: set[str]) -> list[Wait]:
    """Return the waits for this resource that do not end when all but the blocked actors have let go."""
    # A detached claim runs out, whatever its holder waits for.
    staying = [claim for claim in state.holders if not claim.detached and actor_of(claim.holder) in blocked]
    granted = sum(claim.weight for claim in staying)
    ahead = 0
    found = []
    for claim in state.waiters if staying else ():
        # Who is not among the waiting any more goes, and is through one day.
        if claim.holder in waiting and granted + (ahead if claim.fair else 0) + claim.weight > claim.capacity:
            found.append(Wait(state.resource, claim, staying[0]))
            ahead += claim.weight
    return found
