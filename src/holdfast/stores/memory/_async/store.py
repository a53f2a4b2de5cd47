"""memory://NAME: the pure queue itself, for one process."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ...._async import runtime
from ...._clock import Clock
from ....core.claim import Answer, Claim, Evicted, Granted, Record, Renewal, ResourceState, Waiting, changed, find
from ....core.fence import Fence
from ....core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ....core.urls import StoreURL
from ....keeper.side import Blocking
from ..room import Keeping, room

_CAPABILITIES = Capabilities(
    store="memory",
    scope=Scope.PROCESS,
    faults={Fault.CLIENT_PAUSE: KEEPS_ALL, Fault.CLIENT_CRASH: KEEPS_ALL, Fault.CLOCK_STEP: KEEPS_ALL},
    evict=True,
    extend=True,
    dated=True,
)


class MemoryStore:
    """Claims in the memory of this process."""

    capabilities = _CAPABILITIES

    def __init__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> None:
        url.allow()
        if url.path or len(url.hosts) > 1:
            raise ValueError(f"write memory:// or memory://NAME, not {url}")
        self._room = room(url.hosts[0][0] if url.hosts else "")
        self._namespace = namespace
        self._clock = clock
        self._keeping = Keeping(self._room, namespace, clock.now)
        self._wakeups: dict[str, runtime.Signal] = self._keeping.wakeups
        self._watching: set[runtime.Signal] = set()

    async def ready(self) -> None:
        """There is nothing to open."""

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        clock, wakeups = self._clock, self._wakeups

        def wakeup() -> runtime.Signal:
            signal = wakeups.setdefault(claim.holder, runtime.Signal())
            signal.clear()  # nobody can set it meanwhile: that takes the lock of the room
            return signal

        answer = self._room.claim(
            self._namespace, claim, queue, wakeup, clock.now(), clock.wall_ns() // 1000, self.capabilities.waiting_life
        )
        if wakeups and (type(answer) is Granted or not queue):
            wakeups.pop(claim.holder, None)
        return answer

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        wakeup = self._wakeups.get(claim.holder)
        if wakeup is not None:
            await wakeup.wait(self._clock, until)

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        return self._keeping.renew(claims)

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        return self._keeping.release(resource, holder, keep)

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store."""
        return self._room.evict(self._namespace, resource, holder, at_once, self._clock.now())

    async def time(self) -> tuple[float, float]:
        """See Store."""
        return self._clock.wall_ns() / 1e9, 0.0

    def blocking(self) -> Blocking:
        """See Store."""
        return self._keeping

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        return self._room.inspect(self._namespace, prefix, self._clock.now())

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        wakeup = runtime.Signal()
        self._room.watch(self._namespace, resource, wakeup)
        self._watching.add(wakeup)
        try:
            while (now := self._clock.now()) < until:  # read before asking: what is seen is no newer than that
                state = find(await self.inspect(resource), resource)
                if changed(seen, state):
                    return
                # An expiry changes the holders without anybody doing anything.
                left = min((claim.left for claim in state.holders), default=inf) if state is not None else inf
                if await wakeup.wait(self._clock, min(until, now + left)):
                    return
        finally:
            self._watching.discard(wakeup)
            self._room.unwatch(self._namespace, resource, wakeup)

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        return self._room.read(self._namespace, key, fence, self._clock.now())

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        expires = inf if keep is None else self._clock.now() + keep
        self._room.write(self._namespace, key, value, fence, expires)

    def wake(self, holder: str) -> None:
        """See Store."""
        if (wakeup := self._wakeups.get(holder)) is not None:
            wakeup.set()

    def interrupt(self) -> None:
        """See Store."""
        for wakeup in (*self._wakeups.values(), *self._watching):
            wakeup.set()

    async def close(self) -> None:
        """See Store."""
        self._keeping.close()
