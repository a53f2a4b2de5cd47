"""The logger `holdfast`: what is logged of which event.

The standard library's logging is loaded with the first client: it would be a fifth of the import of holdfast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import events
from ..core.claim import MAX
from ..core.events import Event

if TYPE_CHECKING:
    from logging import Logger


class _Later:
    """Stands for the logger until logging is loaded."""

    def __getattr__(self, name: str) -> Any:
        from logging import getLogger

        return getattr(getLogger("holdfast"), name)


logger: Logger = _Later()  # type: ignore[assignment]


def load_logging() -> None:
    """Load what a client needs to log: its threads must not have to, nor whatever runs while the interpreter ends."""
    import logging  # noqa: F401


_DEBUG, _INFO, _WARNING, _ERROR = 10, 20, 30, 40  # as logging has them


class Line(NamedTuple):
    """What is logged of an event: how loud, and a text with the names of its fields."""

    level: int
    text: str


# What somebody has to know of even where nobody observes.
LOGGED: dict[type[Event], Line] = {
    events.StillWaiting: Line(
        _INFO,
        "%(owner)s has waited %(waited).0f s for %(resource)r; %(ahead)d ahead, first %(blocker)s (token %(token)d)",
    ),
    events.AtRisk: Line(
        _WARNING,
        "lease on %(resource)r (token %(token)d) is at risk: %(cause)s; lost in %(left).1f s unless a renewal succeeds",
    ),
    events.Lost: Line(
        _ERROR,
        "lease on %(resource)r (token %(token)d) of %(owner)s is lost: %(cause)s; another may hold it now",
    ),
    events.Unreleased: Line(
        _WARNING,
        "release of %(resource)r (token %(token)d) went unanswered: %(cause)s; trying again until the lease has ended",
    ),
    events.Dropped: Line(
        _WARNING,
        "the lease on %(resource)r (token %(token)d) was dropped without a release; "
        "it is renewed no more and ends at its ttl",
    ),
    events.Broken: Line(
        _WARNING,
        "%(by)s broke the lock on %(resource)r that %(owner)s holds (token %(token)d): %(reason)s; "
        "it stays taken for %(left).1f s (0: it is free, and its holder may still be at work)",
    ),
    events.TokenRejected: Line(
        _WARNING,
        "%(guard)s refused the stale token %(token)d of %(resource)r: %(newest)d was here before",
    ),
    events.PermitsDiffer: Line(
        _WARNING,
        "%(resource)r is asked for with %(permits)d permits here and %(others)s by %(other)s: "
        "each claim is judged by its own number",
    ),
    events.LoopBlocked: Line(
        _WARNING,
        "the event loop has not run for %(seconds).1f s: %(where)s. Nothing else goes on there; "
        "await, or use asyncio.to_thread()",
    ),
    events.EventsMissed: Line(
        _WARNING,
        "%(count)d events were not told: observers take longer than events take to come",
    ),
}

# What is logged besides, if the logger takes DEBUG when the client is made.
DETAILS: dict[type[Event], Line] = {
    events.Acquired: Line(_DEBUG, "%(owner)s holds %(resource)r (%(kind)s, token %(token)d) after %(waited).3f s"),
    events.Released: Line(_DEBUG, "%(owner)s has released %(resource)r (token %(token)d) after %(held).3f s"),
    events.Renewed: Line(_DEBUG, "%(resource)r (token %(token)d) was renewed in %(took).3f s"),
    events.Queued: Line(_DEBUG, "%(owner)s waits for %(resource)r, behind %(ahead)d"),
    events.Busy: Line(_DEBUG, "%(resource)r is busy, and %(owner)s does not wait for it; first %(blocker)s"),
    events.TimedOut: Line(
        _DEBUG, "%(owner)s gave up after %(waited).3f s; %(resource)r stayed busy, first %(blocker)s"
    ),
    events.Abandoned: Line(_DEBUG, "%(owner)s abandoned its acquire of %(resource)r: %(cause)s"),
}


def wants_details() -> bool:
    """Return whether the logger takes what happens to every lock."""
    return logger.isEnabledFor(_DEBUG)


def log_details(event: Event) -> None:
    """Log what happens to every lock: an observer."""
    if type(event) in DETAILS:
        _log(DETAILS[type(event)], event)


def log(event: Event) -> None:
    """Log an event that somebody has to know of."""
    if type(event) not in LOGGED:
        return
    try:
        if isinstance(event, events.Dropped):
            _warn_of_dropped(event)
    finally:
        _log(LOGGED[type(event)], event)


def _log(line: Line, event: Event) -> None:
    facts = dict(vars(event))
    if facts.get("others", 0) >= MAX:
        facts["others"] = "all of it"
    logger.log(line.level, line.text, facts)


def _warn_of_dropped(event: events.Dropped) -> None:
    import warnings

    warnings.warn(
        f"the lease on {event.resource!r} (token {event.token}) was dropped without a release; "
        "it ends at its ttl. Use `with`, or call release()",
        ResourceWarning,
        stacklevel=2,
    )
