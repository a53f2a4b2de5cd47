"""When a lease ends as its holder must see it, when to renew it, and how long to bear with a store that is silent."""

from __future__ import annotations

# The holder must give up before the store can give the resource away. 1 % covers two clocks that run at different
# speeds, 2 ms the rounding of stores that count in milliseconds.
MARGIN_RATIO = 0.01
MARGIN = 0.002

RENEW_AT = 1 / 3  # of what is left: two more tries fit before the deadline
RETRY_AT = 1 / 12  # of the ttl, after a renewal of unknown outcome
RETRY_LEAST = 0.05
RENEW_SHARE = 1 / 3  # of what is left, that one renewal may take: a lost packet must leave time for another
RENEW_LEAST = 0.05  # seconds that one may take in any case
RENEW_BATCH = 500

LATENESS = 2.0  # seconds after which a message that went unanswered has come, if it comes at all


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


def renew_limit(now: float, deadline: float, io_timeout: float) -> float:
    """Return how long a renewal may take that is sent now."""
    return min(io_timeout, max(RENEW_LEAST, (deadline - now) * RENEW_SHARE))


def backoff(attempt: int, least: float = 0.02, most: float = 0.5) -> float:
    """Return the pause before try number `attempt` (from 0) at a store that did not answer."""
    return min(most, least * 2.0 ** min(attempt, 30))
