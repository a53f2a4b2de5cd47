"""Forks of a process whose threads are in the middle of calls to etcd, which asyncio's one thread cannot be."""

from __future__ import annotations

import os
import threading
import time

import pytest

import holdfast
from holdfast._sync.client import Client
from holdfast.testing._sync.runtime import eventually
from tests.stores.etcd.kit import bad_network

# Python warns of what this test is about.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")]


def in_child(locks: Client, number: int) -> int:
    """Fork, lock and write there with the inherited client; return the exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with locks.lock("child", timeout=20) as lease:
                locks._engine.store.write(f"child-{number}", "was here", lease.fence)
            locks.close()
            status = 0
        finally:
            os._exit(status)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize("busy", ["waiting", "locking"])
def test_a_child_has_a_working_client_whatever_the_threads_of_its_parent_do(busy: str) -> None:
    with bad_network() as rig, holdfast.connect(rig.one_way, io_timeout=10) as locks:
        lease = locks.lock("r").acquire()
        stop = threading.Event()

        def wait() -> None:
            with locks.lock("r", timeout=60):
                pass

        def work() -> None:
            while not stop.is_set():
                with locks.lock(f"own-{threading.get_ident()}", timeout=60):
                    pass

        threads = [threading.Thread(target=wait if busy == "waiting" else work) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(rig.stored()) >= 2, limit=20)
        assert [in_child(locks, number) for number in range(3)] == [0, 0, 0]
        stop.set()
        lease.release()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert len(rig.stored("values")) == 3
