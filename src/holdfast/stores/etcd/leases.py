"""etcd leases as a client knows them, and the claims that live under them."""

from __future__ import annotations

import os
from math import ceil
from typing import Any, Protocol

from ...core.claim import Claim, Waiting
from .keys import guard_key
from .messages import op_range, range_

RECENT = 11 / 12  # of its ttl left: a lease need not be renewed again
FRESH = 2 / 3  # of its ttl must be left of a lease before a claim is put under it; the keeper renews after a third


class Wakeup(Protocol):
    """What wakes a waiter: a signal of either flavour."""

    def set(self) -> None:
        """Wake it."""
        ...


class Lease:
    """A lease of etcd. Its local deadline counts from when its last confirmed keep-alive was *sent*."""

    __slots__ = ("confirmed", "guard", "guard_key", "id", "over", "read_guard", "ttl")

    def __init__(self, ttl: float) -> None:
        self.id = int.from_bytes(os.urandom(8)) >> 1 or 1
        self.ttl = ceil(ttl)  # etcd counts whole seconds
        self.confirmed = float("-inf")
        self.over = False
        self.guard_key = guard_key(self.id)
        self.read_guard = op_range(range_(self.guard_key))  # a step of a transaction
        self.guard = 0  # the revision that a claim's transaction demands of the guard key

    def left(self, now: float) -> float:
        """Return how long it is certain to live."""
        return self.confirmed + self.ttl - now if not self.over else 0.0

    def fresh(self, now: float) -> bool:
        """Return whether enough is left for a claim to be put under it."""
        return self.left(now) >= self.ttl * FRESH

    def recent(self, now: float) -> bool:
        """Return whether it was kept alive a moment ago."""
        return self.left(now) >= self.ttl * RECENT

    def confirm(self, sent: float) -> bool:
        """Note that it was kept alive by a request sent then; False if it was given up meanwhile."""
        self.confirmed = max(self.confirmed, sent)
        return not self.over

    def end(self) -> None:
        """Note that it is over. All claims under it are lost at once."""
        self.over = True


class LocalClaim:
    """What this client knows of a claim of its own."""

    __slots__ = (
        *(
            "answer",
            "claim",
            "doubts",
            "granted",
            "key",
            "lease",
            "own",
            "token",
            "under",
            "until",
            "wakeup",
            "watched",
        ),
        "woken",
    )

    def __init__(self, claim: Claim, key: bytes) -> None:
        self.claim = claim
        self.key = key
        self.lease: Lease | None = None  # of its own, if it is detached
        self.under: Lease | None = None  # under which its key is now
        self.own = 0  # its create_revision: its place in line
        self.granted = False
        self.token = 0
        self.until = float("inf")  # when it lapses, unless it is asked for or renewed
        # Leases under which a transaction of this claim went unanswered: it may still be executed, at any time.
        self.doubts: frozenset[Lease] = frozenset()
        self.answer: Waiting | None = None
        self.watched: tuple[bytes, bytes, int] | None = None  # what to watch (key, end), from which revision on
        self.wakeup: Any = None  # raised when that may have changed, since the last answer
        self.woken = True  # something changed, or may have, since the last answer


def has_ended(local: LocalClaim, lease: Lease, now: float) -> bool:
    """Return whether a claim ends with this lease, unless transactions of it are still on their way under others."""
    if local.under is lease:
        return local.granted or local.until <= now
    return local.under is None and local.until <= now and lease in local.doubts


def lapsed(claims: dict[str, LocalClaim], lease: Lease, now: float) -> list[LocalClaim]:
    """Return the claims under a lease that nobody asked for or renewed in time.

    The lease is shared, so it does not end with them: dropped leases, those past max_hold, waiters that were forgotten.
    """
    return [
        local
        for local in list(claims.values())
        if local.until <= now and (local.under is lease or lease in local.doubts)
    ]
