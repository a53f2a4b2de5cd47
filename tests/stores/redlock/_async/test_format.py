"""Data of a later format on the nodes: every verb compares the number, also of a client that was connected before."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import Claim, Granted, Renewed, Unknown
from holdfast.stores.redis.replies import Names
from holdfast.stores.redlock._async.store import RedlockStore
from holdfast.testing._async.runtime import eventually
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers
from tests.stores._async.formats import HELD, WAITING, InUse, check_all_refused, check_goes_on, said_by, use

pytestmark = pytest.mark.server

NAMES = Names("default", "holdfast.redlock")
RESOURCE, REGISTER = NAMES.queue("r"), NAMES.register("k")


@asynccontextmanager
async def in_use(nodes: RedlockServers) -> AsyncIterator[InUse]:
    async with connect(nodes.url, io_timeout=10) as client:
        yield await use(client._engine.store)


def dumps(nodes: RedlockServers) -> list[dict[bytes, object]]:
    return [{key: node.call("DUMP", key) for key in node.call("KEYS", "*")} for node in nodes.nodes]


def upgrade(node: RedisServer) -> None:
    node.call("SET", RESOURCE, b"f2 " + node.call("GET", RESOURCE), "KEEPTTL")
    node.call("HSET", REGISTER, "format", 2)


def downgrade(node: RedisServer) -> None:
    node.call("SET", RESOURCE, node.call("GET", RESOURCE).removeprefix(b"f2 "), "KEEPTTL")
    node.call("HSET", REGISTER, "format", 1)


async def test_every_verb_refuses_a_later_format_and_names_both(nodes: RedlockServers):
    async with in_use(nodes) as used:
        for node in nodes.nodes:
            upgrade(node)
        await check_all_refused(used, lambda: dumps(nodes), keeps=False)
        for node in nodes.nodes:
            downgrade(node)  # the control: it was the number alone
        await check_goes_on(used, renews=False)  # what it has tried to release, it renews no more


async def test_a_minority_of_nodes_with_a_later_format_takes_no_part(
    nodes: RedlockServers, caplog: pytest.LogCaptureFixture
):
    async with in_use(nodes) as used:
        for node in nodes.nodes[:2]:
            upgrade(node)
        with caplog.at_level(logging.WARNING, "holdfast"):
            await check_goes_on(used)
        assert "has format 2, and this version of holdfast reads format 1" in caplog.text


async def test_where_a_majority_has_a_later_format_a_minority_grants_nothing(nodes: RedlockServers):
    async with in_use(nodes) as used:
        assert await used.store.release("r", HELD.holder)
        for node in nodes.nodes[:3]:
            upgrade(node)
        assert "has format 2" in await said_by(lambda: used.store.claim(WAITING))
        for node in nodes.nodes[:3]:
            downgrade(node)
        assert isinstance(await used.store.claim(WAITING), Granted)


async def test_a_resource_of_a_later_format_does_not_keep_others_from_being_renewed(nodes: RedlockServers):
    async with in_use(nodes) as used:
        others = [Claim(f"r{number}", f"client.{number}") for number in range(2)]
        for other in others:
            await used.store.claim(other)
        for node in nodes.nodes:
            upgrade(node)
        renewals = await used.store.renew([others[0], HELD, others[1]])
        assert [type(renewal) for renewal in renewals] == [Renewed, Unknown, Renewed]


async def test_what_is_no_claim_at_all_does_not_keep_others_from_being_renewed(nodes: RedlockServers):
    async with in_use(nodes) as used:
        others = [Claim(f"r{number}", f"client.{number}") for number in range(2)]
        for other in others:
            await used.store.claim(other)
        for node in nodes.nodes:
            node.call("DEL", RESOURCE)
            node.call("RPUSH", RESOURCE, "of another program")
        renewals = await used.store.renew([others[0], HELD, others[1]])
        assert [type(renewal) for renewal in renewals] == [Renewed, Unknown, Renewed]
        assert "WRONGTYPE" in await said_by(lambda: used.store.claim(WAITING))


async def test_a_node_that_is_owed_the_release_of_what_is_no_claim_any_more_takes_part_again(nodes: RedlockServers):
    async with in_use(nodes) as used:
        node = nodes.nodes[0]
        node.call("DEL", RESOURCE)
        node.call("RPUSH", RESOURCE, "of another program")
        node.kill()
        assert await used.store.release("r", HELD.holder)
        assert isinstance(used.store, RedlockStore)
        silent = used.store._shared.silent
        assert 0 in silent
        node.start()
        await eventually(lambda: 0 not in silent)


async def test_the_number_of_a_register_is_written_on_every_node(nodes: RedlockServers):
    async with in_use(nodes):
        assert [node.call("HGET", REGISTER, "format") for node in nodes.nodes] == [b"1"] * 5
