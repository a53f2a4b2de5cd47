"""A server that hides its configuration, as a managed one does: fewer promises and one WARNING, or it is trusted."""

from __future__ import annotations

import contextlib
import logging
import threading

import pytest

from holdfast._async.client import Client, connect
from holdfast.core.promises import Fault
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.redis.wire import ReplyError
from holdfast.testing._async.runtime import eventually
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed
from tests.stores.redis.kit import Deployment

pytestmark = pytest.mark.server

MANAGED = ("+@all", "-@dangerous")  # what most services give: neither INFO nor CONFIG
RIGHTS = {"INFO and CONFIG": MANAGED, "INFO": ("+@all", "-info"), "CONFIG": ("+@all", "-config")}

everywhere = pytest.mark.parametrize("deployment", ["single", "sentinels", "cluster"], indirect=True)
hidden = pytest.mark.parametrize("hidden", RIGHTS)


def trusting(url: str) -> str:
    return f"{url}?trust_config=true"


async def use(locks: Client) -> None:
    async with locks.lock("r", timeout=20):
        pass
    assert await locks.inspect("r") == []


@hidden
async def test_without_a_requirement_it_is_used_with_fewer_promises(
    hidden: str, single: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(single.as_user(*RIGHTS[hidden])) as locks:
            assert locks.capabilities.keeps(2)  # nothing is known yet
            await use(locks)
            await locks.ready()
            assert not locks.capabilities.keeps(2)
            assert (Fault.SERVER_FAILOVER in locks.capabilities.faults) == ("INFO" in hidden)
    (said,) = (record.message for record in caplog.records)
    assert f"hides {'INFO' if 'INFO' in hidden else 'CONFIG GET'} (NOPERM" in said
    assert "trust_config=true" in said


@hidden
async def test_correctness_refuses_it_before_any_body_starts(hidden: str, single: Deployment) -> None:
    async with connect(single.as_user(*RIGHTS[hidden]), require="correctness") as locks:
        with pytest.raises(StoreError, match=r"require='correctness'.* law 2 .*trust_config=true"):
            async with locks.lock("r"):
                raise AssertionError("the body starts")
        with pytest.raises(StoreError, match="trust_config=true"):
            await locks.ready()
    async with connect(single.url, require="correctness") as other:  # and the claim was given back
        await use(other)


@hidden
async def test_one_that_is_trusted_needs_neither_command(
    hidden: str, single: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    url = trusting(single.as_user(*RIGHTS[hidden]))
    with caplog.at_level(logging.WARNING, "holdfast"):
        for require in (None, "correctness"):
            async with connect(url, require=require) as locks:
                await use(locks)
                await locks.ready()
                assert locks.capabilities.keeps(2)
                # Whether it has replicas is not a question of trust: without INFO nobody knows.
                assert (Fault.SERVER_FAILOVER in locks.capabilities.faults) == ("INFO" in hidden)
    assert caplog.records == []


@everywhere
async def test_so_do_sentinels_and_clusters(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    url = deployment.as_user(*MANAGED)
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(url) as locks:
            await use(locks)
            await locks.ready()
            assert not locks.capabilities.keeps(2)
            # The master, or the masters: each once, whichever side of the client has found it.
            masters = [server for server in deployment.servers if server.info("replication")["role"] == "master"]
            await eventually(lambda: len(caplog.records) == len(masters))
            await use(locks)
        assert len({record.message for record in caplog.records}) == len(caplog.records) == len(masters)
        caplog.clear()
        async with connect(trusting(url), require="correctness") as locks:
            await use(locks)
            await locks.ready()
            assert locks.capabilities.keeps(2)
        assert caplog.records == []
    async with connect(url, require="correctness") as locks:
        with pytest.raises(StoreError, match="trust_config=true"):
            await use(locks)


async def test_what_the_keepers_side_finds_counts_for_the_client_and_is_told_once(
    single: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(single.as_user(*MANAGED)) as locks:
            side = locks._engine.store.blocking()
            side.ready()
            assert not locks.capabilities.keeps(2)
            await use(locks)
            side.close()
    assert len(caplog.records) == 1


async def test_a_command_that_was_renamed_away_is_hidden_too() -> None:
    with needed(lambda: RedisServer("--rename-command", "CONFIG", "")) as server:
        async with connect(server.url) as locks:
            await use(locks)
            assert "unknown command" in locks.capabilities.notes[0]
        async with connect(trusting(server.url), require="correctness") as locks:
            await use(locks)


async def test_a_server_that_cannot_answer_now_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with needed(lambda: RedisServer("--busy-reply-threshold", "1")) as server:
        endless = threading.Thread(target=_run_endlessly, args=(server,))
        endless.start()
        await eventually(lambda: _is_busy(server))
        async with connect(server.url) as locks:
            with pytest.raises(StoreUnavailable, match="BUSY"):
                await locks.lock("r").try_acquire()
            server.call("SCRIPT", "KILL")
            endless.join()
            await use(locks)
            assert locks.capabilities.keeps(2)
    assert "hides" not in caplog.text


def _run_endlessly(server: RedisServer) -> None:
    with contextlib.suppress(ReplyError):  # it is killed
        server.call("EVAL", "while true do end", 0)


def _is_busy(server: RedisServer) -> bool:
    try:
        server.call("PING")
    except ReplyError as error:
        return error.code == "BUSY"
    return False


async def test_a_replica_that_hides_what_it_is_is_told_by_its_refusal() -> None:
    with (
        needed(RedisServer) as server,
        needed(lambda: RedisServer("--replicaof", "127.0.0.1", str(server.port))) as copy,
    ):
        await eventually(lambda: copy.info("replication").get("master_link_status") == "up")
        async with connect(Deployment(copy.url, [copy]).as_user(*MANAGED)) as locks:
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await locks.lock("r").try_acquire()
