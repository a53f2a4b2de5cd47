"""Registers: small values in the store that only the holder of a lease can change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import events
from ..core.claim import Claim, Record
from ..core.fence import Fence
from ..core.names import check_keep, check_name, check_value
from ..core.register import MOST_BYTES, check_fence
from ..errors import StaleToken, Unsupported

if TYPE_CHECKING:
    from .engine import Engine


class Register:
    """A value in the store, and the newest token that it has seen: whoever comes with an older one is refused.

    Write it with the fences of one lock, and always the same one. Tokens of different locks cannot be compared, and the
    store does not know which lock a register belongs to.
    """

    def __init__(self, engine: Engine, name: str, kind: str = "register") -> None:
        self._engine = engine
        self.name = check_name(name, "register")
        self._kind = kind  # as events call it
        if not engine.capabilities.register:
            raise Unsupported(
                f"{engine.capabilities.store} cannot keep registers: its capabilities lack `register`; "
                "use sqlite://, redis:// or etcd://",
                resource=self.name,
            )

    async def read(self, fence: Fence | None = None) -> Record | None:
        """Return the value and the token that wrote it; None if there is none.

        fence: `lease.fence` of whoever reads in order to write. It is entered in the same step: from then on nobody
            older can write, and what was read stays true until the holder itself writes. Left out: just looks.

        Raises: StaleToken if the register has seen a newer token; ValueError for what is no fence of this namespace;
        StoreUnavailable.
        """
        if fence is not None:
            check_fence(fence, self._engine.namespace)
        self._engine.check_usable()
        try:
            return await self._engine.store.read(self.name, fence)
        except StaleToken as stale:
            self._tell(stale, fence)
            raise

    async def write(self, value: str, *, fence: Fence, keep: float | None = None) -> None:
        """Set the value, durably.

        value: a str of at most 256 KiB in UTF-8; control characters but tab and line breaks count six-fold.
        fence: `lease.fence` of the lock that the register belongs to. The same one may write many times.
        keep: seconds after which the value is forgotten, at least 1; None keeps it for ever.

        Raises: StaleToken if the register has seen a newer token, and nothing is written then; ValueError for a value
        that is too long or for what is no fence of this namespace; StoreUnavailable when the outcome is unknown: to
        write the same once more is safe.
        """
        check_value(value, "value", MOST_BYTES)
        check_fence(fence, self._engine.namespace)
        seconds = check_keep(keep)
        self._engine.check_usable()
        try:
            await self._engine.store.write(self.name, value, fence, seconds)
        except StaleToken as stale:
            self._tell(stale, fence)
            raise

    def _tell(self, stale: StaleToken, fence: Fence | None) -> None:
        """Tell that a fence was refused: its holder lost the lease, and goes on as if it had not."""
        assert fence is not None
        of = Claim(fence.resource, "", ttl=0.0)  # all that a fence tells of it
        facts = {"guard": f"register {self.name!r}", "token": fence.token, "newest": stale.newest}
        self._engine.emit(events.TokenRejected, of, self._kind, **facts)

    def __repr__(self) -> str:
        return f"<Register {self.name!r}>"
