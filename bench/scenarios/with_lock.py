"""`with lock` and `async with lock`, beside the same in an earlier version: both at once, in processes of their own."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bench.with_lock
from bench.harness import Contender, Slice, interleaved
from bench.model import Budget, Plan, Scenario, Series
from bench.redis_locks import url_of
from holdfast.testing.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]
EARLIER = ROOT / "tests" / "compat" / "holdfast-d6d5651.zip"
STORES = ("memory", "sqlite", "redis")
FLAVOURS = ("with", "async with")


def worker(url: str, source: Path, flavour: str) -> Iterator[Slice]:
    """Run a process of one version; each slice is timed there."""
    command = [sys.executable, bench.with_lock.__file__, url, "asyncio" if flavour == "async with" else "blocking"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answer = process.stdin, process.stdout

        def run(times: int) -> float:
            print(times, file=ask, flush=True)
            return float(answer.readline())

        try:
            yield run
        finally:
            ask.close()


def contender(store: str, flavour: str, version: str, source: Path, redis: str) -> Contender:
    """Make a contender of one store, flavour and version."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Slice]:
        urls = {"memory": "memory://", "sqlite": f"sqlite://{directory}/locks.db", "redis": redis}
        yield from worker(urls[store], source, flavour)

    return Contender(f"{flavour} lock, {store}{version}", opened)


def measure(plan: Plan) -> Sequence[Series]:
    """Time all of them, each pair of versions by itself: more processes would only disturb each other."""
    earlier = plan.directory / "earlier"
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(earlier)
    sources = {"": ROOT / "src", ", earlier": earlier / "src"}
    series: list[Series] = []
    with RedisServer("--appendonly", "no") as server:
        for store in STORES:
            for flavour in FLAVOURS:
                directory = plan.directory / f"{store} {flavour}"
                directory.mkdir()
                pair = [
                    contender(store, flavour, version, source, url_of(server.port))
                    for version, source in sources.items()
                ]
                series += interleaved(pair, rounds=61, slice_seconds=0.05)(Plan(directory, plan.quick))
    return series


NAMES = [f"{flavour} lock, {store}" for store in STORES for flavour in FLAVOURS]

SCENARIO = Scenario(
    name="with_lock",
    title="entering and leaving a free lock, in this version and an earlier one",
    settings={"earlier": "the last commit before the keeper was made of threads", "redis": "appendonly no, save ''"},
    measure=measure,
    budgets=[Budget(name, "times", 1.1, to=f"{name}, earlier") for name in NAMES],
)
