"""Runs tests that are coroutines, each in an event loop of its own; and what holds for all tests."""

from __future__ import annotations

import asyncio
import inspect
import signal

import pytest
from hypothesis import settings

# `make quick` tries fewer examples where a test does not name a number of its own; `make test` tries them all.
settings.register_profile("quick", max_examples=20)

# A shell has what it starts in the background ignore Ctrl-C, and what tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
