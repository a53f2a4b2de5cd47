"""Several resources at once: `lock_all`, `tree` and what becomes of those who wait for each other."""

from __future__ import annotations

from ..._async.multi import Leases
from ...errors import AcquireTimeout, Deadlock, LeaseLost
from ..check import raises
from ..law import law
from .case import Case, CaseClient
from .runtime import eventually


@law(5)
async def lock_all_takes_all_or_nothing(case: Case) -> None:
    """While one of them stays busy none is held; when all are free all are held, under tokens of their own."""
    store, client = await case.store(), await case.client()
    holder = case.claim("b", ttl=100)
    await store.claim(holder)
    for timeout in (0, 0.3):
        call = case.spawn(client.lock_all("c", "a", "b", ttl=60).acquire, timeout)
        await case.until(lambda call=call: call.done)  # type: ignore[misc]
        with raises(AcquireTimeout) as caught:
            await call.join()
        assert caught.error.resource == "b"
        for name in ("a", "c"):
            assert await case.holders(name) == []
    assert await case.waiters("b") == []
    await store.release("b", holder.holder)
    async with client.lock_all("c", "a", "b", ttl=60, timeout=0) as leases:
        for name in ("a", "b", "c"):
            (seen,) = await case.holders(name)
            assert seen.token == leases[name].token
    for name in ("a", "b", "c"):
        await case.nothing_left(name)


async def _meet(case: Case, order: str) -> None:
    """Let two who name the same resources in opposite orders wait for their first ones, and free both at once."""
    store = await case.store()
    holders = [case.claim(name, ttl=100) for name in ("a", "b")]
    for holder in holders:
        await store.claim(holder)

    async def take(client: CaseClient, *names: str) -> None:
        async with client.lock_all(*names, order=order, ttl=60) as leases:
            leases.check()

    clients = [await case.client() for _ in range(2)]
    calls = [case.spawn(take, clients[0], "a", "b"), case.spawn(take, clients[1], "b", "a")]
    await eventually(lambda: all(client.tap.count("wait") for client in clients))
    for holder in holders:
        await store.release(holder.resource, holder.holder)
    await case.until(lambda: all(call.done for call in calls))
    for call in calls:
        await call.join()
    for name in ("a", "b"):
        await case.nothing_left(name)


@law(12)
async def opposite_orders_do_not_deadlock(case: Case) -> None:
    """They are taken in one order, whatever the order of the names."""
    await _meet(case, "sorted")


@law(12)
async def opposite_orders_that_are_kept_do_not_deadlock(case: Case) -> None:
    """With order="given" whoever holds some and waits for more gives all back, and tries again."""
    await _meet(case, "given")


@law(9)
async def loss_of_one_is_loss_of_all(case: Case) -> None:
    """Several leases stand and fall together; what was not lost is given back."""
    client, store = await case.client(), await case.store()
    several: list[Leases] = []

    async def hold() -> None:
        async with client.lock_all("a", "b", "c", ttl=60) as leases:
            several.append(leases)
            (seen,) = await case.holders("b")
            await store.release("b", seen.holder)
            try:
                await leases["b"].renew()
            except LeaseLost:
                assert leases.lost
                assert not leases["a"].lost
                leases.check()

    with raises(LeaseLost) as caught:
        await case.spawn(hold).join()
    assert caught.error.resource == "b"
    assert several[0].lost
    for name in ("a", "b", "c"):
        await case.nothing_left(name)


async def _refused(client: CaseClient, *paths: str) -> list[str]:
    """Return those of the paths that cannot be had now."""
    found = []
    for path in paths:
        lease = await client.tree(path, ttl=60).try_acquire()
        if lease is None:
            found.append(path)
        else:
            await lease.release()
    return found


