"""Everything that differs between the blocking flavour (this file) and the asyncio one (`_async/runtime.py`)."""

from __future__ import annotations

import itertools
import os
import select
import threading
from collections.abc import Callable, Iterable
from time import sleep as _sleep
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .._clock import Clock
from ..core.lease import Ending

FLAVOUR = "sync"

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)


class Actor(NamedTuple):
    """Who acts within this client: a thread."""

    number: int
    label: str


class _Local(threading.local):
    # Not the thread's ident: the kernel gives that to the next thread when this one ends.
    def __init__(self) -> None:
        name = threading.current_thread().name
        self.actor = Actor(next(_numbers), f"{os.uname().nodename}:{os.getpid()}:{name}")


_local = _Local()


def _after_fork() -> None:
    global _local
    _local = _Local()  # the child's thread is another actor than the one it was copied from


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def actor() -> Actor:
    """Return the actor that is running: one number per thread, never used again."""
    return _local.actor


class Home:
    """Nothing: a blocking client may be used by every thread."""

    __slots__ = ()

    def actor(self) -> Actor:
        """Return the actor that is running."""
        return _local.actor

    def check(self) -> None:
        """Accept every thread."""


class Signal:
    """A flag that can be set and awaited by any thread."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Raise the flag and wake everybody."""
        self._event.set()

    def clear(self) -> None:
        """Lower the flag."""
        self._event.clear()

    def is_set(self) -> bool:
        """Tell whether the flag is up."""
        return self._event.is_set()

    def wait(self, clock: Clock, until: float) -> bool:
        """Return True once the flag is up, False when `until` has come."""
        while not self._event.is_set():
            left = until - clock.now()
            if left <= 0:
                return False
            self._event.wait(clock.patience(left))
        return True


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


class Activity:
    """Something that runs in the background: a daemon thread."""

    __slots__ = ("_thread",)

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether it still runs."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> bool:
        """Wait for its end."""
        if self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()


def start(run: Callable[[], None], name: str) -> Activity | None:
    """Start an activity; None while the interpreter ends and takes no more threads."""
    try:
        return Activity(run, name)
    except RuntimeError:
        return None


def finish(work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Do the work."""
    work(*args, **kwargs)


class Worker:
    """Blocking calls are simply made: what they call bounds its own time."""

    __slots__ = ()

    def __init__(self, name: str, limit: float) -> None:
        del name, limit

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function."""
        return function(*args, **kwargs)

    def wrap(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function."""
        return function

    def close(self) -> None:
        """Do nothing."""


class Body:
    """The body of a `with`. A thread cannot be cancelled from outside: it looks at `lease.lost`."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def runs_here(self) -> bool:
        """Tell whether the caller is the thread that entered."""
        return self._thread == threading.get_ident()

    def spare(self) -> None:
        """Do nothing."""

    def cancel(self, message: str) -> None:
        """Do nothing."""

    def ended(self, error: BaseException | None) -> Ending:
        """Say how the body ended."""
        if error is None:
            return Ending.RETURN
        return Ending.ERROR if isinstance(error, Exception) else Ending.OUTER


def acquiring(acquire: Callable[P, T]) -> Callable[P, T]:
    """Return the acquire: the lease that it gives is the context manager."""
    return acquire


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
