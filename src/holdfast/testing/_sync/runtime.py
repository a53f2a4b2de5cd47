"""What the laws need beyond holdfast's own runtime, in the blocking flavour; that of asyncio is `_async/runtime.py`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from ..check import vain

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0  # real seconds after which what should happen is taken not to happen
_LOOK = 0.002


class Call(Generic[T]):
    """A call under way in a thread of its own."""

    def __init__(self, start: Callable[[], T], name: str) -> None:
        self._name = name
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(start,), name=name, daemon=True)
        self._thread.start()

    def _run(self, start: Callable[[], T]) -> None:
        try:
            self._results.append(start())
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Return whether it has returned or raised."""
        return not self._thread.is_alive()

    def join(self, limit: float | None = None) -> T:
        """Return its result or raise its error."""
        limit = limit or LIMIT
        self._thread.join(limit)
        assert self.done, f"{self._name} has not returned within {limit:g} s"
        if self._error is not None:
            raise self._error
        return self._results[0]

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled from outside."""


def spawn(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
    """Let a call run at the same time as this one, as an actor of its own."""
    return Call(lambda: function(*args, **kwargs), getattr(function, "__name__", "call"))


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.arrived = 0

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._event.set()

    def wait(self) -> None:
        """Come to the gate, and go on when it is open."""
        self.arrived += 1
        assert self._event.wait(LIMIT), "nobody opened the gate"


def cancelled_at(point: int, start: Callable[[], Any], patience: float | None = None) -> bool:
    """Say that this flavour cannot; the laws that need it are not for it."""
    raise NotImplementedError("a thread cannot be cancelled from outside")


def eventually(
    condition: Callable[[], object],
    drive: Callable[[], object] | None = None,
    *,
    limit: float | None = None,
    complaint: Callable[[], str] | None = None,
) -> None:
    """Wait for something that must come true, however slow the machine is.

    `drive` is called before every further look: to move a clock, say. `complaint` is asked only when all hope is gone,
    so that it can show a log; without it the source of the condition is shown.

    Raises: AssertionError if it has not come true within the limit.
    """
    limit = limit or LIMIT
    give_up = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= give_up:
            raise AssertionError(vain(limit, condition, complaint))
        if drive is not None:
            drive()
        time.sleep(_LOOK)


class Hooks:
    """Calls hooks."""

    def call(self, hook: Callable[[], None] | None) -> None:
        """Call a hook."""
        if hook is not None:
            hook()


def crowd(function: Callable[[], T], count: int) -> list[Call[T]]:
    """Do nothing: in a thread one call is under way at a time."""
    return []


def fill_executor() -> Callable[[], None]:
    """Do nothing: there is no executor."""
    return lambda: None


def pause(seconds: float) -> None:
    """Let real time pass."""
    time.sleep(seconds)


def run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run to its end."""
    return function(*args, **kwargs)


def running() -> set[object]:
    """Return everything that runs: threads."""
    return {*threading.enumerate()}
