"""Everything that differs between the asyncio flavour (this file) and the blocking one (`_sync/runtime.py`)."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from .._clock import Clock
from ..core.claim import Claim, Renewal
from ..core.lease import Ending
from ..core.names import clean_label
from ..core.promises import Capabilities
from ..errors import StoreUnavailable
from ..keeper import threads
from ..keeper.bodies import Strand
from ..keeper.entries import Entry, Exit, arm, begin
from ..observe.log import logger

if TYPE_CHECKING:
    from ..keeper.side import Blocking
    from ..keeper.side import Store as Keepable
    from .acquirable import Enterable
    from .store import Store

FLAVOUR = "async"
CANCELS = True  # a body is stopped when its lease is lost

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Enterable")

_strands: weakref.WeakKeyDictionary[asyncio.Task[Any], Strand] = weakref.WeakKeyDictionary()


def strand() -> Strand:
    """Return the task that is running, as far as locks are concerned."""
    task = asyncio.current_task()
    assert task is not None  # awaited from a task, as everything in asyncio is
    known = _strands.get(task)
    if known is None:
        known = _strands[task] = Strand(clean_label(os.uname().nodename, os.getpid(), task.get_name()), True)
    return known


def stops_a_loop() -> bool:
    """Return whether waiting here keeps an event loop from running: it does not."""
    return False


class Home:
    """The event loop that a client lives in, that of its first await: as its tasks see it, and as its keeper does."""

    __slots__ = ("_loop", "_thread")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    @property
    def loop(self) -> Home | None:
        """What the keeper has to tell things to, and to have an eye on."""
        return self

    def strand(self) -> Strand:
        """Return the task that is running, after a check that it runs here."""
        self.check()
        return strand()

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
        self._thread = threading.get_ident()

    def cannot_go_on(self, thread: int) -> bool:
        """Return whether what runs in that thread waits for the caller. Tasks go on while one of them awaits."""
        return False

    def follow(self, result: object, what: str) -> None:
        """Run what a callback returned, if it is a coroutine: as a task, for which nobody waits but `settle`."""
        if not asyncio.iscoroutine(result):
            return
        work: Coroutine[Any, Any, Any] = result

        def ended(task: asyncio.Task[None]) -> None:
            _following.pop(task, None)
            work.close()  # it may have been cancelled before its first step
            if task.cancelled():
                logger.warning("%s was cancelled before its end", what)

        task = asyncio.get_running_loop().create_task(_follow(work, what))
        if task.done():  # eager tasks may be
            return ended(task)
        _following[task] = self
        task.add_done_callback(ended)

    async def settle(self, seconds: float) -> None:
        """Wait for these coroutines to end; cancel those that take longer."""
        here = _followed.get()  # one of them may call close(): it must not wait for itself
        tasks = [task for task, home in _following.copy().items() if home is self and task is not here]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.0, seconds))
            for task in late:
                task.cancel()

    # -- called by the keeper's threads

    def closed(self) -> bool:
        """Return whether the loop was closed, and will never run again."""
        return self._loop is not None and self._loop.is_closed()

    def post(self, function: Callable[[], None]) -> None:
        """Have the loop call this soon; not at all if it is closed."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function)
            except RuntimeError:  # it is closed
                pass

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Have the loop do this, and wait for it.

        Raises: StoreUnavailable if it is not done by then.
        """
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise StoreUnavailable("the event loop of this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable(f"the event loop has not done it within {seconds:g} s") from None

    def whereabouts(self) -> str:
        """Say which line of code keeps the loop from running: the innermost, and where it was called from outside of
        the standard library.
        """
        if self._loop is not None and not self._loop.is_running():
            return "nobody runs it"
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "its thread has ended"
        inner, outer = frame, frame
        while outer.f_back is not None and _is_standard(outer.f_code.co_filename):
            outer = outer.f_back
        return _line(inner) if inner is outer else f"{_line(inner)}, called from {_line(outer)}"


# The coroutines of callbacks that run, and the client that each belongs to. A loop refers to its tasks weakly: one that
# waits for something that only it knows would be collected.
_following: dict[asyncio.Task[None], Home] = {}
_followed: ContextVar[asyncio.Task[Any] | None] = ContextVar("holdfast callback", default=None)


async def _follow(work: Coroutine[Any, Any, Any], what: str) -> None:
    _followed.set(asyncio.current_task())
    try:
        await work
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException:  # sys.exit() in a callback does not end the loop, as it does not where callbacks are plain
        logger.exception("%s failed", what)


_STANDARD = os.path.dirname(os.__file__)


def _is_standard(file: str) -> bool:
    return file.startswith((_STANDARD, "<frozen")) and "site-packages" not in file


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


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
        """Return whether the flag is up."""
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
    def over(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

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


async def close(store: Store) -> None:
    """Close the store of a client: the keeper has closed the blocking side."""
    await store.close()


class Worker:
    """A thread of our own for blocking calls, one at a time and in order.

    Not an executor: those refuse work while the interpreter ends, which is when leases have to be released.
    """

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threads.Activity | None = None
        self._ending: list[bool] = [True]  # whether the thread, which has this list, takes no more calls
        # The thread knows the queue only, so that a forgotten client can be collected and ends its thread.
        # Not at exit: leases are released through it then, and not every Python starts another thread.
        weakref.finalize(self, self._calls.put, None).atexit = False

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the thread.

        Raises: StoreUnavailable when there is no result within the limit. The call itself goes on then, and so does one
        whose caller was cancelled: its fate is unknown.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(self._limit, _expire, future, self._limit)

        def settle(result: Any, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop is closed: nobody waits for this answer
                pass

        try:
            self._put(_Call(lambda: function(*args, **kwargs), future.done, settle))
            return await future
        finally:
            timer.cancel()
            future.cancel()  # does nothing if there is an answer; if there is no thread, none shall do it later

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the thread, for another thread that waits for it: in order with all other calls.

        Raises: StoreUnavailable when there is no result within the limit.
        """
        done, answers = threading.Lock(), list[tuple[Any, BaseException | None]]()
        done.acquire()

        def settle(result: Any, error: BaseException | None) -> None:
            answers.append((result, error))
            done.release()

        self._put(_Call(lambda: function(*args, **kwargs), lambda: False, settle))
        if not done.acquire(timeout=self._limit):
            raise _too_late(self._limit)
        result, error = answers[0]
        if error is not None:
            raise error
        found: T = result
        return found

    def _put(self, call: _Call) -> None:
        self._calls.put(call)
        if self._ending:  # looked at after the call was put there: either the old thread takes it, or a new one
            self._ending = []
            self._thread = threads.Activity(functools.partial(_work, self._calls, self._ending), self._name)
        assert self._thread is not None
        self._thread.start()  # does nothing if it runs; it may not, if the first start was interrupted

    def wrap(self, function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """Return the function as one that is awaited and runs in the thread."""

        def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            return self.run(function, *args, **kwargs)

        return call

    def close(self) -> None:
        """Let the thread end after the calls that it already has."""
        self._calls.put(None)


class _Call(NamedTuple):
    function: Callable[[], Any]
    unwanted: Callable[[], bool]  # nobody waits for it any more: if it has not begun, it need not
    settle: Callable[[Any, BaseException | None], None]


def _work(calls: SimpleQueue[_Call | None], ending: list[bool]) -> None:
    while True:
        try:
            call = calls.get(block=not ending)
        except Empty:
            return
        if call is None:
            ending.append(True)
            continue
        result, error = None, None
        if not call.unwanted():
            try:
                result = call.function()
            except BaseException as caught:
                error = caught
            call.settle(result, error)
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
        future.set_exception(_too_late(limit))


def _too_late(limit: float) -> StoreUnavailable:
    return StoreUnavailable(f"no answer within {limit:g} s: other calls or processes keep it busy")


class Body:
    """The body of a `with`: the task that entered, and whether we cancelled it. Counts as asyncio.timeout does."""

    __slots__ = ("_before", "_cancelled", "_spared", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._cancelled = False
        self._spared = False

    def runs_here(self) -> bool:
        """Return whether the caller is the task that entered; a thread beside the loop is not."""
        try:
            return self._task is asyncio.current_task()
        except RuntimeError:
            return False

    def spare(self) -> None:
        """Never cancel this body: it knows."""
        self._spared = True

    def cancel(self, message: str) -> None:
        """Cancel the task that entered, once."""
        if self._task is not None and not (self._cancelled or self._spared or self._task.done()):
            self._cancelled = True
            self._task.cancel(message)

    def returned(self, error: BaseException | None) -> bool:
        """Note that the body is over; return whether it just returned. Else `ended` says how it ended."""
        self._spared = True  # what comes now comes too late
        return error is None and not self._cancelled

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


begin_body = Body


def leave(
    entry: Entry,
    manager: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> Coroutine[Any, Any, Any]:
    """End a `with` statement. Its exit object dies with this call: the coroutine, which goes on, is guarded then."""
    leaving: Coroutine[Any, Any, Any] = manager._leave(entry, error)
    if entry.guard is not None:
        arm(entry, leaving)
    return leaving


class Asking(Coroutine[Any, Any, T]):
    """An acquire that was asked for: `await` it. It is a coroutine in all it can do, so that create_task() takes it."""

    __slots__ = ("_acquire",)

    def __init__(self, acquire: Coroutine[Any, Any, T]) -> None:
        self._acquire = acquire

    def __await__(self) -> Generator[Any, Any, T]:
        return self._acquire.__await__()

    def __bool__(self) -> NoReturn:
        # Every coroutine is true. Code that was written for threads would run its body without a lease.
        raise TypeError("this acquire was not awaited, so it holds nothing; write `if await lock.try_acquire():`")

    def send(self, value: Any) -> Any:
        return self._acquire.send(value)

    def throw(self, *error: Any) -> Any:
        return self._acquire.throw(*error)

    def close(self) -> None:
        self._acquire.close()


class Acquiring(Asking[L]):
    """An acquire that was asked for: `await` it for the lease, or enter it with `async with`."""

    __slots__ = ("_lease",)

    def __init__(self, acquire: Coroutine[Any, Any, L]) -> None:
        self._acquire = acquire
        self._lease: L | None = None  # that was entered by hand

    def __aenter__(self) -> Coroutine[Any, Any, L]:
        return self._enter(begin(self))

    __aexit__ = Exit[Coroutine[Any, Any, None]](leave)

    async def _enter(self, entry: Entry) -> L:
        try:
            lease = await self._acquire
        except BaseException:
            entry.fail()
            raise
        self._lease = lease
        await lease._begin(entry)
        return lease

    async def _leave(self, entry: Entry, error: BaseException | None) -> bool | None:
        assert self._lease is not None
        lease: L = entry.target or self._lease
        return await lease._end(entry, error)


def acquiring(acquire: Callable[P, Coroutine[Any, Any, L]]) -> Callable[P, Acquiring[L]]:
    """Make an acquire both awaitable and a context manager."""

    @functools.wraps(acquire)
    def ask(*args: P.args, **kwargs: P.kwargs) -> Acquiring[L]:
        return Acquiring(acquire(*args, **kwargs))

    return ask


def asking(acquire: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Asking[T]]:
    """Have whoever forgets to await an acquire hear of it, also where only its truth is asked."""

    @functools.wraps(acquire)
    def ask(*args: P.args, **kwargs: P.kwargs) -> Asking[T]:
        return Asking(acquire(*args, **kwargs))

    return ask


def blocking(store: Blocking | Any, make: Callable[[], Blocking]) -> Blocking:
    """Return the blocking side of a store: one that is made for it."""
    return make()


def with_blocking(store: Store, home: Home) -> Keepable:
    """Return what the keeper may use of a store. One without a blocking side is called through the loop."""
    return store if hasattr(store, "blocking") else _ThroughTheLoop(store, home)


class _ThroughTheLoop:
    """The blocking side of a store that has none: it keeps all laws but that of a loop that is blocked."""

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        return self._store.capabilities

    def blocking(self) -> Blocking:
        """Say what this cannot do, once."""
        logger.warning(
            "the asyncio store %s has no blocking(): its leases are renewed through the event loop, so a body that "
            "blocks the loop for longer than a lease loses it",
            self._store.capabilities.store,
        )
        return self

    def renew(self, claims: Sequence[Claim], limit: float) -> list[Renewal]:
        """See Blocking."""
        return self._home.run(self._store.renew(claims), limit)

    def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Blocking."""
        return self._home.run(self._store.release(resource, holder, keep), _LOOP_SECONDS)

    def ready(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """The client closes the store itself."""


_LOOP_SECONDS = 30.0  # for a release; the store bounds it by its io_timeout


def check_callback(function: Callable[..., Any], what: str) -> None:
    """Accept plain functions and coroutine functions: the loop runs both."""


def check_function(function: Callable[..., Any], what: str) -> None:
    """Refuse to decorate what this flavour cannot run under a lease."""
    import inspect

    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what} of an asyncio client decorates coroutine functions, and {function!r} is not one; "
            "use holdfast.connect() for plain functions, or hold the lease inside the generator"
        )
