"""connect() with a client object: the locks are where that client is, over connections of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
from redis.credentials import UsernamePasswordCredentialProvider

from holdfast._async.client import connect
from holdfast.errors import StoreError
from holdfast.testing.servers.redis import RedisServer, ValkeyServer
from tests.servers import needed
from tests.stores.redis.kit import Deployment

pytestmark = pytest.mark.server

HOST, USER, SECRET = "127.0.0.1", "worker", "hunter2"
libraries = pytest.mark.parametrize("library", [redis, redis.asyncio], ids=["redis", "redis.asyncio"])


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with TLS, a password and a socket."""
    with needed(lambda: RedisServer("--unixsocket", "redis.sock", tls=True, password=SECRET)) as server:
        yield server


async def use(client: Any, **options: Any) -> None:
    async with connect(client, **options) as locks:
        async with locks.lock("r", timeout=20) as lease:
            await lease.renew()
        assert SECRET not in repr(locks) + repr(vars(locks._engine.store))


def keys(server: RedisServer, database: int) -> int:
    return int(server.info("keyspace").get(f"db{database}", "keys=0,").partition("=")[2].partition(",")[0])


@libraries
async def test_one_server_with_a_user_and_a_database(library: Any, single: Deployment):
    single.as_user("+@all", name=USER, password=SECRET)
    (server,) = single.servers
    server.call("FLUSHALL")
    await use(library.Redis(host=HOST, port=server.port, username=USER, password=SECRET, db=3), require="correctness")
    assert (keys(server, 3), keys(server, 0)) == (1, 0)
    with pytest.raises(StoreError, match="password"):
        await use(library.Redis(host=HOST, port=server.port, username=USER, password=SECRET + "x"))


@libraries
async def test_a_credential_provider(library: Any, single: Deployment):
    single.as_user("+@all", name=USER, password=SECRET)
    provider = UsernamePasswordCredentialProvider(USER, SECRET)
    await use(library.Redis(host=HOST, port=single.servers[0].port, credential_provider=provider))


@libraries
async def test_tls(library: Any, guarded: RedisServer):
    address = {"host": HOST, "port": guarded.port, "password": SECRET, "ssl": True}
    authority = guarded.folder / "server.crt"
    await use(library.Redis(**address, ssl_ca_certs=str(authority)))
    await use(library.Redis(**address, ssl_ca_data=authority.read_text()))
    await use(library.Redis(**address, ssl_cert_reqs="none"))
    with pytest.raises(StoreError, match="not trusted"):
        await use(library.Redis(**address))


@libraries
async def test_a_socket(library: Any, guarded: RedisServer):
    await use(library.Redis(unix_socket_path=str(guarded.folder / "redis.sock"), password=SECRET, db=2))
    await use(library.Redis.from_url(f"unix://:{SECRET}@{guarded.folder}/redis.sock?db=2"))


async def test_sentinels_and_their_master(sentinels: Deployment):
    url = sentinels.as_user("+@all", name=USER, password=SECRET)
    hosts = [(HOST, int(part.rpartition(":")[2])) for part in url.partition("@")[2].partition("/")[0].split(",")]
    for kind in (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel):
        await use(kind(hosts, username=USER, password=SECRET).master_for("master"), require="correctness")


async def test_a_cluster(cluster: Deployment):
    cluster.as_user("+@all", name=USER, password=SECRET)
    address: dict[str, Any] = {"host": HOST, "port": cluster.servers[0].port, "username": USER, "password": SECRET}
    with redis.RedisCluster(**address) as client:  # which asks the server at once
        await use(client, require="correctness")
    await use(redis.asyncio.RedisCluster(**address), require="correctness")


async def test_the_connections_of_the_client_are_not_touched(single: Deployment):
    """Neither used, nor needed: it may be closed."""
    (server,) = single.servers
    with redis.Redis(host=HOST, port=server.port, client_name="theirs") as client:
        client.ping()
        locks = connect(client)
        lease = await locks.lock("r").acquire()
        mine = [entry for entry in client.client_list() if entry["name"] == "theirs"]
        assert [entry["cmd"] for entry in mine] == ["client|list"]
        assert len(client.client_list()) > 1
    await lease.renew()
    await lease.release()
    await locks.close()


@pytest.mark.parametrize("library", [valkey, valkey.asyncio], ids=["valkey", "valkey.asyncio"])
async def test_valkey(library: Any):
    with needed(ValkeyServer) as server:
        await use(library.Valkey(host=HOST, port=server.port), require="correctness")
        async with connect(server.url, require="correctness") as locks, locks.lock("r"):
            assert repr(locks).startswith("<holdfast client of valkey://")
