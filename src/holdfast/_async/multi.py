"""The multi-lock: several resources at once, all or nothing. The tree is one: a path from its root to a leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from ..core.claim import MAX
from ..core.fence import Fence
from ..core.names import check_name
from ..core.timing import backoff
from ..errors import AcquireTimeout, LeaseLost, NotHeld
from . import runtime
from .lease import Lease
from .lock import Lock, LockOptions
from .wish import Wish

if TYPE_CHECKING:
    from .client import Client

# In the caller's own order two may hold what the other waits for. Whoever holds something waits this long at most.
_SHORT = 0.1


class Leases(Mapping[str, Lease]):
    """What a multi-lock gives: the lease of each resource, in the order in which they were taken."""

    def __init__(self, leases: dict[str, Lease]) -> None:
        self._leases = leases
        self._body: AsyncExitStack | None = None

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

    @property
    def remaining(self) -> float:
        """Seconds until the first of them is lost unless it is renewed."""
        return min(lease.remaining for lease in self._leases.values())

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
        trouble: BaseException | None = None
        for lease in reversed(self._leases.values()):
            try:
                await lease.release()
            except BaseException as error:  # a cancellation or Ctrl-C, too: what is skipped stays taken until its ttl
                if trouble is None or isinstance(trouble, LeaseLost):
                    trouble = error
        if trouble is not None:
            raise trouble

    async def __aenter__(self) -> Self:
        if self._body is not None:
            raise NotHeld(f"{self!r} is entered already; acquire once more")
        body = AsyncExitStack()
        try:
            for lease in self._leases.values():  # each is entered: in asyncio the loss of any cancels the body
                await body.enter_async_context(lease)
        except BaseException:
            await _give_back(self)
            raise
        self._body = body
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if body is None:
            raise NotHeld(f"{self!r} is not entered")
        await body.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self._leases.values())!r}>"


class TreeLease(Leases):
    """The leases of a path: shared on the parents, exclusive on the leaf, which it speaks for."""

    @property
    def leaf(self) -> Lease:
        """The exclusive lease at the end of the path."""
        return self._leases[next(reversed(self._leases))]

    @property
    def resource(self) -> str:
        """The whole path."""
        return self.leaf.resource

    @property
    def token(self) -> int:
        """The fencing token of the leaf."""
        return self.leaf.token

    @property
    def fence(self) -> Fence:
        """The fence of the leaf; a guard of the whole tree enters all `fences`."""
        return self.leaf.fence

    @property
    def fences(self) -> tuple[Fence, ...]:
        """The fences of the path from the root down, the leaf's last. All have to be entered, in one transaction: who
        holds a parent exclusively shuts out those below by the parent's fence.
        """
        return tuple(lease.fence for lease in self._leases.values())


L = TypeVar("L", bound=Leases)


class _Several(Wish[L]):
    """Several locks that are taken one after the other, under one deadline."""

    _kind: type[L]

    def __init__(self, client: Client, locks: Sequence[Lock], order: str = "sorted") -> None:
        super().__init__(", ".join(lock._name for lock in locks), locks[0].timeout)
        self._client = client
        self._locks = locks
        self._order = order

    @property
    def resources(self) -> list[str]:
        """The names, in the order in which they are taken."""
        return [lock.resource for lock in self._locks]

    async def _take(self, timeout: float | None) -> L:
        """Take all, or none; the timeout is for all of them together."""
        now = self._client._clock.now
        until = inf if timeout is None else now() + timeout
        attempt = 0
        while True:
            try:
                return await self._try(until)
            except AcquireTimeout:
                import random  # not at the top: it costs as much as the rest of this module, and is needed here alone

                # Jitter, or two that met once would meet again and again.
                pause = backoff(attempt, least=0.01) * (0.5 + random.random())
                attempt += 1
                if self._order == "sorted" or now() + pause >= until:
                    raise
            await runtime.sleep(self._client._clock, now() + pause)

    async def _try(self, until: float) -> L:
        now = self._client._clock.now
        taken: dict[str, Lease] = {}
        try:
            for lock in self._locks:
                left = until - now()
                if taken and self._order == "given":
                    left = min(left, _SHORT)
                taken[lock.resource] = await self._client._acquire(lock, None if left == inf else max(0.0, left))
            return self._kind(taken)
        except BaseException:
            await _give_back(Leases(taken))
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"


class MultiLock(_Several[Leases]):
    """Describes several locks that are taken together under one deadline."""

    _kind = Leases

    def __init__(self, client: Client, resources: tuple[str, ...], order: str, **options: Unpack[LockOptions]) -> None:
        if not resources:
            raise ValueError("lock_all needs at least one resource")
        if order not in ("sorted", "given"):
            raise ValueError(f"order must be 'sorted' or 'given', not {order!r}")
        locks = {name: Lock(client, name, **options) for name in resources}  # the same name twice is one lock
        super().__init__(client, [locks[name] for name in (sorted(locks) if order == "sorted" else locks)], order)


class Tree(_Several[TreeLease]):
    """Describes a lock on a node of a hierarchy: a share of every parent from the root down, and all of the leaf.

    Parents sort before what is below them, so trees and `lock_all` cannot deadlock with each other.
    """

    _kind = TreeLease

    def __init__(self, client: Client, path: str, **options: Unpack[LockOptions]) -> None:
        parts = check_name(path, "path").split("/")
        if not all(parts):
            raise ValueError(f"a path is made of names with single slashes between them, like 'a/b/c', not {path!r}")
        parents = ["/".join(parts[: end + 1]) for end in range(len(parts) - 1)]
        shares = [Lock(client, parent, weight=1, capacity=MAX, **options) for parent in parents]
        super().__init__(client, [*shares, Lock(client, path, **options)])


async def _give_back(leases: Leases) -> None:
    try:
        await leases.release()
    except LeaseLost:
        pass  # what was lost is not ours to give back
