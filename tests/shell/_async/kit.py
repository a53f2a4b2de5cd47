"""What the shell's tests share: a client on a driven clock, and a tap between it and its store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast.core.events import Event
from holdfast.core.urls import parse_url
from holdfast.testing._async.case import TappedClient
from holdfast.testing._async.runtime import eventually
from holdfast.testing._async.tap import Tap
from holdfast.testing.clock import ManualClock

Way = Callable[[Lock], Any]


def connect(name: str, clock: ManualClock, **options: Any) -> TappedClient:
    """Return a client of the memory store `name`, on the driven clock and with a tap between it and the store."""
    return TappedClient(parse_url(f"memory://{name}"), clock=clock, **options)


async def is_free(client: Client, resource: str) -> bool:
    """Return whether nobody holds the resource or waits for it."""
    return all(state.resource != resource for state in await client.inspect(resource))


async def keeper_passes(client: Client, clock: ManualClock, tap: Tap) -> None:
    """Return when the keeper has come by: it has then done all that was due. Takes 0.2 s of the clock."""
    async with client.lock("canary", ttl=0.5):
        clock.advance(0.2)
        await eventually(lambda: any("canary" in batch for batch in tap.renewals))
        tap.renewals[:] = [rest for batch in tap.renewals if (rest := [name for name in batch if name != "canary"])]


# The three ways into a `with`.


async def by_lock(lock: Lock) -> AbstractAsyncContextManager[Lease]:
    return lock


async def by_acquire(lock: Lock) -> AbstractAsyncContextManager[Lease]:
    return lock.acquire()


async def by_lease(lock: Lock) -> AbstractAsyncContextManager[Lease]:
    return await lock.acquire()


WAYS: tuple[Way, ...] = (by_lock, by_acquire, by_lease)


def kinds(events: Iterable[Event]) -> list[str]:
    """Name the events."""
    return [type(event).__name__ for event in events]
