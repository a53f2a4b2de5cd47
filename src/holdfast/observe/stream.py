"""The stream of events from the shell to observers, and what is logged without any."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..core import events
from ..core.claim import MAX
from ..core.events import Event, Observer

logger = logging.getLogger("holdfast")


class Stream:
    """Hands events to observers. Hot paths ask `if stream.observers` before they build an event."""

    __slots__ = ("observers",)

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = tuple(observers)
        for observer in self.observers:
            if not callable(observer):
                raise ValueError(f"an observer is called with each event; {observer!r} cannot be called")

    def emit(self, event: Event) -> None:
        """Log what must not go unseen, then call every observer; an observer's error is logged and goes no further."""
        log(event)
        for observer in self.observers:
            try:
                observer(event)
            except Exception:
                logger.exception("the observer %r failed on %r", observer, event)


def log(event: Event) -> None:
    """Log the events that somebody has to know of even where nobody observes."""
    match event:
        case events.AtRisk():
            logger.warning(
                "lease on %r (token %d) is at risk: %s; lost in %.1f s unless a renewal succeeds",
                event.resource,
                event.token,
                event.cause,
                event.left,
            )
        case events.Lost():
            logger.error(
                "lease on %r (token %d) of %s is lost: %s; another may hold it now",
                event.resource,
                event.token,
                event.owner,
                event.cause,
            )
        case events.Unreleased():
            logger.warning(
                "release of %r (token %d) went unanswered: %s; trying again until the lease has ended",
                event.resource,
                event.token,
                event.cause,
            )
        case events.PermitsDiffer():
            logger.warning(
                "%r is asked for with %d permits here and %s by %s: each claim is judged by its own number",
                event.resource,
                event.permits,
                "all of it" if event.others >= MAX else event.others,
                event.other,
            )
        case events.Dropped():
            logger.warning(
                "the lease on %r (token %d) was dropped without a release; it is renewed no more and ends at its ttl",
                event.resource,
                event.token,
            )
