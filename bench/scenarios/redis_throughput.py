"""Sixteen processes lock a thousand resources on one Redis: pairs a second, all together."""

import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import holdfast
from bench.harness import NotInstalled, peer
from bench.model import Budget, Plan, Scenario, Series
from bench.redis_locks import TTL, url_of
from holdfast.testing.servers.redis import RedisServer

PROCESSES, RESOURCES = 16, 1000
KINDS = {"holdfast": "holdfast", "redis-py Lock": "redis", "python-redis-lock": "redis_lock"}


def locks_of(kind: str, port: int) -> Any:
    """Return what makes a lock of a name."""
    if kind == "holdfast":
        client = holdfast.connect(url_of(port), io_timeout=10)
        return lambda name: client.lock(name, ttl=TTL)
    redis = peer("redis").Redis(port=port)
    if kind == "redis-py Lock":
        return lambda name: redis.lock("redis-py " + name, timeout=TTL)
    module = peer("redis_lock")
    return lambda name: module.Lock(redis, "python-redis-lock " + name, expire=TTL)


def work(kind: str, port: int, seed: int, start: Barrier, seconds: float, out: Path) -> None:
    """Lock resources by chance until the time is over; write down how often."""
    make, chance, pairs = locks_of(kind, port), random.Random(seed), 0
    start.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with make(f"r{chance.randrange(RESOURCES)}"):
            pairs += 1
    out.write_text(str(pairs))


def total(kind: str, port: int, seconds: float, directory: Path) -> float:
    """Return the pairs a second of all processes.

    Raises: RuntimeError if one failed.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES)
    files = [directory / f"{number}.txt" for number in range(PROCESSES)]
    workers = [
        context.Process(target=work, args=(kind, port, number, start, seconds, file))
        for number, file in enumerate(files)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 60)
        worker.kill()
    if not all(file.exists() for file in files):
        raise RuntimeError(f"{kind}: a process did not come to its end")
    return sum(int(file.read_text()) for file in files) / seconds


def measure(plan: Plan) -> Sequence[Series]:
    """Let each have its turn in every round."""
    seconds, rounds = (1.5, 1) if plan.quick else (5.0, 3)
    samples: dict[str, list[float]] = defaultdict(list)
    notes: dict[str, str] = {}
    with RedisServer("--appendonly", "no") as server:
        for round_ in range(rounds):
            for kind, module in KINDS.items():
                try:
                    peer(module)
                except NotInstalled as missing:
                    notes[kind] = str(missing)
                    continue
                directory = plan.directory / f"{round_}-{module}"
                directory.mkdir()
                samples[kind].append(total(kind, server.port, seconds, directory))
    return [Series(kind, "pairs/s", samples[kind], notes.get(kind, "")) for kind in KINDS]


SCENARIO = Scenario(
    name="redis_throughput",
    title=f"{PROCESSES} processes, {RESOURCES:,} resources on one Redis",
    settings={"all": "one server on loopback, appendonly no, save ''"},
    measure=measure,
    floor="redis-py Lock",
    budgets=[
        Budget("redis-py Lock", "times", 1, to="holdfast"),
        Budget("python-redis-lock", "times", 1, to="holdfast"),
    ],
)