@law(1, "shared")
async def node_of_a_tree_excludes_all_below_it(case: Case) -> None:
    """And those above, which include it. Siblings, and names that only look alike, are free."""
    client, other = await case.client(), await case.client()
    paths = ("a", "a/b", "a/b/c", "a/x", "ab", "a/bc")
    async with client.tree("a/b", ttl=60) as lease:
        assert await _refused(other, *paths) == ["a", "a/b", "a/b/c"]
        assert [fence.shared for fence in lease.fences] == [True, False]
    async with client.tree("a", ttl=60):
        assert await _refused(other, *paths) == ["a", "a/b", "a/b/c", "a/x", "a/bc"]
    assert await _refused(other, *paths) == []


@law(1, "shared")
async def tree_mixes_with_locks_and_rwlocks(case: Case) -> None:
    """Under one name they are one resource: a lock excludes all below it, a reader only who wants all of it."""
    client, other = await case.client(), await case.client()
    async with client.tree("a/b", ttl=60):
        assert await other.lock("a", ttl=60).try_acquire() is None
        assert await other.lock("a/b", ttl=60).try_acquire() is None
        reader = await other.rwlock("a", ttl=60).read().try_acquire()
        assert reader is not None
        await reader.release()
    async with client.rwlock("a", ttl=60).read():
        assert await _refused(other, "a", "a/b") == ["a"]
    async with client.lock("a", ttl=60):
        assert await _refused(other, "a", "a/b") == ["a", "a/b"]


@law(7, "shared", "fair")
async def children_do_not_starve_their_parent(case: Case) -> None:
    """A branch that comes after who waits for the parent waits behind it."""
    client, other, late = await case.client(), await case.client(), await case.client()
    child = await client.tree("a/1", ttl=60).acquire()
    parent = case.spawn(other.tree("a", ttl=60).acquire)
    await case.waiting(1, "a")
    assert await _refused(late, "a/2") == ["a/2"]
    await child.release()
    await (await parent.join()).release()
    assert await _refused(late, "a/2") == []


class _Actor:
    """Takes one lock, and when it is told to, another; then gives both back."""

    def __init__(self, case: Case, client: CaseClient, first: str, second: str) -> None:
        self.has_first = self.may_go = False
        self.client = client
        self.call = case.spawn(self._run, first, second)

    async def _run(self, first: str, second: str) -> None:
        async with self.client.lock(first, ttl=60):
            self.has_first = True
            await eventually(lambda: self.may_go)
            async with self.client.lock(second, ttl=60):
                pass

    async def waits(self) -> None:
        """Let it ask for the second, and wait until it stands in line."""
        self.may_go = True
        await eventually(lambda: self.client.tap.count("wait") > 0)


@law(12, "fair")
async def waiter_that_closes_a_cycle_raises(case: Case) -> None:
    """With detect_deadlocks who would wait for ever is told by whom, and the other goes on."""
    first = _Actor(case, await case.client(owner="one"), "a", "b")
    second = _Actor(case, await case.client(owner="two", detect_deadlocks=True), "b", "a")
    await eventually(lambda: first.has_first and second.has_first)
    await first.waits()
    second.may_go = True
    with raises(Deadlock) as caught:
        await second.call.join()
    assert "two waits for 'a' held by one, one waits for 'b' held by two" in caught.message
    assert (caught.error.resource, caught.error.owner) == ("a", "one")
    await first.call.join()
    for name in ("a", "b"):
        await case.nothing_left(name)


@law(12, "fair")
async def wait_that_ends_is_no_deadlock(case: Case) -> None:
    """Who waits for somebody that waits for somebody else gets its turn."""
    store = await case.store()
    holder = case.claim("c", ttl=100)
    await store.claim(holder)
    first = _Actor(case, await case.client(detect_deadlocks=True), "b", "c")
    second = _Actor(case, await case.client(detect_deadlocks=True), "a", "b")
    await eventually(lambda: first.has_first and second.has_first)
    await first.waits()
    await second.waits()
    await store.release("c", holder.holder)
    await first.call.join()
    await second.call.join()
