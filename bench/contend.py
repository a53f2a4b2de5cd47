"""Processes that contend for one lock and record every hold; and what their records prove."""

import csv
import importlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from threading import Barrier

from bench.harness import peer
from bench.stats import jain, quantile

_PATIENCE = 30.0  # seconds after its time in which a process must have ended


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold, on the machine's CLOCK_MONOTONIC (ns), which all processes share."""

    process: int
    token: int
    asked: int  # acquire was called
    got: int  # acquire returned
    leaving: int  # release was called


# Take the lock and return its token (0: the lock has none) and what gives it back.
Take = Callable[[], tuple[int, Callable[[], object]]]


@contextmanager
def ours(directory: Path) -> Iterator[Take]:
    """holdfast on SQLite, or on the server whose URL stands in the directory."""
    import holdfast

    server = directory / "url"
    url = server.read_text() if server.exists() else f"sqlite://{directory}/locks.db"
    with holdfast.connect(url, io_timeout=10) as locks:
        lock = locks.lock("bench")

        def take() -> tuple[int, Callable[[], object]]:
            lease = lock.acquire()
            return lease.token, lease.release

        yield take


@contextmanager
def file_lock(directory: Path) -> Iterator[Take]:
    """filelock, with its own polling interval."""
    lock = peer("filelock").FileLock(directory / "bench.lock")

    def take() -> tuple[int, Callable[[], object]]:
        lock.acquire()
        return 0, lock.release

    yield take


@contextmanager
def tooz_file(directory: Path) -> Iterator[Take]:
    """tooz's file driver."""
    coordinator = peer("tooz.coordination").get_coordinator(f"file://{directory}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(b"bench")

    def take() -> tuple[int, Callable[[], object]]:
        lock.acquire()
        return 0, lock.release

    try:
        yield take
    finally:
        coordinator.stop()


LOCKS: Mapping[str, Callable[[Path], AbstractContextManager[Take]]] = {
    "holdfast": ours,
    "filelock": file_lock,
    "tooz/file": tooz_file,
}


def locker(kind: str) -> Callable[[Path], AbstractContextManager[Take]]:
    """Return a lock of LOCKS, or one of another module: `module:name`."""
    module, colon, name = kind.partition(":")
    found: Callable[[Path], AbstractContextManager[Take]] = (
        getattr(importlib.import_module(module), name) if colon else LOCKS[kind]
    )
    return found


def work(kind: str, directory: Path, process: int, start: Barrier, seconds: float, away: float = 0.0) -> None:
    """Take and give back until the time is over, and stay `away` after each; then write the records down."""
    holds: list[Hold] = []
    now = time.monotonic_ns
    with locker(kind)(directory) as take:
        start.wait()
        end = now() + int(seconds * 1e9)
        while now() < end:
            asked = now()
            token, give_back = take()
            got = now()
            leaving = now()
            give_back()
            holds.append(Hold(process, token, asked, got, leaving))
            if away:
                time.sleep(away)
    with (directory / f"{process}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(astuple(hold) for hold in holds)


def contend(kind: str, directory: Path, processes: int, seconds: float, away: float = 0.0) -> list[Hold]:
    """Let processes contend and return all their holds, in the order they began.

    Raises:
        RuntimeError: if a process failed or did not end in time.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    workers = [
        context.Process(target=work, args=(kind, directory, number, start, seconds, away))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    give_up = time.monotonic() + seconds + _PATIENCE
    for worker in workers:
        worker.join(max(0, give_up - time.monotonic()))
    codes = [worker.exitcode for worker in workers]
    for worker in workers:
        worker.kill()
        worker.join()
    if set(codes) != {0}:
        raise RuntimeError(
            f"{kind}: the processes' exit codes: {codes} (None: not ended {_PATIENCE:g} s after its time)"
        )
    return merge(directory.glob("*.csv"))


def merge(files: Iterator[Path]) -> list[Hold]:
    """Read the processes' records into one history."""
    holds = [Hold(*map(int, row)) for file in files for row in csv.reader(file.read_text().splitlines())]
    return sorted(holds, key=lambda hold: hold.got)


def overlaps(holds: Sequence[Hold]) -> int:
    """Count holds that began before all earlier ones had been left."""
    count, busy_until = 0, 0
    for hold in holds:
        count += hold.got < busy_until
        busy_until = max(busy_until, hold.leaving)
    return count


def token_faults(holds: Sequence[Hold]) -> int:
    """Count holds whose token does not exceed the one before."""
    return sum(after.token <= before.token for before, after in pairwise(holds))


def handoffs(holds: Sequence[Hold]) -> list[float]:
    """Give the ms from a release being called to the acquire of *another* process returning."""
    pairs = pairwise(holds)
    return [(after.got - before.leaving) / 1e6 for before, after in pairs if after.process != before.process]


def fairness(holds: Sequence[Hold], processes: int) -> float:
    """Give Jain's index over the processes' holds."""
    counts = Counter(hold.process for hold in holds)
    return jain([counts[process] for process in range(processes)])


def figures(holds: Sequence[Hold], processes: int) -> dict[str, float]:
    """Give what every contender is measured by."""
    times = handoffs(holds)
    return {
        "p50": quantile(times, 0.5) if times else float("inf"),
        "p99": quantile(times, 0.99) if times else float("inf"),
        "longest wait": max((hold.got - hold.asked for hold in holds), default=0) / 1e6,
        "Jain": fairness(holds, processes),
        "holds": float(len(holds)),
        "handed over": 100 * len(times) / max(1, len(holds) - 1),
    }
