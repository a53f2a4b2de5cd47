"""uvloop instead of asyncio's own loop: a blocked loop loses no lease, and a cancellation leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

import holdfast.aio
from holdfast.errors import LeaseLost
from holdfast.testing import contract
from holdfast.testing._async import runtime
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers
from tests.servers import needed

uvloop: Any = pytest.importorskip("uvloop")

STORES = [Target("memory://", driven=True), Target("sqlite://{folder}/locks.db", driven=True)]
TABLE = [
    (store, law)
    for store in STORES
    for law in contract.laws(store, ["async"])
    if law.number == 15 or "cancel" in law.needs
]


def run(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Run to its end in a loop of uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(function(*args))


@pytest.mark.parametrize(("store", "law"), TABLE, ids=str)
def test_law_on_uvloop(store: Target, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[object] = []

    def noted(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        async def play() -> Any:
            loops.append(asyncio.get_running_loop())
            return await function(*args)

        return run(play)

    monkeypatch.setattr(runtime, "run", noted)
    law.run(store)
    assert [type(loop) for loop in loops] == [uvloop.Loop]


@pytest.mark.server
@pytest.mark.parametrize("server", [RedisServer, RedlockServers, EtcdServer])
def test_servers_on_uvloop(server: Callable[[], Any]) -> None:
    """A transport of uvloop is none of asyncio's by its class, and says less of a connection that was given up."""

    async def main(url: str) -> None:
        async with holdfast.aio.connect(url) as locks, holdfast.aio.connect(url) as other:
            async with locks.lock("r", ttl=3):
                assert await other.lock("r").try_acquire() is None
                waiting = asyncio.create_task(other.lock("r").acquire())
                await asyncio.sleep(0.05)
            async with await waiting:
                pass
            for steps in range(40):  # a new client is cancelled while it connects
                async with holdfast.aio.connect(url) as hasty:
                    task = asyncio.create_task(hasty.lock("s").acquire(timeout=5))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
            await runtime.eventually(partial(_free, locks, "s"))

    with needed(server) as running:
        run(main, running.url)


async def _free(locks: holdfast.aio.Client, name: str) -> bool:
    lease = await locks.lock(name).try_acquire()
    if lease is not None:
        await lease.release()
    return lease is not None


def test_a_loss_cancels_the_body(name: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"memory://{name}") as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock("r", ttl=0.5, renew=False):
                    await asyncio.sleep(60)

    run(main)
