"""etcd leases as a client knows them, and the claims that live under them."""

from __future__ import annotations

import os
from math import ceil
from typing import Protocol

from ..core.claim import Claim, Waiting
from .keys import guard_key
from .messages import op_range, range_

FRESH = 2 / 3  # of the ttl that must be left of a lease that a claim comes under: the keeper renews after a third


class Bell(Protocol):
    """What wakes a waiter: a signal of either flavour."""

    def set(self) -> None:
        """Wake it."""
        ...


class Lease:
    """A lease of etcd. Its local deadline counts from when its last confirmed keep-alive was *sent*."""

    __slots__ = ("confirmed", "guard", "guard_key", "id", "look", "over", "ttl")

    def __init__(self, ttl: float) -> None:
        self.id = int.from_bytes(os.urandom(8)) >> 1 or 1
        self.ttl = ceil(ttl)  # etcd counts whole seconds
        self.confirmed = float("-inf")
        self.over = False
        self.guard_key = guard_key(self.id)
        self.look = op_range(range_(self.guard_key))
        self.guard = 0  # the revision that a claim's transaction demands of the guard key

    def left(self, now: float) -> float:
        """Return how long it surely lives on."""
        return self.confirmed + self.ttl - now if not self.over else 0.0

    def fresh(self, now: float) -> bool:
        """Tell whether so much is left that a claim may come under it."""
        return self.left(now) >= self.ttl * FRESH

    def confirm(self, sent: float) -> bool:
        """Note that it was kept alive by a request sent then; False if it was given up meanwhile."""
        self.confirmed = max(self.confirmed, sent)
        return not self.over

    def end(self) -> None:
        """Note that it is over. All claims under it are lost at once."""
        self.over = True


class Place:
    """A claim of this client: what it knows of it, and how it is woken."""

    __slots__ = (
        *("answer", "claim", "doubts", "granted", "key", "lease", "own", "rung", "token", "under", "until", "watched"),
    )

    def __init__(self, claim: Claim, key: bytes) -> None:
        self.claim = claim
        self.key = key
        self.lease: Lease | None = None  # of its own, if it is detached
        self.under: Lease | None = None  # that its key lives under now
        self.own = 0  # its create_revision: its place in line
        self.granted = False
        self.token = 0
        self.until = float("inf")  # when it lapses, unless it is asked for or renewed
        # Leases under which a transaction of this claim went unanswered. It may take place at any later time, after a
        # delete: their guards have to be raised first.
        self.doubts: frozenset[Lease] = frozenset()
        self.answer: Waiting | None = None
        self.watched: tuple[bytes, bytes, int] | None = None  # what to watch (key, end), from which revision on
        self.rung = True  # something changed, or may have, since the last answer


def lapsed(places: dict[str, Place], lease: Lease, now: float) -> list[Place]:
    """Return the claims under a lease that nobody asked for or renewed in time.

    The lease is shared, so it does not end with them: dropped leases, those past max_hold, waiters that were forgotten.
    """
    return [
        place
        for place in list(places.values())
        if place.until <= now and (place.under is lease or lease in place.doubts)
    ]
