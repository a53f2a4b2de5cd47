"""Run all tests in parts that each have a share of the time: `make test`, or `make test PARTS="contract command"`.

A part that fails does not keep the later ones from running: what failed is listed at the end, and fails the whole. A
share is what a machine with two cores and nothing else to do should need; a busy one may take longer.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that pytest selects by these words, and their share in seconds."""

    name: str
    about: str
    seconds: int
    selection: tuple[str, ...]
    # How many at once. Tests that compute get a worker per core. Those of servers hardly compute: they wait.
    workers: int = 2


_COMMAND = ("tests/cli", "tests/docs")
_SIMULATION = (
    "tests/core/test_ballot_model.py",
    "tests/core/test_deadlock.py",
    "tests/core/test_queue_properties.py",
    "tests/core/simulation",
    "tests/primitives/test_mixes.py",
    "tests/shell/test_interrupts.py",
)

# Every test belongs to exactly one of them; tests/tools/test_parts.py sees to it.
PARTS = (
    Part(
        "plain",
        "without servers",
        240,
        ("-m", "not server", "tests", *(f"--ignore={path}" for path in (*_COMMAND, *_SIMULATION))),
    ),
    Part("contract", "contract suites of all servers, side by side", 300, ("-m", "server", "tests/contract"), 8),
    Part(
        "stores",
        "faults of the stores on their servers",
        120,
        ("-m", "server", "tests/stores", "tests/compat", "tests/faults", "tests/shell"),
        8,
    ),
    Part("command", "command, pages and glue", 120, _COMMAND, 4),
    Part("simulation", "models and simulation", 120, _SIMULATION),
)


PYTEST = ("-m", "pytest")


def run(part: Part, runner: tuple[str, ...] = PYTEST) -> list[str]:
    """Run a part and say how long it took; return the names of the tests that failed, or what else went wrong."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-parts-") as folder:
        report = Path(folder) / "report.xml"
        words = [*part.selection, "--numprocesses", str(part.workers)]
        print(f"==> {part.name}: {part.about} (pytest {shlex.join(words)})", flush=True)
        status = subprocess.call([sys.executable, *runner, *words, f"--junitxml={report}"], cwd=ROOT)
        failed = _failed(report) if status else []
    took = time.monotonic() - began
    over = ", over its share" if took > part.seconds else ""
    print(f"==> {part.name}: {took:.0f} s of {part.seconds} s{over}", flush=True)
    # Without a failed test: nothing was selected, a worker died, or pytest itself failed.
    return failed if failed or not status else [f"pytest ended with status {status}"]


def _failed(report: Path) -> list[str]:
    if not report.exists():
        return []
    cases = ElementTree.parse(report).iter("testcase")
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


def main(names: list[str], runner: tuple[str, ...] = PYTEST) -> int:
    """Run the parts of these names, or all of them, by this module of Python; return the exit status."""
    if unknown := set(names) - {part.name for part in PARTS}:
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in PARTS)}")
        return 2
    chosen = [part for part in PARTS if not names or part.name in names]
    began = time.monotonic()
    failed = {part.name: failures for part in chosen if (failures := run(part, runner))}
    print(f"==> all: {time.monotonic() - began:.0f} s of {sum(part.seconds for part in chosen)} s")
    for name, failures in failed.items():
        print(f"==> {name} failed:", *failures, sep="\n      ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
