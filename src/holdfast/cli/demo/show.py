"""What people see: a bar on a terminal, lines elsewhere; a table and two sentences at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .ledger import Books
from .outcome import Seen
from .plan import TTL, Plan


class Show:
    """The audience of the director: prints as things happen."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._bar: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            wide = [TimeElapsedColumn()] if console.width >= 50 else []
            self._bar = Progress(
                TextColumn("settled"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                *wide,
                console=console,
                expand=True,
            )
            self._task = self._bar.add_task("", total=plan.batches)

    def tell(self, text: str) -> None:
        """Print a line of the story."""
        self.line(f"- {text}", "bold" if self._bar is not None else "")

    def progress(self, settled: int) -> None:
        """Move the bar; without one, print a line now and then."""
        if self._bar is not None:
            self._bar.update(self._task, completed=settled)
        elif settled == self._plan.batches or settled % 10 == 0:
            self.line(f"settled {settled} of {self._plan.batches}")

    def line(self, text: str, style: str = "") -> None:
        """Print a line: wrapped on a terminal, and whole elsewhere, where programs read it."""
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)

    def opening(self, url: str) -> None:
        """Say what is about to be seen."""
        plan = self._plan
        self.line(
            f"{plan.workers} processes settle {plan.batches} payment batches: one lock a batch, ttl {TTL:g} s, renewed "
            f"by the keeper; store {url}"
        )
        if not plan.fenced:
            self.line("--unsafe: the books are written without a fence", "yellow")

    def table(self, seen: Seen, books: Books) -> None:
        """Print what came out."""
        table = Table(title="holdfast demo" if self._plan.fenced else "holdfast demo --unsafe")
        table.add_column("what", overflow="fold")
        table.add_column("came out", overflow="fold")  # where it is too narrow for a token: all of it, in two lines
        rows: list[tuple[str, str, bool]] = [
            ("batches settled", f"{books.settled} of {self._plan.batches}", books.settled == self._plan.batches),
            ("settled twice", str(len(books.twice)), not books.twice),
            ("stale writes refused", str(seen.refused), bool(seen.refused)),
            ("longest wait", f"{seen.longest_wait:.2f} s", True),
            ("delivered twice, settled once", str(seen.skipped), True),
            ("renewals by the keepers", str(seen.renewals), True),
            (f"token of {seen.frozen}, frozen", str(seen.frozen_token), True),
            (f"token of {seen.successor}, after it", str(seen.successor_token), True),
            ("in the accounts at the start", _money(books.opened), True),
            ("paid for the settled batches", _money(books.due), True),
            ("in the accounts now", _money(books.left), True),
            ("missing in the books", _money(books.missing), books.missing == 0),
        ]
        for what, value, good in rows:
            table.add_row(what, Text(value, style="" if good else "bold red"))
        self._console.print(table)

    def closing(self, seen: Seen) -> None:
        """Say what was just seen, and what to do next."""
        story = (
            f"What you saw: {seen.frozen} was paused for longer than its lease, which no lock can prevent; meanwhile "
            f"{seen.successor} held the lock and settled the batch. "
        )
        if self._plan.fenced:
            self.line(f"{story}Then the fence refused the late write: its token was the older one.")
            self.line(
                "Next: see the same without the fence (holdfast demo --unsafe); fence your own (docs/tutorial.md)."
            )
        else:
            self.line(f"{story}Then the late write went through, and the customers of that batch paid twice.")
            self.line("Next: see the same with the fence (holdfast demo); fence your own writes (docs/tutorial.md).")

    def failed(self, fact: str) -> None:
        """Print what went otherwise than it should, to stderr."""
        Console(stderr=True, highlight=False).print(Text(f"failed: {fact}", style="bold red"), soft_wrap=True)

    def __enter__(self) -> Show:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
