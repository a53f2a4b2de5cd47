"""pytest fixtures for code that uses holdfast: locks in memory, in a room of their own for each test.

    def test_second_worker_is_turned_away(holdfast_locks):
        with holdfast_locks.lock("job"):
            assert run_in_thread(worker, holdfast_locks) == "busy"

A test that also asks for `holdfast_clock` drives the time: nothing expires and no timeout ends unless the test says so.

    def test_pause(holdfast_locks, holdfast_clock):
        lease = holdfast_locks.lock("job", ttl=30, renew=False).acquire()
        holdfast_clock.advance(31)
        assert lease.lost

`holdfast_aio_locks` makes asyncio clients of the same room, and needs no plugin for asyncio:

    def test_worker(holdfast_aio_locks):
        async def main():
            async with holdfast_aio_locks() as locks: ...
        asyncio.run(main())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .. import Client
    from ..aio import Client as AioClient
    from ..core.urls import StoreURL
    from .clock import ManualClock


@pytest.fixture
def holdfast_clock() -> ManualClock:
    """Drive the time of this test's locks: it stands still until `advance(seconds)`."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def _holdfast_room() -> StoreURL:
    from ..core.urls import parse_url

    return parse_url(f"memory://test-{os.urandom(8).hex()}")


def _clock(request: pytest.FixtureRequest) -> ManualClock | None:
    if "holdfast_clock" not in request.fixturenames:
        return None
    clock: ManualClock = request.getfixturevalue("holdfast_clock")
    return clock


@pytest.fixture
def holdfast_locks(_holdfast_room: StoreURL, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Give a client whose locks are this test's alone; closed after it."""
    from .._sync.client import Client

    with Client(_holdfast_room, clock=_clock(request)) as client:
        yield client


@pytest.fixture
def holdfast_aio_locks(_holdfast_room: StoreURL, request: pytest.FixtureRequest) -> Callable[[], AioClient]:
    """Give a maker of asyncio clients, which share their locks with `holdfast_locks`; close them in their loop."""
    from .._async.client import Client

    return lambda: Client(_holdfast_room, clock=_clock(request))
