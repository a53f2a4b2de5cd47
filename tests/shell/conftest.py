"""Fixtures of the shell's tests."""

from __future__ import annotations

import itertools
import threading

import pytest

from holdfast.testing.clock import ManualClock
from tests.shell import threads

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _others() -> None:
    threads.others = set(threading.enumerate())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1000.0)  # a round number: tests compare times with it


@pytest.fixture
def name() -> str:
    """The name of a memory store that no other test uses."""
    return f"shell-{next(_numbers)}"
