"""A tap between a client and its store: it counts the calls, and delays, fails or loses them on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..._async.store import Store
from ...core.claim import Answer, Claim, Granted, Record, Renewal, ResourceState, Waiting
from ...core.fence import Fence
from ...core.promises import Capabilities
from ...errors import StoreUnavailable
from ...keeper.side import Blocking
from . import runtime
from .runtime import Gate, eventually

T = TypeVar("T")

Hook = Callable[[], Awaitable[None]]


class Tap:
    """A store that passes everything on. A hook in `before` runs instead of the call if it raises, one in `after` after
    the store has acted: raising there loses the reply. What is in `answers` is told in the store's place.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.claims: list[str] = []  # the resources that were asked for,
        self.renewals: list[list[str]] = []  # renewed,
        self.releases: list[str] = []  # released,
        self.released: list[str] = []  # and of those the ones that were answered
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.answers: dict[str, Any] = {}  # of "renew", for every claim; of "release", after the store has acted
        self.hooks = runtime.Hooks()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store."""
        return self.store.capabilities

    def count(self, verb: str) -> int:
        """Return how often this verb was called."""
        return self.calls.count(verb)

    async def reached(self, what: str, least: int, drive: Callable[[], object] | None = None) -> None:
        """Return when there are so many "claims", "renewals" or "releases"."""
        await eventually(lambda: len(getattr(self, what)) >= least, drive)

    def cut_off(self, *verbs: str) -> None:
        """Leave these verbs without an answer."""
        self.before.update(dict.fromkeys(verbs, unanswered))

    def hold_up(self, verb: str) -> Gate:
        """Hold up every call of this verb until the gate is opened."""
        gate = Gate()
        self.before[verb] = gate.wait
        return gate

    def heal(self) -> None:
        """Take all hooks and answers away."""
        self.before.clear()
        self.after.clear()
        self.answers.clear()

    async def ready(self) -> None:
        """See Store."""
        await self._begin("ready")
        await self.store.ready()
        await self._end("ready")

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        self.claims.append(claim.resource)
        await self._begin("claim")
        answer = await self.store.claim(claim, queue)
        await self._end("claim")
        return answer

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> Granted | None:
        """See Store."""
        await self._begin("wait")
        handed = await self.store.wait(claim, waiting, until)
        await self._end("wait")
        return handed

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        self.renewals.append([claim.resource for claim in claims])
        await self._begin("renew")
        if "renew" in self.answers:
            return [self.answers["renew"]] * len(claims)
        answers = await self.store.renew(claims)
        await self._end("renew")
        return answers

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        self.releases.append(resource)
        await self._begin("release")
        answer = await self.store.release(resource, holder, keep)
        await self._end("release")
        self.released.append(resource)
        return bool(self.answers.get("release", answer))

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        await self._begin("inspect")
        states = await self.store.inspect(prefix)
        await self._end("inspect")
        return states

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        await self._begin("watch")
        await self.store.watch(resource, seen, until)
        await self._end("watch")

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        await self._begin("read")
        record = await self.store.read(key, fence)
        await self._end("read")
        return record

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        await self._begin("write")
        await self.store.write(key, value, fence, keep)
        await self._end("write")

    def __getattr__(self, name: str) -> Any:
        # What a store of a third party may lack, the tap lacks, too.
        if name not in ("blocking", "wake", "evict", "time", "state"):
            raise AttributeError(name)
        verb = getattr(self.store, name)
        if name == "wake":
            return verb
        return (lambda: Side(self, verb())) if name == "blocking" else self._tapped(name, verb)

    def _tapped(self, name: str, verb: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def call(*args: Any) -> T:
            await self._begin(name)
            answer = await verb(*args)
            await self._end(name)
            return answer

        return call

    def interrupt(self) -> None:
        """See Store."""
        self.store.interrupt()

    async def close(self) -> None:
        """See Store."""
        await self.store.close()

    async def _begin(self, verb: str) -> None:
        self.calls.append(verb)
        if (hook := self.before.get(verb)) is not None:
            await hook()

    async def _end(self, verb: str) -> None:
        if (hook := self.after.get(verb)) is not None:
            await hook()


class Side:
    """The side of a tap that the keeper calls, in threads of its own: the same counts, the same hooks."""

    def __init__(self, tap: Tap, side: Blocking) -> None:
        self._tap = tap
        self._side = side

    def renew(self, claims: Sequence[Claim], limit: float) -> list[Renewal]:
        """See Blocking."""
        self._tap.renewals.append([claim.resource for claim in claims])
        self._begin("renew")
        if "renew" in self._tap.answers:
            return [self._tap.answers["renew"]] * len(claims)
        answers = self._side.renew(claims, limit)
        self._end("renew")
        return answers

    def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Blocking."""
        self._tap.releases.append(resource)
        self._begin("release")
        answer = self._side.release(resource, holder, keep)
        self._end("release")
        self._tap.released.append(resource)
        return bool(self._tap.answers.get("release", answer))

    def ready(self) -> object:
        """See Blocking."""
        return self._side.ready()

    def close(self) -> None:
        """See Blocking."""
        self._side.close()

    def _begin(self, verb: str) -> None:
        self._tap.calls.append(verb)
        self._tap.hooks.call(self._tap.before.get(verb))

    def _end(self, verb: str) -> None:
        self._tap.hooks.call(self._tap.after.get(verb))


async def unanswered() -> None:
    """A hook: the store gives no answer."""
    raise StoreUnavailable("the tap lets nothing through")


def failing(error: BaseException) -> Hook:
    """Return a hook that raises this."""

    async def fail() -> None:
        raise error

    return fail


def times(count: int, hook: Hook) -> Hook:
    """Return a hook that does it that many times, and then nothing more."""
    left = [hook] * count

    async def limited() -> None:
        if left:
            await left.pop()()

    return limited
