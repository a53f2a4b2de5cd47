"""The one loop that claims, waits and tries again."""

from __future__ import annotations

from math import inf

from .. import _registry
from .._clock import Clock
from ..core import events
from ..core.claim import MAX, Answer, Claim, Granted, Waiting
from ..core.deadlock import Wait, asked_last, describe, find_deadlock
from ..core.timing import backoff, local_deadline
from ..errors import AcquireTimeout, Deadlock, LockError, StoreError, StoreUnavailable
from ..observe.stream import Stream
from . import runtime
from .keeper import Keeper, Orphan
from .store import Store

# With timeout=None an outage is borne for this many io_timeouts.
_OUTAGE = 3
_SHORTEST_PAUSE = 0.01
_MOST_LOOKS = 5  # for a deadlock that changes from look to look; the next refresh looks again


class Site:
    """Where acquires take place: what they need of their client."""

    __slots__ = (
        *("clock", "closing", "differing", "io_timeout", "keeper", "namespace", "require", "store", "stream"),
        *("under_way", "vouched"),
    )

    def __init__(
        self,
        store: Store,
        keeper: Keeper,
        clock: Clock,
        stream: Stream,
        namespace: str,
        io_timeout: float,
        require: str | None = None,
    ) -> None:
        self.store = store
        self.keeper = keeper
        self.clock = clock
        self.stream = stream
        self.namespace = namespace
        self.io_timeout = io_timeout
        self.require = require
        self.vouched = store.capabilities  # the promises that were last held against what is required
        self.closing = False
        self.under_way: set[str] = set()  # holders whose acquires close() has to wait for
        self.differing: set[tuple[str, int, int]] = set()  # permits that differ from those of others, told once


async def acquire(
    site: Site, claim: Claim, timeout: float | None, detect_deadlocks: bool = False
) -> tuple[int, float, float]:
    """Claim until granted; return the token, since when it is held, and the local deadline.

    Raises: AcquireTimeout when the resource stayed busy; StoreUnavailable when the store did; Deadlock when that is
    looked for and waiting would never end; LockError when the client was closed meanwhile.
    """
    store, now = site.store, site.clock.now
    started = asked = now()  # read before asking: a slow reply must shorten the lease, never extend it
    until = inf if timeout is None else started + timeout
    outage: Outage | None = None
    queued = unanswered = late = False
    unreleased: StoreUnavailable | None = None
    answer: Answer | None = None
    handed: Granted | None = None
    resource, holder, _, _, ttl, _, _, _, _ = claim  # unpacked: a field of a named tuple costs as much as a call
    try:
        while not site.closing:
            try:
                if answer is None:
                    unanswered = True
                    answer = await store.claim(claim, timeout != 0)
                    unanswered = False
                if isinstance(answer, Granted):
                    token, left = answer
                    deadline = local_deadline(asked, ttl, left)
                    if store.capabilities is not site.vouched:  # it has learned more about its server since
                        _registry.check_promises(store.capabilities, site.require)
                        site.vouched = store.capabilities
                    if now() < deadline and not site.closing:
                        if site.stream.observers:
                            _emit(site, events.Acquired, claim, token=token, waited=now() - started, ttl=ttl)
                        return token, asked if answer is not handed else now(), deadline
                    # The grant has run out on its way here, and a body must not start without a lease.
                    try:
                        await store.release(resource, holder)
                    except StoreUnavailable as error:
                        unreleased = error
                        break  # it may arrive late, and would end what is granted next under the same name
                    if now() >= until and not site.closing:
                        raise _too_slow(claim, now() - asked)
                    answer = None
                elif timeout == 0:
                    raise _busy(claim, answer, 0.0)
                else:
                    if claim.capacity < MAX:
                        _compare_permits(site, claim, answer)
                    if site.stream.observers and not queued:
                        _emit(site, events.Queued, claim, ahead=answer.ahead)
                    queued = True
                    if detect_deadlocks and (chain := await _find_deadlock(site, claim)):
                        await _withdraw(site, claim, True, late)
                        raise _deadlock(claim, chain)
                    refresh = store.capabilities.waiting_life / 3
                    handed = await store.wait(claim, answer, min(until, asked + min(refresh, answer.retry_after)))
                    if handed is None and now() >= until:
                        await _withdraw(site, claim, now() <= until + site.io_timeout / 2, late)
                        raise _busy(claim, answer, now() - started)
                    # A grant that was handed over is as old as the last question, for all that is known here. If little
                    # is left of it then, or if it cannot be renewed, ask the store, which knows better.
                    answer = handed if now() < asked + ttl / 2 and not claim.detached else None
                outage = None
            except StoreUnavailable as error:
                late = late or unanswered
                outage = outage or Outage(until if timeout is not None else asked + _OUTAGE * site.io_timeout)
                await runtime.sleep(site.clock, outage.pause(claim, started, now(), error))
                answer = None
            if answer is None:
                asked = now()
        if unreleased is not None:
            raise _too_slow(claim, now() - asked) from unreleased
        raise LockError(f"the client was closed while {resource!r} was waited for", resource=resource)
    except AcquireTimeout as error:
        if site.stream.observers:
            _emit(site, events.TimedOut, claim, waited=now() - started, blocker=error.owner or "")
        raise
    except BaseException as error:
        # Cancelled, interrupted or cut off: the claim's fate is unknown, and the caller must not wait for it.
        site.keeper.adopt(Orphan(resource, holder, 0.0, now() + ttl, late or unanswered))
        if site.stream.observers:
            _emit(site, events.Abandoned, claim, cause=repr(error))
        raise


