"""One law against one store: makes clients and stores, moves time, and finds what was left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..._async.acquire import acquire
from ..._async.client import Client
from ..._async.lease import Lease
from ..._async.lock import Lock
from ..._async.runtime import FLAVOUR
from ..._async.store import Store
from ..._clock import Clock, SystemClock
from ..._registry import find_store
from ...core.claim import MAX, Claim, ClaimState, find
from ...core.urls import parse_url
from ..check import open_files
from ..child import Child
from ..clock import ManualClock
from ..contract import Target
from . import runtime
from .runtime import Call, eventually
from .tap import Tap

P = ParamSpec("P")
T = TypeVar("T")

# Real exchanges get far more time than they need: a busy machine must not look like a silent store.
_IO_TIMEOUT = 30.0


class TappedClient(Client):
    """A real client whose calls to the store go through a tap."""

    tap: Tap

    def _begin(self) -> None:
        super()._begin()
        self.tap = Tap(self._store)
        self._store = self._keeper.store = self._site.store = self.tap

    async def _acquire(self, lock: Lock, timeout: float | None) -> Lease:
        lease = await super()._acquire(lock, timeout)
        self.leases.append(lease)  # a law may end without its leases: close() has to find them
        return lease

    @property
    def leases(self) -> list[Lease]:
        """The leases that this client ever gave; clear it to drop them."""
        found: list[Lease] = self.__dict__.setdefault("_leases", [])
        return found

    async def claim(self, claim: Claim, timeout: float | None = None) -> int:
        """Acquire any claim through the client's own loop, with weights and capacities that locks do not have."""
        return (await acquire(self._site, claim, timeout))[0]

    async def orphan(self) -> None:
        """Stop keeping without a release, as a crash does."""
        self._keeper.closed = True
        self._keeper._wake.set()
        self._keeper._work.set()
        for activity in (self._keeper._watcher, self._keeper._renewer):
            if activity is not None:
                await activity.join(runtime.LIMIT)


class Case:
    """What a law is given."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.url = target.url.replace("{folder}", str(folder))
        self.namespace = f"contract-{os.urandom(4).hex()}"
        self.driven = target.driven
        self._manual = ManualClock()
        self.clock: Clock = self._manual if target.driven else SystemClock()
        self._clients: list[TappedClient] = []
        self._stores: list[Store] = []
        self._calls: list[Call[Any]] = []
        self._children: list[Child] = []
        self._holders = 0
        self.capabilities = find_store(parse_url(self.url).scheme, FLAVOUR)(
            parse_url(self.url), namespace=self.namespace, io_timeout=1.0, clock=self.clock
        ).capabilities
        self.real_ttl = max(1.0, self.capabilities.min_ttl)
        self.ttl = 12.0 if target.driven else self.real_ttl
        self.past = 0.1 + self.capabilities.lag  # so long after its end a claim is gone for certain

    # -- who takes part

    async def client(self, *, real: bool = False, io_timeout: float = _IO_TIMEOUT, **options: Any) -> TappedClient:
        """Make a client; `real` ones live by the real clock, beside other processes."""
        options.setdefault("namespace", self.namespace)
        clock = SystemClock() if real else self.clock
        client = TappedClient(parse_url(self.url), io_timeout=io_timeout, clock=clock, **options)
        self._clients.append(client)
        return client

    async def store(self, *, namespace: str | None = None) -> Store:
        """Make a bare store, to send what no client would."""
        factory = find_store(parse_url(self.url).scheme, FLAVOUR)
        store: Store = factory(
            parse_url(self.url), namespace=namespace or self.namespace, io_timeout=_IO_TIMEOUT, clock=self.clock
        )
        self._stores.append(store)
        await store.ready()
        return store

    def claim(self, resource: str = "r", weight: int = MAX, capacity: int = MAX, **facts: Any) -> Claim:
        """Describe a claim of a new holder."""
        self._holders += 1
        facts.setdefault("ttl", self.ttl)
        facts.setdefault("owner", f"owner-{self._holders}")
        facts.setdefault("fair", self.capabilities.fair)
        return Claim(resource, f"{self.namespace}.{self._holders}", weight, capacity, **facts)

    def spawn(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """Let a call run at the same time, as another actor."""
        call = runtime.spawn(function, *args, **kwargs)
        self._calls.append(call)
        return call

    def child(self, part: str, **arguments: Any) -> Child:
        """Start another process of this flavour that plays a part of parts.py."""
        child = Child(self.folder, FLAVOUR, part, url=self.url, namespace=self.namespace, **arguments)
        self._children.append(child)
        return child

    # -- time

    async def advance(self, seconds: float) -> None:
        """Let time pass: at one stroke where it is driven, else by waiting for it."""
        if self.driven:
            self._manual.advance(seconds)
        else:
            await runtime.pause(seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass, in steps as small as the pauses between two tries, until it has come true."""

        async def stepped() -> bool:
            if self.driven and not condition():
                self._manual.advance(0.02)
            return condition()

        await eventually(stepped)

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone."""
        self._manual.step_wall(seconds)

    # -- what others see

    async def holders(self, resource: str = "r") -> list[ClaimState]:
        """Return who holds a resource."""
        return [claim for claim in await self._claims(resource) if claim.token]

    async def waiters(self, resource: str = "r") -> list[ClaimState]:
        """Return who waits for a resource."""
        return [claim for claim in await self._claims(resource) if not claim.token]

    async def holding(self, count: int, resource: str = "r") -> None:
        """Wait until that many hold the resource, as others see it."""

        async def counted() -> bool:
            return len(await self.holders(resource)) == count

        await eventually(counted)

    async def waiting(self, count: int, resource: str = "r") -> None:
        """Wait until that many stand in line, as others see it."""

        async def counted() -> bool:
            return len(await self.waiters(resource)) == count

        await eventually(counted)

    async def nothing_left(self, resource: str = "r") -> None:
        """Demand that soon nobody holds or waits, and that the resource can be had by asking once."""
        client = await self.client()

        async def free() -> bool:
            if await self._claims(resource):
                return False
            # Still refused: a call that its caller has given up, but the store has not yet seen.
            lease = await client.lock(resource, ttl=60).try_acquire()
            if lease is not None:
                await lease.release()
            return lease is not None

        await eventually(free)

    async def _claims(self, resource: str) -> list[ClaimState]:
        store = self._stores[0] if self._stores else await self.store()
        state = find(await store.inspect(resource), resource)
        return [*state.holders, *state.waiters] if state is not None else []

    # -- the end

    async def close(self) -> None:
        """End everything that the law has started."""
        for child in self._children:
            child.kill()
        for client in self._clients:
            client.tap.heal()
            await client.close()
        for store in self._stores:
            await store.close()
        for call in self._calls:
            call.cancel()
            try:
                await call.join()
            except BaseException:  # the law has seen those that it is about
                pass


def run(function: Callable[[Case], Any], target: Target) -> None:
    """Put a store to a law, and see that nothing is left running or open.

    Raises: AssertionError if the law is broken.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        runtime.run(_play, function, target, Path(folder))


async def _play(function: Callable[[Case], Any], target: Target, folder: Path) -> None:
    ran, opened = runtime.running(), open_files()
    case = Case(target, folder)
    try:
        await function(case)
    finally:
        await case.close()
    await eventually(lambda: not runtime.running() - ran)
    try:
        await eventually(lambda: set(open_files()) <= set(opened), 2.0)  # some libraries close in the background
    except AssertionError:
        left = open_files()
        raise AssertionError(f"left open: {[left[number] for number in set(left) - set(opened)]}") from None
