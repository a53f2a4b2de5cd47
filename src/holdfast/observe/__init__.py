"""How events reach people: the log, and observers. `add(observer)` serves every client and guard of this process.

    @holdfast.observe.add
    def tell(event): ...

Observers of one client are given to `connect(observers=[...])`. `holdfast.events` lists the events.
"""

from __future__ import annotations

from .stream import add, remove

__all__ = ["add", "remove"]
