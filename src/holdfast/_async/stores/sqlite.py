"""sqlite:///PATH: a file of this host, shared by processes and threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..._clock import Clock
from ..._sqlite.claims import Claims
from ...core.claim import Answer, Claim, Record, Renewal, ResourceState, Waiting, changed, find
from ...core.fence import Fence
from ...core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ...core.urls import StoreURL
from ...errors import StoreUnavailable
from .. import runtime

P = ParamSpec("P")
T = TypeVar("T")

_CAPABILITIES = Capabilities(
    store="sqlite",
    scope=Scope.HOST,
    faults={
        Fault.CLIENT_PAUSE: KEEPS_ALL,
        Fault.CLIENT_CRASH: KEEPS_ALL,
        Fault.SERVER_RESTART: KEEPS_ALL,
        Fault.CLOCK_STEP: KEEPS_ALL,
    },
)

# Without a bell a waiter has to poll: often at first, when a short critical section may end, then more rarely.
_POLL_LEAST = 0.001
_POLL_MOST = 0.1


class SQLiteStore:
    """Claims in the rows of a SQLite file."""

    capabilities = _CAPABILITIES

    def __init__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> None:
        url.allow()
        if url.hosts or not url.path or url.username is not None:
            raise ValueError(f"write sqlite:///absolute/path.db or sqlite:relative/path.db, not {url}")
        # Absolute now: a later chdir must not turn one lock into two.
        path = Path(os.path.abspath(url.path))
        self._claims = Claims(path, namespace, clock, io_timeout, self.capabilities.waiting_life, url.embedded)
        self._clock = clock
        self._limit = io_timeout
        self._worker = runtime.Worker("holdfast-sqlite")
        self._polls: dict[str, float] = {}
        self._stop = runtime.Signal()

    async def ready(self) -> None:
        """See Store."""
        await self._run(self._claims.open)

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        return await self._run(self._claims.claim, claim, queue)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        bell, pidfds = self._claims.watched(claim.holder)
        try:
            if bell is None:
                pause = self._polls.pop(claim.holder, _POLL_LEAST)
                if not await self._stop.wait(self._clock, min(until, self._clock.now() + pause)):
                    self._polls[claim.holder] = min(_POLL_MOST, pause * 2)
            else:
                await runtime.wait_readable([bell, *pidfds], self._clock, until)
        finally:
            for fd in pidfds:
                os.close(fd)

    async def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See Store."""
        return await self._run(self._claims.renew, claims)

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        self._polls.pop(holder, None)
        return await self._run(self._claims.release, resource, holder, keep)

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        return await self._run(self._claims.inspect, prefix)

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        pause = _POLL_LEAST
        while not changed(seen, find(await self.inspect(resource), resource)):
            now = self._clock.now()
            if now >= until or await self._stop.wait(self._clock, min(until, now + pause)):
                return
            pause = min(_POLL_MOST, pause * 2)

    async def read(self, key: str) -> Record | None:
        """See Store."""
        return await self._run(self._claims.read, key)

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        await self._run(self._claims.write, key, value, fence, keep)

    def interrupt(self) -> None:
        """See Store."""
        self._stop.set()
        self._claims.ring_all()

    async def close(self) -> None:
        """See Store."""
        try:
            await self._run(self._claims.close)
        finally:
            self._worker.close()

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._worker.run(self._limit, function, *args, **kwargs)
        except TimeoutError:
            raise StoreUnavailable(
                f"the SQLite file did not answer within {self._limit:g} s; another call or process keeps it busy"
            ) from None
