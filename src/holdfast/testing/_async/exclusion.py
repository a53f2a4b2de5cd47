"""Law 1: the granted weight never exceeds the capacity, and an exclusive grant is alone."""

from __future__ import annotations

from random import Random

from ...core.claim import MAX, Granted, Waiting
from ..check import Ledger
from ..law import law
from . import runtime
from .case import Case, CaseClient

_WORKERS = 6
_ROUNDS = 15


@law(1)
async def exclusive_grants_do_not_overlap(case: Case) -> None:
    """Of many workers that lock the same resource, one at a time is inside."""
    ledger = Ledger()

    async def work(client: CaseClient, name: str) -> None:
        for _ in range(_ROUNDS):
            async with client.lock("r", ttl=60, timeout=60):
                ledger.enter(name, MAX, MAX)
                await runtime.pause(0)
                ledger.leave(name)

    shared = await case.client()
    calls = [
        case.spawn(work, shared if number % 2 else await case.client(), f"worker-{number}")
        for number in range(_WORKERS)
    ]
    for call in calls:
        await call.join(60)
    assert ledger.entered == _WORKERS * _ROUNDS
    assert not await case.holders()


@law(1, "shared")
async def granted_weight_never_exceeds_capacity(case: Case) -> None:
    """However weights, capacities and fairness are mixed, a claim is granted only if it fits beside the others."""
    ledger = Ledger()

    async def work(client: CaseClient, random: Random) -> None:
        for _ in range(_ROUNDS):
            fair = random.random() < 0.7 if case.capabilities.unfair else True
            if random.random() < 0.25:
                claim = case.claim(ttl=60, fair=fair)
            else:
                capacity = random.choice((2, 3, 5, MAX))
                claim = case.claim(weight=random.randint(1, 2), capacity=capacity, ttl=60, fair=fair)
            await client.claim(claim, 60)
            try:
                ledger.enter(claim.holder, claim.weight, claim.capacity)
                await runtime.pause(random.random() / 1000)
                ledger.leave(claim.holder)
            finally:
                released = await client.tap.release("r", claim.holder)
            assert released

    calls = [case.spawn(work, await case.client(), Random(seed)) for seed in range(_WORKERS)]
    for call in calls:
        await call.join(60)
    assert ledger.entered == _WORKERS * _ROUNDS


@law(1)
async def held_resource_is_refused_to_everybody_else(case: Case) -> None:
    """While one holds exclusively, no other client gets the resource, in or out of line; another resource is free."""
    store = await case.store()
    assert isinstance(await store.claim(case.claim()), Granted)
    for queue in (False, True):
        assert isinstance(await store.claim(case.claim(), queue), Waiting)
    other = await case.client()
    assert await other.lock("r", ttl=case.ttl).try_acquire() is None
    assert isinstance(await store.claim(case.claim("r2")), Granted)


@law(1, "shared")
async def readers_share_and_writers_do_not(case: Case) -> None:
    """Shared claims hold together; an exclusive one waits for all of them, and none of them comes beside it."""
    store = await case.store()
    first, second = case.claim(weight=1), case.claim(weight=1)
    assert isinstance(await store.claim(first), Granted)
    assert isinstance(await store.claim(second), Granted)
    writer = case.claim()
    assert isinstance(await store.claim(writer), Waiting)
    await store.release("r", first.holder)
    assert isinstance(await store.claim(writer), Waiting)
    await store.release("r", second.holder)
    assert isinstance(await store.claim(writer), Granted)
    assert isinstance(await store.claim(case.claim(weight=1)), Waiting)


@law(1, "shared")
async def permits_are_counted(case: Case) -> None:
    """A resource of three permits is held by three, and each claim is judged by its own capacity."""
    store = await case.store()
    holders = [case.claim(weight=1, capacity=3) for _ in range(3)]
    for claim in holders:
        assert isinstance(await store.claim(claim), Granted)
    assert isinstance(await store.claim(case.claim(weight=1, capacity=3), False), Waiting)
    assert isinstance(await store.claim(case.claim(weight=1, capacity=4), False), Granted)
    await store.release("r", holders[0].holder)
    assert isinstance(await store.claim(case.claim(weight=1, capacity=3), False), Waiting)


@law(1)
async def namespaces_do_not_meet(case: Case) -> None:
    """The same name in two namespaces is two resources."""
    here, there = await case.store(), await case.store(namespace=case.namespace + "2")
    claim = case.claim()
    assert isinstance(await here.claim(claim), Granted)
    assert isinstance(await there.claim(case.claim()), Granted)
    assert not await there.release("r", claim.holder)
    assert [len(state.holders) for state in await there.inspect()] == [1]


@law(1)
async def names_are_never_mixed_up(case: Case) -> None:
    """Names that look alike, hold special characters or are very long are all different resources."""
    names = [
        *("a", "A", "a ", "a/b", "a//b", "a:b", "a%2Fb", "%", "_", "*", "a*", "[a]", "{a}", "'", '"', "\\", "\\0"),
        *("é", "e\u0301", "ß", "ss", "🔒", "-", "--", ".", "..", "NULL", "0", "00", "x" * 512, "x" * 511, "é" * 256),
    ]
    store = await case.store()
    for name in names:
        assert isinstance(await store.claim(case.claim(name, ttl=60)), Granted), f"{name!r} was taken for another"
    for name in names:
        assert isinstance(await store.claim(case.claim(name), False), Waiting), f"{name!r} was granted twice"
    assert sorted(state.resource for state in await store.inspect()) == sorted(names)