async def _find_deadlock(site: Site, claim: Claim) -> tuple[Wait, ...]:
    """Look for a cycle until two looks agree: what `inspect` shows need not have been there all at the same time.

    A claim that is seen to wait (or hold) twice has done so all the time between, for it never comes back under the
    same name. So a chain that is seen twice has been there, whole, in that moment.
    """
    seen: list[tuple[str, str]] = []
    for _ in range(_MOST_LOOKS):
        chain = find_deadlock(await site.store.inspect(), claim.holder)
        links = [link.identity for link in chain]
        if not links:
            break
        if links == seen:
            return chain if asked_last(chain) else ()
        seen = links
    return ()


def _deadlock(claim: Claim, chain: tuple[Wait, ...]) -> Deadlock:
    order = "take them in one order everywhere (lock_all does), or " if len(chain) > 1 else ""
    error = Deadlock(
        f"waiting for {claim.resource!r} would never end: {describe(chain)}; {order}release before you wait",
        resource=claim.resource,
        owner=chain[0].blocker.owner,
        token=chain[0].blocker.token,
    )
    error.cycle = tuple((link.resource, link.waiter.owner, link.blocker.owner) for link in chain)
    return error


def _compare_permits(site: Site, claim: Claim, answer: Waiting) -> None:
    """Tell, once, that others count by another number of permits: meant in a rolling deploy, a mistake otherwise."""
    by = answer.blocker
    if by is None or by.capacity == claim.capacity:
        return
    found = (claim.resource, claim.capacity, by.capacity)
    if found not in site.differing:
        site.differing.add(found)
        _emit(site, events.PermitsDiffer, claim, permits=claim.capacity, others=by.capacity, other=by.owner)


class Outage:
    """A store that does not answer: when to ask again, and when to give up."""

    __slots__ = ("_failures", "_until")

    def __init__(self, until: float) -> None:
        self._until = until
        self._failures = 0

    def pause(self, claim: Claim, started: float, now: float, error: StoreUnavailable) -> float:
        """Return when to ask again.

        Raises: StoreUnavailable when there is no time left for that.
        """
        # Half of what is left at most: a store that comes back shortly before the end is still found.
        pause = min(backoff(self._failures), (self._until - now) / 2)
        self._failures += 1
        if pause >= _SHORTEST_PAUSE:
            return now + pause
        raise StoreUnavailable(
            f"could not acquire {claim.resource!r} within {now - started:.1f} s, the store does not answer: {error}",
            resource=claim.resource,
        ) from error


async def _withdraw(site: Site, claim: Claim, in_time: bool, late: bool) -> None:
    """Take a waiting claim back; in the background if the caller has been kept too long already, or if an earlier copy
    of the claim may still be on its way.
    """
    if in_time:
        try:
            await site.store.release(claim.resource, claim.holder)
            if not late:
                return
        except StoreError:
            pass
    site.keeper.adopt(Orphan(claim.resource, claim.holder, 0.0, site.clock.now() + claim.ttl, late))


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


def _too_slow(claim: Claim, took: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"{claim.resource!r} was granted, but the answer took {took:.1f} s, longer than the ttl of {claim.ttl:g} s; "
        "the store or this process is too slow for it",
        resource=claim.resource,
    )


def _emit(site: Site, kind: type[events.Event], claim: Claim, **facts: object) -> None:
    site.stream.emit(
        kind(
            at=site.clock.now(),
            namespace=site.namespace,
            resource=claim.resource,
            owner=claim.owner,
            **facts,
        )
    )
