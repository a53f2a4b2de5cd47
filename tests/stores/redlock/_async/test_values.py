"""Fenced registers on a majority of nodes: any majority has them, and what a stale writer left is not read."""

from __future__ import annotations

import time

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import Record
from holdfast.core.fence import Fence
from holdfast.errors import StaleToken
from holdfast.stores.redis.replies import Names
from holdfast.testing.servers.redlock import RedlockServers

pytestmark = pytest.mark.server

PATIENT = 10.0
KEY = Names("default", "holdfast.redlock").register("k")


def us() -> int:
    return time.time_ns() // 1000


async def test_register_is_read_from_any_majority(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client, connect(nodes.url, io_timeout=PATIENT) as other:
        fence = Fence("default", "r", us())
        for node in nodes.nodes[:2]:
            node.stop()
        await client._engine.store.write("k", "v", fence)
        for node in nodes.nodes[:2]:
            node.start()
        for node in nodes.nodes[3:]:
            node.stop()
        # One of three has it. The reader makes sure that the next one finds it, too.
        assert await other._engine.store.read("k") == Record("v", fence.token)
        assert [node.call("HGET", KEY, "value") for node in nodes.nodes[:3]] == [b"v"] * 3


async def test_what_a_stale_writer_left_on_a_minority_is_never_read_again(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client:
        old, new = Fence("default", "r", us()), Fence("default", "r", us() + 1)
        assert await client._engine.store.read("k", new) is None
        # As if the older one had entered before, and its write came to two nodes only, which the newer had not reached.
        for node in nodes.nodes[3:]:
            node.call("HSET", KEY, "value", "stale", "token", old.token, "ends", "", "epoch", old.token, "version", 9)
            node.call("HSET", KEY, "writer", "x", "newest", old.token, "exclusive", old.token)
        assert await client._engine.store.read("k") is None
        with pytest.raises(StaleToken):
            await client._engine.store.write("k", "late", old)
