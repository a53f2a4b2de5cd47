"""Coverage counts a generated module together with its source: their lines are paired statement by statement."""

from __future__ import annotations

import ast
from pathlib import Path

import coverage
import pytest

from tools import cover, unasync

TWINS = {twin: source for twin, source in unasync.twins().items() if twin.parts[0] == "src"}


def statements(path: Path) -> set[int]:
    """Return the lines that coverage counts, but for those that the generator may drop."""
    _, lines, _, _, _ = coverage.Coverage(data_file=None).analysis2(str(unasync.ROOT / path))
    tree = ast.parse((unasync.ROOT / path).read_text(encoding="utf-8"))
    dropped = (ast.Import, ast.ImportFrom)
    return set(lines) - {node.lineno for node in ast.walk(tree) if isinstance(node, dropped)}


@pytest.mark.parametrize("twin", TWINS, ids=str)
def test_every_statement_has_its_line_in_the_source(twin: Path):
    generated, source = ((unasync.ROOT / path).read_text(encoding="utf-8") for path in (twin, TWINS[twin]))
    lines = cover.paired(generated, source)
    assert {lines[line] for line in statements(twin)} == statements(TWINS[twin])


SOURCE = """
import asyncio
from typing import Any

async def f(x: Any) -> int:
    try:
        await one(
            x,
        )
    except ValueError:
        return 1
    @decorated
    async def g(): pass
    match x:
        case 1:
            return 2
    return 3
"""

GENERATED = """
# a header
from typing import Any

def f(x: Any) -> int:
    try:
        one(x)
    except ValueError:
        return 1

    @decorated
    def g():
        pass

    match x:
        case 1:
            return 2
    return 3
"""


def line_of(text: str, code: str) -> int:
    return text[: text.index(code)].count("\n") + 1


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("def f", "async def f"),
        ("one(x)", "await one("),
        ("except", "except"),
        ("return 1", "return 1"),
        ("@decorated", "@decorated"),
        ("def g", "async def g"),
        ("match x", "match x"),
        ("case 1", "case 1"),
        ("return 3", "return 3"),
    ],
)
def test_lines_are_paired_although_layout_and_imports_differ(mine: str, theirs: str):
    assert cover.paired(GENERATED, SOURCE)[line_of(GENERATED, mine)] == line_of(SOURCE, theirs)


def test_inner_lines_belong_to_their_statement():
    lines = cover.paired(SOURCE, SOURCE)
    assert lines[line_of(SOURCE, "            x,")] == line_of(SOURCE, "await one(")


def test_modules_that_are_no_twins_are_refused():
    with pytest.raises(ValueError, match="argument 2"):
        cover.paired("a = 1\nb = 2", "a = 1")
    with pytest.raises(ValueError, match="line 1 is Assign, and line 1 is Expr"):
        cover.paired("a = 1", "a()")


def test_steps_are_moved_and_unknown_lines_left_out():
    assert cover.moved([(-1, 2), (2, 3), (3, -1), (2, 9)], {1: 10, 2: 20, 3: 30}) == [(-10, 20), (20, 30), (30, -10)]


def test_what_either_flavour_reaches_is_reached(tmp_path: Path):
    body = "def f(x):\n    if x:\n        return 1\n    return 2\n"
    source, twin = tmp_path / "src" / "_async" / "m.py", tmp_path / "src" / "_sync" / "m.py"
    for path, text in ((source, f"async {body}"), (twin, f"# a header\n{body}")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    data = coverage.CoverageData(no_disk=True)
    data.add_arcs({str(source): [(-1, 2), (2, 4), (4, -1)], str(twin): [(-2, 3), (3, 4), (4, -2)]})
    assert cover.fold(data, tmp_path) == [str(twin)]
    assert set(data.arcs(str(source)) or []) == {(-1, 2), (2, 4), (4, -1), (2, 3), (3, -1)}
