"""The shell of one acquire: does what `core.acquisition` says, and tells it what came of it."""

from __future__ import annotations

from _thread import get_ident
from typing import TYPE_CHECKING

from ..core import events
from ..core.acquisition import (
    Acquisition,
    Action,
    Ask,
    AskAnew,
    Fail,
    Failure,
    GiveBack,
    Held,
    Look,
    Pause,
    Wait,
)
from ..core.cancel import Cancel
from ..core.claim import MAX, Answer, Claim, Waiting
from ..core.deadlock import Wait as Link
from ..core.deadlock import asked_last, describe, find_deadlock
from ..core.lease import Hold
from ..errors import AcquireCancelled, AcquireTimeout, Deadlock, LockError, StoreError, StoreUnavailable
from ..keeper.bodies import FOR_LOOPS
from . import runtime

if TYPE_CHECKING:
    from .engine import Engine

_MOST_LOOKS = 5  # for a deadlock that changes from look to look; the next refresh looks again
_SAY_AFTER, _SAY_EVERY = 10.0, 60.0  # seconds of waiting after which people are told why


async def go_on(
    engine: Engine, acquisition: Acquisition, first: Answer | StoreUnavailable, cancel: Cancel | None = None
) -> Held:
    """Claim until granted, from the answer to the first question on. `acquisition.claim` is what was granted then.

    Raises: AcquireTimeout when the resource stayed busy; StoreUnavailable when the store did; Deadlock when that is
    looked for and waiting would never end; AcquireCancelled; LockError when the client was closed meanwhile.
    """
    acquire = _Acquire(engine, acquisition, cancel)
    if cancel is None:
        return await acquire.run(first)
    try:
        cancel._expect(acquire, acquire.wake)
        return await acquire.run(first)
    finally:
        cancel._forget(acquire)


class _Acquire:
    """An acquire that takes more than one question."""

    def __init__(self, engine: Engine, acquisition: Acquisition, cancel: Cancel | None) -> None:
        self._engine = engine
        self._acquisition = acquisition
        self._cancel = cancel
        self._silence: StoreUnavailable | None = None  # the last
        self._chain: tuple[Link, ...] = ()
        self._own: Hold | None = None  # what this thread holds itself, and the event loop that it stops would release
        self._queued = False
        self._say_at = acquisition.started + _SAY_AFTER

    @property
    def _claim(self) -> Claim:
        return self._acquisition.claim

    async def run(self, first: Answer | StoreUnavailable) -> Held:
        """Go on from the first answer."""
        engine, acquisition = self._engine, self._acquisition
        if runtime.stops_a_loop():
            acquisition.looks = True
        if isinstance(first, StoreUnavailable):
            self._silence = first
            action = acquisition.silent(engine.now())
        else:
            action = self._answered(first)
        while not isinstance(action, Held):
            if isinstance(action, Fail):
                raise self._error(action.failure) from (None if action.failure is Failure.BUSY else self._silence)
            self._note_stop()
            try:
                action = await self._do(action)
            except StoreUnavailable as error:
                self._silence = error
                action = acquisition.silent(engine.now())
        return action

    async def _do(self, action: Action) -> Action:
        """Do what comes next, and return what comes after it."""
        acquisition, store, now = self._acquisition, self._engine.store, self._engine.now
        match action:
            case Ask():
                return self._answered(await store.claim(self._claim, acquisition.timeout != 0))
            case AskAnew():
                return acquisition.renamed(self._engine.rename(acquisition), now())
            case Wait(waiting, until):
                grant = await store.wait(self._claim, waiting, until)
                self._note_stop()  # before it asks again: the store may be closed by now, and nobody would withdraw it
                return acquisition.woken(grant, now())
            case Look():
                return acquisition.looked(await self._never_ends(), now())
            case Pause(until):
                await runtime.sleep(self._engine.clock, until)
                return acquisition.rested(now())
            case GiveBack():
                return acquisition.given_back(await self._give_back(), now())
        raise AssertionError(f"nothing comes after {action}")

    def _answered(self, answer: Answer) -> Action:
        engine = self._engine
        if isinstance(answer, Waiting) and self._acquisition.timeout != 0:
            if self._claim.capacity < MAX:
                self._compare_permits(answer)
            if not self._queued and engine.stream.observers:
                engine.emit(events.Queued, self._claim, self._acquisition.kind, ahead=answer.ahead)
            self._queued = True
            if engine.now() >= self._say_at:
                self._say_why(answer)
        self._note_stop()
        return self._acquisition.answered(answer, engine.now())

    def wake(self) -> None:
        """Have it look now whether it was cancelled, and not when its wait is over. Safe in any thread."""
        self._engine.wake(self._claim.holder)

    def _note_stop(self) -> None:
        engine, acquisition = self._engine, self._acquisition
        if engine.closing:
            acquisition.stop(Failure.CLOSED)
        elif self._cancel is not None and self._cancel.cancelled:
            acquisition.stop(Failure.CANCELLED)
        elif engine.draining and not acquisition.nested:
            acquisition.stop(Failure.DRAINING)

    def _say_why(self, answer: Waiting) -> None:
        """Tell people for whom it waits. It asks again every few seconds at least, and so it is told in time."""
        engine, acquisition, by = self._engine, self._acquisition, answer.blocker
        waited = engine.now() - acquisition.started
        self._say_at = engine.now() + _SAY_EVERY
        blocker, token = (by.owner, by.token) if by is not None else ("", 0)
        engine.emit(
            events.StillWaiting, self._claim, acquisition.kind,
            waited=waited, ahead=answer.ahead, blocker=blocker, token=token,
        )  # fmt: skip

    async def _give_back(self) -> bool:
        try:
            await self._engine.store.release(self._claim.resource, self._claim.holder)
        except StoreError:
            return False
        return True

    async def _never_ends(self) -> bool:
        """Return whether waiting would never end."""
        if runtime.stops_a_loop():
            self._own = self._engine.keeper.held_in(get_ident(), self._claim.resource)
        if self._own is None and self._acquisition.detects:
            self._chain = await self._find_deadlock()
        return self._own is not None or bool(self._chain)

    async def _find_deadlock(self) -> tuple[Link, ...]:
        """Look for a cycle until two looks agree: what `inspect` shows need not have been there all at the same time.

        A claim that is seen to wait (or hold) twice has done so all the time between, for it never comes back under the
        same name. So a chain that is seen twice has been there, whole, in that moment.
        """
        seen: list[tuple[str, str]] = []
        for _ in range(_MOST_LOOKS):
            chain = find_deadlock(await self._engine.store.inspect(), self._claim.holder)
            links = [link.identity for link in chain]
            if not links:
                break
            if links == seen:
                return chain if asked_last(chain) else ()
            seen = links
        return ()

    def _compare_permits(self, answer: Waiting) -> None:
        """Tell, once, that others count by another number of permits: meant in a rolling deploy, else a mistake."""
        engine, claim, by = self._engine, self._claim, answer.blocker
        if by is None or by.capacity == claim.capacity:
            return
        found = (claim.resource, claim.capacity, by.capacity)
        if found not in engine.differing:
            engine.differing[found] = True
            facts = {"permits": claim.capacity, "others": by.capacity, "other": by.owner}
            engine.emit(events.PermitsDiffer, claim, self._acquisition.kind, **facts)

    def _error(self, failure: Failure) -> LockError:
        claim, engine, acquisition = self._claim, self._engine, self._acquisition
        waited = engine.now() - acquisition.started
        match failure:
            case Failure.BUSY:
                assert acquisition.waiting is not None
                return _busy(claim, acquisition.waiting, waited if acquisition.timeout else 0.0)
            case Failure.DEADLOCK:
                return _stopped_loop(claim, self._own) if self._own is not None else _deadlock(claim, self._chain)
            case Failure.CLOSED:
                return closed_meanwhile(claim)
            case Failure.DRAINING:
                return LockError(
                    f"the client is draining, and {claim.resource!r} was waited for outside of any `with` block; "
                    "connect() again to go on",
                    resource=claim.resource,
                )
            case Failure.CANCELLED:
                return cancelled(claim.resource)
            case Failure.TOO_SLOW:
                return StoreUnavailable(
                    f"{claim.resource!r} was granted, but the answer took longer than the ttl of {claim.ttl:g} s; "
                    "the store or this process is too slow for it",
                    resource=claim.resource,
                )
        return StoreUnavailable(
            f"could not acquire {claim.resource!r} within {waited:.1f} s, the store does not answer: {self._silence}",
            resource=claim.resource,
        )


