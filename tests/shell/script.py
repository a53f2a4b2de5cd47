"""Run a program in a process of its own, with the holdfast of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).resolve().parents[1]


def start(code: str, *args: object, **env: str) -> subprocess.Popen[str]:
    """Start the program; it finds `args` in sys.argv[1:]."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, *args: object, limit: float = 20, **env: str) -> tuple[str, str]:
    """Run the program to its end and return what it wrote to stdout and stderr; it must end well."""
    with start(code, *args, **env) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, err
    return out, err
