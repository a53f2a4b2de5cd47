"""Processes contend in etcd: how fast a lock goes from hand to hand, and how much sixteen clients get done."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import holdfast
from bench.contend import contend, figures, overlaps, token_faults
from bench.model import Budget, Plan, Scenario, Series
from holdfast.testing.servers.etcd import EtcdServer

PROCESSES = 8
CLIENTS = 16


def throughput(url: str, seconds: float) -> float:
    """Return how many pairs a second clients get, each with a resource of its own."""
    counts = [0] * CLIENTS
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        with holdfast.connect(url, io_timeout=10) as locks:
            lock = locks.lock(f"bench-{number}")
            while time.monotonic() < end:
                lock.acquire().release()
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def measure(plan: Plan) -> Sequence[Series]:
    """Let processes contend for one lock, then clients work side by side."""
    seconds, rounds = (2.0, 1) if plan.quick else (8.0, 3)
    samples: dict[str, list[float]] = defaultdict(list)
    with EtcdServer() as server:
        for round_ in range(rounds):
            directory = plan.directory / str(round_)
            directory.mkdir()
            (directory / "url").write_text(server.url)
            holds = contend("holdfast", directory, PROCESSES, seconds)
            for figure, value in figures(holds, PROCESSES).items():
                samples[figure].append(value)
            samples["overlapping holds"].append(overlaps(holds))
            samples["tokens not rising"].append(token_faults(holds))
            samples["throughput"].append(throughput(server.url, seconds))
    units = {"p50": "ms", "p99": "ms", "Jain": "index", "holds": "holds", "throughput": "pairs/s"}
    faults = [Series(name, "holds", samples[name]) for name in ("overlapping holds", "tokens not rising")]
    return [*faults, *(Series(name, unit, samples[name]) for name, unit in units.items())]


SCENARIO = Scenario(
    name="etcd_contend",
    title=f"etcd: {PROCESSES} processes and one lock; {CLIENTS} clients side by side",
    settings={
        "hand-off": "release called in one process → acquire returned in another (CLOCK_MONOTONIC)",
        "throughput": f"{CLIENTS} clients in threads of one process, each with a resource of its own",
    },
    measure=measure,
    budgets=[
        Budget("overlapping holds", "never over", 0),
        Budget("tokens not rising", "never over", 0),
        Budget("Jain", "at least", 0.98),
    ],
)
