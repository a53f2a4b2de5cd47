"""sqlite:///PATH: a file of this host, shared by processes and threads."""

from __future__ import annotations

import os
from pathlib import Path

from ...._async import runtime
from ...._clock import Clock
from ....core.claim import Claim, ResourceState, Waiting, changed, find
from ....core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ....core.urls import StoreURL
from ....keeper.side import Blocking, Side
from ..claims import Claims

_CAPABILITIES = Capabilities(
    store="sqlite",
    scope=Scope.HOST,
    faults={
        Fault.CLIENT_PAUSE: KEEPS_ALL,
        Fault.CLIENT_CRASH: KEEPS_ALL,
        Fault.SERVER_RESTART: KEEPS_ALL,
        Fault.CLOCK_STEP: KEEPS_ALL,
    },
    evict=True,
    extend=True,
    dated=True,
)

_POLL_LEAST = 0.002
_POLL_MOST = 0.1


class SQLiteStore:
    """Claims in the rows of a SQLite file."""

    capabilities = _CAPABILITIES

    def __init__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> None:
        url.allow()
        if url.hosts or not os.path.basename(url.path) or url.username is not None:
            raise ValueError(f"write sqlite:///absolute/path.db or sqlite:relative/path.db, not {url}")
        # Real and absolute, now: neither a later chdir nor a link may turn one lock into two.
        path = Path(os.path.realpath(url.path))
        self._claims = Claims(path, namespace, clock, io_timeout, self.capabilities.waiting_life, url.embedded)
        self._clock = clock
        self._worker = runtime.Worker("holdfast-sqlite", io_timeout)
        self._stop = runtime.Signal()
        # See Store for what they do. Bound here once, for in the blocking flavour nothing has to stand between.
        self.ready = self._worker.wrap(self._claims.open)
        self.claim = self._worker.wrap(self._claims.claim)
        self.renew = self._worker.wrap(self._claims.renew)
        self.release = self._worker.wrap(self._claims.release)
        self.evict = self._worker.wrap(self._claims.evict)
        self.time = self._worker.wrap(self._claims.time)
        self.inspect = self._worker.wrap(self._claims.inspect)
        self.read = self._worker.wrap(self._claims.registers.read)
        self.write = self._worker.wrap(self._claims.registers.write)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        wakeup, pidfds = self._claims.watched(claim.holder)
        try:
            if wakeup is None:
                # Without a wake-up it has to poll: the more rarely, the more have to go before.
                pause = min(_POLL_MOST, _POLL_LEAST * 2.0 ** min(waiting.ahead, 10))
                await self._stop.wait(self._clock, min(until, self._clock.now() + pause))
            else:
                await runtime.wait_readable([wakeup, *pidfds], self._clock, until)
        finally:
            self._claims.unwatch(pidfds)

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        pause, now = _POLL_LEAST, self._clock.now()  # read before asking: what is seen is no newer than that
        while not changed(seen, find(await self.inspect(resource), resource)):
            if now >= until or await self._stop.wait(self._clock, min(until, now + pause)):
                return
            pause, now = min(_POLL_MOST, pause * 2), self._clock.now()

    def blocking(self) -> Blocking:
        """See Store. Releases keep to the order of the worker's calls: the claim that one withdraws may be among them.
        Renewals do not, for a burst of other calls must not hold them up.
        """
        return Side(self._claims.renew, self._release_in_order, self._close_now)

    def wake(self, holder: str) -> None:
        """See Store."""
        self._claims.wake(holder)

    def interrupt(self) -> None:
        """See Store."""
        self._stop.set()
        self._claims.wake_all()

    def _release_in_order(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        return self._worker.call(self._claims.release, resource, holder, keep)

    def _close_now(self) -> None:
        self._claims.close()
        self._worker.close()

    async def close(self) -> None:
        """See Store."""
        try:
            await self._worker.run(self._claims.close)
        finally:
            self._worker.close()
