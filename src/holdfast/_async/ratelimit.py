"""The rate limit: so many hits in any window of time, counted by permits that run out and are never given back.

A hit is asked for without standing in line first, which is all that most hits need. The answer says when the oldest hit
leaves the window. Whoever may wait, and may wait that long, then stands in line under a new name: the store may still
be about to withdraw the old one. From there on it is an acquire like any other, so that it is served in its turn, woken
when that comes, and withdrawn when it is cancelled, times out or its client closes. Only its grant differs: it is not
renewed and not held, and it counts however late the answer comes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ..core import events
from ..core.acquisition import Acquisition
from ..core.cancel import Cancel, check_cancel
from ..core.claim import Claim, Granted
from ..core.names import check_count, check_name, check_number, check_timeout
from ..errors import AcquireTimeout, RateLimited, StoreUnavailable, Unsupported
from .acquire import cancelled

if TYPE_CHECKING:
    from .engine import Engine

_KIND = "rate limit"  # as events call it


class RateLimit:
    """Describes a rate limit, made by `Client.rate_limit`: so many hits in any window of time, among all who use it."""

    def __init__(self, engine: Engine, resource: str, limit: int, *, per: float) -> None:
        self._engine = engine
        self.resource = check_name(resource)
        self.limit = check_count(limit, "limit")
        self.per = check_number(per, "per", least=0.01)
        can = engine.capabilities
        if not (can.shared and can.detached):
            raise Unsupported(
                f"{can.store} cannot count hits, for that takes shared and detached claims; "
                "use sqlite://, redis:// or etcd://",
                resource=self.resource,
            )

        if not can.min_ttl <= self.per <= can.max_ttl:
            raise Unsupported(
                f"{can.store} keeps claims for {can.min_ttl:g} to {can.max_ttl:g} s, so it cannot count in windows of "
                f"per={self.per:g}; use sqlite:// or redis://",
                resource=self.resource,
            )

    async def try_hit(self, *, hits: int = 1) -> bool:
        """Count hits if the rate allows it; False if not, and nothing is counted then.

        hits: how many to count, all of them or none.

        Raises: StoreUnavailable when the outcome is unknown; the hits may have been counted.
        """
        try:
            await self._count(self._checked(hits), 0, None)
        except RateLimited:
            return False
        return True

    async def hit(self, *, hits: int = 1, timeout: float | None = 0, cancel: Cancel | None = None) -> None:
        """Count hits, in the order of arrival.

        hits: how many to count, all of them or none.
        timeout: seconds to wait for the turn; by default it asks once, None waits for ever. It is not waited for what
            cannot come: if the oldest hit stays in the window for longer than that, it raises at once.
        cancel: ends the wait when its `cancel()` is called, in whatever thread, task or signal handler.

        Raises: RateLimited with `retry_after` when the rate is used up; AcquireCancelled; StoreUnavailable when the
        store does not answer: the hits may have been counted.
        """
        await self._count(self._checked(hits), check_timeout(timeout), check_cancel(cancel))

    async def available(self) -> int:
        """Return how many hits are free right now. A view for people: another may be faster, so ask with try_hit()."""
        state = await self._engine.state(self.resource)
        if state is None:
            return self.limit
        # Those who wait count, too: whoever comes now stands behind them.
        return max(0, self.limit - sum(claim.weight for claim in (*state.holders, *state.waiters)))

    async def _count(self, hits: int, timeout: float | None, cancel: Cancel | None) -> None:
        engine = self._engine
        holder, owner = engine.identify()
        if cancel is not None and cancel.cancelled:
            raise cancelled(self.resource)
        # Detached, and released by nobody: the permit ends when the window has passed it.
        claim = Claim(self.resource, holder, hits, self.limit, self.per, owner, None, fair=True, detached=True)
        started = engine.now()
        silence: StoreUnavailable | None = None
        try:
            answer = await engine.store.claim(claim, False)
            if isinstance(answer, Granted):
                return self._counted(claim, answer.token, started)
            left = inf if timeout is None else max(0.0, started + timeout - engine.now())
            if timeout == 0 or answer.retry_after > left:
                if engine.stream.observers:
                    engine.emit(events.Busy, claim, _KIND, blocker=answer.blocker.owner if answer.blocker else "")
                raise self._refused(hits, answer.retry_after)
        except StoreUnavailable as error:
            if timeout == 0:
                raise
            silence = error
        await self._wait(claim, timeout, started, silence, cancel)

    async def _wait(
        self,
        asked: Claim,
        timeout: float | None,
        started: float,
        silence: StoreUnavailable | None,
        cancel: Cancel | None,
    ) -> None:
        """Stand in line until the hits are counted. `silence` is why it is not known what became of those asked for."""
        engine = self._engine
        if silence is not None:  # they may have been counted: they are given back
            claim = engine.rename(_Hit(asked, 0, started, engine.limits))
        else:
            claim = asked._replace(holder=engine.identify()[0])
        acquisition = _Hit(claim, timeout, engine.now(), engine.limits, kind=_KIND)
        acquisition.started = started
        try:
            token = await engine.wait_in_line(acquisition, silence, cancel)
        except AcquireTimeout:
            raise self._refused(claim.weight, acquisition.retry_after(engine.now())) from None
        self._counted(acquisition.claim, token, started)

    def _counted(self, claim: Claim, token: int, started: float) -> None:
        engine = self._engine
        if engine.stream.observers:
            engine.emit(events.Acquired, claim, _KIND, token=token, waited=engine.now() - started)

    def _refused(self, hits: int, retry_after: float) -> RateLimited:
        if hits == 1:
            said = f"had {self.limit} hits within {self.per:g} s; the next is possible in {retry_after:.2f} s"
        else:
            said = f"has no room for {hits} hits within its {self.limit} per {self.per:g} s; try in {retry_after:.2f} s"
        error = RateLimited(f"{self.resource!r} {said}", resource=self.resource)
        error.retry_after = retry_after
        return error

    def _checked(self, hits: object) -> int:
        number = check_count(hits, "hits")
        if number > self.limit:
            raise ValueError(f"hits={hits!r} exceeds limit={self.limit}: so many could never be counted")
        return number

    def __repr__(self) -> str:
        return f"<RateLimit {self.resource!r} {self.limit} per {self.per:g} s>"


class _Hit(Acquisition):
    """A hit that waits for its turn."""

    def usable(self, deadline: float, now: float) -> bool:
        """Return that it is: what was counted was counted, however little of its window is left."""
        return True

    def retry_after(self, now: float) -> float:
        """Return for how long asking again is pointless, by the last answer."""
        return 0.0 if self.waiting is None else max(0.0, self._asked + self.waiting.retry_after - now)
