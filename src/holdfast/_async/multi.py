"""The multi-lock: several resources at once, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from math import inf
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Unpack

from ..core.names import check_timeout
from ..core.timing import backoff
from ..errors import AcquireTimeout, LeaseLost, NotHeld
from . import runtime
from .lease import Lease
from .lock import Lock, LockOptions

if TYPE_CHECKING:
    from .client import Client

# In the caller's own order two may hold what the other waits for. Whoever holds something waits this long at most.
_SHORT = 0.1


class Leases(Mapping[str, Lease]):
    """What a multi-lock gives: the lease of each resource, in the order in which they were taken."""

    def __init__(self, leases: dict[str, Lease]) -> None:
        self._leases = leases

    def __getitem__(self, resource: str) -> Lease:
        return self._leases[resource]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def lost(self) -> bool:
        """Tell whether one of them was lost: then none may be relied on."""
        return any(lease.lost for lease in self._leases.values())

    def check(self) -> None:
        """Return if all are held.

        Raises: LeaseLost or NotHeld for the first that is not.
        """
        for lease in self._leases.values():
            lease.check()

    async def release(self) -> None:
        """Give all back, the last taken first.

        Raises: LeaseLost if one was lost; the others are given back nevertheless.
        """
        lost: LeaseLost | None = None
        for lease in reversed(self._leases.values()):
            try:
                await lease.release()
            except LeaseLost as error:
                lost = lost or error
        if lost is not None:
            raise lost

    def __repr__(self) -> str:
        return f"<Leases {list(self._leases.values())!r}>"


class MultiLock:
    """Describes several locks that are taken together under one deadline."""

    def __init__(self, client: Client, resources: tuple[str, ...], order: str, **options: Unpack[LockOptions]) -> None:
        if not resources:
            raise ValueError("lock_all needs at least one resource")
        if order not in ("sorted", "given"):
            raise ValueError(f"order must be 'sorted' or 'given', not {order!r}")
        locks = {name: Lock(client, name, **options) for name in resources}  # the same name twice is one lock
        self._client = client
        self._order = order
        self._locks = [locks[name] for name in (sorted(locks) if order == "sorted" else locks)]
        self._timeout = self._locks[0].timeout
        self._entered: dict[int, list[AsyncExitStack]] = {}

    @property
    def resources(self) -> list[str]:
        """The names, in the order in which they are taken."""
        return [lock.resource for lock in self._locks]

    async def acquire(self, timeout: float | EllipsisType | None = ...) -> Leases:
        """Take all, or none. `timeout` is for all of them together.

        Raises: AcquireTimeout naming the one that stayed busy; what else `Lock.acquire` raises.
        """
        seconds = self._timeout if timeout is ... else check_timeout(timeout)
        now = self._client._clock.now
        until = inf if seconds is None else now() + seconds
        attempt = 0
        while True:
            try:
                return await self._take(until)
            except AcquireTimeout:
                import random  # not at the top: it costs as much as the rest of this module, and is needed here alone

                # Jitter, or two that met once would meet again and again.
                pause = backoff(attempt, least=0.01) * (0.5 + random.random())
                attempt += 1
                if self._order == "sorted" or now() + pause >= until:
                    raise
            await runtime.sleep(self._client._clock, now() + pause)

    async def _take(self, until: float) -> Leases:
        now = self._client._clock.now
        taken: dict[str, Lease] = {}
        try:
            for lock in self._locks:
                left = until - now()
                if taken and self._order == "given":
                    left = min(left, _SHORT)
                taken[lock.resource] = await self._client._acquire(lock, None if left == inf else max(0.0, left))
            return Leases(taken)
        except BaseException:
            await _give_back(Leases(taken))
            raise

    async def __aenter__(self) -> Leases:
        leases = await self.acquire()
        stack = AsyncExitStack()
        try:
            for lease in leases.values():  # each is entered: in asyncio the loss of any cancels the body
                await stack.enter_async_context(lease)
        except BaseException:
            await _give_back(leases)
            raise
        self._entered.setdefault(runtime.actor()[0], []).append(stack)
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = runtime.actor()[0]
        stacks = self._entered.get(here)
        if not stacks:
            raise NotHeld(f"{self!r} was not entered in this thread or task; use `leases = acquire()` and `release()`")
        stack = stacks.pop()
        if not stacks:
            del self._entered[here]
        await stack.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<MultiLock {', '.join(map(repr, self.resources))}>"


async def _give_back(leases: Leases) -> None:
    try:
        await leases.release()
    except LeaseLost:
        pass  # what was lost is not ours to give back
