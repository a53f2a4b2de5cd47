"""Eight processes contend for one lock: nobody overlaps, tokens rise, everybody gets a share, and quickly."""

import random
from collections import defaultdict
from collections.abc import Sequence

from bench.contend import LOCKS, contend, figures, overlaps, token_faults
from bench.harness import NotInstalled, peer
from bench.model import Budget, Plan, Scenario, Series

PROCESSES = 8
MODULES = {"holdfast": "holdfast", "filelock": "filelock", "tooz/file": "tooz"}
UNITS = {
    "p50": "ms",
    "p99": "ms",
    "longest wait": "ms",
    "Jain": "index",
    "holds": "holds",
    "handed over": "% of holds",
}


def measure(plan: Plan) -> Sequence[Series]:
    """Let each kind of lock have its turn in every round, each round in another order."""
    seconds, rounds = (2.0, 1) if plan.quick else (10.0, 3)
    samples: dict[str, list[float]] = defaultdict(list)
    notes: dict[str, str] = {}
    order, kinds = random.Random(0), list(LOCKS)
    for round_ in range(rounds):
        order.shuffle(kinds)
        for kind in kinds:
            try:
                peer(MODULES[kind])
            except NotInstalled as missing:
                notes[kind] = str(missing)
                continue
            directory = plan.directory / f"{round_}-{kind.replace('/', '-')}"
            directory.mkdir()
            holds = contend(kind, directory, PROCESSES, seconds)
            for figure, value in figures(holds, PROCESSES).items():
                samples[f"{kind} {figure}"].append(value)
            if kind == "holdfast":
                samples["overlapping holds"].append(overlaps(holds))
                samples["tokens not rising"].append(token_faults(holds))
    shown = [
        Series(f"{kind} {figure}", unit, samples[f"{kind} {figure}"], notes.get(kind, ""))
        for kind in LOCKS
        for figure, unit in UNITS.items()
    ]
    faults = [Series(name, "holds", samples[name]) for name in ("overlapping holds", "tokens not rising")]
    return [*faults, *shown]


SCENARIO = Scenario(
    name="handoff",
    title=f"{PROCESSES} processes contend for one lock, 10 s a round (quick: 2 s)",
    settings={
        "hand-off": "release called in one process → acquire returned in another (CLOCK_MONOTONIC)",
        "filelock, tooz/file": "their own polling; a process that takes its own lock again hands nothing over",
    },
    measure=measure,
    budgets=[
        Budget("overlapping holds", "never over", 0),
        Budget("tokens not rising", "never over", 0),
        Budget("holdfast p50", "at most", 2),
        Budget("holdfast p99", "at most", 20),
        Budget("holdfast Jain", "at least", 0.98),
    ],
)
