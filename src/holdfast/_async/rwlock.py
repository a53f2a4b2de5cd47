"""The read-write lock: many readers or one writer, served in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ..core.claim import MAX
from .lock import Lock, LockOptions

if TYPE_CHECKING:
    from .client import Client


class RWLock:
    """Two locks on one resource. A reader that comes after a waiting writer waits behind it: nobody starves."""

    def __init__(self, client: Client, resource: str, **options: Unpack[LockOptions]) -> None:
        self._client = client
        self._options = options
        self.resource = Lock(client, resource, weight=1, capacity=MAX, **options).resource  # checks everything now

    def read(self) -> Lock:
        """Return the lock of readers. A nested read of the same thread or task shares the lease of the first."""
        return Lock(self._client, self.resource, weight=1, capacity=MAX, **self._options)

    def write(self) -> Lock:
        """Return the lock of writers. A reader that asks for it without leaving first raises Deadlock."""
        return Lock(self._client, self.resource, **self._options)

    def __repr__(self) -> str:
        return f"<RWLock {self.resource!r}>"
