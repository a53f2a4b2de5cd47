"""The read-write lock: many readers or one writer, served in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ..core.claim import MAX
from .lock import Lock, LockOptions

if TYPE_CHECKING:
    from .engine import Engine


class RWLock:
    """Two locks on one resource, made by `Client.rwlock`.

    A reader that comes after a waiting writer waits behind it, so nobody starves.
    """

    def __init__(self, engine: Engine, resource: str, **options: Unpack[LockOptions]) -> None:
        self._engine = engine
        self._options = options
        self.resource = Lock(engine, resource, weight=1, capacity=MAX, **options).resource  # checks everything now

    def read(self) -> Lock:
        """Return the lock of readers. A read inside of the `with` block of another one shares its lease."""
        return Lock(self._engine, self.resource, weight=1, capacity=MAX, kind="read", **self._options)

    def write(self) -> Lock:
        """Return the lock of writers. A reader that would wait for it in its own `with` block raises Deadlock."""
        return Lock(self._engine, self.resource, kind="write", **self._options)

    def __repr__(self) -> str:
        return f"<RWLock {self.resource!r}>"
