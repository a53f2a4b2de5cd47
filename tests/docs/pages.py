"""The pages of the documentation: their Python blocks, their links, and what of them is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# What may follow ```python. Nothing: the block is run. no-run: it is compiled only. test: pytest runs it.
KINDS = ("", "no-run", "test")

# Pages whose blocks need a server, and the URL in them that stands for it.
SERVED = {
    "docs/stores/etcd.md": "etcd://localhost:2379",
    "docs/stores/redis.md": "redis://localhost:6379",
    "docs/stores/zookeeper.md": "zookeeper://localhost:2181",
    "docs/stores/redlock.md": "redlock://r1:6379,r2:6379,r3:6379,r4:6379,r5:6379",
}

_FENCE = re.compile(r"^(```+)\s*(.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*?)\s*$")


class Block(NamedTuple):
    """A fenced block of a page; `line` is that of its first line of code."""

    page: Path
    line: int
    language: str
    kind: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page that people read."""
    return [path for place in ("*.md", "docs/**/*.md", "examples/*.md") for path in sorted(ROOT.glob(place))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    opened: tuple[str, str, int] | None = None
    code: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, code = (fence[1], fence[2].strip(), number + 1), []
        elif opened is not None and line.strip() == opened[0]:
            language, _, kind = opened[1].partition(" ")
            yield Block(page, opened[2], language, kind.strip(), "".join(f"{text}\n" for text in code))
            opened = None
        elif opened is not None:
            code.append(line)
    assert opened is None, f"{page} ends within a block"


def python_blocks(page: Path) -> list[Block]:
    """Return the Python blocks of a page."""
    return [block for block in blocks(page) if block.language == "python"]


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks and without code in backticks."""
    text, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            text.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(text)


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return what a link into this page may name after its #, by GitHub's rule."""
    found, inside = set(), False
    for line in page.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside and (heading := _HEADING.match(line)):
            kept = "".join(char for char in heading[1].lower() if char.isalnum() or char in " -_")
            found.add(kept.replace(" ", "-"))
    return found


def generated(page: Path) -> dict[str, str]:
    """Return the parts of a page between `<!-- generated: NAME -->` and `<!-- end -->`, by name."""
    return {name: body.strip("\n") for name, body in _PART.findall(page.read_text(encoding="utf-8"))}


def replace_generated(text: str, parts: dict[str, str]) -> str:
    """Return the text of a page with its generated parts written anew."""
    return _PART.sub(lambda part: f"<!-- generated: {part[1]} -->\n\n{parts[part[1]]}\n\n<!-- end -->", text)


_PART = re.compile(r"<!-- generated: (\S+) -->\n(.*?)\n<!-- end -->", re.DOTALL)
