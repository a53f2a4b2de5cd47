"""The releaser and those who touch its list at the same time: the timekeeper that stands in, and the end."""

from __future__ import annotations

from collections import deque

from holdfast.core.agenda import Orphan
from holdfast.keeper import activities
from holdfast.keeper.threads import Call, Steps, Until
from holdfast.testing.clock import ManualClock
from tests.shell._sync.kit import connect


def orphans(*names: str) -> list[Orphan]:
    return [Orphan(name, "holder", 0.0, 1e6) for name in names]


def asked(steps: Steps) -> str:
    """Return the resource that an activity wants to release now."""
    request = steps.send(None)
    assert isinstance(request, Call)
    resource: str = request.arguments[0]
    return resource


def test_none_is_skipped_when_the_timekeeper_stands_in(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        keeper = locks._engine.keeper
        keeper.orphans.extend(orphans("a", "b", "c"))
        releaser, stand_in = activities.releaser(keeper), activities._stand_in(keeper)
        keeper.unstaffed.append("releaser")
        assert asked(releaser) == "a"
        assert asked(stand_in) == "a"  # at the same time: released twice does no harm
        assert list(stand_in) == []
        assert asked(releaser) == "b"
        assert asked(releaser) == "c"


def test_the_list_may_be_cleared_at_any_step(name: str, clock: ManualClock) -> None:
    with connect(name, clock) as locks:
        keeper = locks._engine.keeper

        class Cleared(deque[Orphan]):
            # close() ends everything right after somebody has looked
            def __getitem__(self, index: object) -> Orphan:  # type: ignore[override]
                self.clear()
                raise IndexError

        keeper.orphans = Cleared(orphans("a"))
        assert isinstance(next(activities.releaser(keeper)), Until)
