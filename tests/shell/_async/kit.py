"""What the shell's tests share: a client on a driven clock, and a tap between it and its store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast.core.claim import Answer, Claim, Renewal
from holdfast.core.events import Event
from holdfast.core.urls import parse_url
from holdfast.errors import StoreUnavailable
from tests.shell._async.runtime import Gate, eventually
from tests.shell.clock import ManualClock

Way = Callable[[Lock], Any]


def connect(name: str, clock: ManualClock, **options: Any) -> Client:
    """Return a client of the memory store `name` that lives by the driven clock."""
    return Client(parse_url(f"memory://{name}"), clock=clock, **options)


class Tap:
    """Stands between a client and its store: counts what passes; fails it, answers it or holds it up on demand."""

    def __init__(self, client: Client) -> None:
        store = client._store
        self._claim: Any = store.claim
        self._renew: Any = store.renew
        self._release: Any = store.release
        self.claims: list[str] = []
        self.renewals: list[list[str]] = []
        self.releases: list[str] = []
        self.released: list[str] = []  # those that were answered
        self.fail: dict[str, Exception] = {}  # by verb
        self.hold_up: dict[str, Gate] = {}  # by verb
        self.renewal: Renewal | None = None  # answers every renewal in the store's place
        self.release_answer: bool | None = None
        for verb in ("claim", "renew", "release"):
            setattr(store, verb, getattr(self, verb))

    def cut_off(self, *verbs: str) -> None:
        """Leave these verbs without an answer."""
        self.fail = {verb: StoreUnavailable("cut off") for verb in verbs}

    async def count(self, verb: str, least: int, drive: Callable[[], object] = lambda: None) -> None:
        """Return when the store was asked that often: "claims", "renewals" or "releases"."""
        await eventually(lambda: len(getattr(self, verb)) >= least, drive)

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        self.claims.append(claim.resource)
        await self._obstruct("claim")
        answer: Answer = await self._claim(claim, queue)
        return answer

    async def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        self.renewals.append([claim.resource for claim in claims])
        await self._obstruct("renew")
        if self.renewal is not None:
            return [self.renewal] * len(claims)
        answers: list[Renewal] = await self._renew(claims)
        return answers

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        self.releases.append(resource)
        await self._obstruct("release")
        answer: bool = await self._release(resource, holder, keep)
        self.released.append(resource)
        return answer if self.release_answer is None else self.release_answer

    async def _obstruct(self, verb: str) -> None:
        if (gate := self.hold_up.get(verb)) is not None:
            await gate.wait()
        if (error := self.fail.get(verb)) is not None:
            raise error


async def is_free(client: Client, resource: str) -> bool:
    """Tell whether nobody holds the resource or waits for it."""
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
