"""Run the tests traced and report which lines and branches they reach: `make coverage`, or `make coverage PARTS=plain`.

A generated module and its source count as one: the report shows the source, and what either flavour has reached counts
as reached. Their line numbers differ (a header, dropped imports, another layout), so `[paths]` of coverage cannot join
them. But the generator keeps every statement and its order, so the statements of both are paired, and what was recorded
in the twin is moved to the lines of its source. What is written by hand in both flavours is counted in both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import coverage

from tools import parts, unasync

HTML = Path(".venv/coverage/html")


class Lines(NamedTuple):
    """The lines of a statement, without those of the statements inside of it."""

    first: int
    last: int


def paired(generated: str, source: str) -> dict[int, int]:
    """Return the line of the source for each line of the generated module that a tracer may name.

    Raises: ValueError if the two do not have the same statements.
    """
    lines: dict[int, int] = {}
    for mine, theirs in _pairs(ast.parse(generated).body, ast.parse(source).body):
        lines.update(dict.fromkeys(range(mine.first, mine.last + 1), theirs.first))
    return lines


def _pairs(generated: list[ast.stmt], source: list[ast.stmt]) -> Iterator[tuple[Lines, Lines]]:
    if [_kind(node) for node in generated] != [_kind(node) for node in source]:
        # Imports are sorted anew, and those that only annotations needed are dropped: they run in any case.
        generated, source = ([node for node in body if not _is_import(node)] for body in (generated, source))
    for mine, theirs in zip(generated, source, strict=True):
        if _kind(mine) != _kind(theirs):
            raise ValueError(f"line {mine.lineno} is {_kind(mine)}, and line {theirs.lineno} is {_kind(theirs)}")
        if _is_for_types(mine):
            continue
        yield from zip(_lines(mine), _lines(theirs), strict=True)
        for one, other in zip(_bodies(mine), _bodies(theirs), strict=True):
            yield from _pairs(one, other)


def _lines(node: ast.stmt) -> Iterator[Lines]:
    """Yield what is traced of a statement: its decorators, itself or its head, its handlers or cases."""
    for decorator in getattr(node, "decorator_list", ()):
        yield Lines(decorator.lineno, decorator.end_lineno)
    if isinstance(node, ast.Match):
        yield Lines(node.lineno, node.subject.end_lineno or node.lineno)
    else:
        yield _head(node, getattr(node, "body", None))
    for handler in getattr(node, "handlers", ()):
        yield _head(handler, handler.body)
    for case in getattr(node, "cases", ()):
        yield _head(case.pattern, case.body)


def _head(node: ast.stmt | ast.excepthandler | ast.pattern, body: list[ast.stmt] | None) -> Lines:
    if not body:
        return Lines(node.lineno, node.end_lineno or node.lineno)
    first = min(one.lineno for one in (body[0], *getattr(body[0], "decorator_list", ())))
    return Lines(node.lineno, max(node.lineno, first - 1))


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if isinstance(body := getattr(node, field, None), list):
            yield body
    for field in ("handlers", "cases"):
        for part in getattr(node, field, ()):
            yield part.body


def _kind(node: ast.stmt) -> str:
    return type(node).__name__.removeprefix("Async")


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def moved(arcs: list[tuple[int, int]], lines: dict[int, int]) -> list[tuple[int, int]]:
    """Return steps from line to line with the lines of the source. A negative one stands for the way in or out."""

    def line(number: int) -> int | None:
        found = lines.get(abs(number))
        return found if found is None or number > 0 else -found

    pairs = ((line(start), line(end)) for start, end in arcs)
    return [(start, end) for start, end in pairs if start is not None and end is not None]


def fold(data: coverage.CoverageData, root: Path = unasync.ROOT) -> list[str]:
    """Count what was reached in generated modules as reached in their sources; return the generated modules."""
    measured = {Path(name).resolve(): name for name in data.measured_files()}
    found = []
    for twin, source in unasync.twins(root).items():
        if (name := measured.get(root / twin)) is None:
            continue
        found.append(name)
        lines = paired((root / twin).read_text(encoding="utf-8"), (root / source).read_text(encoding="utf-8"))
        data.add_arcs({measured.get(root / source, str(root / source)): moved(data.arcs(name) or [], lines)})
    return found


def main(names: list[str]) -> int:
    """Trace these parts of the tests, or all; print the report and say where the pages are."""
    cover = coverage.Coverage()
    cover.erase()
    status = parts.main(names, runner=("-m", "coverage", "run", "-m", "pytest"))
    cover.combine()
    generated = fold(cover.get_data())
    cover.save()
    cover.report(omit=generated, skip_covered=True, show_missing=True)
    cover.html_report(directory=str(HTML), omit=generated)
    print(f"==> line by line: {HTML / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
