"""The one loop that claims, waits and tries again."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from .._clock import Clock
from ..core import events
from ..core.claim import Claim, Granted, Waiting
from ..core.timing import backoff, local_deadline
from ..errors import AcquireTimeout, LockError, StoreError, StoreUnavailable
from ..observe.stream import Stream
from . import runtime
from .keeper import Keeper, Orphan
from .store import Store

# With timeout=None an outage is borne for this many io_timeouts.
_OUTAGE = 3


class Site:
    """Where acquires take place: what they need of their client."""

    __slots__ = ("clock", "closing", "io_timeout", "keeper", "namespace", "store", "stream", "under_way")

    def __init__(
        self, store: Store, keeper: Keeper, clock: Clock, stream: Stream, namespace: str, io_timeout: float
    ) -> None:
        self.store = store
        self.keeper = keeper
        self.clock = clock
        self.stream = stream
        self.namespace = namespace
        self.io_timeout = io_timeout
        self.closing = False
        self.under_way = 0  # acquires that close() has to wait for, about


class Grant(NamedTuple):
    """What the store granted, and when the question was asked."""

    token: int
    asked: float
    deadline: float


async def acquire(site: Site, claim: Claim, timeout: float | None) -> Grant:
    """Claim until granted.

    Raises: AcquireTimeout when the resource stayed busy; StoreUnavailable when the store did; LockError when the
    client was closed meanwhile.
    """
    site.under_way += 1
    started = site.clock.now()
    try:
        return await _claim(site, claim, timeout, started)
    except AcquireTimeout as error:
        if site.stream.observers:
            _emit(site, events.TimedOut, claim, waited=site.clock.now() - started, blocker=error.owner or "")
        raise
    except BaseException as error:
        # Cancelled, interrupted or cut off: the claim's fate is unknown, and the caller must not wait for it.
        site.keeper.adopt(Orphan(claim.resource, claim.holder, 0.0, site.clock.now() + claim.ttl))
        if site.stream.observers:
            _emit(site, events.Abandoned, claim, cause=repr(error))
        raise
    finally:
        site.under_way -= 1


async def _claim(site: Site, claim: Claim, timeout: float | None, started: float) -> Grant:
    store, clock = site.store, site.clock
    until = inf if timeout is None else started + timeout
    refresh = store.capabilities.waiting_life / 3
    failures = 0
    bear = inf
    asked = started
    queued = False
    while True:
        if site.closing:
            raise LockError(f"the client was closed while {claim.resource!r} was waited for", resource=claim.resource)
        try:
            answer = await store.claim(claim, timeout != 0)
        except StoreUnavailable as error:
            now = clock.now()
            if not failures:
                bear = until if timeout is not None else asked + _OUTAGE * site.io_timeout
            pause = now + backoff(failures)
            failures += 1
            if pause >= bear:
                raise _unavailable(claim, now - started, error) from error
            await runtime.sleep(clock, pause)
            asked = clock.now()
            continue
        failures = 0
        now = clock.now()
        if isinstance(answer, Granted):
            deadline = local_deadline(asked, claim.ttl, answer.left)
            if now < deadline:
                if site.stream.observers:
                    _emit(site, events.Acquired, claim, token=answer.token, waited=now - started, ttl=claim.ttl)
                return Grant(answer.token, asked, deadline)
            # The grant has run out on its way here, and a body must not start without a lease: ask for a new one.
            await store.release(claim.resource, claim.holder)
            if now >= until:
                raise StoreUnavailable(
                    f"{claim.resource!r} was granted, but the answer took {now - asked:.1f} s, longer than "
                    f"the ttl of {claim.ttl:g} s; the store or this process is too slow for it",
                    resource=claim.resource,
                )
        else:
            if timeout == 0:
                raise _busy(claim, answer, 0.0)
            if now >= until:
                await _withdraw(site, claim, now <= until + site.io_timeout / 2)
                raise _busy(claim, answer, now - started)
            if not queued and site.stream.observers:
                _emit(site, events.Queued, claim, ahead=answer.ahead)
            queued = True
            await store.wait(claim, answer, min(until, now + min(refresh, answer.retry_after)))
            if clock.now() >= until:
                await _withdraw(site, claim, True)
                raise _busy(claim, answer, clock.now() - started)
        asked = clock.now()


async def _withdraw(site: Site, claim: Claim, in_time: bool) -> None:
    """Take a waiting claim back; in the background if the caller has been kept too long already."""
    if in_time:
        try:
            await site.store.release(claim.resource, claim.holder)
            return
        except StoreError:
            pass
    site.keeper.adopt(Orphan(claim.resource, claim.holder, 0.0, site.clock.now() + claim.ttl))


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


def _unavailable(claim: Claim, waited: float, error: StoreUnavailable) -> StoreUnavailable:
    return StoreUnavailable(
        f"could not acquire {claim.resource!r} within {waited:.1f} s, the store does not answer: {error}",
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
