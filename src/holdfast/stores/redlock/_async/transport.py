"""One exchange with all nodes of a Redlock, in the asyncio flavour: sent to all, replies taken as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from ....errors import StoreError
from ...redis._async.transport import Connection
from ...redis.wire import Access, Command, Endpoint

Enough = Callable[[Sequence[Any]], bool]
Lost = Callable[[int, Command], None]


class Panel:
    """The nodes, for any number of tasks: one connection to each. A reply that nobody waits for is dropped, but `lost`
    is told of a command that has got none.
    """

    def __init__(self, nodes: Sequence[tuple[Endpoint, Access]], timeout: float, lost: Lost) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._lost = lost
        self._connections = [Connection(*node, timeout) for node in nodes]
        self._last: list[asyncio.Future[Any] | None] = [None] * len(nodes)

    async def ask(self, commands: Sequence[Command | None], enough: Enough, until: float) -> list[Any]:
        """Send each node its command (None: nothing) and return the replies when they are enough, or all there.

        A ReplyError or StoreError stands for a node that refused or did not answer, None for one that was not asked or
        not waited for.
        """
        question = _Question([None] * len(commands), enough)
        connections = self._connections
        while closed := [
            at
            for at, command in enumerate(commands)
            if command is not None and question.replies[at] is None and not connections[at].usable
        ]:  # again: meanwhile one may have ended, and another task may have put a new one in its place
            await self._open(closed, question, until)
        for at, command in enumerate(commands):
            if command is None or question.replies[at] is not None:
                continue
            try:
                (future,) = connections[at]._write((command,), until)
            except StoreError as error:
                question.replies[at] = error
                continue
            question.left += 1
            future.add_done_callback(partial(question.heard, at, command, self._lost))
            self._last[at] = future
        if question.left and not enough(question.replies):
            await question.done
        return question.replies

    async def close(self) -> None:
        """Close all connections, after what was sent last has been answered: it may be a release, and a node that has
        not read it yet would never do so.
        """
        sent = [future for future in self._last if future is not None and not future.done()]
        if sent:
            await asyncio.wait(sent, timeout=self._timeout)
        for connection in self._connections:
            await connection.close()

    async def _open(self, closed: list[int], question: _Question, until: float) -> None:
        for at in closed:
            if self._connections[at]._dead is not None:
                self._connections[at] = Connection(*self._nodes[at], self._timeout)
        # Half of the time that is left: if some cannot be reached, the rest is for the others.
        now = monotonic()
        half = now + (until - now) / 2
        errors = await asyncio.gather(*(self._connections[at].open(half) for at in closed), return_exceptions=True)
        for at, error in zip(closed, errors, strict=True):
            if isinstance(error, StoreError):
                question.replies[at] = error
            elif error is not None:
                raise error


class _Question:
    """What is under way: it is done when the replies are enough, or when all nodes have answered or failed."""

    __slots__ = ("done", "enough", "left", "replies")

    def __init__(self, replies: list[Any], enough: Enough) -> None:
        self.replies = replies
        self.enough = enough
        self.left = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def heard(self, at: int, command: Command, lost: Lost, future: asyncio.Future[Any]) -> None:
        """Take in the reply of one node; its connection sees to it that there is one by the deadline."""
        self.left -= 1
        error = future.exception()
        if not self.done.done():
            self.replies[at] = future.result() if error is None else error
            if not self.left or self.enough(self.replies):
                self.done.set_result(None)
        if isinstance(error, StoreError):
            lost(at, command)
