"""Ctrl-C and signal handlers, at every step of taking, leaving and closing. The program is `interrupts.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shell.interrupts import WAYS
from tests.shell.script import SOURCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SECONDS = 1.5


def strike(way: str, url: str) -> tuple[dict[str, object], str]:
    """Run the program; return what it found, and what it wrote beside that."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.shell.interrupts", way, url, str(SECONDS), "7"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


ON_MEMORY = [("memory://", way) for way in (*WAYS, "first", "closing")]
ON_SQLITE = [("sqlite://{}/locks.db", way) for way in ("lock", "first", "closing")]


@pytest.mark.parametrize(("url", "way"), [*ON_MEMORY, *ON_SQLITE])
def test_whatever_a_signal_strikes_nothing_stays_taken_and_nothing_hangs(url: str, way: str, tmp_path: Path) -> None:
    found, noise = strike(way, url.format(tmp_path))
    assert found.pop("strikes", 0), noise
    assert found == {"stuck": 0, "closed": True, "left": []}, noise
