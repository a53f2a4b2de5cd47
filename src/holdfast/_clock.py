"""The clock that leases are judged by: one that goes on while the machine sleeps."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

# CLOCK_MONOTONIC stands still while a Linux machine is suspended, and a lease does not. macOS has no
# CLOCK_BOOTTIME, but its CLOCK_MONOTONIC goes on.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Kernel timers do stand still while the machine is suspended: nobody sleeps longer than this without a look.
_LONGEST_SLEEP = 5.0


class Clock(Protocol):
    """Where time comes from; tests drive their own."""

    def now(self) -> float:
        """Return seconds since some fixed point, the same for all processes of this boot."""
        ...

    def wall_ns(self) -> int:
        """Return CLOCK_REALTIME in nanoseconds, for tokens alone."""
        ...

    def patience(self, left: float) -> float:
        """Return how many real seconds to sleep before looking at this clock again.

        left: seconds until something is due, by this clock.
        """
        ...


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    # Read several times in every acquire: a function of C costs a third of a method.
    now = staticmethod(partial(time.clock_gettime, _CLOCK))
    wall_ns = staticmethod(time.time_ns)

    def patience(self, left: float) -> float:
        """Sleep as long as is left, but never so long that a suspended machine goes unnoticed."""
        return min(left, _LONGEST_SLEEP)
