"""The lock: describes what to acquire. Tokens and loss live on the lease."""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine
from math import inf
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Never, Self, TypedDict, Unpack

from ..core.cancel import Cancel
from ..core.claim import MAX, Claim, make_claim
from ..core.names import check_count, check_flag, check_name, check_number, check_ttl
from ..errors import Unsupported
from ..keeper.entries import Entry
from . import runtime
from .acquirable import Acquirable
from .lease import Lease

if TYPE_CHECKING:
    from .engine import Engine


_ABLE = "use sqlite://, redis:// or etcd://"  # they can do what others refuse


class LockOptions(TypedDict, total=False):
    """What every kind of lock takes; explained at `Client.lock`."""

    ttl: float
    timeout: float | None
    reentrant: bool
    fair: bool | None
    min_hold: float
    max_hold: float | None
    renew: bool
    detect_deadlocks: bool | None
    owner: str | None
    on_lost: Callable[[Lease], Any] | None


class Lock(Acquirable[Lease]):
    """Describes a claim on a resource; made by `Client.lock`, `RWLock` and `Election`.

    It holds nothing itself: token, time left and loss are those of the lease that an acquire returns. So it may be
    shared by threads and tasks. Acquire it, enter it (`async with lock as lease`), or decorate a function with it.
    """

    def __init__(
        self,
        engine: Engine,
        resource: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,
        reentrant: bool = False,
        fair: bool | None = None,
        min_hold: float = 0.0,
        max_hold: float | None = None,
        renew: bool = True,
        detect_deadlocks: bool | None = None,
        owner: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
        weight: int = MAX,
        capacity: int = MAX,
        value: str | None = None,
        kind: str = "lock",
    ) -> None:
        self.resource = check_name(resource)
        super().__init__(repr(resource), timeout)
        self._engine = engine
        self.ttl = check_ttl(ttl)
        self.reentrant = check_flag(reentrant, "reentrant")
        self.renew = check_flag(renew, "renew")
        self.min_hold = check_number(min_hold, "min_hold")
        self.max_hold = inf if max_hold is None else check_number(max_hold, "max_hold", rule=" (or None: no limit)")
        self._renew_for = self.max_hold if self.renew else -inf  # seconds since the grant
        self.owner = None if owner is None else check_name(owner, "owner")
        if on_lost is not None:
            if not callable(on_lost):
                raise ValueError(f"on_lost is called with the lease; {on_lost!r} cannot be called")
            runtime.check_callback(on_lost, "on_lost")
        self.on_lost = on_lost
        if self.min_hold > self.ttl:
            raise ValueError(
                f"min_hold={min_hold!r} exceeds ttl={ttl!r}: it could not be kept if the holder died; raise the ttl"
            )
        self.detect_deadlocks = (
            engine.detect_deadlocks if detect_deadlocks is None else check_flag(detect_deadlocks, "detect_deadlocks")
        )
        self.weight = weight
        self.capacity = capacity
        self.value = value
        self.kind = kind  # as events call it
        # Neither the death of the holder nor close() may free what was promised to stay taken.
        self.detached = not self.renew or self.min_hold > 0
        self.fair = self._supported(fair)
        self._known: tuple[str | None, tuple[Any, ...]] = (
            None,
            (),
        )  # the last label, and what its claims have in common

    async def locked(self) -> bool:
        """Return whether others hold so much that it could not be had right now: a view, which may be over when it is
        read. To take it if it is free, use `try_acquire()`.

        Raises: StoreUnavailable.
        """
        state = await self._engine.state(self.resource)
        return state is not None and sum(seen.weight for seen in state.holders) + self.weight > self.capacity

    def _claim(self, holder: str, label: str) -> Claim:
        """Return a claim; `label` is the owner's if the lock has none of its own."""
        known = self._known
        if known[0] is not label:
            owner = self.owner or label
            details = (self.weight, self.capacity, self.ttl, owner, self.value, self.fair, self.detached)
            known = self._known = (label, details)
        return make_claim((self.resource, holder) + known[1])

    def _take(
        self, timeout: float | None, entry: Entry | None = None, cancel: Cancel | None = None
    ) -> Coroutine[Any, Any, Lease]:
        return self._engine.acquire(self, timeout, entry, cancel)

    def _weighing(self, weight: int) -> Self:
        """Return a lock that takes more of the same."""
        if weight == self.weight:
            return self
        other = copy.copy(self)
        other.weight = weight
        other._known = (None, ())
        return other

    def _supported(self, fair: bool | None) -> bool:
        can = self._engine.capabilities
        if self.ttl < can.min_ttl or self.ttl > can.max_ttl:
            raise Unsupported(
                f"{can.store} keeps leases of {can.min_ttl:g} to {can.max_ttl:g} s, not of ttl={self.ttl:g}",
                resource=self.resource,
            )
        if self.detached and not can.detached:
            raise Unsupported(
                f"{can.store} cannot keep a claim past its client, which renew=False and min_hold need; {_ABLE}",
                resource=self.resource,
            )
        if self.weight < self.capacity and not can.shared:
            raise Unsupported(
                f"{can.store} keeps exclusive claims only; {_ABLE}",
                resource=self.resource,
            )
        if fair is None:
            return can.fair
        if check_flag(fair, "fair"):
            if not can.fair:
                raise Unsupported(
                    f"{can.store} cannot queue fairly; {_ABLE}, or pass fair=False",
                    resource=self.resource,
                )
        elif not can.unfair:
            raise Unsupported(f"{can.store} serves in order only; leave fair= out", resource=self.resource)
        return fair

    def __repr__(self) -> str:
        kind = (
            ""
            if self.weight == self.capacity == MAX
            else " shared"
            if self.capacity == MAX
            else f" {self.weight} of {self.capacity}"
        )
        return f"<Lock {self.resource!r}{kind} ttl={self.ttl:g}>"


