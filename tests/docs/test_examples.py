"""What the pages say is true: their examples run, their links lead somewhere, their tables are those of the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.promises import LAWS
from tests.docs import pages, run_page, tables

PAGES = pages.pages()
GUARANTEES = pages.ROOT / "docs" / "guarantees.md"


def named(page: Path) -> str:
    return str(page.relative_to(pages.ROOT))


def with_blocks(*kinds: str) -> list[Path]:
    return [page for page in PAGES if any(block.kind in kinds for block in pages.python_blocks(page))]


def run(folder: Path, *arguments: str) -> str:
    """Run Python in the folder, with nothing of the user's own in reach; return what it prints."""
    paths = [str(pages.ROOT), str(pages.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HOLDFAST_URL": f"sqlite://{folder}/locks.db",
        "XDG_STATE_HOME": str(folder / "state"),
        "HOME": str(folder),
    }
    # Python 3.12 and newer warn about a fork beside threads, which is what the tutorial shows.
    warnings = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    done = subprocess.run(
        [sys.executable, *warnings, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ResourceWarning" not in done.stderr, done.stderr  # raised in a destructor, it ends nothing
    return done.stdout


@pytest.mark.parametrize("page", [page for page in with_blocks("") if named(page) not in pages.SERVED], ids=named)
def test_examples_run_and_print_what_they_say(page: Path, tmp_path: Path):
    run(tmp_path, "-m", "tests.docs.run_page", str(page))


@pytest.mark.parametrize("page", with_blocks("test"), ids=named)
def test_examples_of_tests_pass(page: Path, tmp_path: Path):
    for number, block in enumerate(pages.python_blocks(page)):
        if block.kind == "test":
            (tmp_path / f"test_{number}.py").write_text(block.code)
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_examples_are_python_and_of_a_known_kind(page: Path):
    for block in pages.python_blocks(page):
        assert block.kind in pages.KINDS, f"{block} is marked {block.kind!r}; known are {pages.KINDS}"
        run_page.compiled(block)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path):
    for link in pages.links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{named(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in pages.anchors(target), f"{named(page)} links to {link}, which has no such heading"


def test_every_page_below_docs_is_in_the_index():
    index = pages.ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in pages.links(index)}
    assert set((pages.ROOT / "docs").rglob("*.md")) - {index} <= listed


@pytest.mark.parametrize("name", tables.PARTS)
def test_tables_are_those_of_the_code(name: str):
    parts = [part for page in PAGES for found, part in pages.generated(page).items() if found == name]
    assert parts, f"no page shows {name}"
    for part in parts:
        assert part == tables.PARTS[name](), "write it anew: make docs"


def test_the_laws_are_those_of_the_code():
    text = GUARANTEES.read_text(encoding="utf-8").lower()
    for number, law in LAWS.items():
        assert f"\n**{number}. {law}.**".lower() in text, f"docs/guarantees.md does not give law {number}"


def test_the_readme_gives_exactly_two_commands():
    blocks = pages.blocks(pages.ROOT / "README.md")
    commands = [line for block in blocks if block.language == "sh" for line in block.code.splitlines()]
    assert [command.partition("#")[0].strip() for command in commands] == ["make run", "make test"]


def test_a_block_prints_exactly_what_it_states():
    code = 'print("token", 42)  # -> token ...\nx = "# -> no"\n# -> next\n'
    assert run_page.stated(code) == ["token ...", "next"]
    assert run_page.matches("token ...", "token 42")
    assert not run_page.matches("token 4", "token 42")
