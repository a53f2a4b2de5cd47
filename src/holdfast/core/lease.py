"""The life of a lease and the end of a `with`, as tables.

A `Hold` is a granted claim as its process sees it. Its state changes in one place, `Hold.apply`, and only as
TRANSITIONS says. Several threads may bring facts at the same time (the holder looks at the clock, the keeper has an
answer, the collector finds it forgotten): whoever calls `apply` holds the keeper's mutex.

    granted ──▶ held ◀──▶ at risk          a renewal went unanswered: nothing is lost yet, nothing is extended
                  │           │
                  ├───────────┴──▶ lost      its deadline passed, or the store no longer has it
                  └──────────────▶ released  given back, or dropped

Lost and released are final, for a reply that comes late must not bring a lease back to life. One fact leads from
released to lost: the store answers the release with "not yours", so it had been given away before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum, StrEnum
from math import inf
from typing import Any, NamedTuple

from .claim import Claim, Lost, Renewal, Renewed
from .timing import RENEW_AT, local_deadline, renew_time, retry_time


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
    DROPPED = "dropped without a release"
    NOT_OURS = "the store answers the release: not yours"


_OF_A_LIVE_ONE = {
    Fact.RENEWED: HELD,
    Fact.UNKNOWN: AT_RISK,
    Fact.GONE: LOST,
    Fact.LATE: LOST,
    Fact.RELEASED: RELEASED,
    Fact.DROPPED: RELEASED,
    Fact.NOT_OURS: LOST,
}

TRANSITIONS: dict[State, dict[Fact, State]] = {
    HELD: _OF_A_LIVE_ONE,
    AT_RISK: _OF_A_LIVE_ONE,
    LOST: dict.fromkeys(Fact, LOST),
    RELEASED: {**dict.fromkeys(Fact, RELEASED), Fact.NOT_OURS: LOST},
}


class Hold:
    """A granted claim as this process sees it. The keeper knows it weakly, its leases keep it alive."""

    __slots__ = (
        "__weakref__", "cause", "claim", "deadline", "dropped", "due", "granted", "keeper", "kind", "leases",
        "min_hold", "queued", "ref", "renew_until", "renewing", "shares", "short_until", "shorter", "signal", "span",
        "state", "strays_until", "thread", "token", "told",
    )  # fmt: skip

    def __init__(
        self,
        keeper: Any,
        claim: Claim,
        token: int,
        since: float,
        deadline: float,
        thread: int,
        min_hold: float,
        renew_until: float,
        strays_until: float = -inf,
        kind: str = "lock",
    ) -> None:
        self.keeper = keeper  # whose mutex guards the state
        self.kind = kind  # what asked for it, for events
        self.claim = claim
        self.token = token
        self.granted = since
        self.deadline = deadline
        self.thread = thread  # that acquired it, or entered it last
        self.min_hold = min_hold
        self.renew_until = renew_until  # -inf: never renewed
        self.strays_until = strays_until  # until when a copy of its claim may still arrive; -inf: there is none
        # From what is left, which may be less than the ttl: a session that others share was renewed before.
        self.due = since + (deadline - since) * RENEW_AT if renew_until > since else deadline
        self.queued = inf  # when the agenda has it
        self.renewing = False
        # After an extension: a renewal with this shorter ttl may still arrive; no deadline may count on more.
        self.shorter = inf
        self.span = claim.ttl  # what the store has confirmed last: after an extension without an answer, not the ttl
        self.short_until = -inf  # until when a renewal that went unanswered may still arrive
        self.cause = ""
        self.dropped = False  # nobody refers to it any more; a `with` that the collector leaves may yet give it back
        self.told = False  # whether somebody has seen to it that its loss is told
        self.ref = weakref.ref(self)
        # Leases that have not been released, by id: one call of C adds or removes one, and no interrupt can halve it.
        self.shares: dict[int, object] = {}
        self.leases: Sequence[weakref.ref[Any]] = ()  # those that have to be told of a loss
        self.signal: Any = None  # raised when it has ended
        self.state = HELD  # last: only now is there something that could be dropped

    def apply(self, fact: Fact, cause: str = "") -> bool:
        """Take a fact through the table; return whether the lease ended, or turned out to be lost, by it."""
        before = self.state
        after = TRANSITIONS[before][fact]
        if after is before:
            return False
        if after is LOST:
            self.cause = cause  # first: whoever sees the loss wants to say why
        self.state = after
        return after not in LIVE

    def tell(self, lease: object) -> None:
        """Note that this lease has to be told of a loss."""
        others = [ref for ref in self.leases if ref() is not None] if self.leases else ()
        self.leases = (*others, weakref.ref(lease))

    def tell_no_more(self, lease: object) -> None:
        """Note that this lease has been released."""
        self.leases = [ref for ref in self.leases if ref() not in (None, lease)]

    def listeners(self) -> list[Any]:
        """Return the leases that have to be told of a loss."""
        return [lease for ref in self.leases if (lease := ref()) is not None]

    def __del__(self) -> None:
        # Runs anywhere, even in a thread that holds one of our locks, and in the middle of an observer: only note it.
        # The keeper sees it again by that, once; a finalizer does not run twice.
        if getattr(self, "state", RELEASED) in LIVE and not self.keeper.inherited:
            self.keeper.dropped.append(self)
            self.keeper.wake.set()


class Outcome(NamedTuple):
    """What the answer to a renewal means for a lease: the fact, and when it ends and is to be looked at then."""

    fact: Fact
    deadline: float
    due: float
    cause: str = ""


def outcome_of(hold: Hold, answer: Renewal, asked: float, now: float) -> Outcome:
    """Say what the answer to a renewal that was asked then means.

    `asked` is the clock before the question was sent; only an answer that says Renewed moves the deadline.
    """
    deadline = hold.deadline
    if now >= deadline:  # the loss was there for everybody to see: too late to take back
        return Outcome(Fact.LATE, deadline, deadline)
    if isinstance(answer, Renewed):
        deadline = max(deadline, local_deadline(asked, min(hold.claim.ttl, hold.shorter), answer.left))
        return Outcome(Fact.RENEWED, deadline, renew_time(asked, deadline))
    if isinstance(answer, Lost):
        return Outcome(Fact.GONE, deadline, deadline, "the store no longer has the claim")
    return Outcome(Fact.UNKNOWN, deadline, min(deadline, retry_time(now, hold.span)), answer.cause)


def why_late(hold: Hold, before: State, now: float, blocked: float = 0.0) -> str:
    """Say why a lease has passed its deadline. `blocked`: for how long its event loop has not run."""
    ttl = hold.span
    if hold.renew_until == -inf:
        return f"it is not renewed (renew=False), and its ttl of {ttl:g} s has passed"
    if now >= hold.renew_until:
        return f"max_hold of {hold.renew_until - hold.granted:g} s has passed"
    if before is AT_RISK or hold.renewing:
        behind = f"; the event loop was blocked for {blocked:.1f} s" if blocked > ttl / 3 else ""
        return f"no renewal was answered within its ttl of {ttl:g} s{behind}"
    return f"this process did not run for longer than its ttl of {ttl:g} s"


class Ending(Enum):
    """How the body of a `with` ended."""

    RETURN = "return"
    ERROR = "exception"
    OUR_CANCEL = "our own cancellation"
    OUTER = "outer cancellation, KeyboardInterrupt, SystemExit"


RETURNED = Ending.RETURN


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