class Semaphore(Lock):
    """Describes permits of a resource, several of which may be held at once; made by `Client.semaphore`."""

    def __init__(
        self, engine: Engine, resource: str, permits: int, weight: int, **options: Unpack[LockOptions]
    ) -> None:
        self.permits = check_count(permits, "permits")
        super().__init__(
            engine, resource, weight=self._checked(weight), capacity=self.permits, kind="semaphore", **options
        )

    @runtime.acquiring
    async def acquire(
        self,
        timeout: float | EllipsisType | None = ...,
        *,
        weight: int | None = None,
        cancel: Cancel | None = None,
        **foreign: Never,
    ) -> Lease:
        """Wait for permits and return the lease.

        timeout: seconds to wait; None waits for ever, 0 asks once. Left out: the semaphore's own.
        weight: how many permits to take, at once or not at all. Left out: the semaphore's own, 1 unless it says more.
        cancel: ends the wait when its `cancel()` is called, in any thread, task or signal handler. None by default.
        foreign: nothing; an argument that only other libraries have is refused, with the one to use instead.

        Raises: AcquireTimeout if there were not enough; StoreUnavailable; AcquireCancelled.
        """
        lock = self if weight is None else self._weighing(self._checked(weight))
        return await super(Semaphore, lock).acquire(timeout, cancel=cancel, **foreign)

    @runtime.asking
    async def try_acquire(
        self, timeout: float | None = 0, *, weight: int | None = None, cancel: Cancel | None = None, **foreign: Never
    ) -> Lease | None:
        """Return the lease, or None if there are not enough permits for the timeout. Every other trouble raises.

        timeout: seconds to wait; 0, the default, asks once. None waits for ever.
        weight, cancel, foreign: as for `acquire`.

        Raises: StoreUnavailable; AcquireCancelled.
        """
        lock = self if weight is None else self._weighing(self._checked(weight))
        return await super(Semaphore, lock).try_acquire(timeout, cancel=cancel, **foreign)

    def _checked(self, weight: object) -> int:
        number = check_count(weight, "weight")
        if number > self.permits:
            raise ValueError(f"weight={weight!r} exceeds permits={self.permits}: it could never be granted")
        return number
