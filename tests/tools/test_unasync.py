"""The generator of the `_sync` trees: what it changes, what it leaves, and that the committed output is its output."""

import argparse
import ast
import dataclasses
import inspect
import shutil
import textwrap
from pathlib import Path

import pytest

from tools import unasync

SAMPLES = {
    "def": ("async def f(): ...", "def f(): ..."),
    "method": ("class A:\n    async def __aenter__(self): ...", "class A:\n    def __enter__(self): ..."),
    "with": ("async with a() as b:\n    pass", "with a() as b:\n    pass"),
    "for": ("async for a in b():\n    pass", "for a in b():\n    pass"),
    "comprehension": (
        "x = [await f(a) async for a in b if await a.ok()]",
        "x = [f(a) for a in b if a.ok()]",
    ),
    "two in one line": ("x = await a(), await b()", "x = a(), b()"),
    "await first in a line": ("if x:\n    await y\n", "if x:\n    y\n"),
    "await of an await": ("x = await (await a())()", "x = a()()"),
    "parenthesis, attribute": ("x = (await a.b(1)[2]).c", "x = a.b(1)[2].c"),
    "parenthesis, keyword before": ("return_ = not (await a)", "return_ = not a"),
    "parenthesis, statement": ("(await a()).b()", "a().b()"),
    "parenthesis of a call": ("x = f(await a())", "x = f(a())"),
    "parenthesis of a called result": ("x = f()(await a())", "x = f()(a())"),
    "parenthesis that is needed": ("x = (await a() or await b()).c", "x = (a() or b()).c"),
    "parenthesis of a tuple": ("x = (await a(), 1)", "x = (a(), 1)"),
    "parenthesis of a choice": ("x = (await a() if b else c).d", "x = (a() if b else c).d"),
    "protocol names": (
        "async def __anext__(self): raise StopAsyncIteration",
        "def __next__(self): raise StopIteration",
    ),
    "annotations": (
        "x: Callable[..., Awaitable[dict[str, int]]] | Coroutine[Any, Any, list[int]]",
        "x: Callable[..., dict[str, int]] |   list[int]",
    ),
    "iterator": ("x: AsyncIterator[Acquiring]", "x: Iterator[Lease]"),
    "import of a name that is there already": (
        "from .lease import Lease\nfrom .runtime import Acquiring\nx: Acquiring | Lease",
        "from .lease import Lease\n   \nx: Lease | Lease",
    ),
    "import of a renamed name": ("from .runtime import Acquiring", "from .runtime import Lease"),
    "generator": ("x: AsyncGenerator[dict[str, int], None]", "x: Generator[dict[str, int], None, None]"),
    "Awaitable without argument": ("isinstance(x, Awaitable)", "isinstance(x, Awaitable)"),
    "context managers": (
        "@asynccontextmanager\nasync def f():\n    async with aclosing(g()) as h: ...",
        "@contextmanager\ndef f():\n    with closing(g()) as h: ...",
    ),
    "module": ("from holdfast._async.stores import memory", "from holdfast._sync.stores import memory"),
    "aio module": ("import holdfast.aio as h", "import holdfast as h"),
    "aio attribute": ("locks = holdfast.aio.connect()", "locks = holdfast.connect()"),
    "not holdfast's aio": ("x = grpc.aio.insecure_channel", "x = grpc.aio.insecure_channel"),
    "part of a name": ("is_async = awaiting = Acquirings", "is_async = awaiting = Acquirings"),
    "comment": ("# async with holdfast.aio.connect(): see _async/x.py", "# with holdfast.connect(): see _sync/x.py"),
    "string": ('x = "await lock.acquire()"', 'x = "lock.acquire()"'),
    "prose": ('"""Close before the first await or async def."""', '"""Close before the first await or async def."""'),
    "names in strings": ('x = "AsyncIterator __aenter__"', 'x = "AsyncIterator __aenter__"'),
    "f-string": ("x = f\"{await a('b')!r:>{await c}} {{await d}}\"", "x = f\"{a('b')!r:>{c}} {{d}}\""),
    "f-string with parenthesis": ('x = f"{(await a()).b}"', 'x = f"{(a()).b}"'),
    "f-string in parts": ('x = (f"{await a()}"\n     "b")', 'x = (f"{a()}"\n     "b")'),
    "line joined": ("x = 1 + \\\n    await a()", "x = 1 + \\\n    a()"),
    "not ASCII": ("x = 'é×', await a('ß')", "x = 'é×', a('ß')"),
    "no line end": ("await a()", "a()"),
    "empty": ("", ""),
}


