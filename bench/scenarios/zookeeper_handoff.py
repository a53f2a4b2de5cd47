"""Eight processes contend for one lock on three ZooKeeper nodes: how fast it goes from hand to hand, and how fair."""

import csv
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from threading import Barrier

from bench.contend import Hold, figures, merge, overlaps, token_faults
from bench.harness import NotInstalled, peer
from bench.model import Budget, Plan, Scenario, Series
from bench.zookeeper_locks import LOCKS, MODULES, SETTINGS, STATED, host_of, side_by_side
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble

PROCESSES = 8
HOLD = 0.001  # seconds: without it a holder is done before the others have been told who is ahead of them
KINDS = ("holdfast", "kazoo Lock")
UNITS = {"p50": "ms", "p99": "ms", "longest wait": "ms", "Jain": "index", "holds": "holds", "handed over": "% of holds"}


def work(start: Barrier, kind: str, host: str, name: str, process: int, seconds: float, out: Path) -> None:
    """Take, hold and give back until the time is over; then write the records down."""
    holds: list[Hold] = []
    now = time.monotonic_ns
    with LOCKS[kind](host, name) as take:
        start.wait()
        end = now() + int(seconds * 1e9)
        while now() < end:
            asked = now()
            token, give_back = take()
            got = now()
            time.sleep(HOLD)
            leaving = now()
            give_back()
            holds.append(Hold(process, token, asked, got, leaving))
    with out.open("w", newline="") as file:
        csv.writer(file).writerows(astuple(hold) for hold in holds)


def contend(kind: str, hosts: Sequence[str], name: str, seconds: float, directory: Path) -> list[Hold]:
    """Let the processes contend and return all their holds, in the order they began. They share the servers evenly."""
    calls = [
        (kind, hosts[process % len(hosts)], name, process, seconds, directory / f"{process}.csv")
        for process in range(PROCESSES)
    ]
    side_by_side(work, calls, seconds)
    return merge(directory.glob("*.csv"))


def measure(plan: Plan) -> Sequence[Series]:
    """Let each kind of lock have its turn in every round, each round in another order."""
    seconds, rounds = (2.0, 1) if plan.quick else (8.0, 5)
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
                holds = contend(kind, hosts, f"bench-{round_}", seconds, directory)
                for figure, value in figures(holds, PROCESSES).items():
                    samples[f"{kind} {figure}"].append(value)
                if kind == "holdfast":
                    samples["overlapping holds"].append(overlaps(holds))
                    samples["tokens not rising"].append(token_faults(holds))
    shown = [
        Series(name := f"{kind} {figure}", unit, samples[name], notes.get(kind, ""))
        for kind in KINDS
        for figure, unit in UNITS.items()
    ]
    return [*(Series(name, "holds", samples[name]) for name in ("overlapping holds", "tokens not rising")), *shown]


SCENARIO = Scenario(
    name="zookeeper_handoff",
    title=f"{PROCESSES} processes contend for one lock on three ZooKeeper nodes, 8 s a round (quick: 2 s)",
    settings={
        "hand-off": "release called in one process → acquire returned in another (CLOCK_MONOTONIC)",
        "all": f"{STATED}; a hold takes {HOLD * 1000:g} ms",
        "processes": "connected to the leader, the followers, the leader … in turn, in the same way for all kinds",
        "kazoo Lock": "a new object for every hold",
    },
    measure=measure,
    budgets=[
        Budget("overlapping holds", "never over", 0),
        Budget("tokens not rising", "never over", 0),
        Budget("holdfast p50", "times", 0.7, to="kazoo Lock p50"),
        Budget("holdfast Jain", "at least", 0.98),
    ],
)
