"""The client: one store, one keeper, and everything that can be locked there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from .. import _registry
from .._clock import Clock, SystemClock
from ..core.claim import MAX, Claim, ResourceState, bare
from ..core.events import Observer
from ..core.lease import LIVE
from ..core.names import check_count, check_flag, check_name, check_number
from ..core.promises import Capabilities
from ..core.urls import StoreURL, parse_url
from ..errors import Deadlock, LockError
from ..observe.stream import Stream
from . import runtime
from .acquire import Site, acquire
from .election import Election
from .keeper import Keeper
from .lease import Held, Hold, Lease
from .lock import Lock, LockOptions
from .multi import MultiLock, Tree
from .ratelimit import RateLimit
from .rwlock import RWLock
from .store import StoreFactory

if TYPE_CHECKING:
    from .once import Once

_CLOSE_SECONDS = 5.0


class Client:
    """A connection to a store. Made without I/O and without a thread, so it may stand at module level."""

    def __init__(
        self,
        url: StoreURL | str,
        *,
        namespace: str = "default",
        owner: str | None = None,
        require: str | None = None,
        observers: Iterable[Observer] = (),
        detect_deadlocks: bool = False,
        io_timeout: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.url = url if isinstance(url, StoreURL) else parse_url(url)
        self.namespace = check_name(namespace, "namespace")
        self._owner = None if owner is None else check_name(owner, "owner")
        self._io_timeout = check_number(io_timeout, "io_timeout", least=0.01)
        self._clock = clock or SystemClock()
        self._stream = Stream(observers)
        self.detect_deadlocks = check_flag(detect_deadlocks, "detect_deadlocks")
        self._require = _registry.check_require(require)
        self.closed = False
        self._begin()
        _registry.check_promises(self.capabilities, self._require)
        _registry.remember(self)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        return self._store.capabilities

    def lock(
        self,
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
    ) -> Lock:
        """Describe an exclusive lock; nothing is sent before it is acquired.

        Raises: ValueError for a bad argument; Unsupported if the store cannot do it.
        """
        return Lock(
            self,
            resource,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            fair=fair,
            min_hold=min_hold,
            max_hold=max_hold,
            renew=renew,
            detect_deadlocks=detect_deadlocks,
            owner=owner,
            on_lost=on_lost,
        )

    def rwlock(self, resource: str, **options: Unpack[LockOptions]) -> RWLock:
        """Describe a read-write lock: `.read()` and `.write()` are locks, with the options of `lock`."""
        return RWLock(self, resource, **options)

    def semaphore(self, resource: str, *, permits: int, **options: Unpack[LockOptions]) -> Lock:
        """Describe a semaphore: as many as `permits` hold it at once. Takes the options of `lock`.

        Each claim is judged by its own number, so that a rolling deploy may change it.
        """
        return Lock(self, resource, weight=1, capacity=check_count(permits, "permits"), **options)

    def lock_all(self, *resources: str, order: str = "sorted", **options: Unpack[LockOptions]) -> MultiLock:
        """Describe a lock on several resources: one deadline, all or nothing. Takes the options of `lock`.

        They are taken in sorted order, so that two who want the same cannot wait for each other. `order="given"` keeps
        the caller's order; then whoever holds some and waits for more gives all back after a moment, and tries again.
        """
        return MultiLock(self, resources, order, **options)

    def tree(self, path: str, **options: Unpack[LockOptions]) -> Tree:
        """Describe a lock on a node of a hierarchy, like "orders/7/99": shared on its parents, exclusive on itself.

        Whoever holds a node keeps everybody from all that is below it. Takes the options of `lock`.
        """
        return Tree(self, path, **options)

    def election(
        self,
        resource: str,
        *,
        value: str | None = None,
        ttl: float = 30.0,
        owner: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
    ) -> Election:
        """Describe an election: candidates campaign for the office `resource`, and `value` shows who leads."""
        return Election(self, resource, value=value, ttl=ttl, owner=owner, on_lost=on_lost)

    def rate_limit(self, resource: str, limit: int, *, per: float) -> RateLimit:
        """Describe a rate limit: at most `limit` hits in any window of `per` seconds."""
        return RateLimit(self, resource, limit, per=per)

    def once(
        self,
        template: str | None = None,
        *,
        key: Callable[..., str] | None = None,
        keep: float | None = None,
        wait: bool = True,
        **options: Unpack[LockOptions],
    ) -> Once:
        """Describe work that is done once: `@locks.once("invoice:{number}", keep=86400)` decorates the function.

        One result is recorded for each name, kept for `keep` seconds (None: for ever), and given to every later call.
        Whoever calls meanwhile waits for it, or gets AcquireTimeout with `wait=False`. Takes the options of `lock`.
        """
        from .once import Once  # not at the top: it needs json and inspect, which most do not

        return Once(self, template, key, keep, wait, **options)

    async def ready(self) -> None:
        """Open the store and check its promises now instead of on first use.

        Raises: StoreError; StoreUnavailable.
        """
        self._check_open()
        await self._store.ready()
        _registry.check_promises(self.capabilities, self._require)

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """Show who holds and who waits for the resources whose names begin with `prefix`."""
        self._check_open()
        return await self._store.inspect(prefix)

    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Release what is held, withdraw what waits, end every thread, task and socket. May be called twice."""
        seconds = check_number(timeout, "timeout")
        if self.closed:
            return
        self._home.check()
        self._stop()
        await runtime.finish(self._close, seconds)

    def _stop(self) -> None:
        """Take no more acquires, and wake those that wait: they raise LockError."""
        self.closed = self._site.closing = True
        self._store.interrupt()

    async def _close(self, seconds: float) -> None:
        clock = SystemClock()  # real time, whatever clock the leases live by
        until = clock.now() + seconds
        pause = 0.001
        while self._site.under_way and clock.now() < until:
            self._store.interrupt()
            await runtime.sleep(clock, clock.now() + pause)
            pause = min(0.05, pause * 2)
        try:
            await self._keeper.close(max(0.0, until - clock.now()))
        finally:
            await self._store.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<holdfast client of {self.url} namespace={self.namespace!r}>"

    async def _acquire(self, lock: Lock, timeout: float | None) -> Lease:
        if self.closed:
            self._check_open()
        actor, label = self._home.actor()
        key = (actor, lock.resource)
        held = self._held.get(key)
        if held is not None and (hold := held()) is not None and hold.look() in LIVE:
            again = self._again(lock, hold)
            if again is not None:
                return again
        # Random, although a counter would be unique too: not in the copies of a machine that is resumed twice.
        holder = f"{self._id}.{actor}.{os.urandom(8).hex()}"
        claim = bare(
            Claim,
            (
                lock.resource, holder, lock.weight, lock.capacity, lock.ttl, lock.owner or self._owner or label,
                lock.value, lock.fair, lock.detached,
            ),
        )  # fmt: skip
        under_way = self._site.under_way
        under_way.add(holder)
        hold = None
        try:
            token, since, deadline = await acquire(self._site, claim, timeout, lock.detect_deadlocks)
            renew_until = since + lock.max_hold if lock.renew else -inf
            hold = Hold(self._keeper, claim, token, since, deadline, key, lock.min_hold, renew_until)
            self._keeper.add(hold)
            return Lease(hold, lock.on_lost)
        except BaseException:
            if hold is not None:  # Ctrl-C after the grant, while the keeper starts: nobody would give it back
                self._keeper.disown(hold)
            raise
        finally:
            under_way.discard(holder)  # not before the keeper has it: close() in another thread would miss it

    def _again(self, lock: Lock, hold: Hold) -> Lease | None:
        """Decide for an actor that has the resource already: share its hold, take another permit (None), or raise.

        Raises: Deadlock where it would wait for itself.
        """
        if lock.weight < lock.capacity < MAX and hold.claim.shared:
            return None  # a permit more; the store counts them
        reader = lock.weight < lock.capacity
        # A nested reader shares the hold of the first: behind a waiting writer it would wait for itself.
        shared = hold.claim.shared and hold.claim.capacity == MAX
        if (reader and shared) or (lock.reentrant and not hold.claim.shared):
            hold.shares += 1
            return Lease(hold, lock.on_lost)
        if hold.claim.shared:
            fact = f"this thread or task holds a share of {lock.resource!r} (token {hold.token}) and asks for all of it"
            move = "release the share first"
        else:
            fact = f"this thread or task already holds {lock.resource!r} (token {hold.token})"
            move = "pass the lease on, or use lock(..., reentrant=True)"
        raise Deadlock(
            f"{fact}: it would wait for itself; {move}",
            resource=lock.resource,
            owner=hold.claim.owner,
            token=hold.token,
        )

    def _identify(self) -> tuple[str, str]:
        """Return a new holder and its owner's label, for a claim that nobody holds on to."""
        self._check_open()
        actor, label = self._home.actor()
        return f"{self._id}.{actor}.{os.urandom(8).hex()}", self._owner or label

    def _begin(self) -> None:
        """Start from nothing: at first, and again in a forked child, where the parent's parts must not be touched."""
        self._id = os.urandom(8).hex()
        self._home = runtime.Home()
        self._held: Held = {}
        factory: StoreFactory = _registry.find_store(self.url.scheme, runtime.FLAVOUR)
        self._store = factory(self.url, namespace=self.namespace, io_timeout=self._io_timeout, clock=self._clock)
        self._keeper = Keeper(self._store, self._clock, self._stream, self.namespace, self._held)
        _registry.remember_keeper(self._keeper)
        self._site = Site(
            self._store, self._keeper, self._clock, self._stream, self.namespace, self._io_timeout, self._require
        )

    def _check_open(self) -> None:
        if self.closed:
            raise LockError(f"this client of {self.url} is closed; connect() again")
        self._home.check()


def connect(
    url: str | None = None,
    *,
    namespace: str = "default",
    owner: str | None = None,
    require: str | None = None,
    observers: Iterable[Observer] = (),
    detect_deadlocks: bool = False,
    io_timeout: float = 1.0,
) -> Client:
    """Return a client of the store at `url`: else of $HOLDFAST_URL, else of a SQLite file of this user.

    Does no I/O. `require="correctness"` insists on a store whose tokens rise through every fault it can have.
    `detect_deadlocks` is the default of all its locks: a waiter that closes a cycle raises Deadlock.

    Raises: ValueError for a bad URL or argument, or for an unknown scheme; StoreError if what it needs is not installed
    or if it cannot promise what is required.
    """
    return Client(
        _registry.find_url(url, _registry.check_require(require)),
        namespace=namespace,
        owner=owner,
        require=require,
        observers=observers,
        detect_deadlocks=detect_deadlocks,
        io_timeout=io_timeout,
    )
