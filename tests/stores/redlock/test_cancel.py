"""An acquire and a release that are cancelled at every await: on no node anything stays behind."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from holdfast._async.client import Client, connect
from holdfast.testing._async.runtime import cancelled_at, eventually
from holdfast.testing.servers.redlock import RedlockServers
from tests.stores.redlock.kept import holders, line

pytestmark = pytest.mark.server

MOST = 40  # await points of one acquire and release


def left_behind(nodes: RedlockServers, but: str = "") -> list[str]:
    """Return what the nodes have of others than this holder: grants, and places in line."""
    return [*({*holders(nodes)} - {"", but}), *(name for node in nodes.nodes for name in line(node))]


async def take(client: Client) -> None:
    lease = await client.lock("r", ttl=60).acquire()
    await lease.release()


@pytest.mark.parametrize("warm", [True, False])
async def test_free_resource(nodes: RedlockServers, warm: bool):
    """Also where the first use opens connections and looks at configurations."""
    for point in range(MOST):
        async with connect(nodes.url, io_timeout=20) as client:
            if warm:
                await take(client)
            struck = await cancelled_at(point, lambda client=client: take(client))  # type: ignore[misc]
        assert left_behind(nodes) == []
        if not struck:
            assert point > 1
            return
    raise AssertionError(f"there are more than {MOST} await points")


async def test_resource_that_another_holds(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=20) as holder, connect(nodes.url, io_timeout=20) as client:
        async with holder.lock("r", ttl=60):
            mine = next(filter(None, holders(nodes)))  # the first node may be late
            for point in range(12):
                assert await cancelled_at(point, lambda: take(client), patience=0.5)
                await eventually(lambda: left_behind(nodes, mine) == [])
        await take(client)


async def test_with_a_minority_that_hangs(nodes: RedlockServers):
    """What reaches the hanging nodes late is taken back there, too."""
    with ExitStack() as stack:
        async with connect(nodes.url, io_timeout=1.0) as client:
            await take(client)
            stack.enter_context(nodes.silenced(2))
            for point in range(MOST):
                if not await cancelled_at(point, lambda: take(client)):
                    break
            stack.close()
            await eventually(lambda: left_behind(nodes) == [])
