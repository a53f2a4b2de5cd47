"""Acquire and release a free resource on Redis, beside two EVALSHA that do nothing but write, and beside peers."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import holdfast
from bench.harness import Contender, Slice, interleaved, peer, timed, timed_async
from bench.model import Budget, Plan, Scenario, Series
from bench.redis_locks import LOCKS, TTL, paired, port_of, url_of
from holdfast.testing.servers.redis import RedisServer

SETTINGS = ("--appendonly", "no")
# What two EVALSHA cost at least, with scripts that write and remove as a lock must.
TAKE = "return redis.call('SET', KEYS[1], ARGV[1])"
GIVE = "return redis.call('DEL', KEYS[1])"
HOLDER = "0123456789abcdef.1.0123456789abcdef"


@contextmanager
def raw(directory: Path) -> Iterator[Slice]:
    """The floor: redis-py's bare Connection, retries off."""
    no_retry = peer("redis.retry").Retry(peer("redis.backoff").NoBackoff(), 0)
    connection = peer("redis.connection").Connection(
        port=port_of(directory), protocol=2, retry=no_retry, socket_timeout=1.0
    )

    def call(*command: str | bytes | int) -> bytes:
        connection.send_command(*command)
        reply: bytes = connection.read_response()
        return reply

    take, give = (call("SCRIPT", "LOAD", script) for script in (TAKE, GIVE))

    def pair() -> None:
        call("EVALSHA", take, 1, "raw", HOLDER)
        call("EVALSHA", give, 1, "raw")

    try:
        yield timed(pair)
    finally:
        connection.disconnect()


@contextmanager
def raw_async(directory: Path) -> Iterator[Slice]:
    """The floor of asyncio: redis-py's bare asyncio Connection, retries off."""
    no_retry = peer("redis.asyncio.retry").Retry(peer("redis.backoff").NoBackoff(), 0)
    with asyncio.Runner() as runner:
        connection = peer("redis.asyncio.connection").Connection(
            port=port_of(directory), protocol=2, retry=no_retry, socket_timeout=1.0
        )

        async def call(*command: str | bytes | int) -> bytes:
            await connection.send_command(*command)
            reply: bytes = await connection.read_response()
            return reply

        take, give = (runner.run(call("SCRIPT", "LOAD", script)) for script in (TAKE, GIVE))

        async def pair() -> None:
            await call("EVALSHA", take, 1, "raw async", HOLDER)
            await call("EVALSHA", give, 1, "raw async")

        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(connection.disconnect())


@contextmanager
def lean(directory: Path) -> Iterator[Slice]:
    """The same on holdfast's own connection: what the scripts and the shell cost is the rest."""
    from holdfast.stores.redis._sync.transport import Connection
    from holdfast.stores.redis.wire import Access, Endpoint

    connection = Connection(Endpoint("127.0.0.1", port_of(directory)), Access(), 1.0)
    take, give = (connection.call("SCRIPT", "LOAD", script) for script in (TAKE, GIVE))

    def pair() -> None:
        connection.call("EVALSHA", take, 1, "lean", HOLDER)
        connection.call("EVALSHA", give, 1, "lean")

    try:
        yield timed(pair)
    finally:
        connection.close()


@contextmanager
def ours_async(directory: Path) -> Iterator[Slice]:
    """holdfast, asyncio."""
    with asyncio.Runner() as runner:
        locks = holdfast.aio.connect(url_of(port_of(directory)))
        lock = locks.lock("bench async", ttl=TTL)

        async def pair() -> None:
            await (await lock.acquire()).release()

        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(locks.close())


@contextmanager
def redis_py_async(directory: Path) -> Iterator[Slice]:
    """redis-py's asyncio Lock."""
    with asyncio.Runner() as runner:
        client = peer("redis.asyncio").Redis(port=port_of(directory))
        lock = client.lock("redis-py async", timeout=TTL)

        async def pair() -> None:
            await lock.acquire()
            await lock.release()

        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(client.aclose())


OPEN: dict[str, Callable[[Path], AbstractContextManager[Slice]]] = {
    "two raw EVALSHA": raw,
    "two raw EVALSHA, asyncio": raw_async,
    "two raw EVALSHA, own connection": lean,
    **{kind: paired(kind) for kind in LOCKS},
    "holdfast, asyncio": ours_async,
    "redis-py Lock, asyncio": redis_py_async,
}


def measure(plan: Plan) -> Sequence[Series]:
    """Time all of them on one server."""
    with RedisServer(*SETTINGS) as server:

        def contender(name: str) -> Contender:
            @contextmanager
            def open_(directory: Path) -> Iterator[Slice]:
                (directory / "port").write_text(str(server.port))
                with OPEN[name](directory) as run:
                    yield run

            return Contender(name, open_)

        return interleaved([contender(name) for name in OPEN])(plan)


SCENARIO = Scenario(
    name="redis_pair",
    title="acquire + release of a free resource on one Redis",
    settings={
        "all": "one server on loopback, appendonly no, save ''",
        "two raw EVALSHA": "SET and DEL as scripts, on redis-py's bare Connection (hiredis, retries off)",
        "own connection": "the same two on the connection that holdfast itself uses: a socket and hiredis' parser",
    },
    measure=measure,
    floor="two raw EVALSHA",
    budgets=[
        Budget("holdfast", "times", 1.35, to="two raw EVALSHA"),
        Budget("holdfast, asyncio", "times", 1.35, to="two raw EVALSHA, asyncio"),
        *(Budget("holdfast", "times", 1, to=kind) for kind in LOCKS if kind != "holdfast"),
        Budget("holdfast, asyncio", "times", 1, to="redis-py Lock, asyncio"),
    ],
)
