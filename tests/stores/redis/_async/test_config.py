"""What a Redis promises depends on its configuration: found on first use, refused or told. And passwords never show."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from holdfast._async.client import Client, connect
from holdfast.core.promises import Fault
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server

SECRET = "hunter2"
PAGE = Path(__file__).resolve().parents[4] / "docs" / "stores" / "redis.md"

WEAK = {
    "evicts": (("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"), "noeviction"),
    "forgets": (("--appendonly", "no"), "appendonly"),
    "forgets the last second": (("--appendfsync", "everysec"), "appendfsync"),
}


async def use(locks: Client) -> None:
    async with locks.lock("r"):
        pass


async def use_until_refused(locks: Client) -> None:
    for _ in range(5):
        try:
            await use(locks)
        except StoreUnavailable:  # the connection of before the restart
            pass


@pytest.mark.parametrize("weakness", WEAK)
async def test_what_cannot_keep_promises_is_refused_where_they_are_required(weakness: str) -> None:
    """On first use as well as by ready(); and the claim that found it out is given back."""
    arguments, cause = WEAK[weakness]
    with needed(lambda: RedisServer(*arguments)) as server:
        for call in (use, Client.ready):
            async with connect(server.url, require="correctness") as locks:
                with pytest.raises(StoreError, match=cause):
                    await call(locks)
                assert not locks.capabilities.keeps(2)
        async with connect(server.url) as other:
            async with other.lock("r", timeout=5):
                pass


@pytest.mark.parametrize("weakness", WEAK)
async def test_what_cannot_keep_promises_is_told_once_elsewhere(
    weakness: str, caplog: pytest.LogCaptureFixture
) -> None:
    arguments, cause = WEAK[weakness]
    with needed(lambda: RedisServer(*arguments)) as server, caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(server.url) as locks:
            await use(locks)
            await use(locks)
            await locks.ready()
        assert [cause in record.message for record in caplog.records] == [True]


async def test_what_keeps_them_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    with needed(RedisServer) as server, caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(server.url, require="correctness") as locks:
            await use(locks)
            assert locks.capabilities.keeps(2)
            assert Fault.SERVER_FAILOVER not in locks.capabilities.faults
        assert caplog.records == []


async def test_a_configuration_that_became_weak_is_found_after_the_restart() -> None:
    with needed(RedisServer) as server:
        async with connect(server.url, require="correctness") as locks:
            await use(locks)
            server.stop()
            server.arguments = ("--appendonly", "no")
            server.start()
            with pytest.raises(StoreError, match="appendonly"):
                await use_until_refused(locks)


async def test_a_replica_that_can_be_promoted_shows_in_the_promises() -> None:
    with (
        needed(RedisServer) as server,
        needed(lambda: RedisServer("--replicaof", "127.0.0.1", str(server.port))) as copy,
    ):
        await eventually(lambda: server.info("replication")["connected_slaves"] == "1")
        async with connect(server.url, require="correctness") as locks:
            await use(locks)
            assert 1 in locks.capabilities.faults[Fault.SERVER_FAILOVER]
            assert locks.capabilities.keeps(2)
        async with connect(copy.url) as locks:
            with pytest.raises(StoreError, match="replica"):
                await use(locks)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_password_works_and_never_shows(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    with needed(lambda: RedisServer(password=SECRET, tls=tls)) as server, caplog.at_level(logging.DEBUG):
        async with connect(server.url) as locks:
            await use(locks)
            assert SECRET not in repr(locks)
            assert SECRET not in repr(locks.url) + str(locks.url) + repr(vars(locks._engine.store))
        for wrong in (server.url.replace(SECRET, SECRET + "x"), server.url.replace(f":{SECRET}@", "")):
            async with connect(wrong) as locks:
                with pytest.raises(StoreError) as caught:
                    await use(locks)
                assert type(caught.value) is StoreError
                assert "password" in str(caught.value)
                assert SECRET not in str(caught.value)
        assert SECRET not in caplog.text
        if tls:
            async with connect(server.url.partition("?")[0]) as locks:
                with pytest.raises(StoreError, match="certificate"):
                    await use(locks)
            async with connect(server.url.partition("?")[0] + "?verify=false") as locks:
                await use(locks)


async def test_a_user_with_few_rights_is_told_which_are_missing() -> None:
    """And the rights that the page names are enough."""
    named = re.findall(r"\+[a-z|]+", PAGE.read_text().partition("at least `")[2].partition("`.")[0])
    assert len(named) > 20
    with needed(RedisServer) as server:
        server.call("ACL", "SETUSER", "worker", "on", ">" + SECRET, "~holdfast*", *named, "resetchannels")
        url = server.url.replace("redis://", f"redis://worker:{SECRET}@")
        async with connect(url) as locks, connect(server.url) as holder:
            lease = await holder.lock("r").acquire()
            with pytest.raises(StoreError, match="&holdfast"):
                await locks.lock("r").acquire(5)
            await lease.release()
            async with locks.lock("free"):
                pass
        server.call("ACL", "SETUSER", "worker", "&holdfast*")
        async with connect(url) as locks, connect(url) as other:
            lease = await locks.lock("r").acquire()
            call = spawn(other.lock("r").acquire, 20)
            await eventually(lambda: len(server.call("PUBSUB", "CHANNELS")) == 1)
            await lease.renew()
            assert len(await locks.inspect()) == 1
            await lease.release()
            again = await call.join()
            async with locks.rwlock("rw").read(), other.rwlock("rw").read() as shared:
                await shared.renew()
            await locks._engine.store.write("k", "v", again.fence, 5.0)
            await locks._engine.store.write("k", "v", again.fence)
            assert await locks._engine.store.read("k", again.fence) is not None
            await locks._engine.store.watch("w", None, 0.0)
            await again.release()

            server.call("ACL", "SETUSER", "worker", "-pubsub|numsub")
            lease = await locks.lock("r").acquire()
            call = spawn(other.lock("r").acquire, 20)
            await eventually(lambda: server.call("EXISTS", "holdfast:{default:r}:line") == 1)
            await lease.release()
            await (await call.join()).release()


async def test_a_unix_socket_and_another_database() -> None:
    with needed(lambda: RedisServer("--unixsocket", "redis.sock")) as server:
        async with connect(f"redis://{server.folder}/redis.sock") as locks:
            await use(locks)
            assert server.call("DBSIZE") == 1
        async with connect(server.url + "/3") as locks:
            await use(locks)
            assert server.info("keyspace")["db3"].startswith("keys=1,")
