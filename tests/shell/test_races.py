"""Threads that meet in the middle of a step: run with a tiny switch interval, so that they do."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.claim import find

pytestmark = pytest.mark.slow

SECONDS = 1.5


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Have the interpreter switch threads at nearly every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_reentry_that_races_with_a_release_never_returns_what_a_rival_holds() -> None:
    """One thread re-enters its lock while another gives back the first lease of it."""
    url = "memory://"
    until = time.monotonic() + SECONDS
    given: list[holdfast.Lease] = []
    wrong: list[str] = []
    reentered = 0

    def give_back() -> None:
        while time.monotonic() < until or given:
            if given:
                given.pop().release()

    with holdfast.connect(url) as locks, holdfast.connect(url) as rival:
        other = threading.Thread(target=give_back)
        other.start()
        lock = locks.lock("race", ttl=60, reentrant=True)
        while time.monotonic() < until:
            with lock as first:
                given.append(first)
                second = lock.acquire()
                reentered += second.token == first.token
                theirs = rival.lock("race", ttl=60).try_acquire()
                if theirs is not None:
                    wrong.append(f"{second!r} beside {theirs!r}")
                    theirs.release()
                second.release()
        other.join()
        resource = find(locks.inspect("race"), "race")
        assert resource is None or not resource.holders
    assert wrong == []
    assert reentered


def test_a_hold_is_released_once_whoever_is_the_last() -> None:
    """Many threads give back their leases of one hold at the same time: then it is free, and not before."""
    with holdfast.connect("memory://") as locks, holdfast.connect("memory://") as rival:
        lock = locks.lock("shared", ttl=60, reentrant=True)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with lock:
                leases = [lock.acquire() for _ in range(4)]
            last = leases.pop()
            threads = [threading.Thread(target=lease.release) for lease in leases]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            last.check()
            assert rival.lock("shared", ttl=60).try_acquire() is None
            last.release()
            with rival.lock("shared", ttl=60, timeout=0):
                pass
