"""The keeper: one per client, renews every lease in time and tells of every loss.

Two activities. The first owns a heap of times, decides and tells, and never does I/O: a store that hangs must not keep
it from saying at the deadline that a lease is lost. The second talks to the store: renewals in batches, and releases
that went unanswered. Both start when there is something to keep and end when there is nothing.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from .._clock import Clock, SystemClock
from ..core import events
from ..core.claim import Lost, Renewal, Renewed, Unknown
from ..core.lease import TRANSITIONS, Fact, State
from ..core.timing import RENEW_BATCH, backoff, local_deadline, renew_time, retry_time
from ..errors import StoreError
from ..observe.stream import Stream, logger
from . import runtime
from .lease import Held, Hold
from .store import Store

_EARLY = 0.1  # renewals due this soon join a batch that goes out now
_IDLE = 2.0  # how long an activity without work stays
_LIVE = (State.HELD, State.AT_RISK)


class Orphan:
    """A claim that nobody holds any more but the store may still have: to be released when the store answers."""

    __slots__ = ("attempts", "due", "holder", "keep", "resource", "until")

    def __init__(self, resource: str, holder: str, keep: float, until: float) -> None:
        self.resource, self.holder, self.keep, self.until = resource, holder, keep, until
        self.attempts = 0
        self.due = -inf


class _Entry(NamedTuple):
    due: float
    number: int  # breaks ties, so that what is kept is never compared
    find: Callable[[], Hold | Orphan | None]


class Keeper:
    """Keeps the leases of one client."""

    def __init__(self, store: Store, clock: Clock, stream: Stream, namespace: str, held: Held) -> None:
        self.store = store
        self.clock = clock
        self.stream = stream
        self.namespace = namespace
        self.pid = os.getpid()
        self._held = held
        self._mutex = threading.Lock()
        self._heap: list[_Entry] = []
        self._numbers = count()
        self._live = 0  # entries of the heap that are not outdated, about
        self._next = inf  # when the first activity looks again by itself
        self._wake = runtime.Signal()
        self._losses: deque[Hold] = deque()
        self._jobs: deque[list[Hold] | Orphan] = deque()
        self._work = runtime.Signal()
        self._watcher: runtime.Activity | None = None
        self._renewer: runtime.Activity | None = None
        self._closing = False

    # -- called by the shell, in any thread or task

    def add(self, hold: Hold) -> None:
        """Keep a hold that was just granted."""
        ref = weakref.ref(hold)
        self._held.add(hold, ref)
        with self._mutex:
            heappush(self._heap, _Entry(hold.due, next(self._numbers), ref))
            self._live += 1
            if len(self._heap) > 64 and len(self._heap) > 2 * self._live:
                self._compact()
            poke = hold.due < self._next
        if poke:
            self._poke()

    def learn(self, hold: Hold, fact: Fact, cause: str = "") -> None:
        """Take note of a fact about a hold; a loss is told by the keeper, soon and once."""
        with self._mutex:
            before = hold.state
            hold.state = TRANSITIONS[before][fact]
            ended = before in _LIVE and hold.state not in _LIVE
            lost = ended and hold.state is State.LOST
            if lost:
                hold.cause = cause or self._why_late(hold)
                self._losses.append(hold)
            if ended:
                self._live -= 1
        if lost:
            for ref in list(hold.leases):
                if (lease := ref()) is not None:
                    lease._spare()
        if ended:
            self._held.forget(hold)
            if hold.signal is not None:
                hold.signal.set()
        if lost:
            self._poke()

    def renewed(self, hold: Hold, answer: Renewal, asked: float) -> None:
        """Apply the answer to a renewal that was asked at that time."""
        now = self.clock.now()
        if now >= hold.deadline:
            # The answer came after the deadline, when the loss was there for everybody to see: too late to take back.
            return self.learn(hold, Fact.LATE)
        match answer:
            case Renewed(left):
                self.learn(hold, Fact.RENEWED)
                hold.deadline = max(hold.deadline, local_deadline(asked, hold.claim.ttl, left))
                if self.stream.observers:
                    self._emit(events.Renewed, hold, took=now - asked)
                self._schedule(hold, renew_time(asked, hold.claim.ttl))
            case Lost():
                self.learn(hold, Fact.GONE, "the store no longer has the claim")
            case Unknown(cause):
                told = hold.state is State.AT_RISK
                self.learn(hold, Fact.UNKNOWN)
                if hold.state is State.AT_RISK:
                    if not told:
                        self._emit(events.AtRisk, hold, left=hold.deadline - now, cause=cause)
                    self._schedule(hold, min(hold.deadline, retry_time(now, hold.claim.ttl)))

    async def release(self, hold: Hold) -> bool:
        """Release a hold; False if the store no longer had it. Without an answer the keeper goes on trying."""
        self.learn(hold, Fact.RELEASED)
        claim, keep = hold.claim, hold.keep()
        try:
            had = await self.store.release(claim.resource, claim.holder, keep)
        except StoreError as error:
            self._emit(events.Unreleased, hold, cause=str(error))
            self.adopt(Orphan(claim.resource, claim.holder, keep, hold.deadline))
            return True
        except BaseException:  # cancelled or interrupted: whether the store acted is unknown
            self.adopt(Orphan(claim.resource, claim.holder, keep, hold.deadline))
            raise
        if not had:
            hold.state, hold.cause = State.LOST, "the store no longer had the claim when it was released"
            self._emit(events.Lost, hold, cause=hold.cause)
        elif self.stream.observers:
            self._emit(events.Released, hold, held=self.clock.now() - hold.granted)
        return had

    def adopt(self, orphan: Orphan) -> None:
        """Go on trying to release a claim in the background until it has ended anyway."""
        self._jobs.append(orphan)
        self._work.set()
        self._start_renewer()

    def dropped(self, hold: Hold) -> None:
        """Note that a hold was garbage-collected unreleased. Takes no lock: the collector runs anywhere."""
        hold.state = State.RELEASED
        self._live -= 1
        self._held.forget(hold)
        if hold.renew_until == -inf:
            return  # never renewed, detached: letting it run out is how it is used
        self._emit(events.Dropped, hold)
        warnings.warn(
            f"the lease on {hold.claim.resource!r} (token {hold.token}) was dropped without a release; "
            f"it ends at its ttl. Use `with`, or call release()",
            ResourceWarning,
            stacklevel=2,
        )

    async def close(self, seconds: float) -> None:
        """Stop both activities, release what is held, and withdraw what was abandoned."""
        clock = SystemClock()  # real time, whatever clock the leases live by
        until = clock.now() + seconds
        self._closing = True
        self._wake.set()
        self._work.set()
        for activity in (self._watcher, self._renewer):
            if activity is not None:
                await activity.join(max(0.0, until - clock.now()))
        self._tell_losses()
        left = [found for entry in self._heap if (found := entry.find()) is not None]
        left += [job for job in self._jobs if isinstance(job, Orphan)]
        self._heap.clear()
        self._jobs.clear()
        for thing in left:
            if isinstance(thing, Hold) and thing.look() in _LIVE:
                if thing.renew_until == -inf:
                    self.learn(thing, Fact.RELEASED)  # a detached claim ends at its expiry, not with its client
                elif clock.now() < until:
                    await self.release(thing)
                else:
                    self.learn(thing, Fact.RELEASED)
                    logger.warning(
                        "%r (token %d) could not be released within close(); it ends at its ttl",
                        thing.claim.resource,
                        thing.token,
                    )
        for job in [job for job in (*left, *self._jobs) if isinstance(job, Orphan)]:
            if clock.now() < until:
                await self._release_orphan(job)
        self._jobs.clear()

    # -- the first activity: decides and tells

    def _poke(self) -> None:
        self._wake.set()
        with self._mutex:
            if not self._closing and (self._watcher is None or not self._watcher.alive):
                self._watcher = runtime.start(self._watch, "holdfast-keeper")

    async def _watch(self) -> None:
        idle_since = self.clock.now()
        while not self._closing:
            self._wake.clear()
            try:
                self._tell_losses()
                self._attend()
            except Exception:  # a bug must not end the keeper: every lease of the client hangs on it
                logger.exception("the keeper failed; it goes on")
                await runtime.sleep(self.clock, self.clock.now() + 0.1)
            now = self.clock.now()
            with self._mutex:
                until = self._next = self._heap[0].due if self._heap else inf
                if until < inf or self._losses:
                    idle_since = now
                elif now - idle_since >= _IDLE:
                    self._next = inf
                    self._watcher = None  # under the mutex: whoever adds a hold after this starts a new one
                    return
            await self._wake.wait(self.clock, min(until, idle_since + _IDLE) if until == inf else until)

    def _attend(self) -> None:
        """Look at everything that is due: start renewals, notice deadlines."""
        now = self.clock.now()
        batch: list[Hold] = []
        for thing in self._pop(now):
            if isinstance(thing, Orphan):
                self.adopt(thing)
            elif now >= thing.deadline:
                self.learn(thing, Fact.LATE)
            else:
                if not thing.renewing and now < thing.renew_until:
                    thing.renewing = True
                    batch.append(thing)
                self._schedule(thing, thing.deadline)
        if not batch:
            return
        for thing in self._pop(now + _EARLY):
            if isinstance(thing, Hold) and not thing.renewing and now < thing.renew_until:
                thing.renewing = True
                batch.append(thing)
                self._schedule(thing, thing.deadline)
            else:
                self._schedule(thing, thing.due)
        for start in range(0, len(batch), RENEW_BATCH):
            self._jobs.append(batch[start : start + RENEW_BATCH])
        self._work.set()
        self._start_renewer()

    def _pop(self, due: float) -> list[Hold | Orphan]:
        found: list[Hold | Orphan] = []
        with self._mutex:
            while self._heap and self._heap[0].due <= due:
                entry = heappop(self._heap)
                thing = entry.find()
                if thing is not None and thing.due == entry.due and not _ended(thing):
                    found.append(thing)
        return found

    def _schedule(self, thing: Hold | Orphan, due: float) -> None:
        """Set when to look at it next; an earlier entry of the heap is outdated by this."""
        find: Callable[[], Hold | Orphan | None] = weakref.ref(thing) if isinstance(thing, Hold) else lambda: thing
        with self._mutex:
            thing.due = due
            heappush(self._heap, _Entry(due, next(self._numbers), find))
            poke = due < self._next
        if poke:
            self._poke()

    def _compact(self) -> None:
        self._heap = [
            e for e in self._heap if (thing := e.find()) is not None and thing.due == e.due and not _ended(thing)
        ]
        heapify(self._heap)
        self._live = len(self._heap)

    def _tell_losses(self) -> None:
        while self._losses:
            hold = self._losses.popleft()
            self._emit(events.Lost, hold, cause=hold.cause)
            message = f"the lease on {hold.claim.resource!r} (token {hold.token}) was lost: {hold.cause}"
            for ref in list(hold.leases):
                lease = ref()
                if lease is None:
                    continue
                try:
                    lease._told(message)
                except Exception:
                    logger.exception("on_lost of %r failed", hold.claim.resource)

    def _why_late(self, hold: Hold) -> str:
        now = self.clock.now()
        if hold.renew_until == -inf:
            return f"it was not to be renewed and its ttl of {hold.claim.ttl:g} s has passed"
        if now >= hold.renew_until:
            return f"max_hold of {hold.renew_until - hold.granted:g} s has passed"
        if hold.state is State.AT_RISK or hold.renewing:
            return f"no renewal was answered within its ttl of {hold.claim.ttl:g} s"
        return f"this process did not run for longer than its ttl of {hold.claim.ttl:g} s"

    # -- the second activity: talks to the store

    def _start_renewer(self) -> None:
        with self._mutex:
            if not self._closing and (self._renewer is None or not self._renewer.alive):
                self._renewer = runtime.start(self._renew, "holdfast-renewer")

    async def _renew(self) -> None:
        while not self._closing:
            self._work.clear()
            try:
                while self._jobs and not self._closing:
                    job = self._jobs.popleft()
                    if isinstance(job, Orphan):
                        await self._release_orphan(job)
                    else:
                        await self._renew_batch(job)
                    del job  # a renewal must not keep a forgotten lease alive
            except Exception:
                logger.exception("the keeper's renewals failed; they go on")
            if not await self._work.wait(self.clock, self.clock.now() + _IDLE):
                with self._mutex:
                    if not self._jobs:
                        self._renewer = None
                        return

    async def _renew_batch(self, batch: list[Hold]) -> None:
        batch = [hold for hold in batch if hold.state in _LIVE]
        if not batch:
            return
        asked = self.clock.now()  # before asking: a slow reply must shorten the leases, never extend them
        answers: list[Renewal]
        try:
            answers = await self.store.renew([hold.claim for hold in batch])
        except Exception as error:
            if not isinstance(error, StoreError):
                logger.exception("the store failed to renew")
            answers = [Unknown(str(error))] * len(batch)
        finally:
            for hold in batch:
                hold.renewing = False
        for hold, answer in zip(batch, answers, strict=True):
            self.renewed(hold, answer, asked)

    async def _release_orphan(self, orphan: Orphan) -> None:
        now = self.clock.now()
        if now >= orphan.until:
            return
        try:
            await self.store.release(orphan.resource, orphan.holder, orphan.keep)
        except StoreError:
            orphan.attempts += 1
            self._schedule(orphan, self.clock.now() + backoff(orphan.attempts))

    def _emit(self, kind: type[events.Event], hold: Hold, **facts: object) -> None:
        self.stream.emit(
            kind(
                at=self.clock.now(),
                namespace=self.namespace,
                resource=hold.claim.resource,
                owner=hold.claim.owner,
                **({"token": hold.token} | facts),
            )
        )


def _ended(thing: Hold | Orphan) -> bool:
    return isinstance(thing, Hold) and thing.state not in _LIVE
