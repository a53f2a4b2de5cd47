"""One question to all nodes of a Redlock, in the blocking flavour: sent to all, then read from all, by one thread."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from ..._redis.wire import Access, Command, Endpoint, ReplyError, silent
from ...errors import StoreError
from .transport_redis import Connection

Enough = Callable[[Sequence[Any]], bool]
Lost = Callable[[int, Command], None]


class Panel:
    """The nodes, for any number of threads: a free list of sets of connections, one set for each question under way.
    A reply that nobody waits for is dropped, but `lost` is told of a command that has got none.
    """

    def __init__(self, nodes: Sequence[tuple[Endpoint, Access]], timeout: float, lost: Lost) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._lost = lost
        self._idle: deque[_Lines] = deque()
        self._closed = False

    def ask(self, commands: Sequence[Command | None], enough: Enough, until: float) -> list[Any]:
        """Send each node its command (None: nothing) and return the replies when they are enough, or all there.

        A ReplyError or StoreError stands for a node that refused or did not answer, None for one that was not asked or
        not waited for.
        """
        try:
            lines = self._idle.pop()
        except IndexError:
            lines = _Lines(self._nodes, self._timeout, self._lost)
        try:
            return lines.ask(commands, enough, until)
        except BaseException:  # interrupted, maybe between two halves of a reply
            lines.close()
            raise
        finally:
            self._idle.append(lines)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close what is idle now, and the others when their questions are answered."""
        self._closed = True
        while self._idle:
            try:
                lines = self._idle.pop()
            except IndexError:  # another thread was faster
                return
            # A socket that is closed with replies in it is reset, and then a question that its node has not read yet is
            # lost: it may be a release.
            lines.catch_up(monotonic() + self._timeout)
            lines.close()


class _Lines:
    """A connection to each node, for one thread at a time."""

    __slots__ = ("_connections", "_lost", "_nodes", "_sent", "_since", "_timeout")

    def __init__(self, nodes: Sequence[tuple[Endpoint, Access]], timeout: float, lost: Lost) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._lost = lost
        self._connections = [Connection(*node, timeout) for node in nodes]
        self._sent: list[deque[Command]] = [deque() for _ in nodes]  # commands without a reply so far
        self._since = [0.0] * len(nodes)  # when each was asked the first of them

    def ask(self, commands: Sequence[Command | None], enough: Enough, until: float) -> list[Any]:
        """See Panel."""
        replies: list[Any] = [None] * len(commands)
        late: dict[int, int] = {}  # of those that will answer: replies to earlier questions, which come first
        for at, command in enumerate(commands):
            if command is not None:
                try:
                    late[at] = self._send(at, command, until)
                except StoreError as error:
                    self._drop(at)
                    replies[at] = error
        while late and not enough(replies):
            ready = self._readable(late, until)
            for at in ready:
                self._receive(at, late, replies)
            if not ready:
                for at in late:
                    self._drop(at)
                    replies[at] = silent(self._nodes[at][0], self._timeout)
                break
        return replies

    def catch_up(self, until: float) -> None:
        """Take the replies that nobody waited for, as far as they come by then."""
        late = {at: connection.owed - 1 for at, connection in enumerate(self._connections) if connection.owed}
        replies: list[Any] = [None] * len(self._nodes)
        while late and (ready := self._readable(late, until)):
            for at in ready:
                self._receive(at, late, replies)

    def close(self) -> None:
        """Close all connections."""
        for at in range(len(self._nodes)):
            self._drop(at)

    def _drop(self, at: int) -> Connection:
        """Close a connection, and return the one that takes its place: it opens itself when it is used."""
        self._connections[at].close()
        fresh = self._connections[at] = Connection(*self._nodes[at], self._timeout)
        while self._sent[at]:
            self._lost(at, self._sent[at].popleft())
        return fresh

    def _send(self, at: int, command: Command, until: float) -> int:
        connection, now = self._connections[at], monotonic()
        if connection.owed and now - self._since[at] > self._timeout:
            self.catch_up(now)  # its replies may have come while nobody looked
            connection = self._connections[at]
            if connection.owed:
                raise silent(self._nodes[at][0], self._timeout)
        if not connection.owed:
            self._since[at] = now
            if not connection.alive():
                connection = self._drop(at)
                # Half of the time that is left: however many nodes cannot be reached, some is left for the others.
                connection.send(until=now + (until - now) / 2)
        late = connection.owed
        self._sent[at].append(command)
        connection.send(command, until=until)
        return late

    def _readable(self, late: dict[int, int], until: float) -> list[int]:
        ready = [at for at in late if self._connections[at].pending()]
        if ready:
            return ready
        poll = select.poll()
        places = {self._connections[at].fileno(): at for at in late}
        for fd in places:
            poll.register(fd, select.POLLIN)
        left = until - monotonic()
        # Rounded up: a poll that ends just before `until` would take a node for silent.
        return [places[fd] for fd, _ in poll.poll(int(left * 1000) + 1 if left > 0 else 0)]

    def _receive(self, at: int, late: dict[int, int], replies: list[Any]) -> None:
        reply: Any
        try:
            try:
                reply = self._connections[at].receive()
            except ReplyError as error:
                reply = error
            self._since[at] = monotonic()
            self._sent[at].popleft()
        except StoreError as error:
            self._drop(at)
            late[at], reply = 0, error
        if late[at]:
            late[at] -= 1
        else:
            replies[at] = reply
            del late[at]
