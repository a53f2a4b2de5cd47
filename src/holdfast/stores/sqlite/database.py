"""The file: opening, checking and locking it, and turning SQLite's errors into ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import threading
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from ..._clock import Clock
from ..._fork import Turn, at_fork
from ..._living import Living
from ...errors import StoreError, StoreUnavailable
from ..format import other_format
from . import host
from .rows import COLUMNS, read_entry

T = TypeVar("T")

APPLICATION_ID = 0x686F6C64  # "hold"
FORMAT = 1  # see schema.sql: the names of the tables go with it

# A file that is deleted or replaced under its users lets two hold one lock until they notice. They check it at every
# renewal; acquires do if nobody has for this long.
_CHECK_EVERY = 0.01

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
        self._inside = 0  # the thread that has it; none before it leaves, for whoever comes next notes itself late
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None  # making one for each statement costs a tenth of it
        self._inode = (0, 0)
        self._next_check = 0.0
        self._pid = os.getpid()
        self._closed = False
        self._forking = False
        _databases.add(self)

    def run(self, work: Callable[[sqlite3.Connection], T], limit: float | None = None) -> T:
        """Let `work` use the connection. It may run again: SQLite refuses at once while another process writes.

        Raises: StoreUnavailable after io_timeout, or the limit; StoreError when asking again is pointless.
        """
        seconds = self._io_timeout if limit is None else min(limit, self._io_timeout)
        give_up = time.monotonic() + seconds
        pause = _PAUSE_LEAST
        if self._inside:
            self._check_free()
        while True:
            try:
                with self._mutex:  # not while it pauses: other threads have an io_timeout of their own
                    try:
                        self._inside = get_ident()
                        if self._connection is not None and self._has_moved():
                            self._drop()
                        result = work(self._connection or self._open())
                        self._inside = 0
                        return result
                    except BaseException:  # Ctrl-C in the middle, too: an open transaction would lock everybody out
                        self._rollback()
                        self._inside = 0
                        raise
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise self._explain(error) from error
                if time.monotonic() + pause > give_up:
                    raise StoreUnavailable(
                        f"{self.path} was kept locked by another process for {seconds:.3g} s; "
                        "it may be paused in the middle of a write"
                    ) from error
            time.sleep(pause * (0.5 + random.random()))
            pause = min(_PAUSE_MOST, pause * 2)

    def change(self, statement: str, row: tuple[Any, ...], now: float) -> int:
        """Run one changing statement, a transaction in itself, and return how many rows it changed.

        This is the way of every acquire and release of a free resource, so it does as little as it can.
        """
        if self._inside:
            self._check_free()
        try:
            with self._mutex:
                self._inside = get_ident()
                if now < self._next_check and self._cursor is not None:
                    changed = self._cursor.execute(statement, row).rowcount
                    self._inside = 0
                    return changed
        except sqlite3.Error:
            pass  # nothing was changed; below it is tried again, or explained
        self._inside = 0
        return self.run(partial(_execute, statement, row))

    def _check_free(self) -> None:
        """Refuse a signal handler that has interrupted its own thread in here: it would wait for itself for ever.

        Raises: StoreUnavailable.
        """
        if self._inside == get_ident() and self._mutex.locked():
            raise StoreUnavailable(f"{self.path} was used in a signal handler that has interrupted its use")

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
        self._check_folder()
        with self._alone():
            inode = self._make_file()
            connection = sqlite3.connect(
                self.path, timeout=0.0, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._cursor, self._inode = connection, connection.cursor(), inode
        if self._has_moved():  # while it was being opened
            self._drop()
            raise _Busy(f"{self.path} was replaced while it was opened")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check that the file is one of ours, or make it one."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != APPLICATION_ID and (application or tables):
            raise StoreError(f"{self.path} is a SQLite file of another program; nothing was changed in it")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self.path} cannot use a write-ahead log (its journal mode stays {mode!r})")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if not tables:
            self._create(connection)
        self._check_format(connection)
        self._check_host(connection)
        connection.execute("COMMIT")

    def _check_folder(self) -> None:
        folder = self.path.parent
        try:
            if self._make_parents:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            kind = host.file_system(folder.resolve())
        except OSError as error:
            raise self._cannot_make(error) from error
        if kind in host.NETWORK:
            raise StoreError(
                f"{self.path} is on a network file system ({kind}), where SQLite cannot exclude other machines; "
                "use a local disk for one host, and a store with a server for many"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other openers of this file out: between them, one would see it half made."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot_make(error) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise _Busy(f"{self.path} is being opened by another process") from None
        finally:
            os.close(folder)

    def _make_file(self) -> tuple[int, int]:
        """Make the file if there is none, and return its identity."""
        try:
            if not self.path.exists():
                # What a deleted file left behind belongs to it alone, and would be taken for ours.
                for name in ("-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{self.path}{name}")
                # Made before SQLite does, so that it never exists with a wider mode.
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            status = os.stat(self.path)
        except OSError as error:
            raise self._cannot_make(error) from error
        return status.st_dev, status.st_ino

    def _cannot_make(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} cannot be made: {error.strerror}. Check that its directory exists and may be written"
        )

    def _create(self, connection: sqlite3.Connection) -> None:
        script = (files("holdfast") / "stores" / "sqlite" / "scripts" / "schema.sql").read_text(encoding="utf-8")
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
            raise other_format(self.path, version, FORMAT)

    def _read_format(self) -> int | None:
        try:
            with self._mutex:
                if self._connection is None:
                    return None
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error:
            return None
        assert isinstance(version, int)
        return version

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
        rows = connection.execute(
            f"SELECT {COLUMNS}, namespace, resource FROM claims WHERE holder IS NOT NULL"
        ).fetchall()
        for row in rows:
            entry, key = read_entry(row[8], row), (row[7], row[8], row[0])
            if entry.outlives:
                left = entry.expires + meta["offset"] - (now + offset)
                expires = now + max(0.0, min(entry.claim.ttl, left))  # a wall clock that was set back adds nothing
            else:
                expires = now
            connection.execute(
                "UPDATE claims SET expires = ? WHERE namespace = ? AND resource = ? AND seq = ?", (expires, *key)
            )
        connection.executemany("UPDATE meta SET value = ? WHERE key = ?", [(boot, "boot"), (offset, "offset")])

    def _offset(self) -> float:
        return self._clock.wall_ns() / 1e9 - self._clock.now()

    def _has_moved(self) -> bool:
        """Return whether the path names another file now: locks in the old one exclude nobody."""
        self._next_check = self._clock.now() + _CHECK_EVERY
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
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is None:
            return
        if self._has_moved():
            # The last one to close a file deletes its log, by name: here that is the log of the file that
            # replaced it. So this connection is never closed, not even when the interpreter ends.
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        else:
            connection.close()

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._drop()

    def _explain(self, error: sqlite3.Error) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name == "SQLITE_ERROR" and (version := self._read_format()) not in (None, FORMAT):
            return other_format(self.path, version, FORMAT)  # its tables have other names: the statement found none
        for known, reason in _REASONS.items():
            if name.startswith(known):
                return StoreError(f"{self.path}: {reason} ({error})")
        return StoreError(f"{self.path}: {error} ({name or type(error).__name__})")


def _execute(statement: str, row: tuple[Any, ...], connection: sqlite3.Connection) -> int:
    return connection.execute(statement, row).rowcount


class _Busy(sqlite3.OperationalError):
    """Somebody else uses the file; trying again will do."""

    sqlite_errorname = "SQLITE_BUSY"


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_databases: Living[Database] = Living()
_forking: list[Database] = []
_one_fork = threading.Lock()


def _before_fork() -> None:
    _one_fork.acquire()  # threads that fork at once go one after the other
    _forking[:] = list(_databases)
    for database in _forking:
        database.release_for_fork()


def _after_fork_in_parent() -> None:
    for database in _forking:
        database.resume_after_fork()
    _forking.clear()
    _one_fork.release()


def _after_fork_in_child() -> None:
    # Clients make new databases in the child; the old ones stay locked, for nobody may use them there.
    for database in _forking:
        _databases.discard(database)
    _forking.clear()
    _one_fork.release()


at_fork(Turn.CONNECTIONS, before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)
