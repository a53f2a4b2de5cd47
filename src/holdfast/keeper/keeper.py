"""The keeper: one per client, in threads of its own. It renews every lease in time and tells of every loss.

Renewal must not depend on the thing that it certifies. A body that blocks its event loop, or keeps the interpreter
busy, is healthy as long as other threads run: so the keeper is made of threads in both flavours, calls the blocking
side of the store, and never touches a loop but to leave a message there. Four activities, each a generator in
`activities.py`, each started when there is something for it to do and ended when there has been nothing for a while:

    timekeeper   owns the agenda; decides what is due and who has lost. No I/O, no user code: nothing can hold it up, so
                 that it says at the deadline that a lease is lost even while the store hangs. Two exceptions: at the
                 end it gives everything back, and where the system gives no more threads it stands in for the others.
    renewer      renews, in batches, each bounded by a third of what is left.
    releaser     releases what went unanswered or was abandoned. Not before renewals: it has a thread of its own.
    teller       logs, and calls observers and `on_lost`, which may take as long as they like.

An `opener` runs once, for asyncio: it opens the blocking side before the first renewal needs it. Whoever is the last
to leave that side after the end closes it.

Who touches what. The agenda belongs to the timekeeper; others put things into its `fresh`, and poke. The state of a
hold changes under `_mutex` and in `Hold.apply` alone, together with the count of its leases. Everything else that
crosses threads is a deque, whose append and popleft are atomic, and a latch to wake the one that pops. Nothing waits,
does I/O or calls foreign code while it has the mutex.

What may happen at any moment, and why it is safe:

- *Ctrl-C in the holder's thread*, between any two steps. A hold is noted with the agenda before its lease is handed
  out; a lease is settled last. What is left unsettled by an interrupted exit is found by its entry (`entries.py`).
- *A signal handler closes the client*, in a thread that is inside of one of our locks. close() takes none: it leaves a
  note, and the timekeeper does the rest; the wait for that is bounded. One that releases takes the mutex again in its
  own thread: what that guards may be interrupted anywhere, and done again.
- *The collector drops a hold*, in any thread, inside of any lock: it is put on a list, and the timekeeper finds it.
- *The process is paused.* `look` compares the clock, whoever runs first.
- *A fork.* The child's copy is marked `inherited` before anything else runs there, and is never used again.
- *The event loop is closed, or the interpreter ends, with leases held.* The timekeeper notices, or is told; it gives
  everything back and ends all activities.
"""

from __future__ import annotations

import os
from _thread import RLock
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Any, Protocol

from .._clock import Clock
from ..core import events
from ..core.agenda import MANY, Agenda, Batch, Orphan, Plan
from ..core.claim import Claim, Lost, Renewal
from ..core.lease import AT_RISK, LIVE, LOST, RELEASED, Fact, Hold, State, outcome_of, why_late
from ..core.timing import LATENESS
from ..observe.log import logger
from ..observe.stream import Stream
from . import activities
from .entries import Share, settle_left
from .pulse import Loop, Pulse
from .side import Store, StoreSide
from .signals import Latch
from .threads import Handle, Launch, NoThreadError, launch

OPEN_AT = 1 / 4  # of the time until the first renewal: most leases are not held for so long
_FORSAKEN_SECONDS = 5.0  # to give everything back when the event loop is gone


class Settable(Protocol):
    """A signal of any flavour."""

    def set(self) -> None:
        """Raise it; safe in any thread."""
        ...


class Leaving(Enum):
    """What releasing a lease comes down to."""

    SETTLED = "it was released before"
    SHARED = "other leases keep the hold"
    RELEASE = "it was the last: release the hold"
    AGAIN = "an earlier release was interrupted: release once more"
    LOST = "the hold was lost"


# Names of their own: looking a member up on its enum costs more than a call.
_SETTLED, _SHARED, _RELEASE, _AGAIN, _LOST = Leaving
_LET_GO = Fact.RELEASED


