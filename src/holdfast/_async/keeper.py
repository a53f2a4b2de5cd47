"""The keeper: one per client, renews every lease in time and tells of every loss.

Two activities. The first owns a heap of times, decides and tells, and never does I/O: a store that hangs must not keep
it from saying at the deadline that a lease is lost. The second talks to the store: renewals in batches, and releases
that went unanswered. Both start when there is something to keep and end when there is nothing.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from .._clock import Clock, SystemClock
from ..core import events
from ..core.claim import Lost, Renewal, Renewed, Unknown
from ..core.lease import AT_RISK, LIVE, LOST, RELEASED, TRANSITIONS, Fact, State
from ..core.timing import RENEW_BATCH, backoff, local_deadline, renew_time, retry_time
from ..errors import StoreError
from ..observe.stream import Stream, logger
from . import runtime
from .lease import Held, Hold
from .store import Store

_EARLY = 0.1  # renewals due this soon join a batch that goes out now
_IDLE = 2.0  # how long an activity without work stays
_LATE = 2.0  # seconds after which a claim that went unanswered has come, if it comes at all
_REAL = SystemClock()  # bounds what close() may take, whatever clock the leases live by
_MANY = 1000  # fresh holds after which the heap is brought up to date


class Orphan:
    """A claim that nobody holds any more but the store may still have: to be released when the store answers."""

    __slots__ = ("attempts", "due", "holder", "keep", "late", "queued", "resource", "until")

    def __init__(self, resource: str, holder: str, keep: float, until: float, late: bool = False) -> None:
        self.resource, self.holder, self.keep, self.until = resource, holder, keep, until
        self.late = late  # its claim went unanswered, and may still be on its way
        self.attempts = 0
        self.due = -inf
        self.queued = inf

    def ref(self) -> Orphan:
        """Return itself: unlike a hold it is kept alive."""
        return self


Kept = Hold | Orphan


class Keeper:
    """Keeps the leases of one client."""

    def __init__(self, store: Store, clock: Clock, stream: Stream, namespace: str, held: Held) -> None:
        self.store = store
        self.clock = clock
        self._now = clock.now
        self.stream = stream
        self.namespace = namespace
        self.pid = os.getpid()
        self.inherited = False  # this is the copy of a forked child: nothing here is its own
        self._held = held
        self._mutex = threading.Lock()  # guards the states of holds, and who starts an activity
        # What is new or due at another time; whoever puts something in pokes the first activity if that looks too late.
        self._fresh: deque[Callable[[], Kept | None]] = deque()
        self._next = inf  # when it looks by itself; inf while it is at work, so that nothing slips past it
        self._wake = runtime.Signal()
        # Belongs to the first activity alone. The number breaks ties, so that what is kept is never compared.
        self._heap: list[tuple[float, int, Callable[[], Kept | None]]] = []
        self._numbers = count()
        self._compact_at = 64
        self._losses: deque[Hold] = deque()
        self._jobs: deque[list[Hold] | Orphan] = deque()
        self._work = runtime.Signal()
        self._watcher: runtime.Activity | None = None
        self._renewer: runtime.Activity | None = None
        self._ending: list[runtime.Activity] = []  # had nothing to do, and may not be over yet: close() waits for them
        self.closed = False
        self._leaving: tuple[float, runtime.Signal] | None = None  # until when to release everything, and who waits

    # -- called by the shell, in any thread or task

    def add(self, hold: Hold) -> None:
        """Keep a hold that was just granted."""
        self._held[hold.key] = hold.ref
        fresh = self._fresh
        fresh.append(hold.ref)
        if hold.due < self._next or len(fresh) > _MANY:
            self._poke()

    def learn(self, hold: Hold, fact: Fact, cause: str = "") -> None:
        """Take note of a fact about a hold; a loss is told by the first activity, soon and once."""
        with self._mutex:
            before, after = hold.state, TRANSITIONS[hold.state][fact]
            if after is LOST and before in LIVE:
                hold.cause = cause or self._why_late(hold, before)  # first: whoever sees the loss wants to say why
            hold.state = after
        if after in LIVE or before not in LIVE:
            return
        self._forget(hold)
        if after is LOST:
            self._lose(hold)
        if hold.signal is not None:
            hold.signal.set()

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
                self._schedule(hold, renew_time(asked, hold.deadline))
            case Lost():
                self.learn(hold, Fact.GONE, "the store no longer has the claim")
                if self.store.capabilities.session:
                    self._ask_all(now)
            case Unknown(cause):
                told = hold.state is AT_RISK
                self.learn(hold, Fact.UNKNOWN)
                if hold.state is AT_RISK:
                    if not told:
                        self._emit(events.AtRisk, hold, left=hold.deadline - now, cause=cause)
                    self._schedule(hold, min(hold.deadline, retry_time(now, hold.claim.ttl)))

    def _ask_all(self, now: float) -> None:
        """Renew everything at once: where claims share a session they are lost together, and one was."""
        for find in list(self._held.values()):
            hold = find()
            if hold is not None and not hold.renewing and now < hold.renew_until:
                self._schedule(hold, now)

    async def release(self, hold: Hold) -> bool:
        """Release a hold; False if it was lost. Without an answer the keeper goes on trying."""
        now = self._now()
        with self._mutex:
            live = hold.state in LIVE and now < hold.deadline
            if live:
                hold.state = RELEASED
        if not live:
            return hold.look() is not LOST
        self._forget(hold)
        if hold.signal is not None:
            hold.signal.set()
        resource, holder = hold.claim[:2]
        keep = hold.keep() if hold.min_hold else 0.0
        try:
            had = await self.store.release(resource, holder, keep)
        except StoreError as error:
            self._emit(events.Unreleased, hold, cause=str(error))
            self.adopt(Orphan(resource, holder, keep, hold.deadline))
            return True
        except BaseException:  # cancelled or interrupted: whether the store acted is unknown
            self.adopt(Orphan(resource, holder, keep, hold.deadline))
            raise
        if not had:
            hold.cause = "the store no longer had the claim when it was released"
            hold.state = LOST
            self._lose(hold)
        elif self.stream.observers:
            self._emit(events.Released, hold, held=self.clock.now() - hold.granted)
        return had

    def adopt(self, orphan: Orphan) -> None:
        """Go on trying to release a claim in the background until it has ended anyway."""
        self._jobs.append(orphan)
        self._work.set()
        self._start_renewer()

    def disown(self, hold: Hold) -> None:
        """Give back a hold that its acquirer will never see."""
        self.learn(hold, Fact.RELEASED)
        self.adopt(Orphan(hold.claim.resource, hold.claim.holder, 0.0, hold.deadline))

    def dropped(self, hold: Hold) -> None:
        """Note that a hold was garbage-collected unreleased. Takes no lock: the collector runs anywhere."""
        hold.state = RELEASED
        self._forget(hold)
        if hold.renew_until == -inf:
            return  # never renewed, detached: letting it run out is how it is used
        self._emit(events.Dropped, hold)
        warnings.warn(
            f"the lease on {hold.claim.resource!r} (token {hold.token}) was dropped without a release; "
            "it ends at its ttl. Use `with`, or call release()",
            ResourceWarning,
            stacklevel=2,
        )

    async def close(self, seconds: float) -> None:
        """Stop both activities, release what is held, and withdraw what was abandoned."""
        until = _REAL.now() + seconds
        with self._mutex:  # whoever starts an activity has done so before, or sees that it is too late
            self.closed = True
            running = [self._watcher, self._renewer, *self._ending]
        self._wake.set()
        self._work.set()
        for activity in running:
            if activity is not None:
                await activity.join(max(0.0, until - _REAL.now()))
        await self._end(until)

    def leave(self, seconds: float) -> runtime.Signal | None:
        """Let the first activity release everything, and return what tells that it has; None if nothing is held.

        For the end of the interpreter: not every Python starts a thread then, and nobody can be kept waiting.
        """
        if self._watcher is None or not self._watcher.alive:
            return None
        self._leaving = (_REAL.now() + seconds, runtime.Signal())
        self._wake.set()
        return self._leaving[1]

    async def _end(self, until: float) -> None:
        """Release what is held and what was abandoned, as far as the time allows."""
        self._tell_losses()
        self._take_fresh()
        for _, _, find in list(self._heap):
            hold = find()
            if not isinstance(hold, Hold) or hold.look() not in LIVE:
                continue
            if hold.renew_until == -inf:
                self.learn(hold, Fact.RELEASED)  # a detached claim ends at its expiry, not with its client
            elif _REAL.now() < until:
                try:
                    await self.release(hold)
                except Exception:  # one that fails must not keep the others
                    logger.exception("%r could not be released", hold.claim.resource)
            else:
                self.learn(hold, Fact.RELEASED)
                logger.warning(
                    "%r (token %d) was not released within close(); it ends at its ttl", hold.claim.resource, hold.token
                )
        orphans = {job for job in self._jobs if isinstance(job, Orphan)}
        orphans.update(job for _, _, find in self._heap if isinstance(job := find(), Orphan))
        for orphan in orphans:
            if _REAL.now() < until:
                await self._release_orphan(orphan)
        self._heap.clear()
        self._jobs.clear()
        self._tell_losses()

    # -- the first activity: decides and tells

    def _poke(self) -> None:
        self._wake.set()
        with self._mutex:
            if not self.closed and (self._watcher is None or not self._watcher.alive):
                self._watcher = runtime.start(self._watch, "holdfast-keeper")

    def _schedule(self, thing: Kept, due: float) -> None:
        """Set when to look at it next."""
        thing.due = due
        self._fresh.append(thing.ref)
        if due < self._next:
            self._poke()

    async def _watch(self) -> None:
        idle_until = inf
        while not self.closed:
            self._wake.clear()
            if self._fresh:
                idle_until = inf
            self._next = inf
            if self._leaving is not None:
                until, left = self._leaving
                await self._end(until)
                return left.set()
            try:
                self._tell_losses()
                self._take_fresh()
                self._attend()
                self._take_fresh()
            except Exception:  # a bug must not end the keeper: every lease of the client hangs on it
                logger.exception("the keeper failed; it goes on")
                await runtime.sleep(self.clock, self.clock.now() + 0.1)
            now = self.clock.now()
            if self._heap or idle_until == inf:
                idle_until = now + _IDLE
            elif now >= idle_until:
                with self._mutex:
                    # Whoever adds a hold after this finds no watcher and starts a new one.
                    if not self._fresh and not self._losses:
                        self._retire(self._watcher)
                        self._watcher = None
                        return
            # Also when there is nothing to keep: leases that come and go before it looks again need not wake it.
            self._next = self._heap[0][0] if self._heap else idle_until
            await self._wake.wait(self.clock, self._next)

    def _take_fresh(self) -> None:
        """Bring the heap up to date. Each thing has one entry that counts, the one at its `queued` time."""
        while self._fresh:
            find = self._fresh.popleft()
            thing = _live(find())
            # One that is due later than its entry is found when that comes up: no need for another.
            if thing is not None and thing.due < thing.queued:
                self._push(thing)
        if len(self._heap) > self._compact_at:
            self._heap = [e for e in self._heap if (thing := _live(e[2]())) is not None and thing.queued == e[0]]
            heapify(self._heap)
            self._compact_at = 64 + 2 * len(self._heap)

    def _push(self, thing: Kept) -> None:
        thing.queued = thing.due
        heappush(self._heap, (thing.due, next(self._numbers), thing.ref))

    def _due(self, by: float) -> list[Kept]:
        """Take what is due by then off the heap."""
        found = []
        while self._heap and self._heap[0][0] <= by:
            due, _, find = heappop(self._heap)
            thing = _live(find())
            if thing is None or thing.queued != due:
                continue
            thing.queued = inf
            if thing.due <= by:
                found.append(thing)
            else:
                self._push(thing)
        return found

    def _attend(self) -> None:
        """Look at everything that is due: start renewals, notice deadlines."""
        now = self.clock.now()
        batch: list[Hold] = []
        for thing in self._due(now):
            if isinstance(thing, Orphan):
                self.adopt(thing)
            elif now >= thing.deadline:
                self.learn(thing, Fact.LATE)
            else:
                self._plan(thing, now, batch)
        if not batch:
            return
        for thing in self._due(now + _EARLY):
            if isinstance(thing, Hold):
                self._plan(thing, now, batch)
            else:
                self._push(thing)
        for start in range(0, len(batch), RENEW_BATCH):
            self._jobs.append(batch[start : start + RENEW_BATCH])
        self._work.set()
        self._start_renewer()

    def _plan(self, hold: Hold, now: float, batch: list[Hold]) -> None:
        """Renew it unless that is under way or over; look again at the deadline in any case."""
        if not hold.renewing and now < hold.renew_until:
            hold.renewing = True
            batch.append(hold)
        hold.due = hold.deadline
        self._push(hold)

    def _forget(self, hold: Hold) -> None:
        if self._held.get(hold.key) is hold.ref:  # another may have come in its place
            self._held.pop(hold.key, None)

    def _lose(self, hold: Hold) -> None:
        for lease in hold.listeners():
            lease.spare()
        self._losses.append(hold)
        self._poke()

    def _tell_losses(self) -> None:
        while self._losses:
            hold = self._losses.popleft()
            self._emit(events.Lost, hold, cause=hold.cause)
            message = f"the lease on {hold.claim.resource!r} (token {hold.token}) was lost: {hold.cause}"
            for lease in hold.listeners():
                try:
                    lease.told(message)
                except (Exception, SystemExit):  # sys.exit() in a callback must not end the keeper of all others
                    logger.exception("on_lost of %r failed", hold.claim.resource)

    def _why_late(self, hold: Hold, before: State) -> str:
        if hold.renew_until == -inf:
            return f"it was not to be renewed and its ttl of {hold.claim.ttl:g} s has passed"
        if self.clock.now() >= hold.renew_until:
            return f"max_hold of {hold.renew_until - hold.granted:g} s has passed"
        if before is AT_RISK or hold.renewing:
            return f"no renewal was answered within its ttl of {hold.claim.ttl:g} s"
        return f"this process did not run for longer than its ttl of {hold.claim.ttl:g} s"

    # -- the second activity: talks to the store

    def _retire(self, activity: runtime.Activity | None) -> None:
        """Remember an activity that ends by itself until it is over. Called with the mutex held."""
        self._ending = [other for other in (*self._ending, activity) if other is not None and other.alive]

    def _start_renewer(self) -> None:
        with self._mutex:
            if not self.closed and (self._renewer is None or not self._renewer.alive):
                self._renewer = runtime.start(self._renew, "holdfast-renewer")

    async def _renew(self) -> None:
        while not self.closed:
            self._work.clear()
            try:
                while self._jobs and not self.closed:
                    await self._do(self._jobs.popleft())
            except Exception:
                logger.exception("the keeper's renewals failed; they go on")
            if not await self._work.wait(self.clock, self.clock.now() + _IDLE):
                with self._mutex:
                    if not self._jobs:
                        self._retire(self._renewer)
                        self._renewer = None
                        return

    async def _do(self, job: list[Hold] | Orphan) -> None:
        if isinstance(job, Orphan):
            return await self._release_orphan(job)
        batch = [hold for hold in job if hold.state in LIVE]
        asked = self.clock.now()  # before asking: a slow reply must shorten the leases, never extend them
        answers: list[Renewal] = []
        cause = "the store gave too few answers"
        try:
            if batch:
                answers = await self.store.renew([hold.claim for hold in batch])
        except Exception as error:
            cause = str(error)
            if not isinstance(error, StoreError):
                logger.exception("the store failed to renew")
        finally:
            for hold in job:
                hold.renewing = False
        if len(answers) != len(batch):
            answers = [Unknown(cause)] * len(batch)
        for hold, answer in zip(batch, answers, strict=True):
            self.renewed(hold, answer, asked)

    async def _release_orphan(self, orphan: Orphan) -> None:
        if self.clock.now() >= orphan.until:
            return
        try:
            await self.store.release(orphan.resource, orphan.holder, orphan.keep)
        except StoreError:
            orphan.attempts += 1
            self._schedule(orphan, self.clock.now() + backoff(orphan.attempts))
            return
        if orphan.late and not self.closed:
            # A server that was stopped runs what two connections have brought in any order: the claim may come after
            # its withdrawal. Nobody would ever release it.
            orphan.late = False
            self._schedule(orphan, self.clock.now() + _LATE)

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


def _live(thing: Kept | None) -> Kept | None:
    return None if isinstance(thing, Hold) and thing.state not in LIVE else thing
