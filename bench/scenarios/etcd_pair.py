"""Acquire and release a free resource in etcd, beside the raw exchanges on such a channel, and beside peers."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from bench.harness import Contender, Slice, interleaved, peer, timed, timed_async
from bench.model import Budget, Plan, Scenario, Series
from holdfast.testing.servers.etcd import EtcdServer

_TTL = 30
_RAW = "raw Txn + DeleteRange"


class Bench:
    """The contenders, all on the same server."""

    def __init__(self, server: EtcdServer) -> None:
        self.server = server

    @contextmanager
    def raw(self, directory: Path) -> Iterator[Slice]:
        """Put a key under a lease if it is absent, and delete it: what any lock in etcd has to do."""
        from holdfast.stores.etcd import messages
        from holdfast.stores.etcd.link import Peer
        from holdfast.stores.etcd.messages import Is, Of

        channel, key, lease = Peer(f"127.0.0.1:{self.server.port}", None), b"bench/raw", 4711
        channel.unary(messages.LEASE_GRANT)(messages.lease_grant(3600, lease))
        absent = messages.compare(Is.EQUAL, Of.CREATE, 0, key)
        put = messages.op_put(messages.put(key, b"x" * 60, lease))
        take = messages.txn((absent,), (put,), (messages.op_range(messages.range_(key)),))
        free = messages.delete(key)

        def pair() -> None:
            channel.unary(messages.TXN)(take, timeout=10)
            channel.unary(messages.DELETE)(free, timeout=10)

        try:
            yield timed(pair)
        finally:
            channel.close()

    @contextmanager
    def ours(self, directory: Path) -> Iterator[Slice]:
        """holdfast."""
        with holdfast.connect(self.server.url, io_timeout=10) as locks:
            lock = locks.lock("bench", ttl=_TTL)
            yield timed(lambda: lock.acquire().release())

    @contextmanager
    def ours_async(self, directory: Path) -> Iterator[Slice]:
        """holdfast, asyncio."""
        with asyncio.Runner() as runner:
            locks = holdfast.aio.connect(self.server.url, io_timeout=10)
            lock = locks.lock("bench async", ttl=_TTL)

            async def pair() -> None:
                await (await lock.acquire()).release()

            try:
                yield timed_async(runner, pair)
            finally:
                runner.run(locks.close())

    @contextmanager
    def etcd3gw(self, directory: Path) -> Iterator[Slice]:
        """etcd3gw, by etcd's JSON gateway."""
        client = peer("etcd3gw").client(port=self.server.port, api_path="/v3/")

        def pair() -> None:
            lock = client.lock("bench etcd3gw", ttl=_TTL)
            assert lock.acquire(), "etcd3gw did not get a free lock"
            lock.release()

        yield timed(pair)

    @contextmanager
    def tooz(self, directory: Path) -> Iterator[Slice]:
        """tooz, on top of etcd3gw."""
        peer("etcd3gw")
        logging.getLogger("tooz").setLevel(logging.CRITICAL)
        url = f"etcd3+http://127.0.0.1:{self.server.port}?api_version=v3"
        coordinator = peer("tooz.coordination").get_coordinator(url, b"bench")
        coordinator.start()
        lock = coordinator.get_lock(b"bench tooz")

        def pair() -> None:
            assert lock.acquire(), "tooz did not get a free lock"
            lock.release()

        try:
            yield timed(pair)
        finally:
            coordinator.stop()


def measure(plan: Plan) -> list[Series]:
    """Start the server and measure."""
    with EtcdServer() as server:
        bench = Bench(server)
        contenders = [
            Contender(_RAW, bench.raw),
            Contender("holdfast", bench.ours),
            Contender("holdfast, asyncio", bench.ours_async),
            Contender("etcd3gw", bench.etcd3gw),
            Contender("tooz/etcd", bench.tooz),
        ]
        return list(interleaved(contenders)(plan))


SCENARIO = Scenario(
    name="etcd_pair",
    title="acquire + release of a free resource in etcd",
    settings={"all": "one member on loopback, fsync on, no TLS", "peers": "a new lease for every lock, as they do it"},
    measure=measure,
    floor=_RAW,
    budgets=[
        Budget("holdfast", "times", 1.25, to=_RAW),
        Budget("holdfast", "times", 0.45, to="etcd3gw"),
    ],
)
