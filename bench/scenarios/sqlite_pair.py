"""Acquire and release a free resource on SQLite, beside what such a lock must write at least, and beside peers."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from bench.harness import Contender, Slice, interleaved, peer, timed, timed_async
from bench.model import Budget, Scenario

# As wide as a claim of ours, so that both sides fill pages and the WAL alike.
TABLE = """
CREATE TABLE claim (
    namespace TEXT, resource TEXT, seq INTEGER, holder TEXT, token INTEGER, weight INTEGER, capacity INTEGER,
    granted INTEGER, fair INTEGER, detached INTEGER, ttl REAL, expires REAL, owner TEXT, process TEXT,
    PRIMARY KEY (namespace, resource, seq)
) WITHOUT ROWID
"""
INSERT = f"INSERT INTO claim VALUES ({', '.join('?' * 14)})"
DELETE = "DELETE FROM claim WHERE namespace = ? AND resource = ? AND seq = ?"
ROW = (
    "default", "bench", 1, "0123456789abcdef0123456789abcdef", 1_760_000_000_000_000, 2**31, 2**31,
    1, 1, 0, 30.0, 123456.789, "host:12345:MainThread", "boot:4026531836:12345:678901",
)  # fmt: skip


@contextmanager
def raw_commits(directory: Path) -> Iterator[Slice]:
    """The floor: one INSERT and one DELETE, each its own commit."""
    connection = sqlite3.connect(directory / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(TABLE)

    def pair() -> None:
        connection.execute(INSERT, ROW)
        connection.execute(DELETE, ROW[:3])

    try:
        yield timed(pair)
    finally:
        connection.close()


@contextmanager
def ours(directory: Path) -> Iterator[Slice]:
    """holdfast, sync."""
    with holdfast.connect(f"sqlite://{directory}/locks.db") as locks:
        lock = locks.lock("bench")
        yield timed(lambda: lock.acquire().release())


@contextmanager
def ours_async(directory: Path) -> Iterator[Slice]:
    """holdfast, asyncio."""
    with asyncio.Runner() as runner:
        locks = holdfast.aio.connect(f"sqlite://{directory}/locks.db")
        lock = locks.lock("bench")

        async def pair() -> None:
            await (await lock.acquire()).release()

        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(locks.close())


@contextmanager
def file_lock(directory: Path) -> Iterator[Slice]:
    """filelock's FileLock: flock on a file, no ttl, no token."""
    lock = peer("filelock").FileLock(directory / "bench.lock")

    def pair() -> None:
        lock.acquire()
        lock.release()

    yield timed(pair)


@contextmanager
def tooz_file(directory: Path) -> Iterator[Slice]:
    """tooz's file driver: fcntl on a file, no ttl, no token."""
    coordinator = peer("tooz.coordination").get_coordinator(f"file://{directory}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(b"bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    try:
        yield timed(pair)
    finally:
        coordinator.stop()


SCENARIO = Scenario(
    name="sqlite_pair",
    title="acquire + release of a free resource",
    settings={
        "holdfast and two raw commits": "journal_mode=WAL, synchronous=NORMAL, one file each on one disk",
        "filelock, tooz/file": "nothing is written but the lock file's inode",
    },
    measure=interleaved(
        [
            Contender("two raw commits", raw_commits),
            Contender("holdfast", ours),
            Contender("holdfast, asyncio", ours_async),
            Contender("filelock", file_lock),
            Contender("tooz/file", tooz_file),
        ]
    ),
    floor="two raw commits",
    budgets=[Budget("holdfast", "times", 1.6, to="two raw commits")],
)
