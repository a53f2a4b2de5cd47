"""The multi-lock: several resources at once, all or nothing. The tree is one: a path from its root to a leaf."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from ..core.cancel import Cancel
from ..core.claim import MAX
from ..core.fence import Fence
from ..core.names import check_name
from ..core.timing import backoff
from ..errors import AcquireTimeout, LeaseLost, NotHeld
from ..keeper.bodies import open_body
from ..keeper.entries import Entry, Exit, begin
from . import runtime
from .acquirable import Acquirable
from .lease import Lease
from .lock import Lock, LockOptions

if TYPE_CHECKING:
    from .engine import Engine

# In the caller's own order two may hold what the other waits for. Whoever holds something waits this long at most.
_SHORT = 0.1


class Leases(Mapping[str, Lease]):
    """What `lock_all` gives: a mapping from each resource to its lease, in the order in which they were taken.

    They stand and fall together. Enter it (`async with leases`), or release it.
    """

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
        """Whether one of them was lost: then none may be relied on."""
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

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._enter(begin(self))

    __aexit__ = Exit[Coroutine[Any, Any, None]](runtime.leave)

    async def _enter(self, entry: Entry) -> Self:
        await self._begin(entry)
        return self

    def _leave(self, entry: Entry, error: BaseException | None) -> Coroutine[Any, Any, None]:
        return self._end(entry, error)

    async def _begin(self, entry: Entry) -> None:
        """Begin the body of a `with`."""
        if self._body is not None:
            entry.fail()
            raise NotHeld(f"{self!r} is entered already; acquire once more")
        entry.leases = tuple(self._leases.values())
        entry.target = self
        body = AsyncExitStack()
        try:
            for lease in self._leases.values():  # each is entered: in asyncio the loss of any cancels the body
                await body.enter_async_context(lease)
        except BaseException:
            await _give_back(self)
            raise
        open_body(entry, runtime.strand())
        self._body = body

    async def _end(self, entry: Entry, error: BaseException | None) -> None:
        """End the body of a `with`, and release all."""
        body, self._body = self._body, None
        if body is None:
            entry.disarm()
            raise NotHeld(f"{self!r} is not entered")
        await body.__aexit__(
            None if error is None else type(error), error, None if error is None else error.__traceback__
        )
        entry.disarm()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self._leases.values())!r}>"


class TreeLease(Leases):
    """What `tree` gives: the leases of a path, shared on the parents and exclusive on the leaf.

    Token and fence are those of the leaf.
    """

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
        """The fences of the path from the root down, the leaf's last.

        A guard has to enter all of them, in one transaction: whoever holds a parent exclusively shuts out those below
        it by the parent's fence.
        """
        return tuple(lease.fence for lease in self._leases.values())


L = TypeVar("L", bound=Leases)


class _Several(Acquirable[L]):
    """Several locks that are taken one after the other, under one deadline."""

    _kind: type[L]

    def __init__(self, engine: Engine, locks: Sequence[Lock], order: str = "sorted") -> None:
        super().__init__(", ".join(lock._name for lock in locks), locks[0].timeout)
        self._engine = engine
        self._locks = locks
        self._order = order

    @property
    def resources(self) -> list[str]:
        """The names, in the order in which they are taken."""
        return [lock.resource for lock in self._locks]

    async def _take(self, timeout: float | None, entry: Entry | None = None, cancel: Cancel | None = None) -> L:
        """Take all, or none; the timeout is for all of them together."""
        now = self._engine.now
        until = inf if timeout is None else now() + timeout
        attempt = 0
        while True:
            try:
                return await self._try(until, entry, cancel, timeout is None)
            except AcquireTimeout:
                import random  # not at the top: it costs as much as the rest of this module, and is needed here alone

                # Jitter, or two that met once would meet again and again.
                pause = backoff(attempt, least=0.01) * (0.5 + random.random())
                attempt += 1
                if self._order == "sorted" or now() + pause >= until:
                    raise
            await runtime.sleep(self._engine.clock, now() + pause)

    async def _try(self, until: float, entry: Entry | None, cancel: Cancel | None, endless: bool) -> L:
        now = self._engine.now
        taken = entry or Entry()  # notes each as soon as it is granted
        taken.leases = ()  # those of an attempt that failed were given back
        try:
            for number, lock in enumerate(self._locks):
                left = until - now()
                if number and self._order == "given":
                    left = min(left, _SHORT)
                await self._engine.acquire(lock, None if left == inf else max(0.0, left), taken, cancel, endless)
            return self._kind(_by_name(taken))
        except BaseException:
            await _give_back(Leases(_by_name(taken)))
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"


class MultiLock(_Several[Leases]):
    """Describes several locks that are taken together, under one deadline; made by `Client.lock_all`."""

    _kind = Leases

    def __init__(self, engine: Engine, resources: tuple[str, ...], order: str, **options: Unpack[LockOptions]) -> None:
        if not resources:
            raise ValueError("lock_all needs at least one resource")
        if order not in ("sorted", "given"):
            raise ValueError(f"order must be 'sorted' or 'given', not {order!r}")
        # The same name twice is one lock.
        locks = {name: Lock(engine, name, kind="lock_all", **options) for name in resources}
        super().__init__(engine, [locks[name] for name in (sorted(locks) if order == "sorted" else locks)], order)


class Tree(_Several[TreeLease]):
    """Describes a lock on a node of a hierarchy, made by `Client.tree`: a share of each parent, and all of the leaf.

    Parents sort before what is below them, so trees and `lock_all` cannot deadlock with each other.
    """

    _kind = TreeLease

    def __init__(self, engine: Engine, path: str, **options: Unpack[LockOptions]) -> None:
        parts = check_name(path, "path").split("/")
        if not all(parts):
            raise ValueError(f"a path is made of names with single slashes between them, like 'a/b/c', not {path!r}")
        parents = ["/".join(parts[: end + 1]) for end in range(len(parts) - 1)]
        shares = [Lock(engine, parent, weight=1, capacity=MAX, kind="tree", **options) for parent in parents]
        super().__init__(engine, [*shares, Lock(engine, path, kind="tree", **options)])


def _by_name(entry: Entry) -> dict[str, Lease]:
    return {lease.resource: lease for lease in entry.leases if isinstance(lease, Lease)}


async def _give_back(leases: Leases) -> None:
    try:
        await leases.release()
    except LeaseLost:
        pass  # what was lost is not ours to give back
