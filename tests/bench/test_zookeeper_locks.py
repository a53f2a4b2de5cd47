"""What the scenarios of ZooKeeper measure with, without a server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from bench import zookeeper_locks
from bench.contend import Take, merge, overlaps
from bench.scenarios import zookeeper_handoff, zookeeper_throughput
from bench.zookeeper_locks import side_by_side


def fail(start: Any, process: int) -> None:
    if process == 1:
        raise SystemExit(3)


def meet(start: Any, out: Path) -> None:
    start.wait()
    out.touch()


def test_a_process_that_failed_fails_the_run():
    with pytest.raises(RuntimeError, match=r"\[0, 3\]"):
        side_by_side(fail, [(0,), (1,)], 1.0)


def test_processes_wait_for_each_other(tmp_path: Path):
    side_by_side(meet, [(tmp_path / name,) for name in "ab"], 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Put a lock that is always free in the place of ours; returns what is asked of it."""
    asked: list[tuple[str, str]] = []

    @contextmanager
    def free(host: str, name: str) -> Iterator[Take]:
        def take() -> tuple[int, Callable[[], object]]:
            asked.append((host, name))
            return len(asked), lambda: None

        yield take

    monkeypatch.setattr(zookeeper_handoff, "LOCKS", {"holdfast": free})
    monkeypatch.setattr(zookeeper_throughput, "LOCKS", {"holdfast": free})
    return asked


def test_a_hold_is_recorded_with_its_length(taken: list[tuple[str, str]], tmp_path: Path):
    zookeeper_handoff.work(Barrier(1), "holdfast", "host:1", "name", 5, 0.01, tmp_path / "5.csv")
    holds = merge(tmp_path.glob("*.csv"))
    assert [hold.token for hold in holds] == list(range(1, len(taken) + 1))
    assert {hold.process for hold in holds} == {5}
    assert all(hold.leaving - hold.got >= zookeeper_handoff.HOLD * 1e9 for hold in holds)
    assert overlaps(holds) == 0
    assert set(taken) == {("host:1", "name")}


def test_the_pair_that_opens_the_session_is_not_counted(taken: list[tuple[str, str]], tmp_path: Path):
    zookeeper_throughput.work(Barrier(1), "holdfast", "host:1", "name", 0.01, tmp_path / "0.txt")
    assert int((tmp_path / "0.txt").read_text()) == len(taken) - 1


def test_every_kind_of_lock_names_the_module_that_it_needs():
    assert zookeeper_locks.MODULES.keys() == zookeeper_locks.LOCKS.keys()
