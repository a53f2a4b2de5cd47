"""The director: deals the batches like a queue that may deliver twice, and freezes and resumes a worker.

What happens next follows from what a worker or the kernel has told, never from how long something should take.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from .crew import Crew, DemoFailed, Hand
from .messages import Kind, Order, Report
from .outcome import Seen
from .plan import Plan

_SILENCE = 20.0  # seconds without any report after which something is wrong


class Audience(Protocol):
    """Who is told what happens."""

    def tell(self, text: str) -> None:
        """Hear a part of the story."""

    def progress(self, settled: int) -> None:
        """Hear how many batches are settled."""


class Director:
    """Deals orders, hears reports, and remembers what was seen."""

    def __init__(self, plan: Plan, crew: Crew, audience: Audience) -> None:
        self._plan = plan
        self._crew = crew
        self._audience = audience
        self._queue: deque[Order] = deque()
        self._busy: dict[Hand, Order] = {}
        self._settled: set[int] = set()
        self._frozen: Hand | None = None
        self._successor: Hand | None = None
        self.seen = Seen()

    def direct(self) -> None:
        """Have all batches settled.

        Raises: DemoFailed.
        """
        for batch in self._plan.numbers:
            self._queue.append(Order(batch, freeze=batch == self._plan.freezes_at))
            if self._plan.is_delivered_twice(batch):
                self._queue.append(Order(batch))
        idle = deque[Hand]()
        ready = 0
        while ready < len(self._crew.hands) or self._queue or self._busy:
            # Only when all are there: the first one ready would otherwise freeze with nobody to take over.
            while ready == len(self._crew.hands) and idle and self._queue:
                hand = idle.popleft()
                self._busy[hand] = self._queue.popleft()
                hand.give(self._busy[hand])
            hand, report = self._crew.hear(_SILENCE)
            if report.kind is Kind.READY:
                ready += 1
                idle.append(hand)
            elif self._follow(hand, report):
                self._busy.pop(hand)
                idle.append(hand)
        self._crew.dismiss()

    def _follow(self, hand: Hand, report: Report) -> bool:
        """Act on a report; tell whether it ends the worker's order."""
        match report.kind:
            case Kind.TAKEN:
                self._taken(hand, report)
                return False
            case Kind.FREEZING:
                self._froze(hand, report)
                return False
            case Kind.FAILED:
                raise DemoFailed(f"{hand.name} failed: {report.text}")
            case Kind.LOST:  # it noticed by itself and wrote nothing: the batch is still to be done
                self._queue.appendleft(self._busy[hand])
            case Kind.SETTLED if report.batch not in self._settled:
                self._settled.add(report.batch)
                self._audience.progress(len(self._settled))
            case Kind.SKIPPED:
                self.seen.skipped += 1
            case Kind.REFUSED:
                self.seen.refused += 1
        self.seen.renewals += report.renewals
        if hand is self._frozen:
            self._woke(hand, report)
        elif hand is self._successor:
            self._took_over(hand, report)
        return True

    def _taken(self, hand: Hand, report: Report) -> None:
        self.seen.longest_wait = max(self.seen.longest_wait, report.waited)
        if self._frozen is None or report.batch != self._plan.freezes_at or self.seen.resumed:
            return
        self._successor = hand
        self.seen.successor, self.seen.successor_token = hand.name, report.token
        self._audience.tell(
            f"{hand.name} waited {report.waited:.1f} s until that lease ran out, and holds batch {report.batch} now "
            f"with a higher token, {report.token}"
        )

    def _froze(self, hand: Hand, report: Report) -> None:
        hand.await_stop()
        self._frozen = hand
        self.seen.frozen, self.seen.frozen_token = hand.name, report.token
        self._audience.tell(
            f"{hand.name} is frozen (SIGSTOP) in the middle of batch {report.batch}, after its check and before its "
            f"write; its token is {report.token}"
        )
        # A queue that hears nothing from a worker delivers again.
        self._queue.appendleft(Order(report.batch))

    def _took_over(self, hand: Hand, report: Report) -> None:
        """Wake the frozen worker once its batch was settled by another."""
        self._successor = None
        if report.kind is not Kind.SETTLED or self._frozen is None:
            return
        self._audience.tell(
            f"{hand.name} settled batch {report.batch}; {self._frozen.name} wakes up (SIGCONT) and writes, without a "
            "look at its lease"
        )
        self.seen.resumed = True
        self._frozen.resume()

    def _woke(self, hand: Hand, report: Report) -> None:
        self._frozen = None
        self.seen.lease_knew = report.lease_lost
        self.seen.frozen_refused = report.kind is Kind.REFUSED
        if report.kind is Kind.REFUSED:
            self._audience.tell(f"refused by the fence: {report.text}")
        else:
            self._audience.tell(f"nothing refused the write of {hand.name}: batch {report.batch} is debited twice")
        if report.lease_lost:
            self._audience.tell(f"the lease of {hand.name} knew: lease.lost is True; nobody asked it")
