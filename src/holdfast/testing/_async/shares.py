"""Read-write locks, semaphores and rate limits: laws 1, 7, 8 and 14 as their users see them."""

from __future__ import annotations

from ..._async.lock import Lock
from ..._async.ratelimit import RateLimit
from ..._async.store import Store
from ...core.cancel import Cancel
from ...errors import AcquireCancelled, Deadlock, LockError, RateLimited
from ..check import ROUNDING, Ledger, raises
from ..law import law
from . import runtime
from .case import Case
from .runtime import eventually

_WORKERS = 5
_ROUNDS = 8


@law(7, "shared", "fair")
async def readers_and_writers_are_served_in_order_of_arrival(case: Case) -> None:
    """Neither starves the other: who comes later waits behind who waits; readers that follow each other share."""
    store, served = await case.store(), list[str]()
    holder = case.claim(ttl=100)
    await store.claim(holder)

    async def serve(lock: Lock, name: str, together: int) -> None:
        async with lock:
            served.append(name)
            await eventually(lambda: len(served) >= together)

    calls = []
    # Each stays until as many as `together` have come: readers 2 and 3 meet, nobody else does.
    for number, (name, together) in enumerate((("r1", 0), ("w1", 0), ("r2", 4), ("r3", 4), ("w2", 0), ("r4", 0)), 1):
        both = (await case.client()).rwlock("r", ttl=60)
        calls.append(case.spawn(serve, both.read() if name.startswith("r") else both.write(), name, together))
        await case.waiting(number)
    await store.release("r", holder.holder)
    for call in calls:
        await call.join()
    assert [*served[:2], *sorted(served[2:4]), *served[4:]] == ["r1", "w1", "r2", "r3", "w2", "r4"]


@law(7, "shared", "fair")
async def nested_read_shares_although_a_writer_waits(case: Case) -> None:
    """A reader that reads once more does not wait behind a writer that waits for it."""
    client, other = await case.client(), await case.client()
    catalog = client.rwlock("r", ttl=60)
    async with catalog.read() as outer:
        writer = case.spawn(other.rwlock("r", ttl=60).write().acquire)
        await case.waiting(1)
        async with catalog.read().acquire(timeout=0) as inner:
            assert inner.token == outer.token
        outer.check()
        assert not writer.done
        assert len(await case.holders()) == 1
    await writer.join()


@law(1, "shared")
async def reader_does_not_become_a_writer(case: Case) -> None:
    """Whoever has a share and would wait for all of it for ever is told at once, and keeps the share."""
    client, other = await case.client(), await case.client()
    catalog = client.rwlock("r", ttl=60)

    async def ask_for_more() -> None:
        async with catalog.read() as lease:
            with raises(Deadlock) as caught:
                await catalog.write().acquire()
            assert caught.error.token == lease.token
            assert await catalog.write().try_acquire() is None
            lease.check()
            assert await other.rwlock("r", ttl=60).write().try_acquire() is None
            assert await other.rwlock("r", ttl=60).read().try_acquire() is not None

    await case.spawn(ask_for_more).join()


@law(1, "shared")
async def no_more_than_there_are_permits_are_inside(case: Case) -> None:
    """Of many workers as many as there are permits for are inside, however many each takes, and each gets its turn."""
    ledger, permits = Ledger(), 3

    async def work(lock: Lock, name: str) -> None:
        for _ in range(_ROUNDS):
            async with lock:
                ledger.enter(name, lock.weight, permits)
                await runtime.pause(0.001)
                ledger.leave(name)

    shared = await case.client()
    calls = []
    for number in range(_WORKERS):
        client = shared if number % 2 else await case.client()
        lock = client.semaphore("r", permits=permits, weight=1 + number % 3, ttl=60, timeout=60)
        calls.append(case.spawn(work, lock, f"worker-{number}"))
    for call in calls:
        await call.join(60)
    assert ledger.entered == _WORKERS * _ROUNDS


@law(7, "shared", "fair")
async def claim_for_many_permits_is_not_starved(case: Case) -> None:
    """Whoever waits for many permits is served before those who come later and would fit beside the others."""
    client, other = await case.client(), await case.client()
    permits, same = client.semaphore("r", permits=4, ttl=60), other.semaphore("r", permits=4, ttl=60)
    leases = [await permits.acquire(timeout=0) for _ in range(3)]
    heavy = case.spawn(permits.acquire, weight=3)
    await case.waiting(1)
    light = case.spawn(same.acquire)
    await case.waiting(2)
    assert await same.try_acquire() is None
    await leases[0].release()
    assert await same.try_acquire() is None
    await leases[1].release()
    many = await heavy.join()
    assert sum(claim.weight for claim in await case.holders()) == 4
    await many.release()
    await light.join()


@law(1, "shared")
async def permits_may_change(case: Case) -> None:
    """In a rolling deploy each claim is judged by its own number: old ones and new ones side by side."""
    old, new = await case.client(), await case.client()
    two, three = old.semaphore("r", permits=2, ttl=60), new.semaphore("r", permits=3, ttl=60)
    leases = [await two.acquire(timeout=0) for _ in range(2)]
    assert await two.try_acquire() is None
    third = await three.acquire(timeout=0)
    assert await three.try_acquire() is None
    await leases[0].release()
    assert await two.try_acquire() is None
    await third.release()
    assert await two.try_acquire() is not None
    assert await two.try_acquire() is None


