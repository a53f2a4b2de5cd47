"""What the tests of Redis share: servers, a server behind a bad network, and how to look past the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed


class Place(NamedTuple):
    """A server, and the bad network before it."""

    server: RedisServer
    proxy: Proxy

    @property
    def url(self) -> str:
        """Where clients connect: through the network."""
        return f"redis://127.0.0.1:{self.proxy.port}"

    @property
    def keys(self) -> list[bytes]:
        """All keys, past the store."""
        found = self.server.call("KEYS", "*")
        assert isinstance(found, list)
        return found

    @property
    def listeners(self) -> int:
        """How many clients are subscribed."""
        return len(self.server.call("PUBSUB", "CHANNELS", "holdfast.wake:*"))

    def holder(self, resource: str) -> bytes | None:
        """Who holds, past the store and past the clock."""
        found = self.server.call("HGET", f"holdfast:{{default:{resource}}}", "holder")
        assert found is None or isinstance(found, bytes)
        return found


@contextmanager
def bad_network() -> Iterator[Place]:
    """Start a server behind a proxy."""
    with needed(RedisServer) as server, Proxy(server.port) as proxy:
        yield Place(server, proxy)
