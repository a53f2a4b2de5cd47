"""One law against one store: makes clients and stores, moves time, and finds what was left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..._async.acquire import go_on
from ..._async.client import Client
from ..._async.engine import Engine
from ..._async.lease import Lease
from ..._async.lock import Lock
from ..._async.runtime import FLAVOUR
from ..._async.store import Store
from ..._clock import Clock, SystemClock
from ...core.acquisition import Acquisition
from ...core.cancel import Cancel
from ...core.claim import MAX, Answer, Claim, ClaimState, find
from ...core.urls import parse_url
from ...errors import StoreUnavailable
from ...keeper.entries import Entry
from ...stores.registry import find_store
from ..check import open_files
from ..child import Child
from ..clock import ManualClock
from ..contract import Target
from . import runtime
from .runtime import Call, eventually
from .tap import Tap, unanswered

P = ParamSpec("P")
T = TypeVar("T")

# Real exchanges get far more time than they need: a busy machine must not look like a silent store.
_IO_TIMEOUT = 30.0
_LONG = 1e6
_SOON = 100  # steps of the driven clock: 2 s, less than any ttl or waiting life


class TappedClient(Client):
    """A real client whose calls to the store go through a tap."""

    tap: Tap

    def _make_store(self) -> Store:
        self.tap = Tap(super()._make_store())
        return self.tap


class _Engine(Engine):
    """A real engine that remembers its leases: a law may end without them, and close() has to find them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.leases: list[Lease] = []

    async def acquire(
        self,
        lock: Lock,
        timeout: float | None,
        entry: Entry | None = None,
        cancel: Cancel | None = None,
        endless: bool | None = None,
    ) -> Lease:
        """Take a lock."""
        lease = await super().acquire(lock, timeout, entry, cancel, endless)
        self.leases.append(lease)
        return lease


class CaseClient(TappedClient):
    """What a law uses: it keeps its leases alive, and can do what no client does."""

    _engine: _Engine
    _engine_kind = _Engine

    @property
    def leases(self) -> list[Lease]:
        """The leases that this client ever gave; clear it to drop them."""
        return self._engine.leases

    async def claim(self, claim: Claim, timeout: float | None = None) -> int:
        """Acquire any claim through the client's own loop, with weights and capacities that locks do not have."""
        engine = self._engine
        acquisition = Acquisition(claim, timeout, engine.now(), engine.limits)
        try:
            answer: Answer | StoreUnavailable
            try:
                answer = await engine.store.claim(claim, timeout != 0)
            except StoreUnavailable as error:
                answer = error
            return (await go_on(engine, acquisition, answer)).token
        except BaseException as error:
            await engine._abandon(acquisition, error)
            raise

    async def orphan(self) -> None:
        """Stop keeping without a release, as a crash does."""
        keeper = self._engine.keeper
        keeper.attend = lambda: keeper.now() + _LONG  # type: ignore[method-assign]
        self.tap.before["renew"] = unanswered


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
        self._clients: list[CaseClient] = []
        self._stores: list[Store] = []
        self._calls: list[Call[Any]] = []
        self._children: list[Child] = []
        self._holders = 0
        self.capabilities = find_store(parse_url(self.url).scheme, FLAVOUR)(
            parse_url(self.url), namespace=self.namespace, io_timeout=1.0, clock=self.clock
        ).capabilities
        self.real_ttl = max(target.ttl, self.capabilities.min_ttl)
        self.ttl = 12.0 if target.driven else self.real_ttl
        self.past = 0.1 + self.capabilities.lag  # so long after its end a claim is gone for certain

    # -- who takes part

    async def client(self, *, real: bool = False, io_timeout: float = _IO_TIMEOUT, **options: Any) -> CaseClient:
        """Make a client; `real` ones live by the real clock, beside other processes."""
        options.setdefault("namespace", self.namespace)
        clock = SystemClock() if real else self.clock
        client = CaseClient(parse_url(self.url), io_timeout=io_timeout, clock=clock, **options)
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

    def child(self, role: str, **arguments: Any) -> Child:
        """Start another process of this flavour that plays a role of child_roles.py."""
        child = Child(self.folder, FLAVOUR, role, url=self.url, namespace=self.namespace, **arguments)
        self._children.append(child)
        return child

    # -- time

    def drive(self, seconds: float) -> None:
        """Move the driven clock, from any thread."""
        self._manual.advance(seconds)

    async def advance(self, seconds: float) -> None:
        """Let time pass: at one stroke where it is driven, else by waiting for it."""
        if self.driven:
            self._manual.advance(seconds)
        else:
            await runtime.pause(seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass, in steps as small as the pauses between two tries, until it has come true."""
        await eventually(condition, (lambda: self._manual.advance(0.02)) if self.driven else None)

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

    async def waiting(self, count: int, resource: str = "r") -> None:
        """Wait until that many stand in line, as others see it."""

        async def counted() -> bool:
            return len(await self.waiters(resource)) == count

        await eventually(counted)

    async def nothing_left(self, resource: str = "r") -> None:
        """Demand that soon nobody holds or waits, and that the resource can be had by asking once."""
        client = await self.client()
        steps = iter(range(_SOON))

        async def free() -> bool:
            if await self._claims(resource):
                if self.driven and next(steps, None) is not None:  # whoever goes on trying pauses between two tries
                    self._manual.advance(0.02)
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
        await eventually(lambda: set(open_files()) <= set(opened), limit=2.0)  # some libraries close in the background
    except AssertionError:
        left = open_files()
        raise AssertionError(f"left open: {[left[number] for number in set(left) - set(opened)]}") from None
