"""The fixtures for users, as a user's tests see them: in a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"

USER_TESTS = """
import asyncio
import threading

import holdfast
import pytest

LEASES = []


def test_locks_exclude(holdfast_locks):
    with holdfast_locks.lock("job") as lease:
        assert lease.state == "held"
        found = []
        thread = threading.Thread(target=lambda: found.append(holdfast_locks.lock("job").try_acquire()))
        thread.start()
        thread.join()
        assert found == [None]


@pytest.mark.parametrize("number", [1, 2])
def test_every_test_has_its_own_room(holdfast_locks, number):
    assert holdfast_locks.inspect() == []
    LEASES.append(holdfast_locks.lock("left behind").acquire())  # given back when the fixture closes the client


def test_leases_of_earlier_tests_are_released():
    assert [lease.state for lease in LEASES] == ["released"] * 2


def test_time_is_real_unless_driven(holdfast_locks):
    with holdfast_locks.lock("job"), pytest.raises(holdfast.Deadlock):
        holdfast_locks.lock("job").acquire()
    lease = holdfast_locks.lock("job", ttl=0.5, renew=False).acquire()
    assert lease.wait_lost(5)


def test_time_is_driven(holdfast_locks, holdfast_clock):
    lease = holdfast_locks.lock("job", ttl=30, renew=False).acquire()
    holdfast_clock.advance(29)
    lease.check()
    holdfast_clock.advance(2)
    assert lease.lost


def test_clock_may_come_first(holdfast_clock, holdfast_locks, holdfast_aio_locks):
    lease = holdfast_locks.lock("job", ttl=30, renew=False).acquire()
    holdfast_clock.advance(31)

    async def main():
        async with holdfast_aio_locks() as locks:
            async with locks.lock("job") as other:
                assert other.token > lease.token

    asyncio.run(main())


def test_aio_shares_the_room(holdfast_locks, holdfast_aio_locks):
    async def main():
        async with holdfast_aio_locks() as one, holdfast_aio_locks() as two:
            async with one.lock("job"):
                assert await two.lock("job").try_acquire() is None
                assert holdfast_locks.lock("job").try_acquire() is None

    asyncio.run(main())
"""


def test_fixtures(tmp_path):
    (tmp_path / "test_user.py").write_text(USER_TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "holdfast.testing.plugin"],
        cwd=tmp_path,
        # By name, not by entry point: the same whether or not the package is installed.
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "8 passed" in run.stdout
