"""What a client has at an etcd cluster; both sides of an asyncio client share it, and any thread may use it."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.urls import StoreURL
from . import messages
from .keys import Offset
from .leases import Lease, LocalClaim
from .link import REQUIRE_LEADER, Link, Stream
from .watcher import Watcher


class Shared:
    """The claims and leases of a client, the way to the cluster, and the token of its login."""

    def __init__(self, url: StoreURL) -> None:
        self.claims: dict[str, LocalClaim] = {}  # by holder
        self.leases: dict[int, Lease] = {}  # by ttl
        self.offset = Offset()  # as it was last seen
        self.token: str | None = None
        self.link = Link(url)
        self.watcher = Watcher(self._open_stream)

    def _open_stream(self, requests: Iterator[bytes]) -> Stream:
        return self.link.peer().stream(messages.WATCH, requests, metadata(self.token))


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return what goes with every call."""
    return (REQUIRE_LEADER,) if token is None else (REQUIRE_LEADER, ("token", token))
