"""What docs/migrate.md says of kazoo is true of it, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

import holdfast
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed

pytestmark = pytest.mark.server
TTL = 4.0


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with needed(ZooKeeperServer) as found:
        yield found


@contextmanager
def connected(server: ZooKeeperServer, **facts: Any) -> Iterator[Any]:
    client = KazooClient(f"127.0.0.1:{server.port}", timeout=TTL, **facts)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_it_says_busy_with_false_and_late_with_an_error(server: ZooKeeperServer) -> None:
    with connected(server) as one, connected(server) as other, one.Lock("/jobs", "web-3"):
        assert other.Lock("/jobs").acquire(blocking=False) is False
        with pytest.raises(LockTimeout):
            other.Lock("/jobs").acquire(timeout=0.1)
        assert other.Lock("/jobs").contenders() == ["web-3"]


def test_it_blocks_whoever_takes_its_lock_again(server: ZooKeeperServer) -> None:
    with connected(server) as client, client.Lock("/again"):
        assert client.Lock("/again").acquire(blocking=False) is False
    with holdfast.connect(server.url) as locks, locks.lock("again"), pytest.raises(holdfast.Deadlock):
        locks.lock("again").acquire()


def test_its_lock_does_not_tell_that_the_session_is_over(server: ZooKeeperServer) -> None:
    with connected(server) as client:
        lock = client.Lock("/lost")
        assert lock.acquire()
        with connected(server, client_id=client.client_id):
            pass  # whoever goes on with a session can end it
        with connected(server) as other:
            assert other.Lock("/lost").acquire(timeout=20)
        assert lock.is_acquired


def test_old_and_new_locks_of_one_name_do_not_exclude_each_other(server: ZooKeeperServer) -> None:
    with connected(server) as client, client.Lock("/jobs"), holdfast.connect(client) as locks:
        with locks.lock("jobs", timeout=0) as lease:
            lease.check()


def test_each_row_of_the_table_has_its_like(server: ZooKeeperServer) -> None:
    with holdfast.connect(server.url) as locks:
        with locks.lock("jobs", owner="web-3"):
            assert locks.lock("jobs").try_acquire() is None
            assert [claim.owner for state in locks.inspect("jobs") for claim in state.holders] == ["web-3"]
        with locks.rwlock("jobs").read(), locks.rwlock("jobs").read():
            pass
        with locks.semaphore("gpu", permits=4), locks.semaphore("gpu", permits=4):
            pass
        for term in locks.election("boss", value="web-3").terms():
            leader = locks.election("boss").leader()
            assert leader is not None
            assert leader.value == "web-3"
            term.resign()
            break
        eventually(lambda: locks.inspect() == [])
