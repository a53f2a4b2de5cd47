"""The file: opening, checking and locking it, and turning SQLite's errors into ours."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from .._clock import Clock
from ..errors import StoreError, StoreUnavailable
from . import host

T = TypeVar("T")

APPLICATION_ID = 0x686F6C64  # "hold"
FORMAT = 1

_PAUSE_LEAST = 0.00005
_PAUSE_MOST = 0.005

_REASONS = {
    "SQLITE_FULL": "the disk is full; nothing was written. Make room",
    "SQLITE_READONLY": "it cannot be written. Check the permissions of the file and of its directory",
    "SQLITE_CANTOPEN": "it cannot be opened. Check that the directory exists and may be written",
    "SQLITE_PERM": "permission was denied. Check who owns the file",
    "SQLITE_NOTADB": "it is not a SQLite file. Point the URL elsewhere, or move the file away",
    "SQLITE_CORRUPT": "it is damaged. Move it away with its -wal and -shm: a new one is made, and tokens go on rising",
    "SQLITE_IOERR": "the disk reports an error",
}


class Database:
    """One connection to the file, used by one thread at a time, and never carried through a fork."""

    def __init__(self, path: Path, clock: Clock, io_timeout: float, make_parents: bool) -> None:
        self.path = path
        self._clock = clock
        self._io_timeout = io_timeout
        self._make_parents = make_parents
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._pid = os.getpid()
        self._closed = False
        self._forking = False
        _databases.add(self)

    def run(self, work: Callable[[sqlite3.Connection], T], *, moved: bool = True) -> T:
        """Let `work` use the connection. It may run again: SQLite refuses at once while another process writes.

        With `moved` it is checked first that the file is still the one that was opened.

        Raises: StoreUnavailable after io_timeout; StoreError when asking again is pointless.
        """
        give_up = time.monotonic() + self._io_timeout
        with self._mutex:
            pause = _PAUSE_LEAST
            while True:
                try:
                    if moved and self._connection is not None and self._has_moved():
                        self._drop()
                    return work(self._connection or self._open())
                except sqlite3.Error as error:
                    self._rollback()
                    if not _is_busy(error):
                        raise self._explain(error) from error
                    if time.monotonic() + pause > give_up:
                        raise StoreUnavailable(
                            f"{self.path} was locked by another process for {self._io_timeout:g} s; "
                            "it may be paused in the middle of a write"
                        ) from error
                except BaseException:  # Ctrl-C in the middle: an open transaction would lock everybody out
                    self._rollback()
                    raise
                time.sleep(pause * (0.5 + random.random()))
                pause = min(_PAUSE_MOST, pause * 2)

    @contextlib.contextmanager
    def transaction(self, connection: sqlite3.Connection, *, durable: bool = False) -> Iterator[None]:
        """Hold the write lock; `durable` commits survive a power cut at once, not only after a checkpoint."""
        if durable:
            connection.execute("PRAGMA synchronous = FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        finally:
            if durable:
                self._rollback()  # the pragma is refused inside a transaction
                connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Close the file; a later use is refused."""
        with self._mutex:
            self._closed = True
            self._drop()

    def release_for_fork(self) -> None:
        """Close the connection before a fork and keep everybody out until after it.

        SQLite keeps its record of file locks in memory that a child would inherit, while the locks themselves stay
        with the parent: a child could then write without any lock.
        """
        # Bounded: were this thread forking out of our own work, it would wait for itself.
        self._forking = self._mutex.acquire(timeout=2 * self._io_timeout)
        if self._forking:
            self._drop()

    def resume_after_fork(self) -> None:
        """Let the parent go on; the file is opened again on next use."""
        if self._forking:
            self._mutex.release()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path} was closed with its client; connect() again")
        if self._pid != os.getpid():
            raise StoreError(f"{self.path} was opened before a fork that Python did not see; connect() after the fork")
        self._check_place()
        connection = sqlite3.connect(
            self.path, timeout=0.0, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if application != APPLICATION_ID and (application or tables):
                raise StoreError(f"{self.path} is a SQLite file of another program; nothing was changed in it")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(f"{self.path} cannot use a write-ahead log (its journal mode stays {mode!r})")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                self._create(connection)
            self._check_format(connection)
            self._check_host(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        status = os.stat(self.path)
        self._inode = (status.st_dev, status.st_ino)
        self._connection = connection
        return connection

    def _check_place(self) -> None:
        folder = self.path.parent
        try:
            if self._make_parents:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (kind := host.file_system(folder.resolve())) in host.NETWORK:
                raise StoreError(
                    f"{self.path} is on a network file system ({kind}), where SQLite cannot exclude other machines; "
                    "use a local disk for one host, or a store for many: redis://, etcd://, postgresql://"
                )
            # Made before SQLite does, so that it never exists with a wider mode.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be made: {error.strerror}. Check that its directory exists and may be written"
            ) from error

    def _create(self, connection: sqlite3.Connection) -> None:
        script = (files("holdfast") / "scripts" / "sqlite.sql").read_text(encoding="utf-8")
        statement = ""
        for line in script.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                connection.execute(statement)
                statement = ""
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [("boot", host.boot_id()), ("machine", host.machine_id()), ("offset", self._offset()), ("floor", 0)],
        )

    def _check_format(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise StoreError(
                f"{self.path} has format {version}, and this version of holdfast reads format {FORMAT}; "
                "use the version that wrote it, or move the file away"
            )

    def _check_host(self, connection: sqlite3.Connection) -> None:
        """Refuse the file of another machine; after a restart of this one, end what cannot have survived it."""
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        boot, machine = host.boot_id(), host.machine_id()
        if meta["boot"] == boot:  # the same kernel, and so the same clock
            return
        if meta["machine"] != machine:
            raise StoreError(
                f"{self.path} belongs to another machine ({meta['machine'] or 'unknown'}, this is "
                f"{machine or 'unknown'}); locks in it exclude nobody there. If it was copied on purpose, move it "
                "away: a new one is made, and tokens go on rising"
            )
        # Its clock started anew. Processes have died with it, but detached claims run on, by the wall clock.
        now, offset = self._clock.now(), self._offset()
        connection.execute("DELETE FROM claims WHERE seq > 0 AND (flags < 2 OR token = 0)")
        connection.execute("UPDATE claims SET holder = NULL WHERE seq = 0 AND (flags < 2 OR token = 0)")
        connection.execute(
            "UPDATE claims SET expires = ?1 + max(0, min(ttl, expires + ?2 - (?1 + ?3))) WHERE holder IS NOT NULL",
            (now, meta["offset"], offset),
        )
        connection.executemany("UPDATE meta SET value = ? WHERE key = ?", [(boot, "boot"), (offset, "offset")])

    def _offset(self) -> float:
        return self._clock.wall_us() / 1e6 - self._clock.now()

    def _has_moved(self) -> bool:
        """Tell whether the path names another file now: locks in the old one exclude nobody."""
        try:
            status = os.stat(self.path)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._inode

    def _rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _explain(self, error: sqlite3.Error) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or ""
        for known, reason in _REASONS.items():
            if name.startswith(known):
                return StoreError(f"{self.path}: {reason} ({error})")
        return StoreError(f"{self.path}: {error} ({name or type(error).__name__})")


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forking: list[Database] = []


def _before_fork() -> None:
    _forking[:] = list(_databases)
    for database in _forking:
        database.release_for_fork()


def _after_fork_in_parent() -> None:
    for database in _forking:
        database.resume_after_fork()
    _forking.clear()


def _after_fork_in_child() -> None:
    # Clients make new databases in the child; the old ones stay locked, for nobody may use them there.
    for database in _forking:
        _databases.discard(database)
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
