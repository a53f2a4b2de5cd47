"""Connections to the nodes that several tasks share: one may end, and be replaced, while a task opens another."""

from __future__ import annotations

from time import monotonic

import pytest

from holdfast.stores.redis._async.transport import Connection
from holdfast.stores.redis.wire import Access, Endpoint
from holdfast.stores.redlock._async.transport import Panel
from holdfast.testing.servers.redlock import RedlockServers

pytestmark = pytest.mark.server


class Slow(Connection):
    """While it opens, the connection to the other node ends, and another task replaces it."""

    panel: Panel

    async def open(self, until: float) -> None:
        connections = self.panel._connections
        if connections[1].usable:
            connections[1].abort()
            connections[1] = Connection(connections[1].endpoint, Access(), 5.0)
        await super().open(until)


async def test_a_connection_that_is_replaced_while_another_is_opened_is_opened_as_well(nodes: RedlockServers):
    ends = [(Endpoint("127.0.0.1", node.port), Access()) for node in nodes.nodes[:2]]
    panel = Panel(ends, 5.0, lambda at, command: None)
    ping = [("PING",), ("PING",)]
    try:
        assert await panel.ask([None, ping[1]], lambda replies: False, monotonic() + 5) == [None, b"PONG"]
        panel._connections[0] = slow = Slow(*ends[0], 5.0)
        slow.panel = panel
        assert await panel.ask(ping, lambda replies: False, monotonic() + 5) == [b"PONG", b"PONG"]
    finally:
        await panel.close()
