"""Leaders and workers that are killed or stopped: real processes on one SQLite file, in real time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.child import Child

pytestmark = pytest.mark.slow

LIMIT = 30.0  # real seconds for what should take a few
LONG = 600.0  # a ttl that nobody waits for
SHORT = 1.0


class Rig:
    """A file, and the processes that use it."""

    def __init__(self, folder: Path, flavour: str) -> None:
        self.folder = folder
        self.flavour = flavour
        self.url = f"sqlite://{folder}/locks.db"
        self.children: list[Child] = []

    def child(self, role: str, ttl: float) -> Child:
        """Start a process and wait for its first word."""
        child = Child(self.folder, self.flavour, role, url=self.url, namespace="default", ttl=ttl)
        self.children.append(child)
        return child

    def waiting(self, count: int) -> None:
        """Wait until so many stand in line."""
        with holdfast.connect(self.url) as locks:
            eventually(lambda: sum(len(state.waiters) for state in locks.inspect("r")) == count, limit=LIMIT)


@pytest.fixture(params=["sync", "async"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, request.param)
    yield rig
    for child in rig.children:
        child.signal(signal.SIGCONT)
        child.kill()


def hears(child: Child, count: int) -> list[object]:
    """Return the word of that number."""
    eventually(lambda: child.heard(count), limit=LIMIT)
    word: list[object] = child.said[count - 1]
    return word


def token_of(word: list[object], said: str) -> int:
    assert word[0] == said, word
    assert isinstance(word[1], int)
    return word[1]


def test_a_killed_leader_is_followed_at_once(rig: Rig) -> None:
    """The store sees that the process is gone: nobody waits for the ttl."""
    first = rig.child("lead", LONG)
    before = token_of(hears(first, 1), "leads")
    second = rig.child("lead", LONG)
    rig.waiting(1)
    assert second.said == []
    first.kill()
    assert token_of(hears(second, 1), "leads") > before


def test_a_stopped_leader_is_followed_after_its_ttl_and_campaigns_on(rig: Rig) -> None:
    first = rig.child("lead", SHORT)
    before = token_of(hears(first, 1), "leads")
    second = rig.child("lead", LONG)
    rig.waiting(1)
    first.signal(signal.SIGSTOP)
    after = token_of(hears(second, 1), "leads")
    assert after > before
    first.signal(signal.SIGCONT)
    assert hears(first, 2) == ["lost", before]
    rig.waiting(1)
    second.stop()
    assert hears(second, 2) == ["resigned", after]
    assert token_of(hears(first, 3), "leads") > after


def test_work_of_a_killed_process_is_done_again(rig: Rig) -> None:
    first = rig.child("work", LONG)
    before = token_of(hears(first, 1), "runs")
    second = rig.child("work", LONG)
    rig.waiting(1)
    first.kill()
    after = token_of(hears(second, 1), "runs")
    assert after > before
    second.stop()
    assert hears(second, 2) == ["result", after]
    assert hears(rig.child("work", LONG), 1) == ["result", after]  # it finds the result and does nothing


def test_work_that_was_stopped_and_overtaken_gets_the_result_of_the_other(rig: Rig) -> None:
    first = rig.child("work", SHORT)
    before = token_of(hears(first, 1), "runs")
    second = rig.child("work", LONG)
    rig.waiting(1)
    first.signal(signal.SIGSTOP)
    after = token_of(hears(second, 1), "runs")
    assert after > before
    second.stop()
    assert hears(second, 2) == ["result", after]
    first.stop()
    first.signal(signal.SIGCONT)
    assert hears(first, 2) == ["result", after]
