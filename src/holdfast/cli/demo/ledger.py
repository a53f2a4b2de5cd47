"""The books: accounts, batches, and the fence in front of them. A database of the demo's own, not the locks'."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import holdfast

from .plan import ACCOUNTS, Plan, payments

_TABLES = """
CREATE TABLE accounts (account INTEGER PRIMARY KEY, opened INTEGER NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE payments (batch INTEGER NOT NULL, account INTEGER NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE settlements (batch INTEGER NOT NULL, token INTEGER NOT NULL, worker TEXT NOT NULL);
CREATE TABLE fences (batch INTEGER PRIMARY KEY, token INTEGER NOT NULL);
"""

_DEBIT = """
UPDATE accounts SET cents = cents - (SELECT sum(cents) FROM payments WHERE batch = :b AND account = accounts.account)
WHERE account IN (SELECT account FROM payments WHERE batch = :b)
"""


class Books(NamedTuple):
    """The books at the end, in cents."""

    settled: int  # batches, however often
    twice: tuple[int, ...]  # batches that were settled more than once
    opened: int  # in all accounts at the start
    due: int  # the payments of all settled batches, each once
    left: int  # in all accounts now

    @property
    def missing(self) -> int:
        """What left the accounts and was owed to nobody."""
        return self.opened - self.due - self.left


class Ledger:
    """A connection to the books; with `fenced`, every transaction enters the fence first."""

    def __init__(self, path: Path, *, fenced: bool) -> None:
        self._fenced = fenced
        self._connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)

    def create(self, plan: Plan) -> None:
        """Make the tables and write down what is to be paid."""
        self._connection.executescript("PRAGMA journal_mode = WAL;" + _TABLES)
        with self._transaction() as run:
            accounts = [(account, plan.opening, plan.opening) for account in range(ACCOUNTS)]
            run.executemany("INSERT INTO accounts VALUES (?, ?, ?)", accounts)
            for batch in plan.numbers:
                run.execute("INSERT INTO fences VALUES (?, 0)", (batch,))
                run.executemany("INSERT INTO payments VALUES (?, ?, ?)", [(batch, *p) for p in payments(batch)])

    def is_settled(self, batch: int, fence: holdfast.Fence) -> bool:
        """Return whether a batch is settled, for a holder who goes on to settle it if not.

        Raises: StaleToken.
        """
        with self._transaction() as run:
            # Before the read: from here on no earlier holder can change what is read now.
            self._enter(run, batch, fence)
            return run.execute("SELECT 1 FROM settlements WHERE batch = ?", (batch,)).fetchone() is not None

    def settle(self, batch: int, fence: holdfast.Fence, worker: str) -> None:
        """Debit the accounts. Whether the batch is settled is not asked again: the holder of the lock knows, it thinks.

        Raises: StaleToken.
        """
        with self._transaction() as run:
            self._enter(run, batch, fence)
            run.execute(_DEBIT, {"b": batch})
            run.execute("INSERT INTO settlements VALUES (?, ?, ?)", (batch, fence.token, worker))

    def books(self) -> Books:
        """Add everything up."""
        with self._transaction() as run:
            counts = run.execute("SELECT batch, count(*) FROM settlements GROUP BY batch ORDER BY batch").fetchall()
            opened, left = run.execute("SELECT sum(opened), sum(cents) FROM accounts").fetchone()
            (due,) = run.execute(
                "SELECT coalesce(sum(cents), 0) FROM payments WHERE batch IN (SELECT batch FROM settlements)"
            ).fetchone()
        return Books(len(counts), tuple(batch for batch, count in counts if count > 1), opened, due, left)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _enter(self, run: sqlite3.Connection, batch: int, fence: holdfast.Fence) -> None:
        """Let a token in unless a newer one was here before. The first statement of the transaction, always."""
        if not self._fenced:
            return
        row = {"t": fence.token, "b": batch}
        if run.execute("UPDATE fences SET token = :t WHERE batch = :b AND token <= :t", row).rowcount:
            return
        seen = run.execute("SELECT token FROM fences WHERE batch = :b", row).fetchone()
        if seen is None:  # not stale: nothing guards this batch at all
            raise LookupError(f"batch {batch} has no row in the table fences; make it with the batch")
        raise holdfast.StaleToken(
            f"token {fence.token} for {fence.resource!r} is stale: {seen[0]} was here before",
            resource=fence.resource,
            token=fence.token,
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
