"""A tap between a client and its store: it counts the calls, and delays, fails or loses them on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ..._async.store import Store
from ...core.claim import Answer, Claim, Granted, Record, Renewal, ResourceState, Waiting
from ...core.fence import Fence
from ...core.promises import Capabilities
from ...errors import StoreUnavailable

Hook = Callable[[], Awaitable[None]]


class Tap:
    """A store that passes everything on. A hook in `before` runs instead of the call if it raises, one in `after` after
    the store has acted: raising there loses the reply.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store."""
        return self.store.capabilities

    def count(self, verb: str) -> int:
        """Return how often this verb was called."""
        return self.calls.count(verb)

    def heal(self) -> None:
        """Take all hooks away."""
        self.before.clear()
        self.after.clear()

    async def ready(self) -> None:
        """See Store."""
        await self._begin("ready")
        await self.store.ready()
        await self._end("ready")

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
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

    async def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See Store."""
        await self._begin("renew")
        answers = await self.store.renew(claims)
        await self._end("renew")
        return answers

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        await self._begin("release")
        answer = await self.store.release(resource, holder, keep)
        await self._end("release")
        return answer

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


async def unanswered() -> None:
    """A hook: the store gives no answer."""
    raise StoreUnavailable("the tap lets nothing through")


def times(count: int, hook: Hook) -> Hook:
    """Return a hook that does it that many times, and then nothing more."""
    left = [hook] * count

    async def limited() -> None:
        if left:
            await left.pop()()

    return limited
