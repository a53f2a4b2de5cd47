"""What the tests of the SQLite store share: a clock that is driven, and stores, rows and clients on it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from holdfast._clock import Clock, SystemClock
from holdfast.stores.sqlite.claims import Claims
from holdfast.testing.clock import ManualClock

SRC = Path(__file__).resolve().parents[3] / "src"
DAY = 86400.0


def driven_clock(now: float = 1000.0, wall_us: int = 1_700_000_000_000_000) -> ManualClock:
    """Return a clock that stands still at the same time in every run: a failing example fails again."""
    return ManualClock(now, wall_us * 1000)


def restarted(clock: ManualClock, *, off: float, now: float) -> ManualClock:
    """Return the clock of the same machine that was off for so long by its wall clock: the steady one began again."""
    return ManualClock(now, clock.wall_ns() + round(off * 1e9))


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


def environment() -> dict[str, str]:
    """Return what a subprocess needs to find holdfast, and nothing that points it elsewhere."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST")}
    env["PYTHONPATH"] = os.pathsep.join([str(SRC), env.get("PYTHONPATH", "")])
    return env
