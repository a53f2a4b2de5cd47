"""A job that cron starts on every machine at the same time runs on one of them.

That is efficiency: a double run would cost time, not data. `try_acquire` does not wait, and `min_hold` keeps the name
taken for a while, so that a machine whose clock is late does not run the job again. Here three processes stand for
three machines; `$HOLDFAST_URL` would name the store that they share.

Run: python examples/nightly_job.py

Prints:
    machine-...: writes the report
    the others found it taken, the late one too
    runs: 1
"""

from __future__ import annotations

import tempfile
from multiprocessing import get_context

import holdfast


def job(url: str, machine: str) -> bool:
    """Write the report, unless another machine does or has just done."""
    locks = holdfast.connect(url, owner=machine)
    lease = locks.lock("nightly-report", ttl=60, min_hold=45).try_acquire()
    if lease is None:
        return False
    with lease:
        print(f"{machine}: writes the report", flush=True)
    return True


def main(folder: str) -> None:
    """Start the job on three machines, and on a fourth whose clock is late."""
    url = f"sqlite:{folder}/locks.db"
    with get_context("spawn").Pool(3) as machines:
        runs = machines.starmap(job, [(url, f"machine-{number}") for number in (1, 2, 3)])
    late = job(url, "machine-4")
    if sum(runs) == 1 and not late:
        print("the others found it taken, the late one too")
    print("runs:", sum([*runs, late]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
