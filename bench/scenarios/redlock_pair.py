"""Acquire and release a free resource on five Redis servers, beside peers and beside our own store on one of them."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import holdfast
from bench.harness import Contender, Slice, interleaved, peer, timed, timed_async
from bench.model import Budget, Plan, Scenario, Series
from holdfast.testing.servers.redlock import RedlockServers

_TTL = 30


class Bench:
    """The contenders, all on the same servers."""

    def __init__(self, servers: RedlockServers) -> None:
        self.servers = servers
        self.ports = [node.port for node in servers.nodes]

    @contextmanager
    def ours(self, directory: Path) -> Iterator[Slice]:
        """holdfast on five nodes."""
        with holdfast.connect(self.servers.url) as locks:
            lock = locks.lock("bench", ttl=_TTL)
            yield timed(lambda: lock.acquire().release())

    @contextmanager
    def ours_async(self, directory: Path) -> Iterator[Slice]:
        """holdfast on five nodes, asyncio."""
        with asyncio.Runner() as runner:
            locks = holdfast.aio.connect(self.servers.url)
            lock = locks.lock("bench async", ttl=_TTL)

            async def pair() -> None:
                await (await lock.acquire()).release()

            try:
                yield timed_async(runner, pair)
            finally:
                runner.run(locks.close())

    @contextmanager
    def ours_on_one(self, directory: Path) -> Iterator[Slice]:
        """holdfast on one of them."""
        with holdfast.connect(self.servers.nodes[0].url) as locks:
            lock = locks.lock("bench one", ttl=_TTL)
            yield timed(lambda: lock.acquire().release())

    @contextmanager
    def redlock_py(self, directory: Path) -> Iterator[Slice]:
        """redlock-py on five nodes."""
        manager = peer("redlock").Redlock([{"host": "127.0.0.1", "port": port} for port in self.ports])

        def pair() -> None:
            lock = manager.lock("bench redlock-py", _TTL * 1000)
            assert lock, "redlock-py did not get a free lock"
            manager.unlock(lock)

        yield timed(pair)

    @contextmanager
    def pottery(self, directory: Path) -> Iterator[Slice]:
        """pottery's Redlock on five nodes."""
        redlock, redis = peer("pottery").Redlock, peer("redis").Redis
        masters = {redis(port=port) for port in self.ports}
        lock = redlock(key="bench", masters=masters, auto_release_time=_TTL)

        def pair() -> None:
            assert lock.acquire(), "pottery did not get a free lock"
            lock.release()

        try:
            yield timed(pair)
        finally:
            for master in masters:
                master.close()


def measure(plan: Plan) -> list[Series]:
    """Start the servers and measure."""
    with ExitStack() as stack:
        bench = Bench(stack.enter_context(RedlockServers()))
        contenders = [
            Contender("holdfast", bench.ours),
            Contender("holdfast, asyncio", bench.ours_async),
            Contender("holdfast, one node", bench.ours_on_one),
            Contender("redlock-py", bench.redlock_py),
            Contender("pottery", bench.pottery),
        ]
        return list(interleaved(contenders)(plan))


SCENARIO = Scenario(
    name="redlock_pair",
    title="acquire + release of a free resource on five nodes",
    settings={"all": "5 Redis servers on loopback, appendonly=yes, appendfsync=always, save off; no TLS"},
    measure=measure,
    floor="holdfast, one node",
    budgets=[
        Budget("holdfast", "times", 0.4, to="redlock-py"),
        Budget("holdfast", "times", 6, to="holdfast, one node"),
    ],
)
