"""What the tests of the SQLite store share: a clock that is driven, and stores, rows and clients on it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast._clock import Clock, SystemClock
from holdfast._sqlite.claims import Claims

SRC = Path(__file__).resolve().parents[2] / "src"
DAY = 86400.0


class DrivenClock:
    """A clock that moves when a test says so."""

    def __init__(self, now: float = 1000.0, wall_us: int = 1_700_000_000_000_000) -> None:
        self.time = now
        self.wall = wall_us

    def now(self) -> float:
        return self.time

    def wall_ns(self) -> int:
        return self.wall * 1000

    def patience(self, left: float) -> float:
        return min(left, 0.01)

    def advance(self, seconds: float) -> None:
        """Let both clocks go on."""
        self.time += seconds
        self.wall += int(seconds * 1e6)


def open_claims(
    path: Path, clock: Clock | None = None, *, namespace: str = "n", io_timeout: float = 1.0, waiting_life: float = 6.0
) -> Claims:
    """Make the store's blocking half, as a process would."""
    return Claims(path, namespace, clock or SystemClock(), io_timeout, waiting_life, False)


def sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Look into the file, or tamper with it, past the store."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def eventually(condition: Callable[[], bool], seconds: float = 10.0, pause: float = 0.005) -> bool:
    """Wait until something is so; False if it is not within the limit."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    return True


def environment() -> dict[str, str]:
    """Return what a subprocess needs to find holdfast, and nothing that points it elsewhere."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST")}
    env["PYTHONPATH"] = os.pathsep.join([str(SRC), env.get("PYTHONPATH", "")])
    return env