@pytest.mark.parametrize(("source", "expected"), SAMPLES.values(), ids=SAMPLES.keys())
def test_transforms(source, expected):
    assert unasync.transform(source) == expected


@pytest.mark.parametrize("module", [argparse, dataclasses, textwrap])
def test_leaves_plain_code_alone(module):
    source = inspect.getsource(module)
    assert unasync.transform(source) == source


@pytest.fixture
def tree(tmp_path):
    """A small project: one module, one hand-written file, one generated test folder."""
    shutil.copy(unasync.ROOT / "pyproject.toml", tmp_path)
    files = {
        "src/pkg/_async/__init__.py": "",
        "src/pkg/_async/runtime.py": "import asyncio\n",
        "src/pkg/_sync/runtime.py": "import threading\n",
        "src/pkg/_async/stores/transport_x.py": "import asyncio\n",
        "src/pkg/_async/stores/one.py": textwrap.dedent(
            """\
            import zlib
            from collections.abc import Awaitable, Callable
            from typing import Any

            from holdfast._async import runtime
            from holdfast._b import b


            async def check(do: Callable[[], Awaitable[Any]]) -> None:
                async with b(zlib, runtime) as lease:
                    result = await lease.renew(
                        await do(), "a long argument that makes this one line too long for its place", lease
                    )
                    print((await result.answer()).text)
            """
        ),
        "tests/laws/_async/test_it.py": "async def test_it():\n    assert await 1\n",
        "tests/laws/test_plain.py": "async def test_plain(): ...\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_generates_the_same_tree_with_header_and_layout(tree):
    generated = unasync.generate(tree)
    header = unasync.HEADER.format("src/pkg/_async/stores/one.py")
    assert {path.as_posix() for path in generated} == {
        "src/pkg/_sync/__init__.py",
        "src/pkg/_sync/stores/one.py",
        "tests/laws/_sync/test_it.py",
    }
    assert generated[Path("src/pkg/_sync/__init__.py")] == unasync.HEADER.format("src/pkg/_async/__init__.py")
    assert generated[Path("src/pkg/_sync/stores/one.py")] == header + textwrap.dedent(
        """\
        import zlib
        from collections.abc import Callable
        from typing import Any

        from holdfast._b import b
        from holdfast._sync import runtime


        def check(do: Callable[[], Any]) -> None:
            with b(zlib, runtime) as lease:
                result = lease.renew(do(), "a long argument that makes this one line too long for its place", lease)
                print(result.answer().text)
        """
    )


def test_check_finds_a_changed_byte_a_missing_and_an_extra_file(tree):
    expected = unasync.generate(tree)
    assert set(unasync.write(expected, tree).values()) == {"written"}
    assert unasync.differences(unasync.generate(tree), tree) == {}

    changed, missing = tree / "src/pkg/_sync/stores/one.py", tree / "tests/laws/_sync/test_it.py"
    changed.write_bytes(changed.read_bytes()[:-1] + b" ")
    missing.rename(missing.with_name("test_other.py"))
    assert unasync.differences(expected, tree) == {
        Path("src/pkg/_sync/stores/one.py"): "differs",
        Path("tests/laws/_sync/test_it.py"): "missing",
        Path("tests/laws/_sync/test_other.py"): "extra",
    }


def test_write_removes_only_what_was_generated(tree):
    unasync.write(unasync.generate(tree), tree)
    (tree / "src/pkg/_async/stores/one.py").unlink()
    by_hand = tree / "src/pkg/_sync/by_hand.py"
    by_hand.write_text("x = 1\n", encoding="utf-8")
    assert unasync.write(unasync.generate(tree), tree) == {
        Path("src/pkg/_sync/stores/one.py"): "removed",
        Path("src/pkg/_sync/by_hand.py"): "extra",
    }
    assert by_hand.exists()
    assert (tree / "src/pkg/_sync/runtime.py").read_text(encoding="utf-8") == "import threading\n"


@pytest.fixture(scope="module")
def generated():
    return unasync.generate()


def test_committed_output_is_the_generated_output(generated):
    expected = generated
    assert expected, "no _async folder was found"
    assert unasync.differences(expected) == {}


def test_generated_output_has_no_coroutine(generated):
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor, ast.Await)
    for path, text in generated.items():
        found = [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, asynchronous)]
        assert found == [], path
