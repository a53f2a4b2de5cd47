"""Labels that nobody chose: threads and tasks may have any name, and it must not harm what is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.core.claim import ResourceState
from holdfast.testing._async.runtime import eventually
from holdfast.testing._sync.runtime import eventually as eventually_blocking
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

NAMES = {
    "newline": "a\nb\r\nc",
    "surrogate": "lone \ud800 surrogate",
    "nul": "a\0b",
    "separators": "a:b/c,d;e|f\tg\x1f\x1e\u2028h",
    "empty": "",
    "escape": "\x1b[31mred\x07",
    "long": "ä" * 5000,
    "quotes": "'\"`\\%s{}$(rm)",
}
SERVERS: dict[str, Any] = {"redis": RedisServer, "etcd": EtcdServer}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    """Servers that have been started, by their names."""
    started: dict[str, Any] = {}
    yield started
    for server in started.values():
        server.__exit__(None, None, None)


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("redis", marks=pytest.mark.server),
        pytest.param("etcd", marks=pytest.mark.server),
    ]
)
def url(request: pytest.FixtureRequest, name: str, tmp_path: Path, servers: dict[str, Any]) -> str:
    store: str = request.param
    if store not in SERVERS:
        return {"memory": f"memory://{name}", "sqlite": f"sqlite://{tmp_path}/locks.db"}[store]
    if store not in servers:
        servers[store] = needed(SERVERS[store]).__enter__()
    return str(servers[store].url)


def in_thread(url: str, namespace: str, label: str) -> list[ResourceState]:
    """Hold, wait and share in threads of that name; return what another client sees of it."""
    seen: list[ResourceState] = []

    def work() -> None:
        with holdfast.connect(url, namespace=namespace, io_timeout=10) as locks:
            with locks.lock("r", ttl=10), locks.semaphore("s", permits=3), locks.semaphore("s", permits=3):
                with pytest.raises(holdfast.AcquireTimeout) as caught:
                    other.lock("r").acquire(0.05)
                assert caught.value.owner
                eventually_blocking(lambda: not any(state.waiters for state in other.inspect()))
                seen.extend(other.inspect())
            with locks.lock("r", ttl=10) as lease:
                lease.renew()
                lease.check()

    with holdfast.connect(url, namespace=namespace, io_timeout=10) as other:
        thread = threading.Thread(target=work, name=label or "x")
        thread.name = label
        thread.start()
        thread.join(60)
        assert other.inspect() == []
    return seen


def in_task(url: str, namespace: str, label: str) -> list[ResourceState]:
    """Do the same in tasks."""
    seen: list[ResourceState] = []

    async def work() -> None:
        async with holdfast.aio.connect(url, namespace=namespace, io_timeout=10) as locks:
            async with locks.lock("r", ttl=10), locks.semaphore("s", permits=3), locks.semaphore("s", permits=3):
                async with holdfast.aio.connect(url, namespace=namespace, io_timeout=10) as other:
                    with pytest.raises(holdfast.AcquireTimeout) as caught:
                        await other.lock("r").acquire(0.05)
                    assert caught.value.owner

                    async def nobody_waits() -> bool:
                        return not any(state.waiters for state in await other.inspect())

                    await eventually(nobody_waits)
                    seen.extend(await other.inspect())
            async with locks.lock("r", ttl=10) as lease:
                await lease.renew()
                lease.check()
            assert await locks.inspect() == []

    async def main() -> None:
        task = asyncio.create_task(work(), name=label)
        task.set_name(label)
        await task

    asyncio.run(main())
    return seen


@pytest.mark.parametrize("flavour", [in_thread, in_task])
@pytest.mark.parametrize("label", NAMES)
def test_no_name_of_a_thread_or_task_harms_a_record(label: str, flavour: Any, url: str) -> None:
    states = flavour(url, f"labels-{label}-{flavour.__name__}", NAMES[label])
    assert [(state.resource, len(state.holders), len(state.waiters)) for state in states] == [("r", 1, 0), ("s", 2, 0)]
    for state in states:
        for claim in state.holders:
            assert claim.token > 0
            assert 0 < claim.left <= 30
            assert claim.owner.isprintable()
            assert 1 <= len(claim.owner) <= 200
            assert claim.value is None
    owners = {claim.owner for state in states for claim in state.holders}
    assert len(owners) == 1
