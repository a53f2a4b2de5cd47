"""Until when a session of ZooKeeper lives for certain. Pure: times go in, and a deadline comes out.

A follower that is cut off goes on answering for a while, and what a session says reaches the leader only with the
follower's next answer to a ping of the leader, which comes every half tick. So an answered sync proves nothing of
itself. It does prove that the follower was in touch with its leader when it answered, and so that the leader knows of
what the follower had heard half a tick before.

An exchange is a base to count on if it was *sent* at least a third of the timeout before the sync, and *answered* at
least a quarter before. Sent alone is not enough: a request that was held up on its way may arrive together with the
sync, and then the leader knows of neither. A quarter is more than half a tick, for a timeout has at least two ticks.
The session lives until the newest base was sent, plus its timeout.

A connect needs no sync: the leader itself has answered it. What was exchanged on an earlier connection counts no more,
for another follower may have heard it.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

THIRD = 1 / 3
QUARTER = 1 / 4
_LEAST = 1 / 24  # of the timeout, between two exchanges that are remembered: however often somebody asks


class Exchange(NamedTuple):
    """When it was sent, and when the answer was there."""

    sent: float
    heard: float


class Proofs:
    """What one session has proved."""

    __slots__ = ("_answered", "deadline", "timeout")

    def __init__(self) -> None:
        self.timeout = 0.0
        self.deadline = -inf  # until then it lives for certain
        self._answered: deque[Exchange] = deque()  # of this connection, in order

    def connected(self, exchange: Exchange, timeout: float) -> None:
        """Count on a connect that was answered."""
        self.timeout = timeout
        self.deadline = max(self.deadline, exchange.sent + timeout)
        self._answered.clear()
        self._answered.append(exchange)

    def synced(self, exchange: Exchange) -> None:
        """Count on a sync that was answered, and on what it proves."""
        sent, answered = exchange.sent, self._answered
        old = [
            base
            for base in answered
            if base.sent <= sent - self.timeout * THIRD and base.heard <= sent - self.timeout * QUARTER
        ]
        if old:
            self.deadline = max(self.deadline, old[-1].sent + self.timeout)
            while answered[0].sent < old[-1].sent:
                answered.popleft()
        if not answered or sent - answered[-1].sent >= self.timeout * _LEAST:
            answered.append(exchange)
