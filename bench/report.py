"""Lay an outcome out as a table, and a run as JSON."""

import datetime
import importlib.metadata
import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence

from bench.model import Outcome, Series, Verdict
from bench.stats import median_ratio, summarise

HEADER = ("", "median", "p10 – p90", "unit", "× floor", "budget", "found", "verdict")
LEFT = {0, 3, 5, 7}


def number(value: float) -> str:
    """Write a number with three significant digits, and no exponent."""
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Align cells into columns; texts to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) if at in LEFT else cell.rjust(width) for at, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def series_rows(series: Series, floor: Series | None, verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Give one row, and one more for every further budget of the same series."""
    if series.samples:
        middle = summarise(series.samples)
        band = f"{number(middle.low)} – {number(middle.high)}" if len(series.samples) > 1 else ""
        ratio = number(median_ratio(series.samples, floor.samples)) if floor and floor.samples else ""
        facts: tuple[str, ...] = (series.name, number(middle.median), band, series.unit, ratio)
    else:
        facts = (series.name, "–", "", series.note, "")
    judged = [
        (str(verdict.budget), "" if verdict.value is None else number(verdict.value), str(verdict))
        for verdict in verdicts
        if verdict.budget.series == series.name
    ]
    first, *more = judged or [("", "", "")]
    return [facts + first, *(("",) * len(facts) + extra for extra in more)]


def table(outcome: Outcome) -> str:
    """Write one scenario for people."""
    scenario = outcome.scenario
    title = f"{scenario.name}: {scenario.title}"
    settings = "".join(f"\n  {key}: {value}" for key, value in scenario.settings.items())
    if outcome.error:
        return f"{title}{settings}\n\n{outcome.error.rstrip()}\n\nMISSED (error)"
    floor = next((one for one in outcome.series if one.name == scenario.floor), None)
    rows: list[tuple[str, ...]] = [HEADER]
    for series in outcome.series:
        rows += series_rows(series, floor, outcome.verdicts)
    return f"{title}{settings}\n\n{layout(rows)}"


def as_json(outcomes: Sequence[Outcome], facts: Mapping[str, object]) -> dict[str, object]:
    """Give the whole run, every round included, as plain data."""
    return {
        "machine": dict(facts),
        "ok": all(outcome.ok for outcome in outcomes),
        "scenarios": {outcome.scenario.name: outcome_json(outcome) for outcome in outcomes},
    }


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Give one scenario as plain data."""
    return {
        "title": outcome.scenario.title,
        "settings": dict(outcome.scenario.settings),
        "floor": outcome.scenario.floor,
        "ok": outcome.ok,
        "error": outcome.error,
        "series": [
            {"name": one.name, "unit": one.unit, "note": one.note, "rounds": list(one.samples)}
            for one in outcome.series
        ],
        "budgets": [
            {"series": one.budget.series, "budget": str(one.budget), "found": one.value, "verdict": str(one)}
            for one in outcome.verdicts
        ],
    }


def machine(quick: bool, file_system: str) -> dict[str, object]:
    """Tell what the numbers depend on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "sqlite": sqlite3.sqlite_version,
        "file_system": file_system,
        "versions": {name: version(name) for name in ("holdfast", "filelock", "tooz")},
    }


def version(package: str) -> str:
    """Give an installed package's version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
