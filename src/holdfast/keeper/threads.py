"""Threads for activities: started so that an interrupt cannot leave one that nobody knows of.

An activity is noted by its owner before its thread is started, and started outside of every lock. If the start is
interrupted, or fails, the activity is there and has not begun: whoever needs it next starts it again. Two threads may
come of that; the first to take the claim lock runs, and the other one ends at once.

Not threading.Thread: an interrupt inside of its start() leaves threads that hang in their first lines.
"""

from __future__ import annotations

import sys
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from .._clock import Clock
from ..errors import LockError
from ..observe.log import logger
from .signals import Latch


class NoThreadError(LockError):
    """The system, or an interpreter that is about to end, gives no more threads."""


class Until(NamedTuple):
    """Wait until the latch is set (True) or the time has come (False)."""

    latch: Latch
    when: float


class Call(NamedTuple):
    """Call a verb of the store's blocking side; its result is sent, its error thrown."""

    verb: str
    arguments: tuple[Any, ...] = ()


Steps = Generator[Until | Call, Any, None]  # an activity: yields what it waits for


class Caller(Protocol):
    """What runs the verbs of a `Call`."""

    def __call__(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        """Call a verb of the store."""
        ...


def drive(steps: Steps, clock: Clock, call: Caller) -> None:
    """Run an activity to its end in this thread."""
    try:
        request = next(steps)
        while True:
            try:
                if isinstance(request, Until):
                    result: Any = request.latch.wait(clock, request.when)
                else:
                    result = call(request.verb, request.arguments)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration:
        pass


class Handle(Protocol):
    """An activity, as the keeper knows it."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        ...

    def start(self) -> None:
        """Run it, unless that has begun. May be called again and again."""
        ...

    def run_here(self) -> None:
        """Run it to its end in this thread, unless it runs elsewhere."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for its end; True if it has ended."""
        ...


Launch = Callable[[Callable[[], Steps], str, Clock, Caller], Handle]


def launch(steps: Callable[[], Steps], name: str, clock: Clock, call: Caller) -> Handle:
    """Make an activity that runs in a thread; `start` starts it. A simulation has another way."""
    return Activity(lambda: drive(steps(), clock, call), name)


class Activity:
    """Something that runs in a thread of its own, once."""

    __slots__ = ("_claim", "_done", "_ident", "_run", "_started", "name", "over")

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self.name = name
        self.over = False
        self._run = run
        self._ident = 0
        self._started = False  # a thread will come, if it has not
        self._claim = allocate_lock()  # taken by the thread that runs it
        self._done = allocate_lock()  # free when that thread is about to end
        self._done.acquire()

    def start(self) -> None:
        """Start a thread for it, unless one runs it already.

        Raises: NoThreadError.
        """
        if self._claim.locked():
            return
        _warn_of_gevent()
        try:
            start_new_thread(self._main, ())
            self._started = True
        except RuntimeError as error:
            raise NoThreadError(
                f"leases cannot be kept, for no thread could be started ({error}); raise the limit of threads"
            ) from error

    def run_here(self) -> None:
        """Run it to its end in this thread, unless it runs elsewhere, or is about to."""
        if self._claim.acquire(False):
            self._ident = get_ident()
            self._run_claimed()

    def join(self, seconds: float) -> bool:
        """Wait for its end; True if it has ended. One that was not started never will be."""
        if self.over or self._ident == get_ident():
            return True
        if not self._started and self._claim.acquire(False):
            self.over = True
            self._done.release()
            return True
        if self._done.acquire(True, max(0.0, seconds)):
            self._done.release()
            return True
        return False

    def _main(self) -> None:
        if not self._claim.acquire(False):
            return
        self._ident = get_ident()
        threading.current_thread().name = self.name  # makes a record for this thread, by which debuggers know it
        self._run_claimed()

    def _run_claimed(self) -> None:
        try:
            self._run()
        except BaseException:
            logger.exception("%s failed", self.name)
        finally:
            _forget_record(self._ident)
            self.over = True
            self._done.release()


_warned: list[bool] = []


def _warn_of_gevent() -> None:
    """Say once that threads are none: where gevent has replaced them, a busy greenlet stops the keeper, too."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and not _warned and gevent.is_module_patched("_thread"):
        _warned.append(True)
        logger.warning(
            "gevent has replaced threads by greenlets: a greenlet that does not yield for longer than a lease loses it"
        )


def _forget_record(ident: int) -> None:
    """Remove the record that threading has made of a thread it did not start; before Python 3.12 it stays for ever."""
    records: dict[int, Any] = getattr(threading, "_active", {})
    if isinstance(records.get(ident), getattr(threading, "_DummyThread", ())):
        records.pop(ident, None)
