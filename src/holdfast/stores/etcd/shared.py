"""What a client has at an etcd cluster; both sides of an asyncio client share it, and any thread may use it."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.urls import StoreURL
from . import messages
from .keys import Offset
from .leases import Lease, LocalClaim
from .link import REQUIRE_LEADER, Link, Stream
from .watcher import Watcher

_MANY = 256
_ROUNDED = 1.0  # seconds by which a lease may be longer than was asked for


class Shared:
    """The claims and leases of a client, the way to the cluster, and the token of its login."""

    def __init__(self, url: StoreURL) -> None:
        self.claims: dict[str, LocalClaim] = {}  # by holder
        self.leases: dict[int, Lease] = {}  # by ttl
        self.offset = Offset()  # as it was last seen
        self.token: str | None = None
        self.link = Link(url)
        self.watcher = Watcher(self._open_stream)
        self._look_at = _MANY  # so many claims

    def forget_lapsed(self, by: float) -> None:
        """Forget detached claims whose time was over by then: nobody releases a hit of a rate limit. Looks at all of
        them, but only when they have doubled in number.
        """
        if len(self.claims) < self._look_at:
            return
        for holder, local in list(self.claims.items()):
            if local.claim.detached and local.granted and not local.doubts and local.until + _ROUNDED < by:
                self.claims.pop(holder, None)
        self._look_at = _MANY + 2 * len(self.claims)

    def _open_stream(self, requests: Iterator[bytes]) -> Stream:
        return self.link.peer().stream(messages.WATCH, requests, metadata(self.token))


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return what goes with every call."""
    return (REQUIRE_LEADER,) if token is None else (REQUIRE_LEADER, ("token", token))