@law(1, "shared", "detached")
async def rate_is_kept_in_any_window(case: Case) -> None:
    """No window has more hits than the limit, wherever it begins; when the window has passed there are hits again."""
    clients = [await case.client() for _ in range(2)]
    limits = [client.rate_limit("r", 2, per=case.real_ttl) for client in clients]
    hits: list[tuple[float, float]] = []

    async def tried() -> bool:
        before = case.clock.now()
        if await limits[len(hits) % 2].try_hit():
            hits.append((before, case.clock.now()))
            await case.advance(case.real_ttl / 4)  # the second hit comes later, and so does the fourth
        else:
            await case.advance(case.real_ttl / 20)
        return len(hits) == 4

    await eventually(tried)
    for (first, _), (_, last) in zip(hits, hits[2:], strict=False):
        assert last - first >= case.real_ttl * 0.99 - 0.002


@law(8, "shared", "detached")
async def refused_hit_says_when_to_come_again(case: Case) -> None:
    """Who follows `retry_after` gets through, and not before the window has passed. By a driven clock it is exact."""
    client, per = await case.client(), case.real_ttl
    limit = client.rate_limit("r", 2, per=per)
    began = case.clock.now()
    await limit.hit()
    await case.advance(per / 4)
    await limit.hit()
    with raises(RateLimited) as caught:
        await limit.hit()
    told = caught.error.retry_after
    assert 0 < told <= per + ROUNDING
    if case.driven:
        assert abs(told - per * 3 / 4) < 0.05
        await case.advance(told - 0.05)
        assert not await limit.try_hit()
        await case.advance(0.05 + ROUNDING)
    else:
        await case.advance(told + case.past)
    await limit.hit()
    assert case.clock.now() - began >= per * 0.99 - 0.002


@law(14, "shared", "detached")
async def hits_outlive_their_client(case: Case) -> None:
    """A client that closes gives no hit back."""
    client, other = await case.client(), await case.client()
    await client.rate_limit("r", 2, per=60).hit()
    await client.rate_limit("r", 2, per=60).hit()
    await client.close()
    assert not await other.rate_limit("r", 2, per=60).try_hit()
    assert await other.rate_limit("r2", 2, per=60).try_hit()


@law(1, "shared", "detached")
async def hits_that_wait_keep_the_rate(case: Case) -> None:
    """However many wait for their hits, no window has more of them than the limit, and each is counted."""
    clients = [await case.client() for _ in range(2)]
    limits = [client.rate_limit("r", 2, per=case.real_ttl) for client in clients]
    began = case.clock.now()
    calls = [case.spawn(limits[number % 2].hit, timeout=None) for number in range(5)]
    await case.until(lambda: all(call.done for call in calls))
    for call in calls:
        await call.join()
    assert case.clock.now() - began >= 2 * (case.real_ttl * 0.99 - 0.002)


async def _busy_limits(case: Case, store: Store) -> tuple[RateLimit, RateLimit, list[str]]:
    """Return one rate limit of two hits, twice, and the names of two claims that take them until they are released."""
    claims = [case.claim(weight=1, capacity=2, ttl=100) for _ in range(2)]
    for claim in claims:
        await store.claim(claim)
    one, two = [(await case.client()).rate_limit("r", 2, per=case.real_ttl) for _ in range(2)]
    return one, two, [claim.holder for claim in claims]


@law(7, "shared", "detached", "fair")
async def hits_are_served_in_order_of_arrival(case: Case) -> None:
    """Whoever waits for several hits is served before those who come later for fewer."""
    store = await case.store()
    one, two, taken = await _busy_limits(case, store)
    served: list[int] = []

    async def serve(limit: RateLimit, hits: int) -> None:
        await limit.hit(hits=hits, timeout=None)
        served.append(hits)

    calls = [case.spawn(serve, one, 2)]
    await case.waiting(1)
    calls.append(case.spawn(serve, two, 1))
    await case.waiting(2)
    await store.release("r", taken[0])
    assert not await two.try_hit()
    await store.release("r", taken[1])
    await case.until(lambda: all(call.done for call in calls))
    for call in calls:
        await call.join()
    assert served == [2, 1]


@law(5, "shared", "detached")
async def hit_that_is_given_up_leaves_no_place_in_line(case: Case) -> None:
    """Neither a hit that was cancelled nor one whose client was closed stands in the way of others."""
    store, closing = await case.store(), await case.client()
    one, _, taken = await _busy_limits(case, store)
    cancel = Cancel()
    cancelled = case.spawn(one.hit, timeout=None, cancel=cancel)
    await case.waiting(1)
    closed = case.spawn(closing.rate_limit("r", 2, per=60).hit, timeout=None)
    await case.waiting(2)
    cancel.cancel()
    await case.until(lambda: cancelled.done)  # a store that cannot wake a single claim is asked again soon
    with raises(AcquireCancelled):
        await cancelled.join()
    await closing.close()
    with raises(LockError):
        await closed.join()
    for holder in taken:
        await store.release("r", holder)
    await case.nothing_left()
