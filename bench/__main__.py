"""Run scenarios by name: `python -m bench [--quick] [scenario ...]`. Exit status 1: a budget was missed."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench import report, scenarios
from bench.harness import run_scenario
from bench.model import Outcome, Plan

RESULTS = Path(__file__).parent / "results"


def file_system(path: Path) -> str:
    """Name the type of the file system that a path lies on, where the kernel tells it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    over = [(mount, kind) for mount, kind in mounts if path.resolve().is_relative_to(mount)]
    return max(over, key=lambda entry: len(entry[0]))[1] if over else "unknown"


def main() -> int:
    """Run what was asked for, print a table a scenario and write results/latest.json."""
    known = scenarios.names()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"all by default: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="a smoke run; too short to trust a verdict")
    options = parser.parse_args()
    if unknown := set(options.scenario) - set(known):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(known)}")

    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        facts = report.machine(options.quick, file_system(Path(scratch)))
        print("  ".join(f"{key}={value}" for key, value in facts.items() if key != "versions"), end="\n\n")
        for name in options.scenario or known:
            directory = Path(scratch) / name
            directory.mkdir()
            outcomes.append(run_scenario(scenarios.load(name), Plan(directory, options.quick)))
            print(report.table(outcomes[-1]), end="\n\n", flush=True)

    RESULTS.mkdir(exist_ok=True)
    latest = RESULTS / "latest.json"
    latest.write_text(json.dumps(report.as_json(outcomes, facts), indent=1, ensure_ascii=False) + "\n")
    missed = [outcome.scenario.name for outcome in outcomes if not outcome.ok]
    print(f"missed: {', '.join(missed)}" if missed else "all budgets are met", f"({latest})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
