"""Real servers in tests: where the program is missing, a skip for people and a failure for CI."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from holdfast.testing.servers import Missing

T = TypeVar("T")


def needed(make: Callable[[], T]) -> T:
    """Make a server, or say why not."""
    try:
        return make()
    except Missing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
