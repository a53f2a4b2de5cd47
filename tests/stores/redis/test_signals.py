"""A process that gets signals all the time, as under a profiler: every call still ends in time (law 12)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.errors import AcquireTimeout, StoreUnavailable
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server

IO = 0.5
SLACK = 3.0
LIMIT = 10.0  # then the server goes on, and a call that has not ended does


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with needed(RedisServer) as server:
        yield server


@pytest.fixture
def signals() -> Iterator[list[float]]:
    """Send this thread a signal twenty times a second."""
    came: list[float] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(time.monotonic()))
    stop, here = threading.Event(), threading.get_ident()

    def shoot() -> None:
        while not stop.wait(0.05):
            signal.pthread_kill(here, signal.SIGUSR1)

    gun = threading.Thread(target=shoot)
    gun.start()
    yield came
    stop.set()
    gun.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_silent_server_is_told_in_time(server: RedisServer, signals: list[float]) -> None:
    with holdfast.connect(server.url, io_timeout=IO) as locks:
        locks.ready()
        server.pause()
        help_ = threading.Timer(LIMIT, server.resume)
        help_.start()
        try:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                locks.lock("r").try_acquire()
            assert time.monotonic() - started < IO + SLACK
            assert len([at for at in signals if at > started]) > 2, "nothing interrupted it"
        finally:
            help_.cancel()
            help_.join()
            server.resume()


def test_a_wait_ends_in_time(server: RedisServer, signals: list[float]) -> None:
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url, io_timeout=IO) as locks:
        with holder.lock("r", ttl=60):
            started = time.monotonic()
            with pytest.raises(AcquireTimeout):
                locks.lock("r").acquire(0.5)
            assert 0.5 <= time.monotonic() - started < 0.5 + IO + SLACK
            assert len([at for at in signals if at > started]) > 2, "nothing interrupted it"
