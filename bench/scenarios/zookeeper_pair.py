"""Acquire and release a free resource in ZooKeeper, beside a raw create and delete on such a session, and beside peers.

The raw exchanges are made through our own session, in both flavours: what holdfast adds to them is the list of claims,
which travels with the create, and its own work.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import holdfast
from bench.harness import Contender, Slice, interleaved, timed, timed_async
from bench.model import Budget, Plan, Scenario, Series
from bench.zookeeper_locks import SETTINGS, STATED, TTL, host_of, kazoo, ours, paired, tooz
from holdfast._clock import SystemClock
from holdfast.core.urls import parse_url
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper._async.ensemble import Ensemble as AsyncEnsemble
from holdfast.stores.zookeeper._sync.ensemble import Ensemble
from holdfast.stores.zookeeper.shared import Shared
from holdfast.stores.zookeeper.wire import Reply, Request
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

_RAW, _RAW_ASYNC = "raw create + delete", "raw create + delete, asyncio"
_OURS, _OURS_ASYNC = "holdfast", "holdfast, asyncio"
_KAZOO, _TOOZ = "kazoo Lock", "tooz/zookeeper"
_THREE = ", three nodes"
_IO_TIMEOUT = 10.0
_PARENT = "/raw"
# As long as what holdfast writes for a claim: its owner, its ttl, a random holder in the name.
_CREATE = wire.create_sequential(f"{_PARENT}/{'h' * 22}-x-", b"x" * 60, wire.OPEN_ACL)


def _opened(host: str) -> Shared:
    return Shared(parse_url(f"zookeeper://{host}"), "raw", _IO_TIMEOUT, SystemClock())


def _checked(replies: Sequence[Reply]) -> Reply:
    """Return the answer to a request that has to succeed: a refusal would be fast, and be taken for a figure."""
    (reply,) = replies
    assert not reply.code, f"ZooKeeper refused a raw request: error {reply.code}"
    return reply


def _delete(created: Reply) -> Request:
    return wire.delete(wire.read_created(created)[0])


@contextmanager
def raw(host: str) -> Iterator[Slice]:
    """Create an ephemeral sequential node and delete it: what any lock in ZooKeeper has to do."""
    shared = _opened(host)
    ensemble, session = Ensemble(shared, _IO_TIMEOUT, SystemClock()), shared.session(TTL)

    def pair() -> None:
        until = ensemble.until()
        created = _checked(ensemble.ask(session, (_CREATE,), until))
        _checked(ensemble.ask(session, (_delete(created),), until))

    ensemble.ask(session, (wire.create(_PARENT, b"", wire.OPEN_ACL),), ensemble.until())
    try:
        yield timed(pair)
    finally:
        ensemble.close(shared.close(), ensemble.until())


@contextmanager
def raw_async(host: str) -> Iterator[Slice]:
    """Create and delete in the asyncio flavour."""
    with asyncio.Runner() as runner:
        shared = _opened(host)
        ensemble, session = AsyncEnsemble(shared, _IO_TIMEOUT, SystemClock()), shared.session(TTL)

        async def pair() -> None:
            until = ensemble.until()
            created = _checked(await ensemble.ask(session, (_CREATE,), until))
            _checked(await ensemble.ask(session, (_delete(created),), until))

        parent = wire.create(_PARENT, b"", wire.OPEN_ACL)
        runner.run(ensemble.ask(session, (parent,), ensemble.until()))
        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(ensemble.close(shared.close(), ensemble.until()))


@contextmanager
def ours_async(host: str) -> Iterator[Slice]:
    """holdfast, asyncio."""
    with asyncio.Runner() as runner:
        locks = holdfast.aio.connect(f"zookeeper://{host}", io_timeout=_IO_TIMEOUT)
        lock = locks.lock("bench async", ttl=TTL)

        async def pair() -> None:
            await (await lock.acquire()).release()

        try:
            yield timed_async(runner, pair)
        finally:
            runner.run(locks.close())


def rounds(plan: Plan, part: str, contenders: Sequence[Contender]) -> Sequence[Series]:
    """Time contenders in a folder of their own."""
    directory = plan.directory / part
    directory.mkdir()
    return interleaved(contenders)(Plan(directory, plan.quick))


def measure(plan: Plan) -> list[Series]:
    """Measure on one server, then on three of which all clients use the same follower."""
    with ZooKeeperServer(**SETTINGS) as server:
        host = host_of(server)
        one = [
            Contender(_RAW, lambda _: raw(host)),
            Contender(_RAW_ASYNC, lambda _: raw_async(host)),
            Contender(_OURS, lambda _: paired(ours, host, "bench")),
            Contender(_OURS_ASYNC, lambda _: ours_async(host)),
            Contender(_KAZOO, lambda _: paired(kazoo, host, "bench")),
            Contender(_TOOZ, lambda _: paired(tooz, host, "bench")),
        ]
        series = list(rounds(plan, "one", one))
    with ZooKeeperEnsemble(**SETTINGS) as servers:
        follower = host_of(servers.followers[0])
        three = [
            Contender(_OURS + _THREE, lambda _: paired(ours, follower, "bench")),
            Contender(_OURS_ASYNC + _THREE, lambda _: ours_async(follower)),
            Contender(_KAZOO + _THREE, lambda _: paired(kazoo, follower, "bench")),
        ]
        return [*series, *rounds(plan, "three", three)]


SCENARIO = Scenario(
    name="zookeeper_pair",
    title="acquire + release of a free resource in ZooKeeper",
    settings={
        "all": STATED,
        "one node": "where a name says nothing else",
        "three nodes": "all clients are connected to the same follower",
        "kazoo Lock": "a new object for every pair",
        _RAW: "through a session of holdfast, in the flavour that is named; the parent is there already",
    },
    measure=measure,
    floor=_RAW,
    budgets=[
        Budget(_OURS, "times", 0.55, to=_KAZOO),
        Budget(_OURS, "times", 1.4, to=_RAW),
        Budget(_OURS_ASYNC, "times", 0.55, to=_KAZOO),
        Budget(_OURS_ASYNC, "times", 1.4, to=_RAW_ASYNC),
        Budget(_OURS + _THREE, "times", 0.75, to=_KAZOO + _THREE),
        Budget(_OURS_ASYNC + _THREE, "times", 0.75, to=_KAZOO + _THREE),
    ],
)
