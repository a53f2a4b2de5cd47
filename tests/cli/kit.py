"""Run the command in a process of its own, with the holdfast of this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).resolve().parents[1]

# What makes rich colour its output or think of another width than the test does.
_DECORATION = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES", "GITHUB_ACTIONS")


def start(*words: str, temporary: Path, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `holdfast` with these words, as the leader of a process group, its temporary files in a folder."""
    inherited = {name: value for name, value in os.environ.items() if name not in _DECORATION}
    return subprocess.Popen(
        [sys.executable, *flags, "-m", "holdfast", *words],
        env={**inherited, "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "error", "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words: str, temporary: Path, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run `holdfast` to its end; return its status and what it wrote to stdout and stderr."""
    process = start(*words, temporary=temporary, flags=flags)
    try:
        out, err = process.communicate(timeout=60)
    except BaseException:
        process.terminate()  # it ends its workers
        process.wait(10)
        raise
    return process.returncode, out, err


def read_table(out: str) -> dict[str, str]:
    """Return the rows of a table as it is printed."""
    return dict(re.findall(r"^│ (.+?) +│ (.+?) +│$", out, re.MULTILINE))


def is_group_alive(group: int) -> bool:
    """Return whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
