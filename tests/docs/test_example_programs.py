"""The programs in examples/ run as they are, and print what their docstrings say."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from tests.docs import pages, run_page
from tests.docs.test_examples import run

FOLDER = pages.ROOT / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def stated(program: Path) -> list[str]:
    """Return the lines that stand below `Prints:` in a program's docstring."""
    said = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    assert f"Run: python examples/{program.name}" in said, f"{program.name} does not say how it is run"
    return textwrap.dedent(said.partition("Prints:\n")[2]).splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_prints_what_it_says(program: Path, tmp_path: Path):
    expected, printed = stated(program), run(tmp_path, str(program)).splitlines()
    assert expected, f"{program.name} does not say what it prints"
    assert len(expected) == len(printed), f"{program.name} states {expected} and prints {printed}"
    for said, line in zip(expected, printed, strict=True):
        assert run_page.matches(said, line), f"{program.name} states {said!r} and prints {line!r}"


def test_every_program_is_in_the_table():
    listed = {(FOLDER / link).resolve() for link in pages.links(FOLDER / "README.md")}
    assert listed == set(PROGRAMS)
