"""The engine of a client: one store, one keeper, and who holds what. Every primitive acquires and releases through
it.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Callable, Iterable
from itertools import count, repeat
from math import inf
from typing import TYPE_CHECKING, NoReturn, cast

from .. import _process
from .._clock import Clock
from ..core import events
from ..core.acquisition import LEAST_LEFT, Acquisition, Limits
from ..core.agenda import Orphan
from ..core.cancel import Cancel
from ..core.claim import (
    MAX,
    Answer,
    Claim,
    ClaimState,
    Evicted,
    Granted,
    Lost,
    Renewed,
    ResourceState,
    Unknown,
    actor_of,
    find,
)
from ..core.lease import LIVE, LOST, Hold
from ..core.promises import Capabilities, check_promises
from ..core.timing import LATENESS, local_deadline
from ..errors import AcquireTimeout, Deadlock, LockError, StoreError, StoreUnavailable, Unsupported
from ..keeper.bodies import Strand, enclosing, surrounding
from ..keeper.entries import Entry
from ..keeper.keeper import Keeper, Leaving
from ..keeper.threads import NoThreadError
from ..observe.stream import Stream, check_observers
from . import runtime
from .acquire import cancelled, closed_meanwhile, go_on
from .lease import Lease
from .store import FullStore, Store

if TYPE_CHECKING:
    from .lock import Lock


_SETTLED, _SHARED, _RELEASE, _AGAIN, _LOST = Leaving  # looking a member up on its enum costs more than a call


# Returns a name that nothing else has. Random: a counter would repeat in the copies of a machine resumed twice. Made of
# functions of C alone, for every acquire needs one.
new_id: Callable[[], str] = map(bytes.hex, map(os.urandom, repeat(8))).__next__


class Engine:
    """Everything that the locks of one client need to be taken, kept and given back."""

    flavour = runtime.FLAVOUR

    def __init__(
        self,
        make_store: Callable[[], Store],
        *,
        name: str,
        namespace: str,
        owner: str | None,
        require: str | None,
        observers: Iterable[events.Observer],
        detect_deadlocks: bool,
        io_timeout: float,
        clock: Clock,
        real: Clock,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self.name = name  # as messages call the client
        self.namespace = namespace
        self.detect_deadlocks = detect_deadlocks
        self.io_timeout = io_timeout
        self.clock = clock
        self.now = clock.now
        self.real = real
        self.new_id = new_id
        self.closing = self.draining = False
        self.refuses = False  # whether it does one or the other: acquires look at this alone
        self.closed = False  # to the end: whoever was cancelled on the way leaves the rest to the next close()
        self._make_store = make_store
        self._owner = owner
        self._require = require
        self._observers = tuple(check_observers(observers))
        self.begin()
        check_promises(self._vouched, require)

    def begin(self) -> None:
        """Start from nothing: at first, and again in a forked child, where the parent's parts must not be touched.

        In place: locks that were made before the fork know this engine.
        """
        self.store = self._make_store()
        self.stream = Stream(self._observers, self.store.capabilities.store)
        self.home = runtime.Home()
        self.keeper = Keeper(
            runtime.with_blocking(self.store, self.home),
            self.home.loop,
            self.clock,
            self.real,
            self.stream,
            self.namespace,
            self.io_timeout,
        )
        _process.remember_keeper(self.keeper)
        self.differing: dict[tuple[str, int, int], bool] = {}  # permits that differ from those of others, told once
        self._id = self.new_id()
        self._actors = count(1)
        self.limits = Limits(self.io_timeout, self.store.capabilities.waiting_life)
        self._vouched = self.store.capabilities  # the promises that were last held against what is required
        # What close() has to wait for, and the thread that does it. An acquire stays here until the keeper has its
        # hold, or close() in another thread would miss it. An interrupt does not leave it here, for Python looks for
        # signals after a call of C, and there is none between the last step and that which takes it out.
        self._under_way: dict[Acquisition, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        return self.store.capabilities

    def check_open(self, strand: Strand | None = None) -> None:
        """Refuse to go on after close(), in another event loop, and while draining; not inside of a body of that."""
        self.check_usable()
        if self.draining and not (strand is not None and self._bodies_around(strand)):
            raise LockError(f"this client of {self.name} is draining, and takes nothing new; connect() again")

    def check_usable(self) -> None:
        """Refuse to go on after close() and in another event loop. While draining, leases may still need the store."""
        if self.closing:
            raise LockError(f"this client of {self.name} is closed; connect() again")
        self.home.check()

    def wake(self, holder: str) -> None:
        """Have a claim of this client that waits look around. A store that cannot is asked within a few seconds."""
        wake = getattr(self.store, "wake", None)
        if wake is not None:
            wake(holder)

    def check_promises(self) -> None:
        """Hold what the store promises now against what is required: it may have learned more about its server."""
        if self.store.capabilities is not self._vouched:
            check_promises(self.store.capabilities, self._require)
            self._vouched = self.store.capabilities

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """Show who holds and who waits for the resources whose names begin with `prefix`."""
        self.check_open()
        return await self.store.inspect(prefix)

    def identify(self) -> tuple[str, str]:
        """Return a new holder and its owner's label, for a claim that nobody holds on to."""
        strand = self.home.strand()
        self.check_open(strand)
        return f"{self._new_actor()}.{self.new_id()}", self._owner or strand.label

    # -- acquiring

    async def acquire(
        self,
        lock: Lock,
        timeout: float | None,
        entry: Entry | None = None,
        cancel: Cancel | None = None,
        endless: bool | None = None,
    ) -> Lease:
        """Take a lock. With an entry, the lease is that of a `with` statement, and given back however that is left.

        `endless`: whoever calls waits for ever, whatever this timeout says.
        """
        begun = self._begin(lock, timeout, entry, cancel, timeout is None if endless is None else endless)
        if isinstance(begun, Lease):
            return begun
        acquisition, claim, since = begun, begun.claim, begun.started
        try:
            self._under_way[acquisition] = get_ident()
            if self.refuses and self.closing:  # by a signal handler, before this was noted
                raise closed_meanwhile(claim)
            try:
                answer: Answer | StoreUnavailable = await self.store.claim(claim, timeout != 0)
            except StoreUnavailable as error:
                answer = error
            # Most acquires are one question, answered with a grant: that case is in line, and all others are not.
            granted = False
            if type(answer) is Granted and not self.closing and (cancel is None or not cancel.cancelled):
                token, left = answer
                deadline = local_deadline(since, claim.ttl, left)
                granted = deadline - self.now() > claim.ttl * LEAST_LEFT
            if not granted:
                acquisition.nested = bool(self._bodies_around(self.home.strand()))
                token, since, deadline = await go_on(self, acquisition, answer, cancel)
            return self._lease(lock, acquisition, token, since, deadline, entry)
        except BaseException as error:
            await self._abandon(acquisition, error)
            raise
        finally:
            self._under_way.pop(acquisition, None)

    def _begin(
        self, lock: Lock, timeout: float | None, entry: Entry | None, cancel: Cancel | None, endless: bool
    ) -> Acquisition | Lease:
        """Return what to ask for; or one more lease of what this body has already.

        Raises: LockError; AcquireCancelled; Deadlock.
        """
        strand = self.home.strand()
        if self.refuses:
            self.check_open(strand)
        if cancel is not None and cancel.cancelled:
            raise cancelled(lock.resource)
        if strand.opened and (again := self._again(lock, strand, entry, endless)) is not None:
            return again
        claim = lock._claim(f"{self._actor(strand, entry)}.{self.new_id()}", self._owner or strand.label)
        # The clock is read before asking: a slow reply must shorten the lease, never extend it.
        return Acquisition(claim, timeout, self.now(), self.limits, lock.detect_deadlocks, lock.kind)

    async def wait_in_line(
        self, acquisition: Acquisition, silence: StoreUnavailable | None, cancel: Cancel | None
    ) -> int:
        """Ask until a claim is granted that nobody keeps, and return its token; whatever ends that before, nothing is
        left behind. `silence`: the store is asked again after a pause, for it has not answered just now.
        """
        acquisition.nested = bool(self._bodies_around(self.home.strand()))
        try:
            self._under_way[acquisition] = get_ident()
            answer: Answer | StoreUnavailable
            try:
                answer = silence or await self.store.claim(acquisition.claim)
            except StoreUnavailable as error:
                answer = error
            return (await go_on(self, acquisition, answer, cancel)).token
        except BaseException as error:
            await self._abandon(acquisition, error)
            raise
        finally:
            self._under_way.pop(acquisition, None)

    def _lease(
        self, lock: Lock, acquisition: Acquisition, token: int, since: float, deadline: float, entry: Entry | None
    ) -> Lease:
        """Hand what was granted to the keeper, and return the first lease of it.

        Raises: LockError; Unsupported when the store promises less than it did.
        """
        ends, strays = since + lock._renew_for, acquisition.strays_until
        acquisition.hold = hold = Hold(
            self.keeper, acquisition.claim, token, since, deadline, get_ident(), lock.min_hold, ends, strays, lock.kind
        )
        lease = Lease(self, hold, lock.on_lost)
        hold.shares[id(lease)] = None
        self.keeper.add(hold)
        if self.closing:  # a signal handler has closed the client since the grant: the claim was given back
            raise closed_meanwhile(hold.claim)
        if self.store.capabilities is not self._vouched:
            self.check_promises()
        if self.stream.observers:
            waited = self.now() - acquisition.started
            self.emit(events.Acquired, hold.claim, lock.kind, token=hold.token, waited=waited)
        if entry is not None:
            entry.note(lease)
        return lease

    async def _release_unkept(self, claim: Claim) -> None:
        """Release here and now what was granted and cannot be kept: there is no background."""
        released = False
        try:
            await self.store.release(claim.resource, claim.holder)
            released = True
        except (StoreError, NoThreadError):
            pass
        finally:
            if not released:  # it ends at its ttl, or before that if there is a thread again
                self.keeper.adopt(Orphan(claim.resource, claim.holder, 0.0, self.now() + claim.ttl))

    def rename(self, acquisition: Acquisition) -> Claim:
        """Return the claim of an acquire under a new name; the old one is given up."""
        old = acquisition.claim
        self._adopt_leftover(acquisition)
        return old._replace(holder=f"{actor_of(old.holder)}.{self.new_id()}")

    def _adopt_leftover(self, acquisition: Acquisition) -> None:
        if (orphan := self._leftover(acquisition)) is not None:
            self.keeper.adopt(orphan)

    def _leftover(self, acquisition: Acquisition) -> Orphan | None:
        """Return what the store may have of an acquire that has not come to its end."""
        claim, leftover = acquisition.claim, acquisition.leftover(self.now())
        if leftover is None:
            return None
        return Orphan(claim.resource, claim.holder, 0.0, leftover.until, leftover.strays_until)

    async def _abandon(self, acquisition: Acquisition, error: BaseException) -> None:
        """Give back in the background what the store may have of an acquire that was cancelled, interrupted, cut off or
        refused.
        """
        claim, hold = acquisition.claim, acquisition.hold
        if isinstance(error, NoThreadError):
            if hold is not None:
                self.keeper.disown(hold)
            return await self._release_unkept(claim)
        if hold is not None:
            self.keeper.give_back(hold)
        else:
            self._adopt_leftover(acquisition)
        if not self.stream.observers:
            return
        kind, blocker = acquisition.kind, getattr(error, "owner", "") or ""
        if not isinstance(error, AcquireTimeout):
            self.emit(events.Abandoned, claim, kind, cause=repr(error))
        elif acquisition.timeout == 0:
            self.emit(events.Busy, claim, kind, blocker=blocker)
        else:
            self.emit(events.TimedOut, claim, kind, waited=self.now() - acquisition.started, blocker=blocker)

    def _actor(self, strand: Strand, entry: Entry | None) -> str:
        """Return who makes a claim: the body that it is made in, else somebody new. Deadlocks are found by this name.

        What is taken together, by one entry, is taken by one actor.
        """
        if entry is None:
            return (strand.opened and self._actor_around(strand)) or self._new_actor()
        if not entry.actor:
            entry.actor = (strand.opened and self._actor_around(strand)) or self._new_actor()
            entry.strand = strand
        return entry.actor

    def _actor_around(self, strand: Strand) -> str:
        bodies = (body.actor for body in surrounding(strand))
        return next((actor for actor in bodies if actor.startswith(self._id)), "")

    def _new_actor(self) -> str:
        return f"{self._id}.{next(self._actors)}"

    def _again(self, lock: Lock, strand: Strand, entry: Entry | None, endless: bool) -> Lease | None:
        """Decide for a body that has the resource already: share its hold, or wait like everybody else (None).

        Raises: Deadlock where it would wait for itself, for ever.
        """
        holds = self._own_holds(lock.resource, strand)
        if not holds or (lock.weight < lock.capacity < MAX and all(hold.claim.shared for hold in holds)):
            return None  # a permit more; the store counts them
        reader = lock.weight < lock.capacity
        for hold in holds:
            # A nested reader shares the hold of the first: behind a waiting writer it would wait for itself.
            shared = hold.claim.shared and hold.claim.capacity == MAX
            if (reader and shared) or (lock.reentrant and not hold.claim.shared):
                lease = self._lease_more(lock, hold, entry)
                if lease is not None:
                    return lease
        holds = [hold for hold in holds if self.keeper.look(hold) in LIVE]
        if not holds or not endless:
            return None  # another thread has just given it back; or the wait ends by itself
        raise _self_wait(lock.resource, holds[0])

    def _bodies_around(self, strand: Strand) -> list[Entry]:
        """Return the bodies of this client that the caller is inside of, the innermost first."""
        if not strand.opened:
            return []
        return [body for body in enclosing(strand) if any(share._hold.keeper is self.keeper for share in body.leases)]

    def _own_holds(self, resource: str, strand: Strand) -> list[Hold]:
        """Return the live holds on a resource of the bodies that the caller is inside of, the innermost first."""

        def holds_of(body: Entry) -> list[Hold]:
            holds = [share._hold for share in body.leases]
            return [hold for hold in holds if hold.keeper is self.keeper and hold.claim.resource == resource]

        if not any(map(holds_of, strand.bodies())):  # most often; to walk the stack takes longer
            return []
        found = [hold for body in enclosing(strand) for hold in holds_of(body)]
        return [hold for hold in found if self.keeper.look(hold) in LIVE]

    def _lease_more(self, lock: Lock, hold: Hold, entry: Entry | None) -> Lease | None:
        """Return one more lease of a hold; None if it has just ended."""
        lease = Lease(self, hold, lock.on_lost)
        if entry is not None:
            entry.note(lease)  # before it counts: an interrupt would leave a share that nobody gives back
        try:
            return lease if self.keeper.join_in(lease) else None
        except BaseException:
            self.keeper.abandon(lease)
            raise

    # -- keeping and releasing

    async def release(self, lease: Lease) -> bool:
        """Release a lease, once; False if its hold was lost. Without an answer the keeper goes on trying."""
        if lease._settled:
            return True
        keeper, hold = self.keeper, lease._hold
        try:
            keeper.releasing[lease] = get_ident()
            leaving = keeper.let_go(lease)
            if leaving is _RELEASE or leaving is _AGAIN:
                claim = hold.claim
                try:
                    keep = keeper.keep(hold) if hold.min_hold else 0.0
                    held = await self.store.release(claim.resource, claim.holder, keep)
                    if not held or self.stream.observers or hold.strays_until > -inf:
                        held = self._released(lease, leaving, held)
                except StoreError as error:
                    held = True
                    if lease in keeper.releasing:
                        keeper.unreleased(hold, str(error))
            elif leaving is _SHARED:  # the hold stays with the other leases of a re-entrant lock
                hold.tell_no_more(lease)
                held = keeper.look(hold) is not LOST
            else:
                held = leaving is _SETTLED
        except BaseException:  # cancelled or interrupted, anywhere: the keeper goes on with it
            keeper.abandon(lease)
            raise
        finally:
            keeper.releasing.pop(lease, None)
            if keeper.end_by < inf:
                keeper.wake.set()  # it waits for this before it closes the store
        if not held:
            lease._ended = LOST
        lease._settled = True  # last: until then a second release, or the keeper, does what is missing
        return held

    def _released(self, lease: Lease, leaving: Leaving, had: bool) -> bool:
        """Take the store's answer to a release; return whether the lease was held to its end."""
        # After an interrupted release "not yours" is no loss: it may be the answer to the first one, or close() has
        # done it in a signal handler. Nor is it if several release at the same time.
        had = had or leaving is _AGAIN or lease._counted > 1 or lease not in self.keeper.releasing
        self.keeper.released(lease._hold, had)
        return had

    async def renew(self, hold: Hold) -> Renewed | Lost | Unknown:
        """Renew a hold now, without waiting for the keeper.

        Raises: StoreError.
        """
        asked, mine = self.now(), object()
        self.keeper.by_hand[mine] = hold  # before the claim is read, see Keeper.lengthened
        try:
            (answer,) = await self.store.renew([hold.claim])
        except StoreError as error:
            self.keeper.answered([hold], [Unknown(str(error))], asked)
            raise
        except BaseException:  # cancelled, interrupted: it may be on its way
            hold.short_until = self.now() + LATENESS
            raise
        finally:
            self.keeper.by_hand.pop(mine, None)
        self.keeper.answered([hold], [answer], asked)
        return answer

    async def extend(self, hold: Hold, ttl: float) -> Renewed | Lost | Unknown:
        """Renew a hold with a longer ttl, now and from now on.

        Raises: StoreError.
        """
        keeper = self.keeper
        keeper.lengthen(hold, ttl)
        pause = 0.001
        while not keeper.lengthened(hold) and keeper.look(hold) in LIVE:
            await runtime.sleep(self.clock, self.now() + pause)
            pause = min(0.05, pause * 2)
        if keeper.look(hold) not in LIVE:
            return Lost()  # a renewal could still be granted, and nobody would ever release it
        return await self.renew(hold)

    # -- who holds, and what people do about it

    async def state(self, resource: str) -> ResourceState | None:
        """Show exactly this resource; None if nobody holds it or waits for it."""
        self.check_open()
        ask = getattr(self.store, "state", None)
        if ask is None:
            return find(await self.store.inspect(resource), resource)
        found: ResourceState | None = await ask(resource)
        return found

    async def evict(self, resource: str, seen: ClaimState, reason: str, at_once: bool) -> Evicted | None:
        """Break one claim that was seen to hold a resource, and tell; None if it does not hold it any more.

        Raises: StoreError.
        """
        evicted = await cast(FullStore, self.store).evict(resource, seen.holder, at_once)
        if evicted is not None:
            broken = Claim(resource, seen.holder, owner=seen.owner, ttl=0.0)
            facts = {"token": seen.token, "by": self.label, "reason": reason, "left": evicted.left}
            self.emit(events.Broken, broken, "", **facts)
        return evicted

    async def time(self) -> tuple[float, float]:
        """Return the time of the store's clock, and how far it may be off.

        Raises: Unsupported.
        """
        self.check_open()
        ask = getattr(self.store, "time", None)
        if ask is None:
            raise Unsupported(f"{self.capabilities.store} does not tell its time; use a clock of your own")
        found: tuple[float, float] = await ask()
        return found

    @property
    def label(self) -> str:
        """What others see of whoever calls: the client's own name, or host, process and thread or task."""
        return self._owner or self.home.strand().label

    def emit(self, event: type[events.Event], claim: Claim, kind: str, **facts: object) -> None:
        """Tell observers of something that happened to a claim."""
        self.keeper.emit(event, claim, kind, **facts)

    # -- the end

    def stop(self) -> None:
        """Take no more acquires, and wake those that wait: they raise LockError."""
        self.closing = self.refuses = True
        self.store.interrupt()

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait until everything was given back; False if it was not in time.

        What is taken inside of a body is not new: the body may need it to end. The bodies that this call stands in are
        not waited for, nor is an acquire that a signal handler has interrupted: they go on only when it has returned.
        """
        until = self.real.now() + seconds
        mine = {share._hold for body in self._bodies_around(self.home.strand()) for share in body.leases}
        self.draining = self.refuses = True
        for acquisition in list(self._under_way):
            self.wake(acquisition.claim.holder)
        pause = 0.001
        while self.keeper.busy(mine) or self.others_under_way():
            if self.real.now() >= until:
                return False
            await runtime.sleep(self.real, min(until, self.real.now() + pause))
            pause = min(0.05, pause * 2)
        return not any(self.keeper.look(hold) in LIVE for hold in mine)

    async def close(self, seconds: float) -> None:
        """Wait for acquires to withdraw, let the keeper give everything back, and close the store. Bounded."""
        until = self.real.now() + seconds
        pause = 0.001
        while self.others_under_way() and self.real.now() < until:
            self.store.interrupt()
            await runtime.sleep(self.real, self.real.now() + pause)
            pause = min(0.05, pause * 2)
        done = runtime.Signal()
        self.keeper.end(until, done, self.cut_off())
        await done.wait(self.real, until)
        pause = 0.001
        while not self.keeper.join(0.001) and self.real.now() < until:
            await runtime.sleep(self.real, self.real.now() + pause)
            pause = min(0.05, pause * 2)
        await self.home.settle(until - self.real.now())
        await runtime.close(self.store)
        self.closed = True

    def __reduce__(self) -> NoReturn:
        # Whatever a client gives refers to it, and is pickled through here.
        raise TypeError(
            "a client and its locks have threads and connections of this process, and cannot be pickled; call "
            "connect() in the other process, at module level for instance, and send names, or lease.fence"
        )

    def others_under_way(self) -> bool:
        """Return whether acquires of other threads or tasks are under way."""
        return any(not self.home.cannot_go_on(thread) for thread in list(self._under_way.values()))

    def cut_off(self) -> list[Orphan]:
        """Return what is left of acquires and releases that cannot give back themselves: a signal handler has stopped
        them, or their loop does not run any more.
        """
        leftovers = [self._leftover(acquisition) for acquisition in list(self._under_way)]
        return [orphan for orphan in leftovers if orphan is not None] + self._take_over()

    def _take_over(self) -> list[Orphan]:
        """Return what is left of releases that cannot go on themselves. They are the keeper's from here on."""
        releasing = self.keeper.releasing
        cut_off = [lease for lease, thread in list(releasing.items()) if self.home.cannot_go_on(thread)]
        return [
            self.keeper.orphan_of(lease._hold)
            for lease in cut_off
            if releasing.pop(lease, None) and lease._half_released
        ]


def _self_wait(resource: str, hold: Hold) -> Deadlock:
    """Return the error of a body that would wait for itself."""
    if hold.claim.shared:
        fact = f"this `with` block holds a share of {resource!r} (token {hold.token}) and asks for all of it"
        move = "leave it first, or pass a timeout"
    else:
        fact = f"this `with` block holds {resource!r} (token {hold.token}) and asks for it again"
        move = "pass the lease on, or take both with lock(..., reentrant=True)"
    return Deadlock(
        f"{fact}: it would wait for itself; {move}", resource=resource, owner=hold.claim.owner, token=hold.token
    )
