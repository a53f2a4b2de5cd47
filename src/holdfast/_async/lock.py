"""The lock: describes what to acquire. Tokens and loss live on the lease."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from math import inf
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from ..core.claim import MAX
from ..core.names import check_flag, check_name, check_number, check_timeout, check_ttl
from ..errors import AcquireTimeout, NotHeld, Unsupported
from . import runtime
from .lease import Lease

if TYPE_CHECKING:
    from .client import Client

P = ParamSpec("P")
T = TypeVar("T")


class LockOptions(TypedDict, total=False):
    """What every kind of lock takes; see `Client.lock`."""

    ttl: float
    timeout: float | None
    reentrant: bool
    fair: bool | None
    min_hold: float
    max_hold: float | None
    renew: bool
    owner: str | None
    on_lost: Callable[[Lease], Any] | None


class Lock:
    """A wish for a resource: all of it, a share or a permit, as weight and capacity say.

    Immutable but for the leases entered through it: share it as you like.
    """

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
        owner: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
        weight: int = MAX,
        capacity: int = MAX,
    ) -> None:
        self._client = client
        self.resource = check_name(resource)
        self.ttl = check_ttl(ttl)
        self.timeout = check_timeout(timeout)
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
        self.weight = weight
        self.capacity = capacity
        # Neither the death of the holder nor close() may free what was promised to stay taken.
        self.detached = not self.renew or self.min_hold > 0
        self.fair = self._supported(fair)
        self._entered: dict[int, list[Lease]] = {}

    @runtime.acquiring
    async def acquire(self, timeout: float | EllipsisType | None = ...) -> Lease:
        """Wait for the resource and return the lease. `timeout` overrides the lock's: None for ever, 0 asks once.

        Raises: AcquireTimeout; StoreUnavailable; Deadlock if this actor holds it already.
        """
        seconds = self.timeout if timeout is ... else check_timeout(timeout)
        return await self._client._acquire(self, seconds)

    async def try_acquire(self, timeout: float | None = 0) -> Lease | None:
        """Return the lease, or None if the resource stays busy for the timeout. Every other trouble raises."""
        seconds = check_timeout(timeout)
        try:
            return await self._client._acquire(self, seconds)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> Lease:
        lease = await self._client._acquire(self, self.timeout)
        await lease.__aenter__()
        self._entered.setdefault(runtime.actor()[0], []).append(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave().__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Decorate a function: it runs under the lock and gets the lease as `lease`, if it has that parameter."""
        import inspect  # not at the top: it costs a quarter of the import of holdfast

        runtime.check_function(function, f"lock({self.resource!r})")
        wanted = inspect.signature(function).parameters.get("lease")
        pass_lease = wanted is not None and wanted.kind is inspect.Parameter.KEYWORD_ONLY

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self.acquire() as lease:
                if pass_lease:
                    kwargs["lease"] = lease
                return await function(*args, **kwargs)

        return locked

    def _leave(self) -> Lease:
        """Take the lease that this `with` entered off its stack."""
        here = runtime.actor()[0]
        if here not in self._entered and len(self._entered) == 1:
            # Some frameworks exit in another thread than they entered. With a single lease there is no doubt.
            here = next(iter(self._entered))
            if len(self._entered[here]) > 1:
                here = -1
        stack = self._entered.get(here)
        if not stack:
            raise NotHeld(
                f"cannot tell which lease on {self.resource!r} this `with` entered: it was entered in another thread "
                "or task; use `with lock.acquire() as lease`, which may be exited anywhere",
                resource=self.resource,
            )
        lease = stack.pop()
        if not stack:
            del self._entered[here]
        return lease

    def _supported(self, fair: bool | None) -> bool:
        can = self._client.capabilities
        if self.ttl < can.min_ttl or self.ttl > can.max_ttl:
            raise Unsupported(
                f"{can.store} keeps leases of {can.min_ttl:g} to {can.max_ttl:g} s, not of ttl={self.ttl:g}",
                resource=self.resource,
            )
        if self.detached and not can.detached:
            raise Unsupported(
                f"{can.store} cannot keep a claim past its client, which renew=False and min_hold need; "
                "use a store whose capabilities have `detached`",
                resource=self.resource,
            )
        if self.weight < self.capacity and not can.shared:
            raise Unsupported(
                f"{can.store} keeps exclusive claims only; use a store whose capabilities have `shared`",
                resource=self.resource,
            )
        if fair is None:
            return can.fair
        if check_flag(fair, "fair"):
            if not can.fair:
                raise Unsupported(
                    f"{can.store} cannot queue fairly; use a store whose capabilities have `fair`, or pass fair=False",
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
