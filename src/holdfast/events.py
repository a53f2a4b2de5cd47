"""Events: what observers are called with. Each says what happened to which resource, and when.

    import holdfast
    from holdfast import events

    def tell(event: events.Event) -> None:
        if isinstance(event, events.Lost):
            page_somebody(event.resource, event.cause)

    locks = holdfast.connect(observers=[tell])  # or, for every client of the process: holdfast.observe.add(tell)

What each is told for, and what it has, is in its docstring.
"""

from __future__ import annotations

from .core.events import (
    Abandoned,
    Acquired,
    AtRisk,
    Broken,
    Busy,
    Dropped,
    Event,
    EventsMissed,
    LoopBlocked,
    Lost,
    Observer,
    PermitsDiffer,
    Queued,
    Released,
    Renewed,
    StillWaiting,
    TimedOut,
    TokenRejected,
    Unreleased,
)

__all__ = [
    "Abandoned",
    "Acquired",
    "AtRisk",
    "Broken",
    "Busy",
    "Dropped",
    "Event",
    "EventsMissed",
    "LoopBlocked",
    "Lost",
    "Observer",
    "PermitsDiffer",
    "Queued",
    "Released",
    "Renewed",
    "StillWaiting",
    "TimedOut",
    "TokenRejected",
    "Unreleased",
]
