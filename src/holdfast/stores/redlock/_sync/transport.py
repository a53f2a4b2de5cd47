"""One exchange with all nodes of a Redlock, in the blocking flavour: sent to all, then read from all, by one thread."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from ....errors import StoreError
from ...redis._sync.transport import Connection
from ...redis.wire import Access, Command, Endpoint, ReplyError, pack, silent

_STALE = 0.01

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
        self._idle: deque[_Connections] = deque()
        self._closed = False

    def ask(self, commands: Sequence[Command | None], enough: Enough, until: float) -> list[Any]:
        """Send each node its command (None: nothing) and return the replies when they are enough, or all there.

        A ReplyError or StoreError stands for a node that refused or did not answer, None for one that was not asked or
        not waited for.
        """
        try:
            connections = self._idle.pop()
        except IndexError:
            connections = _Connections(self._nodes, self._timeout, self._lost)
        try:
            return connections.ask(commands, enough, until)
        except BaseException:  # interrupted, maybe between two halves of a reply
            connections.close()
            raise
        finally:
            self._idle.append(connections)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close what is idle now, and the others when their questions are answered."""
        self._closed = True
        while self._idle:
            try:
                connections = self._idle.pop()
            except IndexError:  # another thread was faster
                return
            # A socket that is closed with replies in it is reset, and then a question that its node has not read yet is
            # lost: it may be a release.
            connections.catch_up(monotonic() + self._timeout)
            connections.close()


class _Connections:
    """A connection to each node, for one thread at a time."""

    __slots__ = ("_asked", "_connections", "_lost", "_nodes", "_sent", "_since", "_timeout")

    def __init__(self, nodes: Sequence[tuple[Endpoint, Access]], timeout: float, lost: Lost) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._lost = lost
        self._connections = [Connection(*node, timeout) for node in nodes]
        self._sent: list[deque[Command]] = [deque() for _ in nodes]  # commands without a reply so far
        self._since = [0.0] * len(nodes)  # when each was asked the first of them
        self._asked = 0.0  # when anything was asked last

    def ask(self, commands: Sequence[Command | None], enough: Enough, until: float) -> list[Any]:
        """See Panel."""
        replies: list[Any] = [None] * len(commands)
        late: dict[int, int] = {}  # of those that will answer: replies to earlier questions, which come first
        now = monotonic()
        # Before anything is sent, for it takes all replies that have come. A moment after the last question they are
        # read with those to this one, which takes half as many calls of the kernel.
        if now - self._asked > _STALE:
            self.catch_up(now)
        self._asked = now
        packed, data = None, b""  # mostly all nodes are asked the same
        for at, command in enumerate(commands):
            if command is not None:
                if command is not packed:
                    packed, data = command, pack(command)
                try:
                    late[at] = self._send(at, command, data, now, until)
                except StoreError as error:
                    self._drop(at)
                    replies[at] = error
        if not self._gather(late, replies, enough, until):
            for at in late:
                self._drop(at)
                replies[at] = silent(self._nodes[at][0], self._timeout)
        return replies

    def catch_up(self, until: float) -> None:
        """Take the replies that nobody waited for, as far as they come by then."""
        late = {at: connection.owed - 1 for at, connection in enumerate(self._connections) if connection.owed}
        if late:
            for at in late:
                self._connections[at].until = until + self._timeout  # that of the question has passed, maybe
            self._gather(late, [None] * len(self._nodes), lambda replies: False, until)

    def close(self) -> None:
        """Close all connections."""
        for at in range(len(self._nodes)):
            self._drop(at)

    def _drop(self, at: int) -> Connection:
        """Close a connection, and return the one that replaces it: it opens itself when it is used."""
        self._connections[at].close()
        self._since[at] = 0.0
        fresh = self._connections[at] = Connection(*self._nodes[at], self._timeout)
        while self._sent[at]:
            self._lost(at, self._sent[at].popleft())
        return fresh

    def _send(self, at: int, command: Command, data: bytes, now: float, until: float) -> int:
        connection = self._connections[at]
        if connection.owed and now - self._since[at] > self._timeout:
            raise silent(self._nodes[at][0], self._timeout)
        if not connection.owed:
            # One that was not used for a while may have been closed by its node: check before the command is sent.
            if now - self._since[at] > _STALE and not connection.alive():
                connection = self._drop(at)
                # Half of the time that is left: however many nodes cannot be reached, some is left for the others.
                connection.send(until=now + (until - now) / 2)
            self._since[at] = now
        late = connection.owed
        self._sent[at].append(command)
        connection.send_packed(data, 1, until)
        return late

    def _gather(self, late: dict[int, int], replies: list[Any], enough: Enough, until: float) -> bool:
        """Read until it is enough, or all is there; False if `until` comes before."""
        poll, nodes = select.poll(), dict[int, int]()
        for at in late:
            fd = self._connections[at].fileno()
            nodes[fd] = at
            poll.register(fd, select.POLLIN)
        few = len(late) // 2  # what is asked for is a majority: until more than half have answered, do not ask
        while late and (len(late) > few or not enough(replies)):
            left = until - monotonic()
            # Rounded up: a poll that ends just before `until` would take a node for silent.
            ready = poll.poll(int(left * 1000) + 1 if left > 0 else 0)
            if not ready:
                return False
            for fd, _ in ready:
                self._receive(nodes[fd], late, replies)
                if nodes[fd] not in late:
                    poll.unregister(fd)  # it has answered, and may end; or it is closed, and the number another's
        return True

    def _receive(self, at: int, late: dict[int, int], replies: list[Any]) -> None:
        """Take the replies of a node that are there, up to the one that is waited for, or its end."""
        reply: Any
        while at in late:
            connection = self._connections[at]
            try:
                reply = connection.receive(ready=True)
            except ReplyError as error:
                reply = error
            except StoreError as error:
                self._drop(at)
                replies[at] = error
                del late[at]
                return
            self._since[at] = monotonic()
            self._sent[at].popleft()
            if not late[at]:
                replies[at] = reply
                del late[at]
            else:
                late[at] -= 1
                if not connection.pending():
                    return