class Keeper:
    """Keeps the leases of one client."""

    # As it begins.
    inherited = False  # this is the copy of a forked child: nothing here is its own
    closed = ended = False
    end_by = inf  # when everything has to be given back, on the real clock; inf: it has not come to that
    unanswered = False  # whether a release at the end, after its time, went unanswered
    next = inf  # when the timekeeper looks by itself; inf while it is at work, so that nothing slips past it
    _open_at = inf  # when to open that side, if leases are held for so long

    def __init__(
        self,
        store: Store,
        loop: Loop | None,
        clock: Clock,
        real: Clock,
        stream: Stream,
        namespace: str,
        io_timeout: float,
        launch: Launch = launch,
    ) -> None:
        self.store = store
        self.clock = clock
        self.now = clock.now
        self.real_now = real.now  # bounds what close() may take, whatever clock the leases live by
        self.stream = stream
        self.namespace = namespace
        self.pid = os.getpid()
        self.grace = io_timeout  # for which the end may go on after its time, in the background
        self._enders: deque[Settable] = deque()  # raised when it has ended
        self.agenda = Agenda(io_timeout)
        self.pulse = Pulse(loop) if loop is not None else None
        self.held: dict[Callable[[], Hold | None], None] = {}  # all live holds
        self.dropped: deque[Hold] = deque()
        self.losses: deque[Hold] = deque()
        self.releasing: dict[Share, int] = {}  # leases that are released right now, each in that thread
        self.by_hand: dict[object, Hold] = {}  # those that somebody renews right now without waiting for the keeper
        self.renewals: deque[Batch] = deque()
        self.orphans: deque[Orphan] = deque()
        self.wake, self.renew_work, self.release_work, self.news = Latch(), Latch(), Latch(), Latch()
        self._mutex = RLock()
        self._launch = launch
        self._running: dict[str, Handle] = {}
        self._retired: list[Handle] = []  # had nothing to do, and may not be over yet
        self.unstaffed: list[str] = []  # activities that have work and no thread: the limit is reached
        self.side = StoreSide(store, namespace)
        if loop is None:
            self.side.make()  # it is the store itself; in the other flavour it is made when it is needed
        stream.attach(self.tell)

    # -- called by the shell, in any thread or task

    def add(self, hold: Hold) -> None:
        """Keep a hold that was just granted.

        Raises: NoThreadError.
        """
        self.held[hold.ref] = None
        fresh = self.agenda.fresh
        fresh.append(hold.ref)
        if self.side.made is None:
            self._plan_opening(hold)
        if hold.due < self.next or len(fresh) > MANY:
            self.poke()

    def _plan_opening(self, hold: Hold) -> None:
        if self._open_at == inf:
            self._open_at = hold.granted + (hold.due - hold.granted) * OPEN_AT
            if self._open_at < self.next:
                self.poke()

    def held_in(self, thread: int, resource: str) -> Hold | None:
        """Return a live hold on a resource that was acquired in a thread."""
        for ref in list(self.held):
            hold = ref()
            if hold is None or hold.thread != thread or hold.claim.resource != resource:
                continue
            if self.look(hold) in LIVE:
                return hold
        return None

    def busy(self, besides: Collection[Hold] = ()) -> bool:
        """Return whether more is held that somebody will give back: what is never renewed runs out by itself."""
        holds = [hold for ref in list(self.held) if (hold := ref()) is not None]
        return any(hold.renew_until > -inf and hold not in besides for hold in holds)

    def look(self, hold: Hold) -> State:
        """Return the state as of now. The clock decides, not the keeper: after a pause the body may run first."""
        if self.inherited:
            return LOST
        if hold.state in LIVE and self.now() >= hold.deadline:
            self.record(hold, Fact.LATE)
        return hold.state

    def join_in(self, share: Share) -> bool:
        """Count one more lease of a hold; False if it has just ended."""
        hold, now = share._hold, self.now()
        with self._mutex:
            if hold.state not in LIVE or now >= hold.deadline or not hold.shares:
                return False
            hold.shares[id(share)] = None
        return True

    def signal_of(self, hold: Hold, make: Callable[[], Settable]) -> Any:
        """Return the signal that is raised when a hold has ended."""
        with self._mutex:
            if hold.signal is None:
                hold.signal = make()
        return hold.signal

    def let_go(self, share: Share) -> Leaving:
        """Count a lease out; the last one takes the hold with it, in one step. Say what is to be done."""
        hold, now = share._hold, self.now()
        leaving = _RELEASE
        with self._mutex:
            if share._settled:
                return _SETTLED
            if share._counted:  # an interrupt has struck in here before, or in the release that followed
                leaving = _AGAIN
            share._counted = 2 if share._counted else 1
            hold.shares.pop(id(share), None)
            if hold.shares:
                return _SHARED
            if hold.state in LIVE and now < hold.deadline:
                hold.apply(_LET_GO)
                self.held.pop(hold.ref, None)
            elif hold.dropped and hold.state is RELEASED:
                leaving = _AGAIN  # the collector had found it, and now its `with` is left in order: the store has it
            elif leaving is _RELEASE or hold.state is not RELEASED:
                leaving = _SETTLED
        if leaving is _SETTLED:  # its time is over, or close() has released it
            return _LOST if self.look(hold) is LOST else _SETTLED
        if hold.signal is not None:
            hold.signal.set()
        return leaving

    def released(self, hold: Hold, had: bool) -> None:
        """Take the store's answer to a release."""
        if not had:
            self.record(hold, Fact.NOT_OURS, "the store no longer had the claim when it was released")
            return
        if self.stream.observers:
            self._emit(events.Released, hold, held=self.now() - hold.granted)
        if hold.strays_until > self.now():  # a copy of its claim may still arrive: it would hold, and nobody would know
            orphan = self.orphan_of(hold)
            orphan.answered(self.now())
            self.schedule(orphan)

    def unreleased(self, hold: Hold, cause: str) -> None:
        """Go on with a release that went unanswered."""
        self._emit(events.Unreleased, hold, cause=cause)
        self.adopt(self.orphan_of(hold))

    def abandon(self, share: Share) -> None:
        """Give back the part of a lease that nobody will release any more; once, whoever says so."""
        if self.inherited:
            return
        leaving = self.let_go(share)
        if leaving is Leaving.LOST:
            return  # there is nothing to give back, and whoever releases it is still to be told
        if leaving in (Leaving.RELEASE, Leaving.AGAIN) or share._hold.dropped:
            self.adopt(self.orphan_of(share._hold))
        share._settled = True  # last: an interrupt before leaves it to the next who finds it

    def orphan_of(self, hold: Hold) -> Orphan:
        """Return what remains of a hold that was let go, for the store to be told."""
        claim = hold.claim
        until = max(hold.deadline, hold.strays_until + claim.ttl)
        return Orphan(claim.resource, claim.holder, self.keep(hold), until, hold.strays_until)

    def keep(self, hold: Hold) -> float:
        """Return how long the claim has to stay taken when it is released now."""
        return max(0.0, hold.granted + hold.min_hold - self.now()) if hold.min_hold else 0.0

    def adopt(self, orphan: Orphan) -> None:
        """Go on trying to release a claim in the background until it has ended anyway."""
        self.orphans.append(orphan)
        self.release_work.set()
        try:
            self._ensure("releaser")
        except NoThreadError as error:
            logger.warning("%r is not released yet: %s", orphan.resource, error)

    def give_back(self, hold: Hold) -> None:
        """Give back a hold that its acquirer will never see."""
        if self.take_away(hold):
            self.adopt(self.orphan_of(hold))

    def disown(self, hold: Hold) -> None:
        """Forget a hold for which there is no thread: it was never handed out, and nobody is told of it."""
        with self._mutex:
            self._apply(hold, Fact.RELEASED, "")

    def take_away(self, hold: Hold) -> bool:
        """End a hold from here, whatever its leases do; False if it has ended before."""
        return self.look(hold) in LIVE and self.record(hold, Fact.RELEASED)

    def record(self, hold: Hold, fact: Fact, cause: str = "") -> bool:
        """Take note of a fact about a hold; return whether that ended it. A loss is told soon, and once."""
        with self._mutex:
            ended = self._apply(hold, fact, cause)
        if ended:
            self._after([hold])
        return ended

    def answered(self, holds: Sequence[Hold], answers: Sequence[Renewal], asked: float) -> None:
        """Apply the answers to renewals that were asked at that time."""
        now, earliest = self.now(), inf
        ended: list[Hold] = []
        for hold, answer in zip(holds, answers, strict=True):
            with self._mutex:
                before = hold.state
                outcome = outcome_of(hold, answer, asked, now)
                if self._apply(hold, outcome.fact, outcome.cause):
                    ended.append(hold)
                hold.deadline = outcome.deadline
                hold.due = outcome.due
                if outcome.fact is Fact.UNKNOWN:
                    hold.short_until = now + LATENESS
                elif outcome.fact is Fact.RENEWED:
                    hold.span = min(hold.claim.ttl, hold.shorter)
            if hold.state not in LIVE:
                continue
            self.agenda.fresh.append(hold.ref)
            earliest = min(earliest, outcome.due)
            if outcome.fact is Fact.RENEWED and self.stream.observers:
                self._emit(events.Renewed, hold, took=now - asked)
            elif hold.state is AT_RISK and before is not AT_RISK:
                self._emit(events.AtRisk, hold, left=hold.deadline - now, cause=outcome.cause)
        self._after(ended)
        if self.store.capabilities.session and any(isinstance(answer, Lost) for answer in answers):
            self._ask_all(now)
            earliest = now
        if earliest < self.next:
            self.poke()

    def lengthen(self, hold: Hold, ttl: float) -> None:
        """Renew a hold with a longer ttl from now on. Until `lengthened` no deadline counts on it."""
        with self._mutex:
            hold.shorter = min(hold.shorter, hold.claim.ttl)  # first: the next renewal may be answered any moment
            hold.claim = hold.claim._replace(ttl=max(ttl, hold.claim.ttl))  # two may do so at the same time

    def lengthened(self, hold: Hold) -> bool:
        """Return whether no renewal with a shorter ttl can arrive any more, and let deadlines count on the longer one.

        It would cut short at the store what the holder believes to have. As long as a renewal is under way that may
        have been sent before `lengthen`, or one went unanswered a moment ago: look again soon.
        """
        if hold.renewing or hold in list(self.by_hand.values()) or self.now() < hold.short_until:
            return False
        with self._mutex:
            hold.shorter = inf
        return True

    def schedule(self, orphan: Orphan) -> None:
        """Look at an orphan again when it is due."""
        self.agenda.fresh.append(orphan.ref)
        if orphan.due < self.next:
            self.poke()

    def poke(self) -> None:
        """Have the timekeeper look now.

        Raises: NoThreadError.
        """
        self.wake.set()
        self._ensure("timekeeper")

    def tell(self) -> bool:
        """Have the teller look now; False if there is none and none can be started."""
        self.news.set()
        try:
            return self._ensure("teller")
        except NoThreadError:
            return self.end_by < inf and not self.closed  # at the end it is told after everything was given back

    # -- the end

    def end(self, until: float, done: Settable, orphans: Iterable[Orphan] = ()) -> None:
        """Give everything back by then (on the real clock) and end all activities; `done` is raised after that.

        The orphans are what acquires have left behind.

        Waits for no lock and does no I/O, so that a signal handler may call it in a thread that is inside of a lock.
        """
        self._enders.append(done)
        self.orphans.extend(orphans)
        self.end_by = min(self.end_by, until)
        self.wake.set()
        if self.ended:
            return self.tell_ended()
        # Noted by one call of C, without the mutex.
        activity = self._running.setdefault("timekeeper", self._make("timekeeper"))
        try:
            activity.start()
        except NoThreadError:  # not every Python starts a thread while it ends; one started before may come yet
            activity.run_here()

    def half_released(self) -> bool:
        """Return whether some thread or task is in the middle of a release, which needs the store."""
        return any(share._half_released for share in list(self.releasing))

    def forsaken(self) -> None:
        """Note that the event loop of this client was closed: nobody can release anything any more."""
        self.end_by = min(self.end_by, self.real_now() + _FORSAKEN_SECONDS)

    def tell_ended(self) -> None:
        """Tell everybody who waits for the end that it has come."""
        self.ended = True
        while self._enders:
            try:
                self._enders.popleft().set()
            except IndexError:  # another was faster
                return

    def join(self, seconds: float) -> bool:
        """Wait for the end of all activities, so long for each; True if they have ended."""
        return all(activity.join(seconds) for activity in (*self._running.values(), *self._retired))

    def join_teller(self, until: float) -> None:
        """Wait until everything was told, or until then on the real clock."""
        teller = self._running.get("teller")
        if teller is not None:
            teller.join(until - self.real_now())

    def stop(self) -> None:
        """End all activities, once they have done what they are at."""
        alone = False
        if self.stream.pending() or self.stream.missed:
            try:
                self._ensure("teller")
            except NoThreadError:
                alone = True
        self.closed = True
        self.agenda.clear()
        self.orphans.clear()
        for latch in (self.wake, self.renew_work, self.release_work, self.news):
            latch.set()
        if alone:
            activities.tell_all(self)

    # -- called by the activities

    def attend(self) -> float:
        """Do all that is due but for what waits; return when to look again."""
        settle_left()
        self._note_dropped()
        now = self.now()
        plan = self.agenda.step(now)
        self._carry_out(plan)
        self._tell_losses()
        if self.pulse is None:
            return plan.next
        if plan.next == inf:
            self.pulse.rest()
            self._open_at = inf
            return inf
        if now >= self._open_at and self.side.made is None:
            self._open_at = inf  # once: if it fails, the renewal opens it
            self._staff("opener")
        if self.pulse.owes and now >= self.pulse.due(self.agenda.shortest):
            self.agenda.recount()  # the shortest may have been given back
        if (blocked := self.pulse.look(now, self.agenda.shortest)) is not None:
            self._emit_of_all(events.LoopBlocked, seconds=blocked.seconds, where=blocked.where)
        looked_at = self.pulse.due(self.agenda.shortest)
        return min(plan.next, looked_at, self._open_at if self.side.made is None else inf)

    def next_orphan(self) -> Orphan | None:
        """Return the orphan to release next; None if there is none."""
        try:
            return self.orphans[0]
        except IndexError:
            return None

    def forget_orphan(self, orphan: Orphan) -> None:
        """Take an orphan off the list, if nobody has: the timekeeper may have stood in, or have ended everything."""
        try:
            self.orphans.remove(orphan)
        except ValueError:
            pass

    def retires(self, name: str) -> bool:
        """Return whether an activity that has been idle for a while may end.

        First it is no longer there for those who bring work: from then on they start another. Then it looks for what
        came before.
        """
        with self._mutex:
            mine = self._running.pop(name)
        if not self._has_work(name):
            with self._mutex:
                self._retired = [other for other in (*self._retired, mine) if not other.over]
            return True
        with self._mutex:
            return self._running.setdefault(name, mine) is not mine

    def call(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        """Call the store, on the side that threads may call.

        Raises: StoreError.
        """
        return self.side.call(verb, arguments)

    # -- within

    def _ensure(self, name: str) -> bool:
        """See to it that an activity runs; False if the keeper is closed. Threads are started outside of the mutex."""
        activity = self._running.get(name)
        if activity is None or activity.over:
            with self._mutex:
                if self.closed:
                    return False
                if activity is not None and self._running.get(name) is activity:
                    self._running.pop(name, None)  # it has failed
                activity = self._running.setdefault(name, self._make(name))
        activity.start()
        return True

    def _make(self, name: str) -> Handle:
        steps = partial(getattr(activities, name), self)
        return self._launch(steps, f"holdfast-{name}", self.clock, self.call)

    def _staff(self, name: str) -> None:
        """See to it that an activity runs, or that the timekeeper does its work."""
        try:
            self._ensure(name)
        except NoThreadError:
            self.unstaffed.append(name)

    def _has_work(self, name: str) -> bool:
        match name:
            case "timekeeper":
                return bool(self.agenda or self.losses or self.dropped or self.end_by < inf)
            case "renewer":
                return bool(self.renewals)
            case "releaser":
                return bool(self.orphans)
            case "opener":
                return False
            case _:
                return self.stream.pending()

    def _apply(self, hold: Hold, fact: Fact, cause: str) -> bool:
        """Take a fact through the table. Called with the mutex held."""
        if fact is Fact.LATE and hold.state in LIVE:
            now = self.now()
            cause = why_late(hold, hold.state, now, 0.0 if self.pulse is None else self.pulse.silence(now))
        ended = hold.apply(fact, cause)
        if ended:
            self.held.pop(hold.ref, None)
        return ended

    def _after(self, ended: Iterable[Hold]) -> None:
        """Tell those who wait that holds have ended, and see to it that losses are told."""
        for hold in ended:
            if hold.state is LOST:
                for lease in hold.listeners():
                    lease._spare()  # a body that finds it out by its own call is not cancelled for it
                self.losses.append(hold)
            if hold.signal is not None:
                hold.signal.set()
        if self.losses:
            self.poke()

    def _carry_out(self, plan: Plan) -> None:
        for hold in plan.lost:
            if hold.state is LOST:  # whoever found it out was interrupted before it could be told
                self.losses.append(hold)
            else:
                self.record(hold, Fact.LATE)
        self.orphans.extend(plan.release)
        if self.end_by < inf:
            return  # what is left is given back now
        self.renewals.extend(plan.renew)
        if self.renewals:
            self.renew_work.set()
            self._staff("renewer")
        if self.orphans:
            self.release_work.set()
            self._staff("releaser")

    def _note_dropped(self) -> None:
        while self.dropped:
            hold = self.dropped.popleft()
            if hold.state not in LIVE:
                continue
            hold.dropped = True
            self.record(hold, Fact.DROPPED)
            if hold.renew_until != -inf:  # never renewed, detached: letting it run out is how it is used
                self._emit(events.Dropped, hold)

    def _tell_losses(self) -> None:
        told: list[Callable[[], None]] = []
        while self.losses:
            hold = self.losses.popleft()
            if hold.told:
                continue
            hold.told = True
            self._emit(events.Lost, hold, cause=hold.cause)
            told += [lease._hear for lease in hold.listeners()]
        if not told:
            return
        if self.pulse is None:
            for hear in told:
                self.stream.call(hear)
        else:  # all at once: bodies that are nested are all cancelled before any of them runs
            self.pulse.loop.post(partial(_call_all, told))

    def _ask_all(self, now: float) -> None:
        """Renew everything at once: where claims share a session they are lost together, and one was."""
        for ref in list(self.held):
            hold = ref()
            if hold is not None and not hold.renewing and now < hold.renew_until:
                hold.due = now
                self.agenda.fresh.append(hold.ref)

    def _emit_of_all(self, event: type[events.Event], **facts: object) -> None:
        """Tell what is about the whole client."""
        self.emit(event, Claim("", "", ttl=0.0), "", **facts)

    def _emit(self, event: type[events.Event], hold: Hold, **facts: object) -> None:
        self.emit(event, hold.claim, hold.kind, **({"token": hold.token} | facts))

    def emit(self, event: type[events.Event], claim: Claim, kind: str, **facts: object) -> None:
        """Tell observers of something that happened to a claim."""
        self.stream.emit(
            event(
                at=self.now(),
                store=self.store.capabilities.store,
                namespace=self.namespace,
                resource=claim.resource,
                kind=kind,
                owner=claim.owner,
                ttl=claim.ttl,
                **facts,
            )
        )


def _call_all(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()
