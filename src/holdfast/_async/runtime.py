"""Everything that differs between the asyncio flavour (this file) and the blocking one (`_sync/runtime.py`)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from .._clock import Clock
from ..core.lease import Ending
from ..errors import StoreUnavailable

if TYPE_CHECKING:
    from .wish import Enterable

FLAVOUR = "async"

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Enterable")

_numbers = itertools.count(1)


class Actor(NamedTuple):
    """Who acts within this client: a task."""

    number: int
    label: str


_actors: weakref.WeakKeyDictionary[asyncio.Task[Any], Actor] = weakref.WeakKeyDictionary()


def actor() -> Actor:
    """Return the actor that is running: one number per task, never used again."""
    task = asyncio.current_task()
    assert task is not None  # awaited from a task, as everything in asyncio is
    known = _actors.get(task)
    if known is None:
        known = _actors[task] = Actor(next(_numbers), f"{os.uname().nodename}:{os.getpid()}:{task.get_name()}")
    return known


class Home:
    """The event loop that a client lives in: that of its first await."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def actor(self) -> Actor:
        """Return the actor that is running, after a check that it runs here."""
        self.check()
        return actor()

    def check(self) -> None:
        """Refuse to run in another loop: futures and sockets of the first one would never wake up here."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this holdfast client belongs to another event loop, that of its first await; "
                "call holdfast.aio.connect() once in each loop"
            )


class Signal:
    """A flag that can be set from any thread and awaited by tasks."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Raise the flag and wake everybody; safe in any thread."""
        self._set = True
        for future in list(self._waiters):
            try:
                future.get_loop().call_soon_threadsafe(_ring, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                self._waiters.discard(future)

    def clear(self) -> None:
        """Lower the flag."""
        self._set = False

    def is_set(self) -> bool:
        """Tell whether the flag is up."""
        return self._set

    async def wait(self, clock: Clock, until: float) -> bool:
        """Return True once the flag is up, False when `until` has come."""
        while not self._set:
            left = until - clock.now()
            if left <= 0:
                return False
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiters.add(future)
            timer = loop.call_later(clock.patience(left), _ring, future)
            try:
                if not self._set:  # set() may have run in another thread before it could see the future
                    await future
            finally:
                timer.cancel()
                self._waiters.discard(future)
        return True


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def sleep(clock: Clock, until: float) -> None:
    """Sleep until the clock says so."""
    while (left := until - clock.now()) > 0:  # noqa: ASYNC110 (the clock decides, not an event)
        await asyncio.sleep(clock.patience(left))


async def wait_readable(fds: Iterable[int], clock: Clock, until: float) -> None:
    """Return when one of the file descriptors can be read, or at `until`."""
    loop = asyncio.get_running_loop()
    fds = list(fds)
    future = loop.create_future()
    try:
        for fd in fds:
            loop.add_reader(fd, _ring, future)
        while not future.done() and (left := until - clock.now()) > 0:
            await asyncio.wait((future,), timeout=clock.patience(left))
    finally:
        for fd in fds:
            loop.remove_reader(fd)
        future.cancel()


class Activity:
    """Something that runs in the background: a task."""

    __slots__ = ("_task",)

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(run(), name=name)

    @property
    def alive(self) -> bool:
        """Tell whether it still runs."""
        return not self._task.done()

    async def join(self, seconds: float) -> bool:
        """Wait for its end; cancel it if it takes longer."""
        if self._task is asyncio.current_task():
            return True
        await asyncio.wait((self._task,), timeout=seconds)
        if self._task.done():
            return True
        self._task.cancel()
        await asyncio.wait((self._task,), timeout=seconds)
        return False


def start(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> Activity | None:
    """Start an activity; None outside a running loop (in a thread, or after its end), where nothing can run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return Activity(run, name)


async def finish(work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Do the work to its end, also when the caller is cancelled meanwhile; it has to bound its own time."""
    task = asyncio.get_running_loop().create_task(work(*args, **kwargs))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


class Worker:
    """A thread of our own for blocking calls, one at a time and in order.

    Not an executor: those refuse work while the interpreter ends, which is when leases have to be released.
    """

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # The thread knows the queue only, so that a forgotten client can be collected and ends its thread.
        weakref.finalize(self, self._calls.put, None)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the thread.

        Raises: StoreUnavailable when there is no result within the limit. The call itself goes on then, and so does one
        whose caller was cancelled: its fate is unknown.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(self._limit, _expire, future, self._limit)
        self._calls.put(_Call(loop, future, lambda: function(*args, **kwargs)))
        try:
            return await future
        finally:
            timer.cancel()

    def wrap(self, function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """Return the function as one that is awaited and runs in the thread."""

        def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            return self.run(function, *args, **kwargs)

        return call

    def close(self) -> None:
        """Let the thread end after the calls that it already has."""
        self._calls.put(None)


class _Call(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    function: Callable[[], Any]


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        try:
            result, error = call.function(), None
        except BaseException as caught:
            result, error = None, caught
        try:
            call.loop.call_soon_threadsafe(_settle, call.future, result, error)
        except RuntimeError:  # the loop is closed: nobody waits for this answer
            pass
        del call, result, error  # an idle thread must not keep the last answer alive


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _expire(future: asyncio.Future[Any], limit: float) -> None:
    if not future.done():
        future.set_exception(StoreUnavailable(f"no answer within {limit:g} s: other calls or processes keep it busy"))


class Body:
    """The body of a `with`: the task that entered, and whether we cancelled it. Counts as asyncio.timeout does."""

    __slots__ = ("_before", "_cancelled", "_spared", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._cancelled = False
        self._spared = False

    def runs_here(self) -> bool:
        """Tell whether the caller is the task that entered."""
        return self._task is asyncio.current_task()

    def spare(self) -> None:
        """Never cancel this body: it knows."""
        self._spared = True

    def cancel(self, message: str) -> None:
        """Cancel the task that entered, once."""
        if self._task is not None and not (self._cancelled or self._spared or self._task.done()):
            self._cancelled = True
            self._task.cancel(message)

    async def ended(self, error: BaseException | None) -> Ending:
        """Say how the body ended, and take back our own cancellation."""
        cancelled = isinstance(error, asyncio.CancelledError)
        if self._cancelled and self._task is not None:
            self._cancelled = False
            outer = self._task.uncancel() > self._before
            if cancelled:
                return Ending.OUTER if outer or not self.runs_here() else Ending.OUR_CANCEL
            if self.runs_here():
                # The body may have ended before our cancellation was delivered. Take it here: before Python 3.13
                # uncancel() leaves it pending, and it would strike at some innocent await after the `with`.
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    if self._task.cancelling() > self._before:  # an outer one, old or just now
                        raise
        if error is None:
            return Ending.RETURN
        if cancelled or not isinstance(error, Exception):
            return Ending.OUTER
        return Ending.ERROR


class Acquiring(Coroutine[Any, Any, L]):
    """An acquire that was asked for: `await` it for the lease, or enter it with `async with`.

    It is a coroutine in all it can do, so that create_task() takes it.
    """

    __slots__ = ("_acquire", "_lease")

    def __init__(self, acquire: Coroutine[Any, Any, L]) -> None:
        self._acquire = acquire
        self._lease: L | None = None

    def __await__(self) -> Generator[Any, Any, L]:
        return self._acquire.__await__()

    def send(self, value: Any) -> Any:
        return self._acquire.send(value)

    def throw(self, *error: Any) -> Any:
        return self._acquire.throw(*error)

    def close(self) -> None:
        self._acquire.close()

    async def __aenter__(self) -> L:
        self._lease = lease = await self._acquire
        await lease.__aenter__()
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)


def acquiring(acquire: Callable[P, Coroutine[Any, Any, L]]) -> Callable[P, Acquiring[L]]:
    """Make an acquire both awaitable and a context manager."""

    @functools.wraps(acquire)
    def ask(*args: P.args, **kwargs: P.kwargs) -> Acquiring[L]:
        return Acquiring(acquire(*args, **kwargs))

    return ask


def check_function(function: Callable[..., Any], what: str) -> None:
    """Refuse to decorate what this flavour cannot run under a lease."""
    import inspect

    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what} of an asyncio client decorates coroutine functions, and {function!r} is not one; "
            "use holdfast.connect() for plain functions, or hold the lease inside the generator"
        )
