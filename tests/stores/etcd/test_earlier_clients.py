"""Claims of clients of an earlier version, which do not look for a mark: only an end at once is safe to offer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Unsupported
from holdfast.stores.etcd.keys import StoredClaim
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.etcd import EtcdServer
from tests.compat.test_versions import NEW, old
from tests.servers import needed

__all__ = ["old"]  # a fixture

pytestmark = [pytest.mark.server, pytest.mark.slow]

TTL = 2.0
PATIENT = 60.0

# Writes down when it looked at its lease and did not find it lost; the clock is the same in all processes.
HOLDER = """
import sys, time, holdfast
locks = holdfast.connect(sys.argv[1], io_timeout=10)
lease = locks.lock("r", ttl=float(sys.argv[2])).acquire(60)
with open(sys.argv[3], "w", buffering=1) as log:
    while True:
        now = time.monotonic()
        if lease.lost:
            break
        log.write(f"{now}\\n")
        time.sleep(0.01)
"""


class Holder:
    """A process of some version that holds the lock for as long as it can."""

    def __init__(self, path: Path, url: str, log: Path) -> None:
        self._log = log
        env = {**os.environ, "PYTHONPATH": str(path)}
        self.process = subprocess.Popen([sys.executable, "-c", HOLDER, url, str(TTL), str(log)], env=env)
        eventually(lambda: log.exists() and self.looks > 0, limit=PATIENT)

    @property
    def looks(self) -> int:
        return len(self._log.read_text().splitlines())

    @property
    def believed(self) -> float:
        """When it last believed to hold the lock."""
        *lines, _ = self._log.read_text().split("\n")
        return float(lines[-1])


@pytest.fixture
def url() -> Iterator[str]:
    with needed(EtcdServer) as server:
        yield server.url


@pytest.fixture
def hold(url: str, old: Path, tmp_path: Path) -> Iterator[Callable[[str], Holder]]:
    started: list[Holder] = []

    def start(version: str) -> Holder:
        started.append(Holder({"old": old, "new": NEW}[version], url, tmp_path / "log"))
        return started[-1]

    yield start
    for holder in started:
        holder.process.kill()
        holder.process.wait()


def break_and_take(url: str, holder: Holder) -> bool:
    """Break its claim, take the lock when it is free, and return whether the holder believed in its own even then."""
    with holdfast.connect(url, io_timeout=10) as locks:
        locks.break_lock("r", reason="hung")
        with locks.lock("r", ttl=TTL, timeout=20):
            taken, looks = time.monotonic(), holder.looks
            eventually(lambda: holder.process.poll() is not None or holder.looks > looks + 1, limit=PATIENT)
            return holder.believed > taken


def test_a_claim_of_an_earlier_version_is_not_broken_softly(url: str, hold: Callable[[str], Holder]):
    holder = hold("old")
    with holdfast.connect(url, io_timeout=10) as locks:
        with pytest.raises(Unsupported, match=r"earlier version of holdfast.*now=True"):
            locks.break_lock("r", reason="hung")
        (before,) = locks.holders("r")
        assert not before.broken
        assert locks.lock("r").try_acquire() is None
        (broken,) = locks.break_lock("r", reason="hung", now=True)
        assert (broken.token, broken.left) == (before.token, 0.0)
        lease = locks.lock("r").try_acquire()
        assert lease is not None
        assert lease.token > before.token
        assert holder.process.wait(PATIENT) == 0, "its next renewal tells it"
        lease.release()


def test_a_holder_of_this_version_knows_of_its_loss_before_anybody_else_holds(url: str, hold: Callable[[str], Holder]):
    assert not break_and_take(url, hold("new"))


@pytest.mark.control
def test_control_one_of_an_earlier_version_would_not(
    url: str, hold: Callable[[str], Holder], monkeypatch: pytest.MonkeyPatch
):
    """Its renewals are answered well as long as the key is there, and it believes in the last one for a ttl."""
    monkeypatch.setattr(StoredClaim, "notices", True)
    assert break_and_take(url, hold("old"))
