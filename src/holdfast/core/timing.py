"""When a lease ends as its holder must see it, and when to renew it."""

from __future__ import annotations

# The holder must give up before the store can give the resource away. 1 % covers two clocks that run at different
# speeds, 2 ms the rounding of stores that count in milliseconds.
MARGIN_RATIO = 0.01
MARGIN = 0.002

RENEW_AT = 1 / 3  # of the ttl: two more tries fit before the deadline
RETRY_AT = 1 / 12  # of the ttl, after a renewal of unknown outcome
RETRY_LEAST = 0.05
RENEW_BATCH = 500


def local_deadline(asked: float, ttl: float, left: float) -> float:
    """Return when the holder must believe the lease lost.

    `asked` is the clock *before* the question was sent: a slow reply must shorten the lease, never extend it.
    """
    span = left if left < ttl else ttl
    return asked + span - (span * MARGIN_RATIO + MARGIN)


def renew_time(asked: float, deadline: float) -> float:
    """Return when to renew a lease that was confirmed by a question asked then, and is lost at that deadline."""
    return asked + (deadline - asked) * RENEW_AT


def retry_time(now: float, ttl: float) -> float:
    """Return when to try again after a renewal of unknown outcome."""
    return now + max(RETRY_LEAST, ttl * RETRY_AT)


def backoff(attempt: int, least: float = 0.02, most: float = 0.5) -> float:
    """Return the pause before try number `attempt` (from 0) at a store that did not answer."""
    return min(most, least * 2.0 ** min(attempt, 30))
