"""What a client knows of its claims and of its nodes; both sides of an asyncio client share it, in any thread."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque

from ...errors import StoreError
from ..redis.wire import Command

_MOST_OWED = 1000  # releases that a node has still to run
_CROWD = 1000  # claims after which those are looked for that no node can know of any more


class LocalClaim:
    """What this client knows of a claim of its own."""

    __slots__ = ("ballot", "spent", "splits", "until")

    def __init__(self) -> None:
        self.ballot = 0  # the last one that was proposed
        self.spent = True  # it was given back: the next round needs a higher one
        self.splits = 0  # rounds in a row in which the votes were split
        self.until = 0.0  # when no node can know of it any more


class LocalClaims:
    """The claims of this client, by holder. Any thread may use it."""

    def __init__(self) -> None:
        self._claims: dict[str, LocalClaim] = {}
        self._crowd = _CROWD
        self._mutex = allocate_lock()

    def get(self, holder: str) -> LocalClaim | None:
        """Return what is known of a claim."""
        return self._claims.get(holder)

    def know(self, holder: str, now: float, life: float) -> LocalClaim:
        """Return what is known of a claim that nodes may know of for so long; nothing yet, if it is new."""
        with self._mutex:  # also for one that is known: another thread may be about to forget it
            claim = self._claims.setdefault(holder, LocalClaim())
            claim.until = now + life
            if len(self._claims) > self._crowd:
                for name in [name for name, other in self._claims.items() if other.until <= now]:
                    del self._claims[name]
                self._crowd = _CROWD + 2 * len(self._claims)
        return claim


class Shared:
    """The claims of a client, and which of its nodes are silent and what they have still to run."""

    def __init__(self, count: int) -> None:
        self.claims = LocalClaims()
        self.mutex = allocate_lock()  # guards who is silent, and what is owed
        self.silent: dict[int, StoreError] = {}
        self.troubles: dict[int, StoreError] = {}  # what nodes that do answer have refused last
        self.owed: list[deque[Command]] = [deque(maxlen=_MOST_OWED) for _ in range(count)]
        self.checked: set[int] = set()  # nodes whose configuration is known
        self.probed = [allocate_lock() for _ in range(count)]  # taken by whoever runs what a node is owed, in order
