"""The Lua scripts: one per verb, loaded when the first store is made."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

_INCLUDE = re.compile(r"^-- include (\S+)$", re.MULTILINE)


class Script(NamedTuple):
    """A script, and the name under which the server knows it."""

    sha: str
    source: str


def load(store: str, name: str) -> Script:
    """Read `scripts/NAME.lua` of a store's package, with its includes filled in."""
    folder = files("holdfast") / "stores" / store / "scripts"
    source = (folder / f"{name}.lua").read_text(encoding="utf-8")
    source = _INCLUDE.sub(lambda found: (folder / found[1]).read_text(encoding="utf-8"), source)
    return Script(sha1(source.encode(), usedforsecurity=False).hexdigest(), source)
