"""Fixtures of the shell's tests."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.shell._sync import runtime
from tests.shell.clock import ManualClock

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _others() -> None:
    runtime.others = set(threading.enumerate())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def name() -> str:
    """The name of a memory store that no other test uses."""
    return f"shell-{next(_numbers)}"
