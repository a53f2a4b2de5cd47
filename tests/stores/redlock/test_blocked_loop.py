"""A blocked event loop and nodes that were away for a moment: renewals do not depend on what the loop finds out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import holdfast.aio
from holdfast.stores.redlock._sync.nodes import Nodes
from holdfast.testing._async.runtime import eventually
from holdfast.testing.servers.redlock import RedlockServers
from tests.servers import needed

pytestmark = [pytest.mark.server, pytest.mark.slow]
TTL = 3.0


async def kept_although_the_loop_is_blocked() -> bool:
    """Hold a lease on two of three nodes. One of these is silent for a moment, and the loop, which has noticed that, is
    blocked before it can notice that the node is back.
    """
    with needed(lambda: RedlockServers(count=3)) as servers:
        one, _, three = servers.nodes
        async with holdfast.aio.connect(servers.url) as locks:
            await locks.ready()
            silent = locks._engine.store._shared.silent  # type: ignore[attr-defined]
            three.pause()
            lease = await locks.lock("r", ttl=TTL).acquire()
            three.resume()
            await eventually(lambda: not silent)
            one.pause()
            asking = asyncio.create_task(locks.lock("s", ttl=TTL).try_acquire())
            await eventually(lambda: silent)
            await asyncio.sleep(0.05)  # it has begun to look whether the node is back
            one.resume()
            until = time.monotonic() + 2 * TTL
            while time.monotonic() < until and not lease.lost:
                time.sleep(0.05)  # noqa: ASYNC251 (this is the point)
            kept = not lease.lost
            asking.cancel()
        return kept


async def test_a_node_that_is_back_is_asked_to_renew() -> None:
    assert await kept_although_the_loop_is_blocked()


@pytest.mark.control
async def test_the_lease_is_lost_if_only_those_are_asked_that_the_loop_knows_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = Nodes._ask

    def ask_who_answers(nodes: Nodes, commands: Any, enough: Any, limit: float | None = None, _: bool = False) -> Any:
        return ask(nodes, commands, enough, limit)

    monkeypatch.setattr(
        Nodes, "_ask", lambda nodes, commands, enough, limit=None, _=False: ask(nodes, commands, enough, limit)
    )
    kept = [await kept_although_the_loop_is_blocked()]
    while all(kept) and len(kept) < 4:  # on a busy machine the loop may notice in time
        kept.append(await kept_although_the_loop_is_blocked())
    assert not all(kept)
