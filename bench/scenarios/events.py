"""What the event stream costs a pair when nobody observes, measured alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import holdfast
from bench.harness import Contender, Slice, interleaved
from bench.model import Budget, Plan, Scenario, Series
from holdfast.core.events import Event
from holdfast.observe.stream import Stream


def emitted() -> list[Event]:
    """Count what a pair tells an observer: so often does it ask whether there is one."""
    seen: list[Event] = []
    with holdfast.connect("memory://", observers=[seen.append]) as locks:
        locks.lock("bench").acquire().release()
    return seen


class Shell:
    """Stands where the shell stands: the stream is an attribute of what it has at hand."""

    __slots__ = ("stream",)

    def __init__(self) -> None:
        self.stream = Stream()

    def guards(self, times: int) -> float:
        """Ask twice a turn, as a pair does: after the acquire and after the release."""
        start = perf_counter()
        for _ in range(times):
            if self.stream.observers:
                raise AssertionError("there is no observer")
            if self.stream.observers:
                raise AssertionError("there is no observer")
        return perf_counter() - start


@contextmanager
def guards(_: Path) -> Iterator[Slice]:
    """The emission points of a pair."""
    yield Shell().guards


@contextmanager
def empty_loop(_: Path) -> Iterator[Slice]:
    """The loop around them."""

    def run(times: int) -> float:
        start = perf_counter()
        for _ in range(times):
            pass
        return perf_counter() - start

    yield run


in_turns = interleaved([Contender("empty loop", empty_loop), Contender("emission points", guards)], slice_seconds=0.05)


def measure(plan: Plan) -> Sequence[Series]:
    """Check that a pair emits what is measured here, then time it."""
    return [Series("events a pair", "events", [float(len(emitted()))]), *in_turns(plan)]


SCENARIO = Scenario(
    name="events",
    title="the emission points of acquire + release, without an observer",
    measure=measure,
    budgets=[
        Budget("emission points", "over", 2, to="empty loop"),
        Budget("events a pair", "never over", 2),  # more: the loop above no longer measures what a pair does
    ],
)
