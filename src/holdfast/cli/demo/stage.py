"""The demo as a whole: a temporary directory, books, a crew and a director; and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

import holdfast

from .crew import Crew, DemoFailed
from .director import Director
from .ledger import Books, Ledger
from .outcome import Seen, faults
from .plan import Plan
from .show import Show

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(BaseException):
    """A signal that ends the program; not an Exception, so that nothing on the way takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(plan: Plan) -> int:
    """Run the demo and return the exit status: 0 if what should happen happened."""
    show = Show(Console(highlight=False), plan)
    try:
        seen, books = _play(plan, show)
    except (DemoFailed, holdfast.LockError, sqlite3.Error, OSError) as error:
        show.failed(str(error))
        return 1
    except _Ended as ended:
        show.line("interrupted: all workers are ended, and the temporary directory is removed")
        return 128 + ended.number
    show.table(seen, books)
    wrong = faults(plan, seen, books)
    for fact in wrong:
        show.failed(fact)
    if not wrong:
        show.closing(seen)
    return 1 if wrong else 0


def _play(plan: Plan, show: Show) -> tuple[Seen, Books]:
    with _signals_end(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name, _undisturbed():
        folder = Path(name)
        url = f"sqlite://{folder}/locks.db"
        with holdfast.connect(url) as locks:
            locks.ready()  # a directory that cannot hold locks is an error here, not in every worker
        with contextlib.closing(Ledger(folder / "ledger.db", fenced=plan.fenced)) as ledger:
            ledger.create(plan)
            show.opening(url)
            with Crew(folder) as crew, _undisturbed(), show:
                for number in range(1, plan.workers + 1):
                    fenced = "fenced" if plan.fenced else "unfenced"
                    crew.hire(f"worker-{number}", [url, str(folder / "ledger.db"), fenced])
                director = Director(plan, crew, show)
                director.direct()
            return director.seen, ledger.books()


@contextlib.contextmanager
def _signals_end() -> Iterator[None]:
    """Turn the signals that end a program into an exception, so that what was started is ended as well."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended(number)

    # One that is ignored stays so: whoever started this with nohup means it.
    ending = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let the cleaning up that follows run to its end: a second Ctrl-C must not leave anything behind."""
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
