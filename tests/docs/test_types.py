"""The examples of the pages type-check: mypy strict and pyright accept them, and refuse what is wrong.

One run of each checker over all pages. A page is one module, whose lines are numbered as the page's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import pages

pytestmark = pytest.mark.slow
PAGES = [page for page in pages.pages() if page.name == "README.md" or (pages.ROOT / "docs") in page.parents]

# Libraries in recipes that bring no types: a checker that reads their code guesses. Whatever is of them is Any.
UNTYPED = ("celery", "django")

# A run that finds nothing proves nothing: the checkers might not see holdfast's types. These lines have to be refused.
WRONG = """
import asyncio

import holdfast
from holdfast import Lease

locks = holdfast.connect("memory://")


@locks.lock("r")
def work(number: int, *, lease: Lease | None = None) -> str:
    return f"{number} {lease}"


@locks.once("r:{number}")
def once(number: int, *, lease: Lease | None = None) -> str:
    return f"{number} {lease}"


work(1).upper()
once(1).upper()
work("a")  # refused
work(1).nosuch()  # refused
once("a")  # refused
once(1).nosuch()  # refused
locks.lock("r").acquire(blocking=False)  # refused
locks.lock("r").try_acquire(blocking=False)  # refused
locks.lock_all(["a", "b"])  # refused
locks.lock("r").try_acquire().release()  # refused


async def main() -> None:
    clients = holdfast.aio.connect("memory://")

    @clients.lock("r")
    async def work(number: int, *, lease: holdfast.aio.Lease | None = None) -> str:
        return f"{number} {lease}"

    @clients.once("r:{number}")
    async def once(number: int) -> str:
        return str(number)

    async def lost(lease: holdfast.aio.Lease) -> None: ...

    clients.lock("r", on_lost=lost)
    (await asyncio.create_task(work(1))).upper()
    (await asyncio.create_task(once(1))).upper()
    (await asyncio.create_task(clients.lock("r").try_acquire())).release()  # refused
    (await asyncio.create_task(work(1))).nosuch()  # refused
    (await asyncio.create_task(once(1))).nosuch()  # refused
    await work("a")  # refused
    await once("a")  # refused
    clients.lock("r", on_lost=5)  # refused
    if lease := await clients.lock("r").try_acquire():
        lease.check()
"""

Found = dict[tuple[str, int], str]  # what is said of a line of a file


def write_modules(folder: Path) -> None:
    """Write a module for each page, and one for each of its tests."""
    for page in PAGES:
        name = re.sub(r"\W", "_", str(page.relative_to(pages.ROOT).with_suffix("")))
        lines: list[str] = []
        for block in pages.python_blocks(page):
            before = [""] * (block.line - 1)
            if block.kind == "test":
                _write(folder / f"{name}_{block.line}.py", [*before, block.code])
            else:
                lines += [*before[len(lines) :], *block.code.splitlines()]
        if lines:
            _write(folder / f"{name}.py", lines)
    _write(folder / "wrong.py", [WRONG])
    code = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    for module in re.findall(rf"^(?:from|import) ((?:{'|'.join(UNTYPED)})\b[\w.]*)", code, re.MULTILINE):
        stub = folder / "stubs" / module.replace(".", "/")
        stub.mkdir(parents=True, exist_ok=True)
        _write(stub / "__init__.pyi", ["from typing import Any", "def __getattr__(name: str) -> Any: ..."])


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mypy(folder: Path) -> Found:
    options = ["--strict", "--config-file=", "--no-error-summary", "--show-absolute-path"]
    # What is Any may be inherited from, decorate and be returned.
    options += ["--allow-subclassing-any", "--allow-untyped-decorators", "--no-warn-return-any"]
    done = run(folder, "mypy", *options, *map(str, folder.glob("*.py")))
    found = re.findall(r"^(.*):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == bool(found), done.stdout + done.stderr
    return {(Path(file).name, int(line)): text for file, line, text in found}


def pyright(folder: Path) -> Found:
    paths = [str(pages.ROOT / "src")]
    settings = {"include": ["*.py"], "stubPath": "stubs", "extraPaths": paths, "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said = [item for item in json.loads(done.stdout)["generalDiagnostics"] if item["severity"] == "error"]
    return {(Path(item["file"]).name, item["range"]["start"]["line"] + 1): item["message"] for item in said}


def run(folder: Path, checker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "MYPYPATH": os.pathsep.join((str(pages.ROOT / "src"), str(folder / "stubs"))),
        "MYPY_CACHE_DIR": str(folder / "cache"),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # that there is a newer one
    }
    return subprocess.run(
        [sys.executable, "-m", checker, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("check", [mypy, pyright], ids=lambda check: check.__name__)
def test_examples_type_check(check: Callable[[Path], Found], tmp_path: Path):
    write_modules(tmp_path)
    found = check(tmp_path)
    refused = {("wrong.py", number) for number, line in enumerate(WRONG.splitlines(), 1) if "# refused" in line}
    unwanted = [f"{file}:{line}: {text}" for (file, line), text in found.items() if (file, line) not in refused]
    assert not unwanted, "\n".join(["an example does not type-check (a line is that of its page):", *unwanted])
    assert refused <= set(found)
