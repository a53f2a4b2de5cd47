"""A worker: takes orders from stdin, settles one batch after the other under its lock, reports to stdout.

Run as `python -m holdfast.cli.demo.worker NAME URL LEDGER fenced|unfenced`; ends when stdin does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import holdfast
from holdfast.core.events import Acquired, Event, Lost, Renewed

from .ledger import Ledger
from .messages import Kind, Order, Report, encode, read_order
from .plan import TTL, work_seconds

_LONGEST_WAIT = 30.0


def main(name: str, url: str, ledger_path: str, fenced: str) -> None:
    """Work until there are no more orders."""
    # Ctrl-C reaches all processes of a terminal; the director alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = Watch()
    ledger = Ledger(Path(ledger_path), fenced=fenced == "fenced")
    with contextlib.closing(ledger), holdfast.connect(url, owner=name, observers=[watch]) as locks:
        locks.ready()
        _tell(Report(Kind.READY))
        for line in sys.stdin:
            try:
                report = Worker(name, locks, ledger, watch).settle(read_order(line))
            except Exception as error:
                _tell(Report(Kind.FAILED, text=f"{type(error).__name__}: {error}"))
                raise
            _tell(report)


class Watch:
    """Observes the locks of a worker: counts renewals, and stops the process right after one if it is to freeze."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.renewals = 0
        self._freezes: Report | None = None
        self._over = threading.Event()

    def __call__(self, event: Event) -> None:
        """Take note of an event; called in the keeper's thread."""
        match event:
            case Acquired():
                self.waited, self.renewals = event.waited, 0
            case Renewed():
                self.renewals += 1
                if self._freezes is not None and self._freezes.token == event.token:
                    self._freeze(self._freezes._replace(renewals=self.renewals))
            case Lost():
                self._over.set()

    def freeze(self, report: Report) -> bool:
        """Stop this process, all of it, after the next renewal; False if a lease was lost instead of renewed."""
        self._over.clear()
        self._freezes = report
        self._over.wait()
        froze, self._freezes = self._freezes is None, None
        return froze

    def _freeze(self, report: Report) -> None:
        # Here, in the keeper's thread, and not in the body's: at this moment no thread of the process is inside of a
        # transaction, with which a stopped process would lock everybody out of the store.
        self._freezes = None
        _tell(report)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # returns after SIGCONT
        self._over.set()


class Worker:
    """One worker with its tools."""

    def __init__(self, name: str, locks: holdfast.Client, ledger: Ledger, watch: Watch) -> None:
        self._name = name
        self._locks = locks
        self._ledger = ledger
        self._watch = watch

    def settle(self, order: Order) -> Report:
        """Settle a batch under its lock and return how that ended."""
        report = Report(Kind.LOST, order.batch)
        try:
            with self._locks.lock(f"batch:{order.batch}", ttl=TTL, timeout=_LONGEST_WAIT) as lease:
                report = self._settle(order, lease)
        except holdfast.LeaseLost:
            pass  # `with` tells of a loss when the body is done; without a fence that is too late for what it wrote
        return report._replace(renewals=self._watch.renewals)

    def _settle(self, order: Order, lease: holdfast.Lease) -> Report:
        batch = order.batch
        report = Report(Kind.TAKEN, batch, lease.token, self._watch.waited)
        _tell(report)
        try:
            if self._ledger.is_settled(batch, lease.fence):
                return report._replace(kind=Kind.SKIPPED)
            lease.check()
            if order.freeze:
                while not self._watch.freeze(report._replace(kind=Kind.FREEZING)):
                    lease.check()  # lost before its time, on a machine that hardly runs: the director orders it again
            else:
                time.sleep(work_seconds(batch))  # the bank is at work; the keeper renews meanwhile
            # The bug that everybody writes: between the check above and this write any time may have passed. A second
            # check would only make the gap smaller. The fence closes it.
            self._ledger.settle(batch, lease.fence, self._name)
        except holdfast.StaleToken as error:
            return report._replace(kind=Kind.REFUSED, lease_lost=lease.lost, text=str(error))
        return report._replace(kind=Kind.SETTLED, lease_lost=lease.lost)


def _tell(report: Report) -> None:
    os.write(sys.stdout.fileno(), encode(report))  # one write: it needs no flush before the process stops


if __name__ == "__main__":
    main(*sys.argv[1:])
