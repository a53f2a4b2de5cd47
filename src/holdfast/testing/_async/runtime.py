"""What the laws need beyond holdfast's own runtime, in the asyncio flavour; the blocking one is `_sync/runtime.py`."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from itertools import count
from typing import Any, Generic, ParamSpec, TypeVar

from ..check import vain

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0  # real seconds after which what should happen is taken not to happen
_LOOK = 0.002


class Call(Generic[T]):
    """A call under way in a task of its own."""

    def __init__(self, start: Callable[[], Awaitable[T]], name: str) -> None:
        self._name = name
        self._task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_awaited(start), name=name)

    @property
    def done(self) -> bool:
        """Return whether it has returned or raised."""
        return self._task.done()

    async def join(self, limit: float | None = None) -> T:
        """Return its result or raise its error."""
        limit = limit or LIMIT
        await asyncio.wait((self._task,), timeout=limit)
        assert self._task.done(), f"{self._name} has not returned within {limit:g} s"
        return self._task.result()

    def cancel(self) -> None:
        """Cancel it."""
        self._task.cancel()


async def _awaited(start: Callable[[], Awaitable[T]]) -> T:
    return await start()


def spawn(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
    """Let a call run at the same time as this one, as an actor of its own."""
    return Call(lambda: function(*args, **kwargs), getattr(function, "__name__", "call"))


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.arrived = 0

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._event.set()

    async def wait(self) -> None:
        """Come to the gate, and go on when it is open."""
        self.arrived += 1
        await self._event.wait()


class _Cancelled:
    """Awaits something and cancels its own task at the await point of that number."""

    def __init__(self, start: Callable[[], Awaitable[Any]], at: int) -> None:
        self._start = start
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._start().__await__()
        advance: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        for point in count():
            try:
                future = advance()
            except StopIteration as ended:
                return ended.value
            if point == self._at:
                # Delivered as by another task: the future that is awaited here is cancelled.
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield future
                advance = lambda: next(steps)  # noqa: E731
            except BaseException as error:
                advance = partial(steps.throw, error)


async def cancelled_at(point: int, start: Callable[[], Awaitable[Any]], patience: float | None = None) -> bool:
    """Await `start()` and cancel it at its await point of that number; False if it ended before.

    With `patience`, what has not come that far by then is cancelled where it stands.
    """

    async def play() -> None:
        await _Cancelled(start, point)

    task = asyncio.get_running_loop().create_task(play())
    await asyncio.wait((task,), timeout=patience or LIMIT)
    if patience is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=LIMIT)
    assert task.done(), f"still running {LIMIT:g} s after its cancellation"
    if task.cancelled():
        return True
    task.result()
    return False


async def eventually(
    condition: Callable[[], object],
    drive: Callable[[], object] | None = None,
    *,
    limit: float | None = None,
    complaint: Callable[[], str] | None = None,
) -> None:
    """Wait for something that must come true, however slow the machine is. The condition may be a coroutine function.

    `drive` is called before every further look: to move a clock, say. `complaint` is asked only when all hope is gone,
    so that it can show a log; without it the source of the condition is shown.

    Raises: AssertionError if it has not come true within the limit.
    """
    limit = limit or LIMIT
    give_up = time.monotonic() + limit
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        if time.monotonic() >= give_up:
            raise AssertionError(vain(limit, condition, complaint))
        if drive is not None:
            drive()
        await asyncio.sleep(_LOOK)


class Hooks:
    """Calls hooks, which are coroutine functions, for threads that are none of the loop's."""

    def __init__(self) -> None:
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def call(self, hook: Callable[[], Awaitable[None]] | None) -> None:
        """Have the loop run a hook, and wait for it."""
        if hook is None:
            return
        assert self._loop is not None, "made outside of a loop"
        asyncio.run_coroutine_threadsafe(_awaited(hook), self._loop).result(LIMIT)


async def crowd(function: Callable[[], Awaitable[T]], count: int) -> list[Call[T]]:
    """Have so many calls under way at the same time in this thread."""
    calls = [spawn(function) for _ in range(count)]
    await asyncio.sleep(0)
    return calls


def fill_executor() -> Callable[[], Awaitable[None]]:
    """Take every thread of the default executor; return what gives them back."""
    loop, end = asyncio.get_running_loop(), threading.Event()
    taken = [loop.run_in_executor(None, end.wait) for _ in range(100)]

    async def release() -> None:
        end.set()
        await asyncio.gather(*taken)
        await loop.shutdown_default_executor()

    return release


async def pause(seconds: float) -> None:
    """Let real time pass."""
    await asyncio.sleep(seconds)


def run(function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run to its end from outside of any loop."""
    return asyncio.run(function(*args, **kwargs))


def running() -> set[object]:
    """Return everything that runs: threads, and the tasks of this loop."""
    return {*threading.enumerate(), *asyncio.all_tasks()}
