"""Fixtures of the shell's tests, and the runner of those that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading

import pytest

from tests.shell._sync import runtime
from tests.shell.clock import ManualClock

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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
