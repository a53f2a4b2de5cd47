"""Who is served in the end? Told as simply as possible: play it to the end. Shares no code with `core.deadlock`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.claim import ClaimState, ResourceState, actor_of


class Line:
    """One resource, as lists of claims."""

    def __init__(self, state: ResourceState) -> None:
        self.holders = list(state.holders)
        self.waiters = list(state.waiters)

    def grant(self) -> bool:
        """Let the first go that the rule allows to."""
        for place, claim in enumerate(self.waiters):
            weight = sum(other.weight for other in self.holders) + claim.weight
            weight += sum(other.weight for other in self.waiters[:place]) if claim.fair else 0
            if weight <= claim.capacity:
                self.holders.append(self.waiters.pop(place))
                return True
        return False

    def leave(self, go: Callable[[ClaimState], bool]) -> bool:
        """Let holders release."""
        before = len(self.holders)
        self.holders = [claim for claim in self.holders if not go(claim)]
        return len(self.holders) < before


def never_served(states: Sequence[ResourceState]) -> set[str]:
    """Let whoever does not wait release, and detached claims run out, until nothing moves: who still waits then?"""
    lines = [Line(state) for state in states]
    moved = 1
    while moved:
        waiting = {actor_of(claim.holder) for line in lines for claim in line.waiters}

        def goes(claim: ClaimState, waiting: set[str] = waiting) -> bool:
            return claim.detached or actor_of(claim.holder) not in waiting

        moved = sum(line.leave(goes) + line.grant() for line in lines)
    return {claim.holder for line in lines for claim in line.waiters}
