"""The rate limit: so many hits in any window of time, counted by permits that run out and are never given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.claim import Claim, Waiting
from ..core.names import check_count, check_name, check_number
from ..errors import RateLimited, Unsupported

if TYPE_CHECKING:
    from .engine import Engine


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

        if self.per < can.min_ttl:
            raise Unsupported(
                f"{can.store} keeps claims for {can.min_ttl:g} s at least, so it cannot count in windows of "
                f"per={self.per:g}; use sqlite:// or redis://",
                resource=self.resource,
            )

    async def try_hit(self) -> bool:
        """Count a hit if the rate allows it; False if not, and nothing is counted then.

        Raises: StoreUnavailable when the outcome is unknown; the hit may have been counted.
        """
        return await self._ask() is None

    async def hit(self) -> None:
        """Count a hit.

        Raises: RateLimited with `retry_after` when the rate is used up; StoreUnavailable when the outcome is unknown.
        """
        waiting = await self._ask()
        if waiting is None:
            return
        error = RateLimited(
            f"{self.resource!r} had {self.limit} hits within {self.per:g} s; the next is possible in "
            f"{waiting.retry_after:.2f} s",
            resource=self.resource,
        )
        error.retry_after = waiting.retry_after
        raise error

    async def _ask(self) -> Waiting | None:
        holder, owner = self._engine.identify()
        # Detached, and released by nobody: the permit ends when the window has passed it.
        claim = Claim(self.resource, holder, 1, self.limit, self.per, owner, None, fair=True, detached=True)
        answer = await self._engine.store.claim(claim, False)
        return answer if isinstance(answer, Waiting) else None

    def __repr__(self) -> str:
        return f"<RateLimit {self.resource!r} {self.limit} per {self.per:g} s>"
