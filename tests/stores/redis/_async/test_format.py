"""Data of a later format: every verb compares the number, also of a client that was connected before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import Claim, Renewed, Unknown
from holdfast.core.fence import Fence
from holdfast.stores.redis.replies import Names
from tests.stores._async.formats import HELD, InUse, check_all_refused, check_goes_on, said_by, use
from tests.stores.redis.kit import Rig

pytestmark = pytest.mark.server

NAMES = Names("default")
RESOURCE, REGISTER = NAMES.queue("r"), NAMES.register("k")


@asynccontextmanager
async def in_use(rig: Rig) -> AsyncIterator[InUse]:
    async with connect(rig.url, io_timeout=10) as client:
        yield await use(client._engine.store)


def dumps(rig: Rig) -> dict[bytes, object]:
    return {key: rig.server.call("DUMP", key.decode()) for key in rig.keys}


def mark(rig: Rig, number: int) -> None:
    for key in (RESOURCE, REGISTER):
        rig.server.call("HSET", key, "format", number)


async def test_every_verb_refuses_a_later_format_and_names_both(rig: Rig):
    async with in_use(rig) as used:
        mark(rig, 2)
        await check_all_refused(used, lambda: dumps(rig))
        mark(rig, 1)  # the control: it was the number alone
        await check_goes_on(used)


async def test_the_number_is_written_with_whatever_is_made(rig: Rig):
    async with in_use(rig) as used:
        await used.store.watch("watched", None, 0.0)
        await used.store.claim(Claim("shared", "client.1", weight=1))
        keys = [RESOURCE, REGISTER, NAMES.queue("watched"), NAMES.queue("shared")]
        assert [rig.server.call("HGET", key, "format") for key in keys] == [b"1"] * 4


async def test_data_without_a_number_has_format_1(rig: Rig):
    async with in_use(rig) as used:
        for key in (RESOURCE, REGISTER):
            rig.server.call("HDEL", key, "format")
        await check_goes_on(used)


async def test_a_resource_of_a_later_format_does_not_keep_others_from_being_renewed(rig: Rig):
    async with in_use(rig) as used:
        others = [Claim(f"r{number}", f"client.{number}") for number in range(2)]
        for other in others:
            await used.store.claim(other)
        mark(rig, 2)
        renewals = await used.store.renew([others[0], HELD, others[1]])
        assert [type(renewal) for renewal in renewals] == [Renewed, Unknown, Renewed]
        await used.store.write("other", "v", Fence("default", "r", 1))


@pytest.mark.parametrize(
    ("found", "shown"),
    [("", "''"), ("1 ", "'1 '"), ("2 3", "2 3"), ("-1", "-1"), ("2\r\n3", "2  3"), ("9" * 100_000, "9" * 40 + "…")],
    ids=["empty", "space", "two words", "negative", "line break", "huge"],
)
async def test_a_format_that_is_no_number_is_shown_as_it_is_and_short(rig: Rig, found: str, shown: str):
    async with in_use(rig) as used:
        rig.server.call("HSET", RESOURCE, "format", found)
        said = await said_by(lambda: used.store.claim(HELD))
        assert f"has format {shown}, and this version of holdfast reads format 1:" in said
