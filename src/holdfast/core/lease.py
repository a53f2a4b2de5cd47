"""The life of a lease and the end of a `with`, as tables."""

from __future__ import annotations

from enum import Enum, StrEnum


class State(StrEnum):
    """Where a lease stands."""

    HELD = "held"
    AT_RISK = "at risk"
    LOST = "lost"
    RELEASED = "released"


# Names of their own, for looking a member up on its enum costs more than a call.
HELD, AT_RISK, LOST, RELEASED = State
LIVE = (HELD, AT_RISK)


class Fact(StrEnum):
    """What may become known about a lease."""

    RENEWED = "renewed"
    UNKNOWN = "a renewal went unanswered"
    GONE = "the store no longer has the claim"
    LATE = "its deadline passed"
    RELEASED = "released"


# Lost and released are final: a reply that comes late must not bring a lease back to life.
TRANSITIONS: dict[State, dict[Fact, State]] = {
    State.HELD: {
        Fact.RENEWED: State.HELD,
        Fact.UNKNOWN: State.AT_RISK,
        Fact.GONE: State.LOST,
        Fact.LATE: State.LOST,
        Fact.RELEASED: State.RELEASED,
    },
    State.AT_RISK: {
        Fact.RENEWED: State.HELD,
        Fact.UNKNOWN: State.AT_RISK,
        Fact.GONE: State.LOST,
        Fact.LATE: State.LOST,
        Fact.RELEASED: State.RELEASED,
    },
    State.LOST: dict.fromkeys(Fact, State.LOST),
    State.RELEASED: dict.fromkeys(Fact, State.RELEASED),
}


class Ending(Enum):
    """How the body of a `with` ended."""

    RETURN = "return"
    ERROR = "exception"
    OUR_CANCEL = "our own cancellation"
    OUTER = "outer cancellation, KeyboardInterrupt, SystemExit"


class Raise(Enum):
    """What leaves the `with`."""

    NOTHING = "nothing"
    LEASE_LOST = "LeaseLost"
    BODY = "the body's exception"
    BODY_WITH_NOTE = "the body's exception, with a note"


# (how the body ended, was the lease lost) -> what leaves the `with`. A release that the store answers with "not
# yours" counts as lost; a release without an answer does not.
EXITS: dict[tuple[Ending, bool], Raise] = {
    (Ending.RETURN, False): Raise.NOTHING,
    (Ending.RETURN, True): Raise.LEASE_LOST,
    (Ending.ERROR, False): Raise.BODY,
    (Ending.ERROR, True): Raise.BODY_WITH_NOTE,
    (Ending.OUR_CANCEL, False): Raise.LEASE_LOST,  # we cancel on loss alone, so this is a loss whatever came later
    (Ending.OUR_CANCEL, True): Raise.LEASE_LOST,
    (Ending.OUTER, False): Raise.BODY,
    (Ending.OUTER, True): Raise.BODY,
}
