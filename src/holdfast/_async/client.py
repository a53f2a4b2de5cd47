"""The client: one store, one keeper, and everything that can be locked there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from .. import _process
from .._clock import Clock, SystemClock
from .._location import ClientObject, find_address
from ..core.claim import ResourceState
from ..core.events import Observer
from ..core.names import check_flag, check_name, check_number
from ..core.promises import Capabilities, check_require
from ..core.urls import StoreURL, parse_url
from ..stores.registry import check_login, find_store
from . import runtime
from .election import Election
from .engine import Engine
from .lease import Lease
from .lock import Lock, LockOptions, Semaphore
from .multi import MultiLock, Tree
from .ratelimit import RateLimit
from .register import Register
from .rwlock import RWLock
from .store import Store, StoreFactory

if TYPE_CHECKING:
    from .once import Once

_CLOSE_SECONDS = 5.0


class Client:
    """A connection to a store. Made without I/O and without a thread, so it may stand at module level."""

    flavour = runtime.FLAVOUR
    _engine_kind = Engine

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
        self._io_timeout = check_number(io_timeout, "io_timeout", least=0.01)
        self._clock = clock or SystemClock()
        self._engine = self._engine_kind(
            self._make_store,
            name=str(self.url),
            namespace=self.namespace,
            owner=None if owner is None else check_name(owner, "owner"),
            require=check_require(require),
            observers=observers,
            detect_deadlocks=check_flag(detect_deadlocks, "detect_deadlocks"),
            io_timeout=self._io_timeout,
            clock=self._clock,
            real=SystemClock(),
        )
        _process.remember(self._engine)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        return self._engine.capabilities

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._engine.closing

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
            self._engine,
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
        return RWLock(self._engine, resource, **options)

    def semaphore(self, resource: str, *, permits: int, weight: int = 1, **options: Unpack[LockOptions]) -> Semaphore:
        """Describe a semaphore: as many as `permits` hold it at once. Takes the options of `lock`.

        permits: how many there are. Each claim is judged by its own number, so that a rolling deploy may change it.
        weight: how many one lease takes, at once or not at all.
        """
        return Semaphore(self._engine, resource, permits, weight, **options)

    def lock_all(self, *resources: str, order: str = "sorted", **options: Unpack[LockOptions]) -> MultiLock:
        """Describe a lock on several resources: one deadline, all or nothing. Takes the options of `lock`.

        They are taken in sorted order, so that two who want the same cannot wait for each other. `order="given"` keeps
        the caller's order; then whoever holds some and waits for more gives all back after a moment, and tries again.
        """
        return MultiLock(self._engine, resources, order, **options)

    def tree(self, path: str, **options: Unpack[LockOptions]) -> Tree:
        """Describe a lock on a node of a hierarchy, like "orders/7/99": shared on its parents, exclusive on itself.

        Whoever holds a node keeps everybody from all that is below it. Takes the options of `lock`.
        """
        return Tree(self._engine, path, **options)

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
        return Election(self._engine, resource, value=value, ttl=ttl, owner=owner, on_lost=on_lost)

    def rate_limit(self, resource: str, limit: int, *, per: float) -> RateLimit:
        """Describe a rate limit: at most `limit` hits in any window of `per` seconds.

        limit: how many hits fit into a window, from 1 to a million. Each takes a row in the store for `per` seconds.
        per: the length of the window in seconds. It slides: a hit counts for that long from its own moment.

        Raises: ValueError for a bad argument; Unsupported if the store cannot count hits, or not in windows so short.
        """
        return RateLimit(self._engine, resource, limit, per=per)

    def register(self, name: str) -> Register:
        """Describe a register: a value in the store that only the holder of a lease can change.

        name: as for resources; it may be the same as that of the lock that guards it. `once` keeps its results in the
            registers of its names.

        Raises: ValueError for a bad name; Unsupported if the store has no registers.
        """
        return Register(self._engine, name)

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

        return Once(self._engine, template, key, keep, wait, **options)

    async def ready(self) -> None:
        """Open the store and check its promises now instead of on first use.

        Raises: StoreError; StoreUnavailable.
        """
        self._engine.check_open()
        await self._engine.store.ready()
        self._engine.check_promises()

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """Show who holds and who waits for the resources whose names begin with `prefix`."""
        return await self._engine.inspect(prefix)

    async def drain(self, timeout: float) -> bool:
        """Stop in order: take nothing new, let bodies end, then close. Returns whether all of them ended in time.

        timeout: seconds that bodies have. What is still held after that is released under them, and they find their
            leases released. Closing may take 5 s more.

        What a body takes inside of its `with` block is not new: it may need that to end. Whoever waits elsewhere raises
        LockError, and so does every later acquire. Leases that are not renewed are not waited for.
        """
        seconds = check_number(timeout, "timeout")
        if self._engine.closed:
            return True
        self._engine.home.check()
        ended = await self._engine.drain(seconds)
        await self.close()
        return ended

    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Release what is held, withdraw what waits, end every thread, task and socket. May be called twice.

        Takes `timeout` seconds at most, also in a signal handler. What could not be released by then ends at its ttl.
        """
        seconds = check_number(timeout, "timeout")
        engine = self._engine
        if engine.closed:
            return
        engine.home.check()
        engine.stop()
        await runtime.finish(engine.close, seconds)

    async def __aenter__(self) -> Self:
        self._engine.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<holdfast client of {self.url} namespace={self.namespace!r}>"

    def _make_store(self) -> Store:
        factory: StoreFactory = find_store(self.url.scheme, self.flavour)
        check_login(self.url, factory)
        return factory(self.url, namespace=self.namespace, io_timeout=self._io_timeout, clock=self._clock)


def connect(
    url: str | ClientObject | None = None,
    *,
    namespace: str = "default",
    owner: str | None = None,
    require: str | None = None,
    observers: Iterable[Observer] = (),
    detect_deadlocks: bool = False,
    io_timeout: float = 1.0,
    password: str | Callable[[], str] | None = None,
    options: Mapping[str, str | bool] | None = None,
) -> Client:
    """Return a client of the store at `url`: else of $HOLDFAST_URL, else of a SQLite file of this user.

    Does no I/O. `url` may also be a client object of redis-py or valkey-py, blocking or asyncio: its address and login
    are read, its connections are never used. `require="correctness"` insists on a store whose tokens rise through every
    fault it can have. `detect_deadlocks` is the default of all its locks: a waiter that closes a cycle raises Deadlock.

    `password` takes the place of the one in `url`. A callable is called for every login, in a thread of its own, and
    nobody waits for it longer than `io_timeout`; if it raises, that is an outage of the store. `options` are those that
    a URL has after its `?`; True and False stand for `true` and `false`.

    Raises: ValueError for a bad URL, object or argument, or for an unknown scheme; StoreError if what it needs is not
    installed or if it cannot promise what is required.
    """
    return Client(
        find_address(url, check_require(require), password, options),
        namespace=namespace,
        owner=owner,
        require=require,
        observers=observers,
        detect_deadlocks=detect_deadlocks,
        io_timeout=io_timeout,
    )
