"""Sixteen processes lock names of their own on three ZooKeeper nodes: pairs a second, all together."""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier

from bench.harness import NotInstalled, peer
from bench.model import Budget, Plan, Scenario, Series
from bench.zookeeper_locks import LOCKS, MODULES, SETTINGS, STATED, host_of, side_by_side
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble

PROCESSES = 16
KINDS = ("holdfast", "kazoo Lock")


def work(start: Barrier, kind: str, host: str, name: str, seconds: float, out: Path) -> None:
    """Take and give back until the time is over; write down how often."""
    pairs = 0
    with LOCKS[kind](host, name) as take:
        take()[1]()  # the session and the nodes above the lock are made by the first pair
        start.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            take()[1]()
            pairs += 1
    out.write_text(str(pairs))


def total(kind: str, hosts: Sequence[str], seconds: float, directory: Path) -> float:
    """Return the pairs a second of all processes, which share the servers evenly."""
    files = [directory / f"{number}.txt" for number in range(PROCESSES)]
    calls = [(kind, hosts[number % len(hosts)], f"bench-{number}", seconds, file) for number, file in enumerate(files)]
    side_by_side(work, calls, seconds)
    return sum(int(file.read_text()) for file in files) / seconds


def measure(plan: Plan) -> Sequence[Series]:
    """Let each have its turn in every round, each round in another order."""
    seconds, rounds = (2.0, 1) if plan.quick else (6.0, 3)
    samples: dict[str, list[float]] = defaultdict(list)
    notes: dict[str, str] = {}
    order, kinds = random.Random(0), list(KINDS)
    with ZooKeeperEnsemble(**SETTINGS) as servers:
        hosts = [host_of(server) for server in servers.in_order()]
        for round_ in range(rounds):
            order.shuffle(kinds)
            for kind in kinds:
                try:
                    peer(MODULES[kind])
                except NotInstalled as missing:
                    notes[kind] = str(missing)
                    continue
                directory = plan.directory / f"{round_}-{MODULES[kind]}"
                directory.mkdir()
                samples[kind].append(total(kind, hosts, seconds, directory))
    return [Series(kind, "pairs/s", samples[kind], notes.get(kind, "")) for kind in KINDS]


SCENARIO = Scenario(
    name="zookeeper_throughput",
    title=f"{PROCESSES} processes, a name for each, on three ZooKeeper nodes",
    settings={
        "all": STATED,
        "processes": "connected to the leader, the followers, the leader … in turn, in the same way for all kinds",
        "kazoo Lock": "a new object for every pair",
    },
    measure=measure,
    floor="kazoo Lock",
    budgets=[Budget("kazoo Lock", "times", 1, to="holdfast")],
)
