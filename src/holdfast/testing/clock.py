"""A clock that stands still until it is told to move."""

from __future__ import annotations

import threading

from .._clock import SystemClock

# Real seconds between two looks of a sleeper. Short: this is what a test waits for after advance().
_LOOK = 0.003


class ManualClock:
    """A clock for tests: the pytest fixture `holdfast_clock` is one, and so are the clients given to its test.

    By hand: `Client(parse_url("memory://room"), clock=clock)`; stores that keep time with us live by it, too. Whoever
    sleeps looks at it every few real milliseconds, so that it drives threads and tasks alike. What bounds an exchange
    with a server (`io_timeout`) stays real time.

    It starts at the time of this machine, because what works near zero may not work with large numbers. A test that
    compares times, or must fail again with the same numbers, names its own start: `now` in seconds, `wall_ns` in
    nanoseconds.
    """

    def __init__(self, now: float | None = None, wall_ns: int | None = None) -> None:
        system = SystemClock()
        self._mutex = threading.Lock()
        self._now = system.now() if now is None else now
        self._wall_ns = system.wall_ns() if wall_ns is None else wall_ns

    def now(self) -> float:
        """Return the time that leases are judged by."""
        return self._now

    def wall_ns(self) -> int:
        """Return the wall clock in nanoseconds."""
        return self._wall_ns

    def patience(self, left: float) -> float:
        """Look again soon, however much is left: somebody may advance the clock."""
        return min(left, _LOOK)

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds!r}); step_wall() moves the wall clock alone")
        with self._mutex:
            self._now += seconds
            self._wall_ns += round(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, as an administrator or NTP does; no time passes."""
        with self._mutex:
            self._wall_ns += round(seconds * 1e9)
