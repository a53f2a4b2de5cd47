"""Everything that differs between the blocking flavour (this file) and the asyncio one (`_async/runtime.py`)."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Sequence
from time import sleep as _sleep
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .._clock import Clock
from .._fork import Turn, at_fork
from ..core.claim import Claim, Renewal
from ..core.lease import Ending
from ..core.names import clean_label
from ..core.promises import Capabilities
from ..keeper.bodies import Strand, running_loop
from ..keeper.entries import Entry, collected
from ..keeper.signals import Signal as Signal
from ..keeper.threads import Activity as Activity
from ..keeper.threads import NoThreadError

if TYPE_CHECKING:
    from ..keeper.side import Blocking
    from ..keeper.side import Store as Keepable
    from .store import Store

FLAVOUR = "sync"
CANCELS = False  # a body looks at its lease

P = ParamSpec("P")
T = TypeVar("T")


class _Local(threading.local):
    # Not the thread's ident: the kernel gives that to the next thread when this one ends.
    def __init__(self) -> None:
        label = clean_label(os.uname().nodename, os.getpid(), threading.current_thread().name)
        self.strand = Strand(label, False)


_local = _Local()


def _after_fork() -> None:
    global _local
    _local = _Local()  # the child is inside of none of its parent's bodies, and has a label of its own


at_fork(Turn.STRANDS, in_child=_after_fork)


def strand() -> Strand:
    """Return the thread that is running, as far as locks are concerned."""
    return _local.strand


def stops_a_loop() -> bool:
    """Return whether waiting here keeps an event loop from running: one that runs in this thread."""
    return running_loop() is not None


class Home:
    """Nothing: a blocking client may be used by every thread."""

    __slots__ = ()

    loop = None  # there is none to keep an eye on

    def strand(self) -> Strand:
        """Return the thread that is running."""
        return _local.strand

    def check(self) -> None:
        """Accept every thread."""

    def cannot_go_on(self, thread: int) -> bool:
        """Return whether what runs in that thread waits for the caller: the caller is a signal handler there."""
        return thread == threading.get_ident()

    def follow(self, result: object, what: str) -> None:
        """Refuse a coroutine, which a callback returned: here is no loop that could run it."""
        if isinstance(result, CoroutineType):
            result.close()
            raise TypeError(f"{what} returned a coroutine, which was not run; {_NO_LOOP}")

    def settle(self, seconds: float) -> None:
        """Do nothing: callbacks have returned."""


_NO_LOOP = "a thread calls it, without an event loop: pass a plain function, or use holdfast.aio.connect()"


def sleep(clock: Clock, until: float) -> None:
    """Sleep until the clock says so."""
    while (left := until - clock.now()) > 0:
        _sleep(clock.patience(left))


def wait_readable(fds: Iterable[int], clock: Clock, until: float) -> None:
    """Return when one of the file descriptors can be read, or at `until`."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    while (left := until - clock.now()) > 0:
        # Rounded up: a poll that ends just before `until` would spin.
        if poll.poll(int(clock.patience(left) * 1000) + 1):
            return


def start(run: Callable[[], None], name: str) -> Activity | None:
    """Start an activity; None if there are no more threads."""
    activity = Activity(run, name)
    try:
        activity.start()
    except NoThreadError:
        return None
    return activity


def finish(work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Do the work."""
    work(*args, **kwargs)


def close(store: Store) -> None:
    """Do nothing: the keeper has closed the store, in a thread of its own."""


class Worker:
    """Blocking calls are simply made: what they call bounds its own time."""

    __slots__ = ()

    def __init__(self, name: str, limit: float) -> None:
        del name, limit

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function."""
        return function(*args, **kwargs)

    call = run

    def wrap(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function."""
        return function

    def close(self) -> None:
        """Do nothing."""


class Body:
    """The body of a `with`. A thread cannot be cancelled from outside: it looks at `lease.lost`."""

    __slots__ = ()

    def runs_here(self) -> bool:
        """Return False: it makes no difference."""
        return False

    def spare(self) -> None:
        """Do nothing."""

    def cancel(self, message: str) -> None:
        """Do nothing."""

    def returned(self, error: BaseException | None) -> bool:
        """Return whether the body just returned. Else `ended` says how it ended."""
        return error is None

    def ended(self, error: BaseException | None) -> Ending:
        """Say how the body ended."""
        return Ending.ERROR if isinstance(error, Exception) else Ending.OUTER


_BODY = Body()


def begin_body() -> Body:
    """Return the body of a `with`: the same for all, for nothing is known of it."""
    return _BODY


def leave(
    entry: Entry,
    manager: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> Any:
    """End a `with` statement. Its exit object lives until this returns."""
    return None if error is not None and collected(entry, error) else manager._leave(entry, error)


def blocking(store: Blocking | Any, make: Callable[[], Blocking]) -> Blocking:
    """Return the blocking side of a store: itself."""
    side: Blocking = store
    return side


def with_blocking(store: Store, home: Home) -> Keepable:
    """Return what the keeper may use of a store: one that does not know of keepers yet is given what it takes."""
    return store if hasattr(store, "blocking") else _WithoutLimit(store)


class _WithoutLimit:
    """A blocking store whose renewals know no limit of their own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.release = store.release
        self.ready = store.ready
        self.close = store.close

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        return self._store.capabilities

    def blocking(self) -> Blocking:
        """Return itself."""
        return self

    def renew(self, claims: Sequence[Claim], limit: float) -> list[Renewal]:
        """See Blocking."""
        return self._store.renew(claims)


def acquiring(acquire: Callable[P, T]) -> Callable[P, T]:
    """Return the acquire: the lease that it gives is the context manager."""
    return acquire


def asking(acquire: Callable[P, T]) -> Callable[P, T]:
    """Return the acquire: what it gives is the lease, or None."""
    return acquire


def check_callback(function: Callable[..., Any], what: str) -> None:
    """Refuse a coroutine function: nobody would run it."""
    import inspect

    call = getattr(type(function), "__call__", None)  # noqa: B004 (its kind is asked)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise ValueError(f"{what}={function!r} is a coroutine function; {_NO_LOOP}")


def check_function(function: Callable[..., Any], what: str) -> None:
    """Refuse to decorate what would run its body after the lease has been given back."""
    import inspect

    if not callable(function):
        raise TypeError(f"{what} decorates functions, not {function!r}")
    for test, kind in (
        (inspect.iscoroutinefunction, "a coroutine function: use holdfast.aio.connect() for it"),
        (inspect.isasyncgenfunction, "an async generator: hold the lease inside it"),
        (inspect.isgeneratorfunction, "a generator: hold the lease inside it"),
    ):
        if test(function) or test(getattr(type(function), "__call__", None)):  # noqa: B004 (its kind is asked)
            raise TypeError(f"{what} decorates plain functions, and {function!r} is {kind}")
