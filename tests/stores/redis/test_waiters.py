"""Threads that wait at one client share one subscription, and no thread stands behind it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.errors import AcquireTimeout
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with needed(RedisServer) as server:
        yield server


def listeners(server: RedisServer) -> int:
    return len(server.call("PUBSUB", "CHANNELS", "holdfast.wake:*"))


def test_many_threads_wait_on_one_connection_and_each_is_told(server: RedisServer) -> None:
    """Whoever reads for all may leave at any time: the others are told by who takes over, not by their refresh."""
    count, served = 20, {}
    with holdfast.connect(server.url, io_timeout=30) as holder, holdfast.connect(server.url, io_timeout=30) as locks:
        leases = {name: holder.lock(name, ttl=60).acquire() for name in map(str, range(count))}

        def work(name: str) -> None:
            with locks.lock(name, ttl=60, timeout=60):
                served[name] = time.monotonic()

        threads = [threading.Thread(target=work, args=(name,)) for name in leases]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(len(state.waiters) for state in holder.inspect()) == count)
        assert listeners(server) == 1
        time.sleep(0.2)
        order = random.Random(1).sample(list(leases), count)
        slow = []
        for name in order:
            released = time.monotonic()
            leases[name].release()
            eventually(lambda name=name: name in served, limit=30)  # type: ignore[misc]
            slow.append(served[name] - released)
        for thread in threads:
            thread.join()
    # A refresh comes every 2 s: of twenty that came by it hardly one would be quick.
    assert sorted(slow)[count // 2] < 0.5
    assert listeners(server) == 0


def test_a_waiter_that_gives_up_hands_the_reading_over(server: RedisServer) -> None:
    with holdfast.connect(server.url, io_timeout=30) as holder, holdfast.connect(server.url, io_timeout=30) as locks:
        first, second = holder.lock("a", ttl=60).acquire(), holder.lock("b", ttl=60).acquire()
        got: list[float] = []

        def patient() -> None:
            with locks.lock("b", ttl=60, timeout=60):
                got.append(time.monotonic())

        def impatient() -> None:
            with pytest.raises(AcquireTimeout):
                locks.lock("a", ttl=60).acquire(0.6)

        threads = [threading.Thread(target=work) for work in (impatient, patient)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        threads[0].join()
        released = time.monotonic()
        second.release()
        threads[1].join()
        assert got[0] - released < 1.0
        first.release()


def test_closing_wakes_and_ends_everything(server: RedisServer) -> None:
    holder, locks = holdfast.connect(server.url), holdfast.connect(server.url)
    lease = holder.lock("r", ttl=60).acquire()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            locks.lock("r", ttl=60).acquire()
        except holdfast.LockError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(len(state.waiters) for state in holder.inspect()) == 5)
    locks.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(errors) == 5
    assert holder.inspect()[0].waiters == ()
    lease.release()
    holder.close()
    assert listeners(server) == 0


FORKING = """
import os, sys, threading, time, holdfast
locks = holdfast.connect(sys.argv[1])
threading.Thread(target=lambda: locks.lock("r", ttl=60).acquire(), daemon=True).start()
sys.stdin.readline()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_place_of_its_dead_parent(server: RedisServer) -> None:
    """The child has a copy of the subscription: while it is open the server takes the parent for alive."""
    with holdfast.connect(server.url) as holder:
        lease = holder.lock("r", ttl=60).acquire()
        parent = subprocess.Popen(
            [sys.executable, "-c", FORKING, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        eventually(lambda: listeners(server) == 1)
        print(file=parent.stdin, flush=True)
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            eventually(lambda: listeners(server) == 0)
            os.kill(child, 0)  # lives
            lease.release()
            assert not holder.inspect("r")[0].holders
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdin.close()
            parent.stdout.close()
