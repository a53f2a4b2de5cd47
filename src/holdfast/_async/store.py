"""The whole interface between holdfast and where claims live. Behaviour is described here, and nowhere again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._clock import Clock
from ..core.claim import Answer, Claim, Evicted, Granted, Record, Renewal, ResourceState, Waiting
from ..core.fence import Fence
from ..core.promises import Capabilities
from ..core.urls import StoreURL
from ..keeper.side import Blocking


class Store(Protocol):
    """Keeps the queue of claims of one namespace.

    Every exchange with a server ends within `io_timeout`: with an answer, or with StoreUnavailable when the outcome is
    unknown. StoreError says that asking again is pointless. A store is made without I/O and opens itself on first use.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        ...

    async def ready(self) -> None:
        """Open the store and check that it can keep what its capabilities say.

        Raises: StoreError with what is wrong; StoreUnavailable.
        """
        ...

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """Ask for the resource, or ask again. Idempotent per holder: a claim sent twice is one claim.

        A claim that has to wait keeps its place in line for `capabilities.waiting_life` seconds after it last asked.

        claim: what is asked for.
        queue: False leaves nothing behind unless it is granted; True by default.

        Raises: StoreUnavailable when the outcome is unknown; StoreError.
        """
        ...

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> Granted | None:
        """Return when asking again is worthwhile, at `until` at the latest. May return early, never misses a wake-up
        that came after the answer `waiting`.

        A store that has given the resource to the claim meanwhile may say so: then asking is not needed. Such a grant
        lasts for `left` or longer, counted from when the claim last asked.

        claim: the one that waits.
        waiting: the answer that it got.
        until: when to return at the latest, by the clock that the store was made with.
        """
        ...

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """Prolong granted claims, as few round trips as possible; one answer for each, in order.

        What has ended is never re-created. A claim may come with a longer ttl than it was granted with, where
        `capabilities.extend` says so.

        claims: those to prolong, each by its ttl from now on.
        limit: seconds that the whole may take, if that is less than `io_timeout`. None, the default, sets no other.
        """
        ...

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """End a granted claim or withdraw a waiting one; False if the store does not have it.

        resource, holder: which claim.
        keep: seconds that a granted claim stays taken, as a detached one; 0, the default, ends it at once.

        Raises: StoreUnavailable when the outcome is unknown; StoreError.
        """
        ...

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """Show the resources that are held or waited for, sorted by name: a view for people, never used to decide.

        prefix: what their names begin with; all, if it is left out.
        """
        ...

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """Return when the holders of a resource may have changed.

        resource: which.
        seen: what is known of it; None if nobody held it.
        until: when to return at the latest, by the clock that the store was made with.
        """
        ...

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """Return what the fenced register holds. With a fence, enter it first, in the same step: whoever reads in order
        to write must know that no older holder can write in between.

        key: the name of the register.
        fence: that of whoever reads in order to write. None, the default, only reads.

        Raises: StaleToken if it has seen a newer token.
        """
        ...

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """Set the fenced register, durably.

        key: the name of the register.
        value: what it holds from now on.
        fence: that of whoever writes.
        keep: seconds after which the value is forgotten; None, the default: never.

        Raises: StaleToken if it has seen a newer token.
        """
        ...

    def blocking(self) -> Blocking:
        """Return `renew`, `release` and `close` as any thread may call them, without any event loop: the keeper's side.

        A blocking store returns itself. An asyncio store has connections of its own for it, and shares with them what
        it knows of its claims. Without this method the keeper calls an asyncio store through its loop, and then a body
        that blocks the loop for longer than a lease loses it (law 15).
        """
        ...

    def wake(self, holder: str) -> None:
        """Make the wait of one claim return at once, or the next one if it does not wait right now. Safe in any thread
        and signal handler.

        A store without this method does not cancel waits at once, but when they next ask.

        holder: the identity of the claim.
        """
        ...

    def interrupt(self) -> None:
        """Make every wait and watch under way return at once. Safe in any thread."""
        ...

    async def close(self) -> None:
        """Give up connections, threads and sockets; claims stay as they are. May be called twice."""
        ...


class FullStore(Store, Protocol):
    """What a store may have besides. Who lacks one of these is not asked for it: `capabilities.evict` says whether
    claims can be broken; a store without `time` tells none; instead of `state`, `inspect` is asked.
    """

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """Break a granted claim, in one step; None if the store does not have it.

        From then on its renewals answer Lost, and its end stays exactly where the last renewal has put it: its holder
        knows of the loss before anybody else is granted. A release by its holder ends it. With `at_once` it has ended,
        and so has one that only stays taken after its release. See `capabilities.evict`.

        resource: what it holds.
        holder: whose claim; the store compares, and nobody who has come since is broken.
        at_once: end it now. Default False.
        """
        ...

    async def time(self) -> tuple[float, float]:
        """Return the time of the clock that the store judges by, in seconds since 1970, and how far it may be off."""
        ...

    async def state(self, resource: str) -> ResourceState | None:
        """Show one resource; None if nobody holds it or waits for it.

        resource: its exact name.
        """
        ...


class StoreFactory(Protocol):
    """What a scheme stands for: a class, or any callable of this shape. It does no I/O."""

    def __call__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> Store:
        """Make the store of this address.

        url: where it is.
        namespace: keeps its claims and registers apart from those of others.
        io_timeout: seconds that one exchange with the server may take.
        clock: where time comes from; tests drive it.
        """
        ...
