"""The fenced register: a value, and the numbers that keep the stale writer out."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from .claim import Record
from .fence import Fence, Seen, enter

MOST_BYTES = 256 * 1024  # of a value, in UTF-8: what every store can keep


class Register(NamedTuple):
    """What a store keeps under a key. The numbers outlive the value, which is there until `expires`."""

    value: str = ""
    token: int = 0
    seen: Seen = Seen()
    expires: float = -inf

    def read(self, now: float) -> Record | None:
        """Return the value, if there is one."""
        return Record(self.value, self.token) if self.expires > now else None

    def entered(self, fence: Fence, now: float) -> Register:
        """Return it as it is after a fence was let in; without a value its numbers are as old as `now`.

        Raises: StaleToken if a newer one was there before.
        """
        return self._replace(seen=enter(self.seen, fence), expires=self.expires if self.expires > now else now)

    def written(self, value: str, fence: Fence, expires: float) -> Register:
        """Return it with this value.

        Raises: StaleToken if a newer fence was there before.
        """
        return Register(value, fence.token, enter(self.seen, fence), expires)


def check_fence(fence: object, namespace: str) -> Fence:
    """Return the fence if a register of this namespace can judge it.

    Raises: ValueError.
    """
    if not isinstance(fence, Fence):
        raise ValueError(f"fence must be the fence of a lease (`fence=lease.fence`), not {fence!r}")
    if fence.namespace != namespace:
        raise ValueError(
            f"the fence of {fence.resource!r} is of the namespace {fence.namespace!r}, and the register is in "
            f"{namespace!r}: their tokens cannot be compared; take the lock through a client of the same namespace"
        )
    return fence
