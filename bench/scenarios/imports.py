"""Import holdfast in a new interpreter, beside a new interpreter that does nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Contender, Slice, interleaved, timed
from bench.model import Budget, Plan, Scenario, Series

LIST_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def python(code: str, bytecode: Path) -> str:
    """Run code in a new interpreter, with the bytecode kept in a directory of its own, and return what it printed."""
    # Whether this checkout has bytecode depends on the environment; an installed package always has.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def interpreter(name: str, code: str) -> Contender:
    """Make a contender of one line of Python."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Slice]:
        python(code, directory)  # compiles what every later run finds
        yield timed(lambda: python(code, directory))

    return Contender(name, opened)


def unwanted(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Name what an import brought in that must wait for its first use: asyncio, and all that is not stdlib."""
    brought = {module.partition(".")[0] for module in set(after) - set(before)} - {"holdfast"}
    return sorted(name for name in brought if name == "asyncio" or name not in sys.stdlib_module_names)


in_turns = interleaved(
    [interpreter("empty interpreter", "pass"), interpreter("import holdfast", "import holdfast")],
    unit="ms",
    scale=1e3,
    rounds=41,
    slice_seconds=0,  # one process a slice
    quick_slice_seconds=0,
)


def measure(plan: Plan) -> Sequence[Series]:
    """Time both, then look once at what the import loaded."""
    before, after = (json.loads(python(code + LIST_MODULES, plan.directory)) for code in ("", "import holdfast; "))
    extra = unwanted(before, after)
    return [*in_turns(plan), Series("unwanted modules", " ".join(extra) or "modules", [float(len(extra))])]


SCENARIO = Scenario(
    name="imports",
    title="import holdfast over an empty interpreter; asyncio and optional dependencies stay out",
    measure=measure,
    budgets=[
        Budget("import holdfast", "over", 60, to="empty interpreter"),
        Budget("unwanted modules", "never over", 0),
    ],
)
