"""The side of a store that the keeper calls: what it does at the end, and that it is closed after the last call."""

from __future__ import annotations

import threading
from math import inf

import pytest

from holdfast._clock import SystemClock
from holdfast.core.agenda import Orphan
from holdfast.core.promises import Capabilities, Scope
from holdfast.errors import StoreUnavailable
from holdfast.keeper.keeper import Keeper
from holdfast.keeper.side import Side
from holdfast.keeper.signals import Signal
from holdfast.observe.stream import Stream
from holdfast.testing._sync.runtime import eventually


class Slow:
    """A store whose releases take until they are let go."""

    def __init__(self) -> None:
        self.capabilities = Capabilities("slow", Scope.PROCESS, {})
        self.log: list[str] = []
        self.go = threading.Event()
        self.patience = 10.0

    def blocking(self) -> Side:
        return Side(lambda claims, limit: [], self._slowly, lambda: self.log.append("closed"))

    def _slowly(self, resource: str, holder: str, keep: float) -> bool:
        self.log.append("asked")
        if not self.go.wait(self.patience):
            raise StoreUnavailable("no answer")
        self.log.append("answered")
        return True


def test_a_call_that_outlasts_close_is_the_last_and_closes_it() -> None:
    clock, store = SystemClock(), Slow()
    keeper = Keeper(store, None, clock, clock, Stream(), "default", 1.0)
    keeper.adopt(Orphan("r", "holder", 0.0, inf))
    eventually(lambda: store.log == ["asked"])
    keeper.orphans.clear()  # so that its end does not wait for the same
    done = Signal()
    keeper.end(clock.now() + 5, done)
    assert done.wait(clock, clock.now() + 5)
    assert store.log == ["asked"]
    with pytest.raises(StoreUnavailable, match="closed"):
        keeper.call("release", ("r2", "holder", 0.0))
    store.go.set()
    assert keeper.join(5)
    assert store.log == ["asked", "answered", "closed"]


def ending(store: Slow, grace: float) -> Keeper:
    """Let a keeper come to its end with three orphans, and its time pass with the first."""
    clock = SystemClock()
    keeper = Keeper(store, None, clock, clock, Stream(), "default", grace)
    keeper.end(clock.now() + 0.05, Signal(), [Orphan(f"r{number}", "holder", 0.0, inf) for number in range(3)])
    eventually(lambda: clock.now() > keeper.end_by)
    return keeper


def test_what_is_late_is_released_while_the_store_answers() -> None:
    """As in a signal handler that strikes inside of a lock: nothing moves until it has returned."""
    store = Slow()
    keeper = ending(store, 10.0)
    store.go.set()
    assert keeper.join(5)
    assert store.log == ["asked", "answered"] * 3 + ["closed"]


def test_after_its_time_one_silence_is_enough() -> None:
    store = Slow()
    store.patience = 0.1
    keeper = ending(store, 10.0)
    assert keeper.join(5)
    assert store.log[-1] == "closed"
    assert store.log.count("asked") <= 2
