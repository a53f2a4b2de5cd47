"""What docs/migrate.md says of other libraries is true of them, on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
import redis_lock
from redis.backoff import NoBackoff
from redis.exceptions import LockNotOwnedError
from redis.retry import Retry

import holdfast
from holdfast.core.events import Event, Renewed
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with needed(RedisServer) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_redis_py_tells_of_a_loss_at_the_release_only(client: redis.Redis):
    lock = client.lock("jobs", timeout=0.2)
    assert lock.acquire()
    eventually(lambda: client.lock("jobs").acquire(blocking=False))  # it has expired
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_redis_py_without_a_timeout_never_expires_and_answers_busy_with_false(client: redis.Redis):
    assert client.lock("jobs").acquire()
    assert client.ttl("jobs") == -1
    assert client.lock("jobs").acquire(blocking_timeout=0.1) is False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_python_redis_lock_renews_no_more_after_one_error(server: RedisServer, client: redis.Redis):
    lock = redis_lock.Lock(client, "jobs", expire=3, auto_renewal=True)
    assert lock.acquire()
    renewer = lock._lock_renewal_thread
    server.stop()
    eventually(lambda: not renewer.is_alive())  # the outage was not borne
    server.start()
    eventually(lambda: not client.exists("lock:jobs"))  # nobody renews it
    with pytest.raises(redis_lock.NotAcquired):
        lock.release()


def test_python_redis_lock_takes_whole_seconds_and_no_timeout_above_its_expire(client: redis.Redis):
    with pytest.raises(redis_lock.TimeoutTooLarge):
        redis_lock.Lock(client, "jobs", expire=1).acquire(timeout=2)
    assert redis_lock.Lock(client, "jobs", expire=1.9).acquire()
    assert client.pttl("lock:jobs") <= 1000


def test_holdfast_bears_the_outage_that_ends_the_renewals_there(server: RedisServer):
    seen: list[Event] = []
    with holdfast.connect(server.url, io_timeout=0.2, observers=[seen.append]) as locks:
        with locks.lock("jobs", ttl=6) as lease:
            server.stop()
            eventually(lambda: lease.state == "at risk")
            server.start()
            eventually(lambda: any(isinstance(event, Renewed) for event in seen))
            lease.check()


def test_old_and_new_locks_of_one_name_on_one_server_do_not_exclude_each_other(
    server: RedisServer, client: redis.Redis
):
    with (
        holdfast.connect(server.url) as locks,
        client.lock("jobs"),
        redis_lock.Lock(client, "jobs"),
        locks.lock("jobs", timeout=0) as lease,
    ):
        lease.check()
