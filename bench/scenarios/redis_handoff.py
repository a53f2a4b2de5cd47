"""Processes contend for one lock on Redis, all the time or leaving after each hold: how fast and how fair it is."""

import random
from collections import defaultdict
from collections.abc import Sequence

from bench.contend import contend, figures, overlaps, token_faults
from bench.harness import NotInstalled, peer
from bench.model import Budget, Plan, Scenario, Series
from holdfast.testing.servers.redis import RedisServer

KINDS = {
    "holdfast": ("holdfast", "bench.redis_locks:ours"),
    "python-redis-lock": ("redis_lock", "bench.redis_locks:python_redis_lock"),
    "redis-py Lock": ("redis", "bench.redis_locks:redis_py"),
    "tooz/redis": ("tooz", "bench.redis_locks:tooz_redis"),
}
UNITS = {"p50": "ms", "p99": "ms", "longest wait": "ms", "Jain": "index", "holds": "holds", "handed over": "% of holds"}
# Processes, and for how long a holder stays away after its release.
CROWDS = {"2 processes": (2, 0.0), "2 that leave": (2, 0.003), "8 processes": (8, 0.0)}


def measure(plan: Plan) -> Sequence[Series]:
    """Let each kind of lock have its turn in every round, each round in another order."""
    seconds, rounds = (1.5, 1) if plan.quick else (6.0, 3)
    samples: dict[str, list[float]] = defaultdict(list)
    notes: dict[str, str] = {}
    turns = [(crowd, kind) for crowd in CROWDS for kind in KINDS]
    order = random.Random(0)
    with RedisServer("--appendonly", "no") as server:
        for round_ in range(rounds):
            order.shuffle(turns)
            for number, (crowd, kind) in enumerate(turns):
                module, locker = KINDS[kind]
                try:
                    peer(module)
                except NotInstalled as missing:
                    notes[kind] = str(missing)
                    continue
                directory = plan.directory / f"{round_}-{number}"
                directory.mkdir()
                (directory / "port").write_text(str(server.port))
                server.call("FLUSHALL")
                processes, away = CROWDS[crowd]
                holds = contend(locker, directory, processes, seconds, away=away)
                for figure, value in figures(holds, processes).items():
                    samples[f"{kind} {figure}, {crowd}"].append(value)
                if kind == "holdfast":
                    samples["overlapping holds"].append(overlaps(holds))
                    samples["tokens not rising"].append(token_faults(holds))
    shown = [
        Series(name := f"{kind} {figure}, {crowd}", unit, samples[name], notes.get(kind, ""))
        for crowd in CROWDS
        for kind in KINDS
        for figure, unit in UNITS.items()
    ]
    return [*(Series(name, "holds", samples[name]) for name in ("overlapping holds", "tokens not rising")), *shown]


SCENARIO = Scenario(
    name="redis_handoff",
    title="2 and 8 processes contend for one lock on Redis, 6 s a round (quick: 1.5 s)",
    settings={
        "hand-off": "release called in one process → acquire returned in another (CLOCK_MONOTONIC)",
        "2 that leave": "whoever has released stays away for 3 ms: the other one waits already",
        "all": "one server on loopback, appendonly no, save ''",
    },
    measure=measure,
    budgets=[
        Budget("overlapping holds", "never over", 0),
        Budget("tokens not rising", "never over", 0),
        Budget("holdfast p50, 2 processes", "times", 1, to="python-redis-lock p50, 2 processes"),
        Budget("holdfast p50, 2 that leave", "times", 1, to="python-redis-lock p50, 2 that leave"),
        Budget("holdfast p99, 2 processes", "times", 5, to="holdfast p50, 2 processes"),
        Budget("holdfast Jain, 8 processes", "at least", 0.98),
    ],
)
