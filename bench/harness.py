"""Time several contenders in one run, interleaved in rounds."""

import asyncio
import gc
import importlib
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType

from bench.model import Outcome, Plan, Scenario, Series, judge

# Do the work n times and return the seconds it took.
Slice = Callable[[int], float]


class NotInstalled(Exception):
    """A peer is not there; the run goes on without it."""


def peer(module: str) -> ModuleType:
    """Import a peer's module.

    Raises:
        NotInstalled: if it is not installed here.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"not installed: {module.partition('.')[0]}") from error


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, and a context manager that sets up in a directory, gives the slice to time, and tears down."""

    name: str
    open: Callable[[Path], AbstractContextManager[Slice]]


def timed(pair: Callable[[], object]) -> Slice:
    """Make a slice of a plain call."""

    def run(times: int) -> float:
        start = perf_counter()
        for _ in range(times):
            pair()
        return perf_counter() - start

    return run


def timed_async(runner: asyncio.Runner, pair: Callable[[], Awaitable[object]]) -> Slice:
    """Make a slice of a coroutine function; the loop is entered once a slice, not once a pair."""

    async def run(times: int) -> float:
        start = perf_counter()
        for _ in range(times):
            await pair()
        return perf_counter() - start

    return lambda times: runner.run(run(times))


def interleaved(
    contenders: Sequence[Contender],
    *,
    unit: str = "µs",
    scale: float = 1e6,
    rounds: int = 31,
    quick_rounds: int = 5,
    slice_seconds: float = 0.15,
    quick_slice_seconds: float = 0.02,
) -> Callable[[Plan], Sequence[Series]]:
    """Make a `Scenario.measure` that gives each contender a slice in every round, each round in another order."""

    def measure(plan: Plan) -> Sequence[Series]:
        seconds = quick_slice_seconds if plan.quick else slice_seconds
        samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        notes: dict[str, str] = {}
        with ExitStack() as stack:
            ready: list[tuple[str, Slice, int]] = []
            for number, contender in enumerate(contenders):
                directory = plan.directory / str(number)
                directory.mkdir()
                try:
                    run = stack.enter_context(contender.open(directory))
                except NotInstalled as missing:
                    notes[contender.name] = str(missing)
                    continue
                ready.append((contender.name, run, calibrate(run, seconds)))
            order = random.Random(0)
            for _ in range(quick_rounds if plan.quick else rounds):
                order.shuffle(ready)
                for name, run, times in ready:
                    samples[name].append(without_gc(run, times) / times * scale)
        return [Series(name, unit, values, notes.get(name, "")) for name, values in samples.items()]

    return measure


def calibrate(run: Slice, seconds: float) -> int:
    """Warm up, and find how many times fill a slice."""
    run(1)  # opens files and connections: timed, it would leave a slice of two or three pairs, all of them cold
    times = 1
    while (took := min(run(times), run(times))) < seconds / 4:
        times *= 2
    return max(1, round(times * seconds / took))


def without_gc(run: Slice, times: int) -> float:
    """Run a slice from a collected heap with the collector off, so that nobody pays for another's garbage."""
    gc.collect()
    gc.disable()
    try:
        return run(times)
    finally:
        gc.enable()


def run_scenario(scenario: Scenario, plan: Plan) -> Outcome:
    """Measure and judge; an error becomes part of the outcome, so that the other scenarios still run."""
    try:
        series = scenario.measure(plan)
    except Exception:  # whatever a contender raises: it is reported and fails the run
        return Outcome(scenario, (), (), traceback.format_exc())
    by_name = {one.name: one for one in series}
    return Outcome(scenario, series, [judge(budget, by_name) for budget in scenario.budgets])
