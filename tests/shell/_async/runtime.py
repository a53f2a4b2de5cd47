"""What the asyncio tests do otherwise than the blocking ones: run things side by side, and wait for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0  # real seconds for what should take milliseconds


class Running(Generic[T]):
    """An actor beside the test: a task."""

    def __init__(self, run: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.get_running_loop().create_task(run)

    @property
    def done(self) -> bool:
        return self.task.done()

    async def join(self) -> T:
        """Return what it returned, or raise what it raised."""
        return await asyncio.wait_for(asyncio.shield(self.task), LIMIT)


def spawn(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Running[T]:
    """Start another actor."""

    async def run() -> T:
        return await function(*args, **kwargs)

    return Running(run())


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.arrived = 0

    def open(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        self.arrived += 1
        await self._event.wait()


async def eventually(condition: Callable[[], object], drive: Callable[[], object] = lambda: None) -> None:
    """Return as soon as the condition is true; `drive` is called before every look."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        drive()
        await asyncio.sleep(0.001)


def activities() -> list[str]:
    """Name what holdfast runs in the background."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("holdfast-"))
