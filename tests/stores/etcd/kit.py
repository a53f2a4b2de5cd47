"""What the tests of etcd share: servers behind a bad network, and how to look past the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from holdfast.stores.etcd import messages
from holdfast.stores.etcd.keys import ROOT, after
from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.etcd import EtcdServer
from tests.servers import needed


class Rig:
    """A server, and two ways to it through a bad network; a look past the store takes none of them."""

    def __init__(self, server: EtcdServer, ways: list[Proxy]) -> None:
        self.server = server
        self.ways = ways
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")

    @property
    def url(self) -> str:
        """Where clients connect: by the first way, and by the second if the first is blocked."""
        return "etcd://" + ",".join(f"127.0.0.1:{way.port}" for way in self.ways)

    @property
    def one_way(self) -> str:
        """Where clients connect that have the first way only."""
        return f"etcd://127.0.0.1:{self.ways[0].port}"

    def call(self, method: str, request: bytes) -> bytes:
        """Call the server directly."""
        stub: Any = self._channel.unary_unary(method)
        reply: bytes = stub(request, timeout=10)
        return reply

    def stored(self, part: str = "claims") -> list[messages.KeyValue]:
        """Return what holdfast keeps there."""
        prefix = ROOT + part.encode() + b"/"
        return list(messages.ranged(self.call(messages.RANGE, messages.range_(prefix, after(prefix)))).kvs)

    def clear(self) -> None:
        """Forget everything, and let everything through."""
        for way in self.ways:
            way.heal()
        self.call(messages.DELETE, messages.delete(ROOT, after(ROOT)))

    def close(self) -> None:
        """Close the direct way."""
        self._channel.close()


@contextmanager
def bad_network(*arguments: str) -> Iterator[Rig]:
    """Start a server with two ways to it."""
    with needed(lambda: EtcdServer(*arguments)) as server, ExitStack() as stack:
        rig = Rig(server, [stack.enter_context(Proxy(server.port)) for _ in range(2)])
        yield rig
        rig.close()
