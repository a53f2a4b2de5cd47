"""The layers of DESIGN section 7: a pure core, a twin without asyncio, and an import that loads only what it needs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"

# What core may not know: clocks, chance, input and output, other threads. It is told the time and the random bytes.
IMPURE = {
    *("asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "sched", "select", "selectors", "signal"),
    *("threading", "_thread", "subprocess"),
    *("fcntl", "io", "mmap", "os", "pathlib", "shutil", "tempfile"),
    *("http", "socket", "socketserver", "ssl", "sqlite3"),
    *("random", "secrets", "uuid"),
    *("datetime", "time"),
    *("importlib", "logging", "sys"),
}
PLAIN_TYPES = {
    "datetime.date",
    "uuid.UUID",
}  # values that users pass, from modules that can also read a clock or chance
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}
ASYNCHRONOUS = (ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor, ast.Await)


def modules(folder: str) -> list[Path]:
    """Return the modules below every folder of this name."""
    found = sorted(path for path in PACKAGE.rglob("*.py") if folder in path.relative_to(PACKAGE).parts[:-1])
    assert found, f"no module below {folder}"
    return found


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of everything that is imported, relative imports resolved."""
    package = ("holdfast", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def offences_of_core(source: str, path: Path) -> list[str]:
    """Say what a core module does that only the shell may do."""
    tree = ast.parse(source)
    found = [f"line {node.lineno}: coroutine code" for node in ast.walk(tree) if isinstance(node, ASYNCHRONOUS)]
    for line, name in imports(tree, path):
        parts = name.split(".")
        if parts[0] == "holdfast":
            if parts[1] not in ("core", "errors"):
                found.append(f"line {line}: imports {name}, which is not core")
        elif name in PLAIN_TYPES:
            continue
        elif parts[0] in IMPURE or parts[0] not in sys.stdlib_module_names:
            found.append(f"line {line}: imports {name}, which is not pure")
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (call.func for call in calls if isinstance(call.func, ast.Name))
    return found + [f"line {name.lineno}: calls {name.id}()" for name in names if name.id in IMPURE_CALLS]


@pytest.mark.parametrize("path", modules("core"), ids=lambda path: path.name)
def test_core_is_pure(path):
    assert offences_of_core(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.control
@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "def f():\n    from threading import Lock",
        "from .._async import runtime",
        "from ..observe.stream import emit",
        "from holdfast import _clock",
        "import holdfast._sync.lease",
        "import redis",
        "async def f(): ...",
        "def f():\n    return open('x')",
    ],
)
def test_impure_core_is_noticed(source):
    assert len(offences_of_core(source, PACKAGE / "core" / "control.py")) == 1


def test_pure_core_is_accepted():
    source = "import math\nfrom . import events\nfrom .claim import Claim\nfrom ..errors import LockError"
    assert offences_of_core(source, PACKAGE / "core" / "control.py") == []


@pytest.mark.parametrize("path", modules("_sync"), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_sync_does_not_know_asyncio(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [line for line, name in imports(tree, path) if {"asyncio", "_async"} & set(name.split("."))] == []
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "asyncio"]
    assert [node.lineno for node in names] == []


def modules_loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a statement adds to a fresh interpreter."""
    # -S: no site-packages, so that .pth files load nothing; the package is found by PYTHONPATH instead.
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_import_loads_neither_asyncio_nor_a_store_nor_third_parties():
    loaded = modules_loaded_by("import holdfast")
    assert "holdfast" in loaded
    assert loaded & {"asyncio", "sqlite3", "socket", "concurrent"} == set()
    assert loaded - {"holdfast"} - sys.stdlib_module_names == set()


def test_sync_client_does_not_load_asyncio():
    assert "asyncio" not in modules_loaded_by("import holdfast; holdfast.connect('memory://').lock('x')")


def test_aio_loads_when_it_is_asked_for():
    assert "asyncio" in modules_loaded_by("import holdfast; holdfast.aio.connect")
