"""What the blocking tests do otherwise than the asyncio ones: run things side by side, and wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0  # real seconds for what should take milliseconds


class Running(Generic[T]):
    """An actor beside the test: a thread."""

    def __init__(self, run: Callable[[], T]) -> None:
        self._run = run
        self._result: T
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._call, daemon=True)
        self.thread.start()

    def _call(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        del self._run  # and with it what its arguments keep alive

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()

    def join(self) -> T:
        """Return what it returned, or raise what it raised."""
        self.thread.join(LIMIT)
        assert self.done, "waited in vain"
        if self._error is not None:
            raise self._error
        return self._result


def spawn(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Running[T]:
    """Start another actor."""
    return Running(lambda: function(*args, **kwargs))


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.arrived = 0

    def open(self) -> None:
        self._event.set()

    def wait(self) -> None:
        self.arrived += 1
        assert self._event.wait(LIMIT), "nobody opened the gate"


def eventually(condition: Callable[[], object], drive: Callable[[], object] = lambda: None) -> None:
    """Return as soon as the condition is true; `drive` is called before every look."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        drive()
        time.sleep(0.001)


# What ran before the test: a control elsewhere may leave the threads of a store that it broke.
others: set[threading.Thread] = set()


def activities() -> list[str]:
    """Name what holdfast runs in the background on behalf of this test."""
    mine = set(threading.enumerate()) - others
    return sorted(thread.name for thread in mine if thread.name.startswith("holdfast-"))
