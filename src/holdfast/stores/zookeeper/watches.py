"""Who is woken by what: the watches of one session.

A watch of ZooKeeper is told of once, and ends with its connection. The request that asks for it is sent by the caller,
*after* it is noted here: the news may come before the answer.
"""

from __future__ import annotations

from _thread import RLock
from typing import Protocol

from .wire import Event, Kind


class Wakeup(Protocol):
    """What wakes a waiter: a signal of either flavour."""

    def set(self) -> None:
        """Wake it."""
        ...


class Watches:
    """Wake-ups by path: of those who watch a node, and of those who watch its children. For any thread."""

    def __init__(self) -> None:
        self._mutex = RLock()  # of its own thread again: a signal handler must not wait for what it has interrupted
        self._data: dict[str, set[Wakeup]] = {}
        self._children: dict[str, set[Wakeup]] = {}

    def add(self, path: str, wakeup: Wakeup, *, children: bool = False) -> None:
        """Wake somebody at the next change."""
        with self._mutex:
            (self._children if children else self._data).setdefault(path, set()).add(wakeup)

    def remove(self, path: str, wakeup: Wakeup, *, children: bool = False) -> None:
        """Wake it no more."""
        table = self._children if children else self._data
        with self._mutex:
            found = table.get(path)
            if found is not None:
                found.discard(wakeup)
                if not found:
                    del table[path]

    def happened(self, event: Event) -> list[Wakeup]:
        """Return whom to wake."""
        tables = [self._children] if event.kind == Kind.CHILDREN else [self._data]
        if event.kind == Kind.DELETED:
            tables.append(self._children)
        with self._mutex:
            return [wakeup for table in tables for wakeup in table.pop(event.path, ())]

    def end(self) -> list[Wakeup]:
        """Forget all of them, with the connection, and return whom to wake: everybody has to ask again."""
        with self._mutex:
            tables = (self._data, self._children)
            found = [wakeup for table in tables for some in table.values() for wakeup in some]
            for table in tables:
                table.clear()
            return found
