"""What a scenario declares, and how a budget judges what it measured."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.stats import median_excess, median_ratio


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity, with one sample a round. No samples: `note` says why."""

    name: str
    unit: str
    samples: Sequence[float] = ()
    note: str = ""


Rule = Literal["times", "over", "at most", "at least", "never over"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit for one series, alone or against another series (`to`) of the same run."""

    series: str
    rule: Rule
    limit: float
    to: str = ""

    def __str__(self) -> str:
        return {
            "times": f"≤ {self.limit:g} × {self.to}",
            "over": f"≤ {self.to} + {self.limit:g}",
            "at most": f"≤ {self.limit:g}",
            "at least": f"≥ {self.limit:g}",
            "never over": f"≤ {self.limit:g} in every round",
        }[self.rule]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a budget found. `value` is None when there was nothing to judge: that is a miss, too."""

    budget: Budget
    value: float | None
    ok: bool

    def __str__(self) -> str:
        return "ok" if self.ok else "MISSED" if self.value is not None else "MISSED (not measured)"


Samples = Sequence[float]
JUDGED_VALUE: Mapping[Rule, Callable[[Samples, Samples], float]] = {
    "times": median_ratio,
    "over": median_excess,
    "at most": lambda samples, _: statistics.median(samples),
    "at least": lambda samples, _: statistics.median(samples),
    "never over": lambda samples, _: max(samples),
}


def judge(budget: Budget, measured: Mapping[str, Series]) -> Verdict:
    """Hold one budget against the series of its scenario."""
    samples = measured[budget.series].samples
    base = measured[budget.to].samples if budget.to else ()
    if not samples or (budget.to and not base):
        return Verdict(budget, None, False)
    value = JUDGED_VALUE[budget.rule](samples, base)
    return Verdict(budget, value, value >= budget.limit if budget.rule == "at least" else value <= budget.limit)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure, and where the files go (one disk for all contenders)."""

    directory: Path
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question with its budgets. `measure` answers it; `floor` is the series that ratios are shown against."""

    name: str
    title: str
    measure: Callable[[Plan], Sequence[Series]]
    budgets: Sequence[Budget] = ()
    floor: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario after its run."""

    scenario: Scenario
    series: Sequence[Series]
    verdicts: Sequence[Verdict]
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and all(verdict.ok for verdict in self.verdicts)
