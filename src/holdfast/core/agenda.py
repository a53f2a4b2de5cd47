"""What is due when: renewals, deadlines, releases that went unanswered. Told the time, it says what to do.

A hold is looked at when it is to be renewed and at its deadline; an orphan when its release is to be tried again. Most
leases come and go before any of that: so what is new waits in `fresh`, where any thread may put it, and is sorted in
when the agenda is next looked at. Each thing has one entry in the heap that counts, the one at its `queued` time; a
thing that is due later than that entry is found when the entry comes up, and put back.

`step` belongs to one activity. It changes no state of a lease: it says which leases have passed their deadlines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from .lease import LIVE, LOST, Hold
from .timing import RENEW_BATCH, backoff, renew_limit

EARLY = 0.1  # seconds: renewals that are due this soon join a batch that goes out now
MANY = 1000  # fresh things after which somebody should look, however late they are due


class Orphan:
    """A claim that nobody holds any more but the store may still have: to be released when the store answers."""

    __slots__ = ("attempts", "due", "holder", "keep", "queued", "resource", "strays_until", "until")

    def __init__(self, resource: str, holder: str, keep: float, until: float, strays_until: float = -inf) -> None:
        self.resource = resource
        self.holder = holder
        self.keep = keep
        self.until = until  # when it has ended anyway
        self.strays_until = strays_until  # until when a copy of its claim may still arrive: release it again then
        self.attempts = 0
        self.due = -inf
        self.queued = inf

    def ref(self) -> Orphan:
        """Return itself: unlike a hold it is kept alive."""
        return self

    def unanswered(self, now: float) -> bool:
        """Note that a release went unanswered; return whether to try again, and set when."""
        self.due = now + backoff(self.attempts)
        self.attempts += 1
        return self.due < self.until

    def answered(self, now: float) -> bool:
        """Note that the store has released it; return whether to do so once more, and set when.

        A server that was stopped runs what two connections have brought in any order: a claim that went unanswered may
        come after its withdrawal, and then nobody would ever release it.
        """
        self.due, self.strays_until = self.strays_until, -inf
        return self.due > now


Thing = Hold | Orphan
Ref = Callable[[], Thing | None]


class Batch(NamedTuple):
    """Leases to renew together, and how many seconds that may take."""

    holds: list[Hold]
    limit: float


class Plan(NamedTuple):
    """What to do now, and when to look again (inf: not before something new comes)."""

    renew: list[Batch]
    release: list[Orphan]
    lost: list[Hold]  # their deadlines have passed; or they are lost, and nobody has told it yet
    next: float


class Agenda:
    """The times at which the things of one keeper are due."""

    __slots__ = ("_compact_at", "_heap", "_numbers", "fresh", "io_timeout", "shortest")

    def __init__(self, io_timeout: float) -> None:
        self.io_timeout = io_timeout
        self.fresh: deque[Ref] = deque()  # new, or due at another time; any thread may append
        # The number breaks ties, so that things are never compared.
        self._heap: list[tuple[float, int, Ref]] = []
        self._numbers = count()
        self._compact_at = 64
        self.shortest = inf  # the shortest ttl of all that came since there was nothing, or since it was recounted

    def __bool__(self) -> bool:
        """Return whether there is anything to keep."""
        return bool(self._heap or self.fresh)

    def step(self, now: float) -> Plan:
        """Take what is due, and plan when to look at it next."""
        if not self._heap:
            self.shortest = inf
        self._sort_in()
        batch: list[Hold] = []
        release: list[Orphan] = []
        lost: list[Hold] = []
        for thing in self._due(now):
            if isinstance(thing, Orphan):
                release.append(thing)
            elif now >= thing.deadline or thing.state is LOST:
                lost.append(thing)
            else:
                self._plan(thing, now, batch)
        if batch:
            for thing in self._due(now + EARLY):
                if isinstance(thing, Hold) and thing.state in LIVE:
                    self._plan(thing, now, batch)
                else:
                    self._push(thing)
        return Plan(self._batches(batch, now), release, lost, self._heap[0][0] if self._heap else inf)

    def holds(self) -> list[Hold]:
        """Return all live holds, in the order in which they are due."""
        return [thing for thing in self._all() if isinstance(thing, Hold) and thing.state in LIVE]

    def orphans(self) -> list[Orphan]:
        """Return all orphans that wait for their time."""
        return [thing for thing in self._all() if isinstance(thing, Orphan)]

    def recount(self) -> None:
        """Find the shortest ttl of the leases that are still held."""
        self.shortest = min((hold.claim.ttl for hold in self.holds()), default=inf)

    def clear(self) -> None:
        """Forget everything."""
        self.fresh.clear()
        self._heap.clear()

    def _all(self) -> list[Thing]:
        self._sort_in()
        found = [thing for _, _, ref in sorted(self._heap, key=lambda entry: entry[:2]) if (thing := ref()) is not None]
        return list(dict.fromkeys(found))

    def _sort_in(self) -> None:
        fresh = self.fresh
        while fresh:
            thing = _wanted(fresh.popleft()())
            if thing is not None and thing.due < thing.queued:
                self._push(thing)
                if isinstance(thing, Hold) and thing.claim.ttl < self.shortest:
                    self.shortest = thing.claim.ttl
        if len(self._heap) > self._compact_at:
            self._heap = [e for e in self._heap if (thing := _wanted(e[2]())) is not None and thing.queued == e[0]]
            heapify(self._heap)
            self._compact_at = 64 + 2 * len(self._heap)

    def _push(self, thing: Thing) -> None:
        thing.queued = thing.due
        heappush(self._heap, (thing.due, next(self._numbers), thing.ref))

    def _due(self, by: float) -> list[Thing]:
        """Take what is due by then off the heap."""
        found: list[Thing] = []
        while self._heap and self._heap[0][0] <= by:
            at, _, ref = heappop(self._heap)
            thing = _wanted(ref())
            if thing is None or thing.queued != at:
                continue
            thing.queued = inf
            if thing.due <= by:
                found.append(thing)
            else:
                self._push(thing)
        return found

    def _plan(self, hold: Hold, now: float, batch: list[Hold]) -> None:
        """Renew it unless that is under way or over; look again at the deadline in any case."""
        if not hold.renewing and now < hold.renew_until:
            hold.renewing = True
            batch.append(hold)
        hold.due = hold.deadline
        self._push(hold)

    def _batches(self, holds: list[Hold], now: float) -> list[Batch]:
        """Put those together that are about as urgent: one that has little time left must not hurry all the others."""
        batches: list[Batch] = []
        for hold in sorted(holds, key=lambda hold: hold.deadline):
            limit = renew_limit(now, hold.deadline, self.io_timeout)
            if not batches or len(batches[-1].holds) == RENEW_BATCH or limit > 2 * batches[-1].limit:
                batches.append(Batch([], limit))
            batches[-1].holds.append(hold)
        return batches


def _wanted(thing: Thing | None) -> Thing | None:
    """Return a thing that still has to be looked at: not a hold that has ended and of which everything was told."""
    if isinstance(thing, Hold) and thing.state not in LIVE and (thing.state is not LOST or thing.told):
        return None
    return thing
