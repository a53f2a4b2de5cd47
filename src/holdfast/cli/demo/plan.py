"""What is to be done: batches, how long each takes, which are delivered twice, where a worker freezes."""

from __future__ import annotations

from typing import NamedTuple

TTL = 2.0
ACCOUNTS = 12


class Payment(NamedTuple):
    """A debit of an account."""

    account: int
    cents: int


class Plan(NamedTuple):
    """The demo in numbers. Nothing is random: two runs differ only in who is faster."""

    workers: int
    batches: int
    fenced: bool

    @property
    def numbers(self) -> range:
        """The batches."""
        return range(1, self.batches + 1)

    @property
    def freezes_at(self) -> int:
        """The batch in the middle of which a worker is frozen: one of the second round."""
        return min(self.workers + 1, self.batches)

    @property
    def opening(self) -> int:
        """What every account opens with, in cents: enough for all its payments."""
        return self.batches * 100_00

    def is_delivered_twice(self, batch: int) -> bool:
        """Return whether the queue delivers a batch to two workers, as queues do now and then."""
        return batch % 8 == 3 and batch != self.freezes_at


def payments(batch: int) -> list[Payment]:
    """Return the payments of a batch."""
    return [Payment((batch * 5 + n * 3) % ACCOUNTS, 5_00 + (batch * 731 + n * 397) % 45_00) for n in range(3)]


def work_seconds(batch: int) -> float:
    """Return how long the bank takes for a batch; now and then longer than a lease lasts without its keeper."""
    return 1.5 * TTL if batch % 10 == 6 else 0.35 + batch * 7 % 10 * 0.08
