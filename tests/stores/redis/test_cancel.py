"""An acquire and a release that are cancelled at every await: nothing stays behind, and nobody else is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast._async.client import Client, connect
from holdfast.core.claim import Claim, Granted
from holdfast.testing._async.runtime import cancelled_at, eventually
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server

MOST = 40  # await points of one acquire and release


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with needed(RedisServer) as server:
        yield server


async def take(client: Client) -> None:
    lease = await client.lock("r", ttl=60).acquire()
    await lease.release()


def left_behind(server: RedisServer) -> list[bytes]:
    """Return who holds, and who stands in line, past the store."""
    holder = server.call("HGET", "holdfast:{default:r}", "holder")
    waiting: list[bytes] = server.call("ZRANGE", "holdfast:{default:r}:line", 0, -1)
    return [*([holder] if holder else []), *waiting]


@pytest.mark.parametrize("warm", [True, False])
async def test_free_resource(server: RedisServer, warm: bool) -> None:
    """Also where the first use connects, looks at the configuration and loads scripts."""
    for point in range(MOST):
        server.call("SCRIPT", "FLUSH")
        async with connect(server.url, io_timeout=20) as client:
            if warm:
                await take(client)
            struck = await cancelled_at(point, lambda client=client: take(client))  # type: ignore[misc]
        assert left_behind(server) == []
        if not struck:
            assert point > 1
            return
    raise AssertionError(f"there are more than {MOST} await points")


async def test_resource_that_another_holds(server: RedisServer) -> None:
    """Wherever it is struck: while it asks, subscribes, asks again or sleeps."""
    async with connect(server.url, io_timeout=20) as holder:
        async with holder.lock("r", ttl=60):
            for point in range(12):
                async with connect(server.url, io_timeout=20) as client:
                    assert await cancelled_at(point, lambda client=client: take(client), patience=0.5)  # type: ignore[misc]
                    await eventually(lambda: len(left_behind(server)) == 1)
        async with connect(server.url, io_timeout=20) as client:
            await take(client)


async def test_heir_that_is_given_the_resource_at_that_moment(server: RedisServer) -> None:
    """The server has given it to who is cancelled: before it knows, while it is told, and after."""
    async with connect(server.url, io_timeout=20) as holder, connect(server.url, io_timeout=20) as client:
        given = 0
        for turns in [*range(12)] * 3:
            lease = await holder.lock("r", ttl=60).acquire()
            heir = asyncio.create_task(client.lock("r", ttl=60).acquire())
            await eventually(lambda: len(left_behind(server)) == 2)
            await asyncio.sleep(0.01)
            await lease.release()
            given += len(left_behind(server))
            for _ in range(turns):
                await asyncio.sleep(0)
            if heir.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await heir
            else:
                await (await heir).release()
            await eventually(lambda: left_behind(server) == [])
        assert given, "nothing was ever given to who was cancelled"


async def test_others_on_the_same_connection_get_their_own_answers(server: RedisServer) -> None:
    """A cancelled question leaves its reply on the way: it goes to nobody, and nobody else's is taken for it."""
    async with connect(server.url, io_timeout=20) as client:
        store = client._engine.store
        await take(client)

        async def ask(number: int) -> tuple[int, object]:
            return number, await store.claim(Claim(f"n{number}", f"h{number}", ttl=60.0 + number))

        for round_ in range(10):
            tasks = [asyncio.create_task(ask(20 * round_ + i)) for i in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(result, BaseException):
                    number, answer = result
                    assert isinstance(answer, Granted)
                    assert answer.left == 60.0 + number
        for state in await store.inspect("n"):
            assert state.holders[0].holder == "h" + state.resource[1:]
