"""Rules that look as good as that of proof.py, and are not: each is violated, in the model and on real servers."""

from __future__ import annotations

from holdfast.stores.zookeeper.proof import QUARTER, THIRD, Proofs


class Rule(Proofs):
    """The rule itself, and what mutants begin with."""

    by_sync = False  # whether it takes a sync for a proof, which a leader answers that is none any more


class SentPlusTimeout(Rule):
    """An answered write is taken for a proof that the leader knows of the session."""

    off = 0.0

    def wrote(self, sent: float, heard: float) -> None:
        self.deadline = max(self.deadline, sent + self.timeout - self.off)


class TickOff(SentPlusTimeout):
    """The same, with a tick taken off: the leader knows of what was sent a tick ago, but nothing may have been sent."""

    def __init__(self, tick: float) -> None:
        super().__init__()
        self.off = tick


class SentLongAgo(Rule):
    """What was sent a third of the timeout before a write counts, also if it came together with the write."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: list[float] = []

    def connected(self, sent: float, heard: float, timeout: float, *, new: bool) -> None:
        super().connected(sent, heard, timeout, new=new)
        self._sent = [sent]

    def wrote(self, sent: float, heard: float) -> None:
        old = [base for base in self._sent if base <= sent - self.timeout * THIRD]
        self.deadline = max([self.deadline, *(base + self.timeout for base in old)])
        self._sent.append(sent)


class HeardLongAgo(Rule):
    """A base counts from when its answer came, as if it had been sent then."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: list[float] = []

    def wrote(self, sent: float, heard: float) -> None:
        old = [base for base in self._heard if base <= sent - self.timeout * QUARTER]
        self.deadline = max([self.deadline, *(base + self.timeout for base in old)])
        self._heard.append(heard)


class AnyConnect(Rule):
    """A connect counts by itself, also one that goes on with a session."""

    def connected(self, sent: float, heard: float, timeout: float, *, new: bool) -> None:
        super().connected(sent, heard, timeout, new=new)
        self.deadline = max(self.deadline, sent + timeout)


class Synced(Rule):
    """A sync is taken for a proof, where a write is needed."""

    by_sync = True
