"""A client of whatever version is on its path: takes a lock again and again, by the public interface alone.

Arguments: URL, name, folder, label, rounds, ttl, seconds inside. In the folder it writes `started`, a line for each
process, which then waits while somebody has `gate` locked; and `log`, a line for each hold: label and token, or
"overlap" if somebody else was inside. That is noticed by a lock of the kernel, which ends with its process and has
nothing to do with holdfast.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

import holdfast


def main(url: str, name: str, folder: Path, label: str, rounds: int, ttl: float, inside: float) -> None:
    detector = os.open(folder / "inside", os.O_CREAT | os.O_RDWR, 0o600)
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    with holdfast.connect(url, io_timeout=10) as locks:
        start(folder, label)
        for _ in range(rounds):
            with locks.lock(name, ttl=ttl, timeout=60) as lease:
                try:
                    fcntl.flock(detector, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.write(log, f"overlap {label}\n".encode())
                    continue
                os.write(log, f"{label} {lease.token}\n".encode())
                time.sleep(inside)
                fcntl.flock(detector, fcntl.LOCK_UN)


def start(folder: Path, label: str) -> None:
    """Say that this process is there, and wait for the gate."""
    with (folder / "started").open("a") as started:
        started.write(f"{label}\n")
    with (folder / "gate").open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)


if __name__ == "__main__":
    assert Path(holdfast.__file__).is_relative_to(os.environ["PYTHONPATH"]), holdfast.__file__
    url, name, folder, label, rounds, ttl, inside = sys.argv[1:]
    main(url, name, Path(folder), label, int(rounds), float(ttl), float(inside))
