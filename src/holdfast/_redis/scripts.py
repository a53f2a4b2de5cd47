"""The Lua scripts: one a verb, loaded when the first store is made."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

_INCLUDE = re.compile(r"^-- include (\S+)$", re.MULTILINE)


class Script(NamedTuple):
    """A script as the server is given it, and the name that it has there."""

    sha: str
    source: str


def load(name: str) -> Script:
    """Read `scripts/NAME.lua`, with what it includes put in its place."""
    folder = files("holdfast") / "scripts"
    source = (folder / f"{name}.lua").read_text(encoding="utf-8")
    source = _INCLUDE.sub(lambda found: (folder / found[1]).read_text(encoding="utf-8"), source)
    return Script(sha1(source.encode(), usedforsecurity=False).hexdigest(), source)
