"""The client: one store, one keeper, and everything that can be locked there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from .. import _process
from .._clock import Clock, SystemClock
from .._location import ClientObject, find_address
from ..core.claim import Holder, ResourceState, holders_of
from ..core.events import Observer
from ..core.names import check_flag, check_name, check_number
from ..core.promises import Capabilities, check_require
from ..core.urls import StoreURL, parse_url
from ..errors import Unsupported
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
    """A connection to a store, made by `connect`, and everything that can be locked there.

    It is made without I/O and without a thread, so it may stand at module level. One for each process is enough: all
    its threads may share it. An asyncio client belongs to the event loop of its first await.

    url: the address; a client object and `$HOLDFAST_URL` are for `connect` alone.
    clock: where time comes from; tests pass a `holdfast.testing.ManualClock`. Default: that of this machine.
    namespace, owner, require, observers, detect_deadlocks, io_timeout: as for `connect`.
    """

    _flavour = runtime.FLAVOUR
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

        resource: the name that is locked, a str of 1 to 512 UTF-8 bytes without control characters. Names are compared
            byte by byte; a name that is free costs the store little or nothing.
        ttl: seconds that a lease lasts unless it is renewed; 30 by default, 0.5 at least. Others wait that long after a
            crash that nobody notices, and a pause of this process for longer loses the lease. The keeper renews after
            each third of it, so a shorter one costs more exchanges.
        timeout: seconds that `acquire` and `with` wait while others hold it. None, the default, waits for ever; 0 asks
            once.
        reentrant: True lets code inside of a `with` block of this lock take it again, through the same client. It gets
            the same token, and the last exit releases. False, the default, raises Deadlock or waits for the timeout.
        fair: True insists on first come, first served; False lets this claim overtake those who wait whenever the
            resource is free, which is faster under contention and lets somebody wait for long. None, the default, is
            fair wherever the store can be.
        min_hold: seconds that the resource stays taken, counted from the grant, even if it is released earlier; 0 by
            default, ttl at most. The price: if the process dies, it stays taken until its ttl has passed.
        max_hold: seconds after which the keeper renews no more, so that a body that hangs does not hold for ever: its
            lease is lost one ttl later at most. None, the default, sets no limit.
        renew: False turns the keeper off for this lock: a lease ends at its ttl unless `lease.renew()` is called, and
            neither the death of its process nor `close()` frees it earlier. True by default.
        detect_deadlocks: whether a waiter looks for a circle of waiters, and raises Deadlock if it closes one. Each
            look, when it begins to wait and then every 2 s, reads all resources of the namespace that are in use. None,
            the default, does as the client does.
        owner: the label that others see in messages, events and `inspect`. Default: the client's, else host, process
            and thread or task.
        on_lost: called once with the lease when it is lost: in a thread of the client, in asyncio in its event loop.
            None by default. What it raises is logged.

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
        """Describe a read-write lock: many readers, or one writer. Takes the options of `lock`, for both.

        resource: the name that is locked. `lock` of the same name excludes readers and writers.

        Raises: ValueError for a bad argument; Unsupported if the store has no shared claims (redlock).
        """
        return RWLock(self._engine, resource, **options)

    def semaphore(self, resource: str, *, permits: int, weight: int = 1, **options: Unpack[LockOptions]) -> Semaphore:
        """Describe a semaphore: as many as `permits` hold it at once. Takes the options of `lock`.

        resource: the name of what there are permits of.
        permits: how many there are, 1 to a million. Each claim is judged by its own number, so that a rolling deploy
            may change it; differing numbers are a WARNING.
        weight: how many one lease takes, at once or not at all; 1 by default.

        Raises: ValueError for a bad argument; Unsupported if the store has no shared claims (redlock).
        """
        return Semaphore(self._engine, resource, permits, weight, **options)

    def lock_all(self, *resources: str, order: str = "sorted", **options: Unpack[LockOptions]) -> MultiLock:
        """Describe a lock on several resources: one deadline, all or nothing. Takes the options of `lock`.

        resources: the names; the same name twice is one lock. Each costs an acquire of its own, one after the other.
        order: "sorted", the default, takes them in the order of their names, so that two who want the same cannot wait
            for each other. "given" keeps the caller's order. Then whoever holds some and waits for more gives all back
            after a moment and tries again, which is slower, and not first come, first served.

        The timeout is for all of them together.

        Raises: ValueError for a bad argument, or for no name; Unsupported if the store cannot do it.
        """
        return MultiLock(self._engine, resources, order, **options)

    def tree(self, path: str, **options: Unpack[LockOptions]) -> Tree:
        """Describe a lock on a node of a hierarchy, like "orders/7/99": shared on its parents, exclusive on itself.

        Whoever holds a node keeps everybody from all that is below it. Takes the options of `lock`.

        path: names with single slashes between them. Each costs an acquire of its own, from the root down; the timeout
            is for all of them together.

        Raises: ValueError for a bad argument; Unsupported if the store has no shared claims (redlock).
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
        """Describe an election: candidates campaign for one office, and whoever holds its lock leads.

        resource: the name of the office.
        value: what others see of this candidate while it leads, at most 4096 UTF-8 bytes: an address, for instance.
            None, the default, shows the owner.
        ttl: seconds until a leader that died without a word is replaced, at the latest; 30 by default. See `lock`.
        owner: the label that others see; see `lock`.
        on_lost: called with the lease when a term is lost; see `lock`.

        Raises: ValueError for a bad argument; Unsupported if the store cannot keep such a ttl.
        """
        return Election(self._engine, resource, value=value, ttl=ttl, owner=owner, on_lost=on_lost)

    def rate_limit(self, resource: str, limit: int, *, per: float) -> RateLimit:
        """Describe a rate limit: at most so many hits in any window of time, by the store's clock.

        resource: the name of what is limited.
        limit: how many hits fit into a window, from 1 to a million. Each takes a row in the store for `per` seconds.
        per: the length of the window in seconds, at least 0.01. It slides: a hit counts for so long.

        Raises: ValueError for a bad argument; Unsupported if the store cannot count hits (redlock), or not in such
        windows.
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

        One result is recorded for each name and given to every later call. It has to be what JSON can hold. A crash
        before it is recorded, or a pause past the ttl, lets the work begin again, with a higher token. Takes the
        options of `lock`.

        template: the name, with the parameters of the function in braces. Their values have to be str, int, UUID, date
            or Enum; they are escaped, so that different arguments never give the same name.
        key: instead of a template: called with the arguments, returns the name.
        keep: seconds that a result is kept, at least 1. None, the default, keeps it for ever, and a store that never
            forgets fills up.
        wait: True, the default, has a call wait while another does the work, for the timeout of the lock. False raises
            AcquireTimeout at once.

        Raises: ValueError for a bad argument; Unsupported if the store has no registers.
        """
        from .once import Once  # not at the top: it needs json and inspect, which most do not

        return Once(self._engine, template, key, keep, wait, **options)

    async def ready(self) -> None:
        """Open the store and check its promises now instead of on first use.

        Raises: StoreError if it cannot be used, or cannot promise what `require` asks for; StoreUnavailable if it does
        not answer.
        """
        self._engine.check_open()
        await self._engine.store.ready()
        self._engine.check_promises()

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """Show who holds and who waits: a view for people, out of date as soon as it is read. Decide nothing by it.

        prefix: what the names begin with; all, if it is left out. On Redis the whole keyspace is gone through, whatever
            it is, on the other stores what is in use.

        Raises: StoreUnavailable; StoreError.
        """
        return await self._engine.inspect(prefix)

    async def holders(self, resource: str) -> list[Holder]:
        """Show who holds exactly this resource, since when, for how long, and how many wait.

        A view for people: what it shows may be over when it is read. Empty if nobody holds it.

        resource: its exact name; `inspect` shows all that begin alike.

        Raises: StoreUnavailable.
        """
        return holders_of(await self._engine.state(check_name(resource)), self.capabilities.dated)

    async def break_lock(self, resource: str, *, reason: str, now: bool = False) -> list[Holder]:
        """Free a resource by hand: break the claims of all who hold it. Returns what was broken, with what is left.

        resource: its exact name.
        reason: why, for the log and the event `Broken`, which also say who did it.
        now: end them at once. By default they are renewed no more, and end where the last renewal has put their end:
            so each holder finds its lease lost before anybody else gets the resource. With `now=True` two may work at
            the same time, until the old holder next looks or renews; only a guard at the resource helps then.

        What is only kept taken after its release (`min_hold`) ends at once. Whoever comes meanwhile is not broken: the
        store compares. The next holder has a higher token.

        Raises: Unsupported where the store cannot; StoreUnavailable: then repeat it.
        """
        engine, can = self._engine, self.capabilities
        name, why, at_once = check_name(resource), check_name(reason, "reason"), check_flag(now, "now")
        if not can.evict:
            raise Unsupported(f"{can.store} cannot break a lock; end its holder, or wait for its ttl", resource=name)
        state = await engine.state(name)
        broken: list[Holder] = []
        for seen, shown in zip(state.holders if state else (), holders_of(state, can.dated), strict=True):
            if (evicted := await engine.evict(name, seen, why, at_once)) is not None:
                broken.append(shown._replace(left=evicted.left, broken=True))
        return broken

    async def time(self) -> tuple[float, float]:
        """Return the time of the store's clock, in seconds since 1970, and by how much it may be off.

        Raises: Unsupported where the store does not tell it; StoreUnavailable.
        """
        return await self._engine.time()

    async def drain(self, timeout: float) -> bool:
        """Stop in order: take nothing new, let bodies end, then close. Returns whether all of them ended in time.

        timeout: seconds that bodies have. What is still held after that is released under them, and they find their
            leases released. Closing may take 5 s more.

        What a body takes inside of its `with` block is not new: it may need that to end. Whoever waits elsewhere raises
        LockError, and so does every later acquire. Leases that are not renewed are not waited for. Nor is a body that
        calls this itself: it cannot end, and the answer is False.

        Raises: ValueError for a bad timeout.
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

        What was taken with `renew=False` stays taken until its ttl has passed, and `min_hold` is kept.

        timeout: seconds that it takes at most, also in a signal handler; 5 by default. What could not be released by
            then ends at its ttl.

        Raises: ValueError for a bad timeout.
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

    def __reduce__(self) -> NoReturn:
        self._engine.__reduce__()  # here, too: the address may hold what cannot be pickled, and would be said first

    def __repr__(self) -> str:
        return f"<holdfast client of {self.url} namespace={self.namespace!r}>"

    def _make_store(self) -> Store:
        factory: StoreFactory = find_store(self.url.scheme, self._flavour)
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
    """Return a client of a store. It does no I/O and starts no thread, so it may stand at module level.

    url: where the store is, like "redis://cache:6379/0"; or a client object of redis-py or valkey-py, blocking or
        asyncio, or of kazoo, of which the address and the login are read, and whose connections are never used. Left
        out: $HOLDFAST_URL, else a SQLite file of this user, which one WARNING names.
    namespace: keeps the names of one application apart from those of others in the same store; "default" if it is left
        out. Only clients of the same namespace exclude each other.
    owner: the label that others see in messages, events and `inspect`. Default: host, process and thread or task.
        Nothing is decided by it.
    require: "correctness" insists on a store whose tokens rise through every fault that it can have: else its first use
        raises StoreError. "efficiency" only insists that a store was chosen, by `url` or $HOLDFAST_URL. None, the
        default, takes any, with a WARNING where promises are missing.
    observers: functions that are called with every event, see `holdfast.events`; none by default. They run in a thread
        of the client, in order, and may take their time; one with an attribute `inline = True` is called where the
        event happens, and must not block.
    detect_deadlocks: the default of all its locks: whether a waiter that closes a circle of waiters raises Deadlock;
        False if it is left out. What it costs is told at `Client.lock`.
    io_timeout: seconds that one exchange with the store may take; 1 by default. Every call ends within its timeout and
        this. A shorter one notices an outage sooner, and takes a slow server for one.
    password: takes the place of the one in `url`. A callable is called for every login, in a thread of its own; nobody
        waits for it longer than `io_timeout`, and if it raises, that is an outage of the store. Default: that of `url`.
    options: those that a URL has after its `?`, by name; True and False stand for `true` and `false`. None by default.

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
