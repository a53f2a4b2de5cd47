"""Logins and TLS, node by node; and what must never be shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from holdfast._async.client import connect
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server

SECRETS = ("hunter2", "pa:ss/w%rd", "c0rrect,h@rse")
QUOTED = ("hunter2", "pa%3Ass%2Fw%25rd", "c0rrect%2Ch%40rse")


@pytest.fixture(scope="module")
def guarded() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(needed(partial(RedisServer, password=secret))) for secret in SECRETS]


def address(servers: list[RedisServer], passwords: tuple[str, ...]) -> str:
    return "redlock://" + ",".join(
        f":{password}@127.0.0.1:{server.port}" for server, password in zip(servers, passwords, strict=True)
    )


async def test_each_node_has_its_own_password(guarded: list[RedisServer]):
    async with connect(address(guarded, QUOTED), io_timeout=20) as client, client.lock("r") as lease:
        assert lease.state == "held"
        assert all(server.call("EXISTS", "holdfast.redlock:{default:r}") for server in guarded)
        shown = repr(client) + repr(client.url) + str(client.url)
        assert not any(secret in shown for secret in SECRETS + QUOTED)


async def test_one_wrong_password_is_outvoted_and_told(guarded: list[RedisServer], caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with connect(address(guarded, (*QUOTED[:2], "wr0ng")), io_timeout=20) as client, client.lock("r"):
            pass
    (said,) = {record.message for record in caplog.records}
    assert "password" in said
    assert str(guarded[2].port) in said
    assert "wr0ng" not in said


async def test_wrong_passwords_are_an_error_and_not_an_outage(guarded: list[RedisServer]):
    async with connect(address(guarded, ("wr0ng",) * 3), io_timeout=20) as client:
        with pytest.raises(StoreError, match="refuses the user name or the password") as caught:
            await client.lock("r").acquire(timeout=5)
        assert type(caught.value) is StoreError
        assert "wr0ng" not in str(caught.value)


async def test_tls_is_for_all_nodes(caplog: pytest.LogCaptureFixture):
    with ExitStack() as stack:
        servers = [stack.enter_context(needed(lambda: RedisServer(tls=True, password="hunter2"))) for _ in range(3)]
        # Each has a certificate of its own, which is its own authority.
        bundle = servers[0].folder / "all.crt"
        bundle.write_text("".join((server.folder / "server.crt").read_text() for server in servers))
        url = address(servers, ("hunter2",) * 3)
        async with connect(f"{url}?tls=true&ca={bundle}", io_timeout=20) as client, client.lock("r") as lease:
            await lease.renew()
        async with connect(f"{url}?tls=true&verify=false", io_timeout=20) as client, client.lock("r"):
            pass
        async with connect(f"{url}?tls=true", io_timeout=20) as client:
            with pytest.raises(StoreError, match="certificate") as caught:
                await client.lock("r").acquire()
        assert "hunter2" not in str(caught.value) + caplog.text


async def test_nodes_that_hide_their_configuration_promise_less_unless_they_are_trusted(
    caplog: pytest.LogCaptureFixture,
):
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "holdfast"):
        servers = [stack.enter_context(needed(RedisServer)) for _ in range(3)]
        for server in servers:
            server.call("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "&*", "+@all", "-@dangerous")
        nodes = ",".join(f"worker:hunter2@127.0.0.1:{server.port}" for server in servers)
        async with connect(f"redlock://{nodes}", io_timeout=20) as client:
            side = client._engine.store.blocking()
            side.ready()  # what the keeper's side finds counts for the client
            assert not client.capabilities.keeps(2)
            async with client.lock("r"):
                pass
            side.close()
        assert sum("hides INFO" in record.message for record in caplog.records) == len(caplog.records) == 3
        caplog.clear()
        async with connect(f"redlock://{nodes}?trust_config=true", require="correctness", io_timeout=20) as client:
            async with client.lock("r"):
                assert client.capabilities.keeps(2)
        assert caplog.records == []
        async with connect(f"redlock://{nodes}", require="correctness", io_timeout=20) as client:
            with pytest.raises(StoreError, match="trust_config=true"):
                await client.lock("r").acquire()


async def test_one_password_for_all_nodes(guarded: list[RedisServer]):
    for server in guarded:
        server.call("ACL", "SETUSER", "worker", "on", ">0ne", "~*", "&*", "+@all")
    url = "redlock://" + ",".join(f"worker@127.0.0.1:{server.port}" for server in guarded)
    asked: list[str] = []

    def password() -> str:
        asked.append("0ne")
        return asked[-1]

    async with connect(url, password=password, io_timeout=20) as client, client.lock("r") as lease:
        assert all(server.call("EXISTS", "holdfast.redlock:{default:r}") for server in guarded)
        await lease.renew()
    assert asked
    async with connect(url, password="0ne", io_timeout=20) as client, client.lock("r"):
        pass
    async with connect(url, password=lambda: "wr0ng", io_timeout=2) as client:
        with pytest.raises(StoreUnavailable, match="refused the password that was asked for") as caught:
            await client.lock("r").try_acquire()
        assert "wr0ng" not in str(caught.value)
