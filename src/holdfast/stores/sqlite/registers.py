"""Fenced registers in the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from math import inf

from ...core.claim import Record
from ...core.fence import Fence, Seen
from ...core.register import Register
from .database import Database


class Registers:
    """The registers of one namespace in one file. Every method blocks for io_timeout at most."""

    def __init__(self, database: Database, namespace: str, wall: Callable[[], float]) -> None:
        self._database = database
        self._namespace = namespace
        self._wall = wall

    def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""

        def work(connection: sqlite3.Connection) -> Register:
            if fence is None:
                return self._get(connection, key)
            # Not made durable: whoever could write after a crash of this machine has gone down with it.
            with self._database.transaction(connection):
                entered = self._get(connection, key).entered(fence, self._wall())
                self._put(connection, key, entered)
                return entered

        return self._database.run(work).read(self._wall())

    def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""

        def work(connection: sqlite3.Connection) -> None:
            with self._database.transaction(connection, durable=True):
                expires = inf if keep is None else self._wall() + keep
                self._put(connection, key, self._get(connection, key).written(value, fence, expires))

        self._database.run(work)

    def _get(self, connection: sqlite3.Connection, key: str) -> Register:
        row = connection.execute(
            "SELECT value, token, newest, exclusive, expires FROM registers WHERE namespace = ? AND key = ?",
            (self._namespace, key),
        ).fetchone()
        if row is None:
            return Register()
        value, token, newest, exclusive, expires = row
        return Register(value, token, Seen(newest, exclusive), inf if expires is None else expires)

    def _put(self, connection: sqlite3.Connection, key: str, register: Register) -> None:
        value, token, seen, expires = register
        connection.execute(
            "INSERT OR REPLACE INTO registers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._namespace, key, value, token, *seen, None if expires == inf else expires),
        )