def closed_meanwhile(claim: Claim) -> LockError:
    """Return the error of an acquire during which the client was closed."""
    return LockError(f"the client was closed while {claim.resource!r} was waited for", resource=claim.resource)


def cancelled(resource: str) -> AcquireCancelled:
    """Return the error of an acquire that somebody cancelled."""
    return AcquireCancelled(f"the acquire of {resource!r} was cancelled", resource=resource)


def _busy(claim: Claim, answer: Waiting, waited: float) -> AcquireTimeout:
    said = f"waited {waited:.1f} s for {claim.resource!r}" if waited else f"{claim.resource!r} is busy"
    by = answer.blocker
    if by is None:
        return AcquireTimeout(said, resource=claim.resource)
    if by.token:
        said += f"; held by {by.owner} (token {by.token}, {by.left:.0f} s left)"
    else:
        said += f"; behind {answer.ahead} waiting, first {by.owner}"
    return AcquireTimeout(said, resource=claim.resource, owner=by.owner, token=by.token or None)


def _stopped_loop(claim: Claim, own: Hold) -> Deadlock:
    return Deadlock(
        f"{claim.resource!r} is held in this thread (token {own.token}), and waiting here would stop the event loop "
        f"that has to give it back; {FOR_LOOPS}",
        resource=claim.resource,
        owner=own.claim.owner,
        token=own.token,
    )


def _deadlock(claim: Claim, chain: tuple[Link, ...]) -> Deadlock:
    order = "take them in one order everywhere (lock_all does), or " if len(chain) > 1 else ""
    error = Deadlock(
        f"waiting for {claim.resource!r} would never end: {describe(chain)}; {order}release before you wait",
        resource=claim.resource,
        owner=chain[0].blocker.owner,
        token=chain[0].blocker.token,
    )
    error.cycle = tuple((link.resource, link.waiter.owner, link.blocker.owner) for link in chain)
    return error
