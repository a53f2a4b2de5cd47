"""A clock that the test drives."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is told to go on; sleepers look at it every few milliseconds."""

    def __init__(self) -> None:
        self._now = 1_000.0

    def now(self) -> float:
        """Return the driven time."""
        return self._now

    def wall_ns(self) -> int:
        """Return the driven time as a wall clock would show it."""
        return (1_700_000_000_000_000 + int(self._now * 1_000_000)) * 1000

    def patience(self, left: float) -> float:
        """Look again soon: the test may have moved the clock."""
        return min(left, 0.003)

    def advance(self, seconds: float) -> None:
        """Move on."""
        self._now += seconds
