"""Run the Python blocks of one page in order, in one namespace, and compare what they print with what they say.

A comment `# -> text` states a line of output; `...` in it stands for anything. A block that states output prints
exactly that. Run as a program: python -m tests.docs.run_page PAGE [OLD NEW]. NEW takes the place of OLD in the code.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, python_blocks


def stated(code: str) -> list[str]:
    """Return the lines of output that a block states."""
    comments = (
        token.string for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type == tokenize.COMMENT
    )
    return [found[1] for comment in comments if (found := re.match(r"#\s*->\s?(.*)", comment))]


def matches(expected: str, printed: str) -> bool:
    """Return whether a line of output is the one that was stated."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, printed) is not None


def compiled(block: Block) -> Any:
    """Compile a block so that a traceback names the page and the line."""
    return compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")


def run(page: Path, old: str = "", new: str = "") -> None:
    """Run a page, with `new` in the place of `old`.

    Raises: AssertionError if a block prints something else than it states.
    """
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in python_blocks(page):
        if block.kind:
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compiled(block._replace(code=block.code.replace(old, new)) if old else block), namespace)
        expected, printed = stated(block.code), out.getvalue().splitlines()
        if expected:
            same = len(expected) == len(printed) and all(map(matches, expected, printed))
            assert same, f"{block} states {expected} and prints {printed}"


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve(), *sys.argv[2:])
