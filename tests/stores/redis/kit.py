"""What the tests of Redis share: servers, a server behind a bad network, and how to look past the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed


class Rig(NamedTuple):
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


class Deployment(NamedTuple):
    """Servers that serve together, and their URL."""

    url: str
    servers: list[RedisServer]

    def as_user(self, *rights: str, name: str = "worker", password: str = "hunter2") -> str:
        """Return the URL of a user that has these rights besides all names."""
        for server in self.servers:
            server.call("ACL", "SETUSER", name, "reset", "on", f">{password}", "~*", "&*", *rights)
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{name}:{password}@{rest}"


@contextmanager
def bad_network() -> Iterator[Rig]:
    """Start a server behind a proxy."""
    with needed(RedisServer) as server, Proxy(server.port) as proxy:
        yield Rig(server, proxy)
