"""Stores and clients with one thing wrong each. A law that cannot tell them from the real ones is worth nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Mutant(NamedTuple):
    """How to break something, and the laws that must notice."""

    name: str
    apply: Callable[[pytest.MonkeyPatch, str], None]  # the str: "sync" or "async"
    laws: tuple[str, ...]

    def __str__(self) -> str:
        return self.name
