"""How many commands clients send for one hand-off, with few and with many waiters."""

import asyncio
from collections.abc import Sequence

import holdfast.aio
from bench.model import Budget, Plan, Scenario, Series
from bench.redis_locks import url_of
from holdfast.testing.servers.redis import RedisServer

LIFE = 600.0  # so that nobody refreshes its place while it is counted


def sent(server: RedisServer) -> int:
    """Return how many scripts clients have run; what these call is not sent."""
    facts = server.info("commandstats")
    return sum(
        int(facts.get(f"cmdstat_{name}", "calls=0").split("calls=")[1].split(",")[0]) for name in ("evalsha", "eval")
    )


async def hand_over(server: RedisServer, waiters: int, times: int) -> float:
    """Let the lock go from waiter to waiter, and return how many commands that took, each."""
    clients = [holdfast.aio.connect(url_of(server.port), io_timeout=30) for _ in range(4)]
    for client in clients:
        client._engine.store.capabilities = client.capabilities._replace(waiting_life=LIFE)  # type: ignore[misc]
        client._engine.store._life = b"%d" % (LIFE * 1e6)  # type: ignore[attr-defined]
    async with clients[0].lock("warm"):  # the server has to know the scripts
        pass
    turn = asyncio.Semaphore(0)

    async def work(number: int) -> None:
        lease = await clients[number % 4].lock("bench", ttl=300).acquire()
        await turn.acquire()
        await lease.release()

    tasks = [asyncio.create_task(work(number)) for number in range(waiters + 1)]
    while True:
        (state,) = await clients[0].inspect() or (None,)
        if state is not None and len(state.waiters) == waiters:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    before, token = sent(server), await _token(server)
    for _ in range(times):
        turn.release()
        while (now := await _token(server)) == token:  # noqa: ASYNC110 (the server is asked past the clients)
            await asyncio.sleep(0.001)
        token = now
    count = sent(server) - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()
    return count / times


async def _token(server: RedisServer) -> int:
    return int(await asyncio.to_thread(server.call, "HGET", "holdfast:{default:bench}", "token"))


def measure(plan: Plan) -> Sequence[Series]:
    """Count with 2 and with 1,000 waiters."""
    found: dict[int, list[float]] = {2: [], 1000: []}
    with RedisServer("--appendonly", "no") as server:
        for _ in range(1 if plan.quick else 3):
            for waiters, samples in found.items():
                server.call("FLUSHALL")
                samples.append(asyncio.run(hand_over(server, waiters, 2 if waiters == 2 else 20)))
    return [Series(f"commands, {waiters:,} waiters", "commands", samples) for waiters, samples in found.items()]


SCENARIO = Scenario(
    name="redis_commands",
    title="client-sent commands for one hand-off on Redis",
    settings={
        "counted": "EVALSHA and EVAL by INFO commandstats: one release; the next one is told its token",
        "not counted": "the refresh of a place in line: 1 command every 2 s for each waiter",
    },
    measure=measure,
    budgets=[
        Budget("commands, 2 waiters", "never over", 1),
        Budget("commands, 1,000 waiters", "times", 1, to="commands, 2 waiters"),
    ],
)
