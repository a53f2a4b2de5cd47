"""The login: before everything else, its refusal is what everybody is told, and nobody is held up by its callable."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

import holdfast
import holdfast.aio
from holdfast.errors import StoreError
from holdfast.stores.redis._async.transport import Connection
from holdfast.stores.redis.wire import Access, Endpoint
from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed
from tests.shell.script import run

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with needed(lambda: RedisServer(password="hunter2")) as server:
        yield server


async def test_a_refused_login_is_told_even_if_all_replies_come_at_once(guarded: RedisServer):
    with Proxy(guarded.port) as proxy:
        proxy.down.mode = "hold"
        connection = Connection(Endpoint("127.0.0.1", proxy.port), Access(password="wr0ng"), 10.0)
        calls = [asyncio.create_task(connection.call("PING")) for _ in range(2)]
        await asyncio.sleep(0.3)  # too short on a slow machine, it would only show less
        proxy.heal()
        for call in calls:
            with pytest.raises(StoreError, match="refuses the user name or the password"):
                await call
        await connection.close()


async def test_nobody_gets_ahead_of_the_login(guarded: RedisServer):
    connection = Connection(Endpoint("127.0.0.1", guarded.port), Access(password="hunter2"), 10.0)

    async def eager() -> object:
        while not connection.usable:  # noqa: ASYNC110 (every turn of the loop is the point)
            await asyncio.sleep(0)
        return await connection.call("PING")

    ahead = asyncio.create_task(eager())
    assert await connection.call("PING") == b"PONG"
    assert await ahead == b"PONG"
    await connection.close()


async def test_the_loop_goes_on_while_the_password_is_asked_for(guarded: RedisServer):
    """It would wait for ever: what lets the callable return is done by the loop."""
    gate = threading.Event()

    def password() -> str:
        assert gate.wait(20), "the loop is blocked"
        return "hunter2"

    async with holdfast.aio.connect(f"redis://127.0.0.1:{guarded.port}", password=password, io_timeout=20) as locks:
        acquire = asyncio.create_task(locks.lock("r").acquire())
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        await (await acquire).release()


class Vault:
    """A callable that does not return before its gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.asked.set()
        self.gate.wait(20)
        return "hunter2"

    async def is_asked(self) -> None:
        while not self.asked.is_set():  # noqa: ASYNC110 (a thread sets it)
            await asyncio.sleep(0.001)


async def test_an_acquire_that_is_cancelled_while_it_asks_leaves_the_client_usable(guarded: RedisServer):
    vault = Vault()
    url = f"redis://127.0.0.1:{guarded.port}"
    async with holdfast.aio.connect(url, password=vault, io_timeout=20) as locks:
        acquire = asyncio.create_task(locks.lock("r").acquire())
        await vault.is_asked()
        acquire.cancel()
        vault.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await acquire
        async with locks.lock("r"):
            pass


async def test_a_client_that_is_closed_while_it_asks_opens_nothing(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture
):
    vault = Vault()
    locks = holdfast.aio.connect(f"redis://127.0.0.1:{guarded.port}", password=vault, io_timeout=20)
    acquire = asyncio.create_task(locks.lock("r").acquire())
    await vault.is_asked()
    await locks.close(0.1)
    vault.gate.set()
    with pytest.raises(holdfast.LockError):
        await acquire
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_child_asks_anew(guarded: RedisServer):
    """The thread that asks for the parent is not in the child."""
    out, _ = run(
        """
        import os, sys, threading, time
        import holdfast

        parent, asked, gate = os.getpid(), threading.Event(), threading.Event()

        def password():
            asked.set()
            if os.getpid() == parent:
                gate.wait(20)
            return "hunter2"

        locks = holdfast.connect(sys.argv[1], password=password, io_timeout=10)
        waits = threading.Thread(target=lambda: locks.lock("r").acquire().release())
        waits.start()
        asked.wait(10)
        if not (child := os.fork()):
            with locks.lock("r"):
                pass
            os._exit(42)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        gate.set()
        waits.join()
        locks.close()
        print("end")
        """,
        f"redis://127.0.0.1:{guarded.port}",
        limit=40,
    )
    assert out == "end\n"


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_closed_while_it_opens_is_gone(
    turns: int, guarded: RedisServer, caplog: pytest.LogCaptureFixture
):
    connection = Connection(Endpoint("127.0.0.1", guarded.port), Access(password="hunter2"), 10.0)
    call = asyncio.create_task(connection.call("PING"))
    for _ in range(turns):
        await asyncio.sleep(0)
    await connection.close()
    with contextlib.suppress(StoreError):  # or it was faster
        assert await asyncio.wait_for(call, 20) == b"PONG"
    assert not connection.usable
    gc.collect()  # of a socket that was left open a warning tells, which is an error
    assert [record for record in caplog.records if record.name == "asyncio"] == []
