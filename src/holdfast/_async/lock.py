"""The lock: describes what to acquire. Tokens and loss live on the lease."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypedDict

from ..core.claim import MAX
from ..core.names import check_flag, check_name, check_number, check_ttl
from ..errors import Unsupported
from .lease import Lease
from .wish import Wish

if TYPE_CHECKING:
    from .client import Client


_ABLE = "use sqlite://, redis:// or etcd://"  # they can do what others refuse


class LockOptions(TypedDict, total=False):
    """What every kind of lock takes; see `Client.lock`."""

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


class Lock(Wish[Lease]):
    """A wish for a resource: all of it, a share or a permit, as weight and capacity say."""

    def __init__(
        self,
        client: Client,
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
    ) -> None:
        self.resource = check_name(resource)
        super().__init__(repr(resource), timeout)
        self._client = client
        self.ttl = check_ttl(ttl)
        self.reentrant = check_flag(reentrant, "reentrant")
        self.renew = check_flag(renew, "renew")
        self.min_hold = check_number(min_hold, "min_hold")
        self.max_hold = inf if max_hold is None else check_number(max_hold, "max_hold", rule=" (or None: no limit)")
        self.owner = None if owner is None else check_name(owner, "owner")
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost is called with the lease; {on_lost!r} cannot be called")
        self.on_lost = on_lost
        if self.min_hold > self.ttl:
            raise ValueError(
                f"min_hold={min_hold!r} exceeds ttl={ttl!r}: it could not be kept if the holder died; raise the ttl"
            )
        self.detect_deadlocks = (
            client.detect_deadlocks if detect_deadlocks is None else check_flag(detect_deadlocks, "detect_deadlocks")
        )
        self.weight = weight
        self.capacity = capacity
        self.value = value
        # Neither the death of the holder nor close() may free what was promised to stay taken.
        self.detached = not self.renew or self.min_hold > 0
        self.fair = self._supported(fair)

    async def _take(self, timeout: float | None) -> Lease:
        return await self._client._acquire(self, timeout)

    def _supported(self, fair: bool | None) -> bool:
        can = self._client.capabilities
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
            else f" 1 of {self.capacity}"
        )
        return f"<Lock {self.resource!r}{kind} ttl={self.ttl:g}>"
