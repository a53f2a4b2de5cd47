"""Until when a session of ZooKeeper lives for certain. Pure: times go in, and a deadline comes out.

The leader ends sessions. It knows of a session what its followers tell it: that a client was heard reaches it with the
follower's next answer to a ping of the leader, which comes every half tick. Two things deceive a client:

- *A follower that is cut off* goes on answering for a while. What it hears then reaches no leader.
- *A leader that is cut off* goes on answering, too, also a sync, while the others elect a new one. The new one lets all
  sessions begin anew when it starts.

So a proof is a **write** that was answered. A majority has taken it from this leader, and there was no newer one before
it was sent: whoever leads later starts after that. And the follower was in touch with its leader when it was answered:
so the leader knows of what the follower had heard half a tick before.

An exchange is a base to count on if it was *sent* at least a third of the timeout before the write, and *answered* at
least a quarter before. Sent alone is not enough: a request that was held up on its way may arrive together with the
write, and then the leader knows of neither. A quarter is at least half a tick, for a timeout has at least two ticks.
The session lives until the newest base was sent, plus its timeout.

A connect is heard by the leader itself. That of a new session is a write as well, and counts at once. One that goes on
with a session may have been answered by a leader that is none any more: it counts with the next write. What was
exchanged on an earlier connection counts no more, for another follower may have heard it.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

THIRD = 1 / 3
QUARTER = 1 / 4
_LEAST = 1 / 24  # of the timeout, between two exchanges that are remembered: however often somebody asks


class Exchange(NamedTuple):
    """When it was sent, and when the answer was there; and whether the leader itself has heard it."""

    sent: float
    heard: float
    by_leader: bool = False


class Proofs:
    """What one session has proved."""

    __slots__ = ("_answered", "deadline", "timeout")

    def __init__(self) -> None:
        self.timeout = 0.0
        self.deadline = -inf  # until then it lives for certain
        self._answered: deque[Exchange] = deque()  # of this connection, in order

    def connected(self, sent: float, heard: float, timeout: float, *, new: bool) -> None:
        """Count on a connect that was answered."""
        self.timeout = timeout
        self._answered.clear()
        self._answered.append(Exchange(sent, heard, True))
        if new:
            self.deadline = sent + timeout

    @property
    def ripe_at(self) -> float:
        """When a write can be sent that counts on the newest exchange before it."""
        if not self._answered:
            return inf
        newest = self._answered[-1]
        if newest.by_leader:
            return newest.heard
        return max(newest.sent + self.timeout * THIRD, newest.heard + self.timeout * QUARTER)

    def wrote(self, sent: float, heard: float) -> None:
        """Count on a write that was answered, and on what it proves."""
        answered, third, quarter = self._answered, self.timeout * THIRD, self.timeout * QUARTER
        proved = [
            base
            for base in answered
            if base.heard <= (sent if base.by_leader else sent - quarter)
            and base.sent <= (sent if base.by_leader else sent - third)
        ]
        if proved:
            newest = proved[-1]
            self.deadline = max(self.deadline, newest.sent + self.timeout)
            while answered[0].sent < newest.sent:
                answered.popleft()
        if not answered or sent - answered[-1].sent >= self.timeout * _LEAST:
            answered.append(Exchange(sent, heard))
