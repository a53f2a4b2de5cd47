"""A hierarchy: whoever holds a node keeps everybody from what is below it, and from nothing else."""

from __future__ import annotations

import pytest

from holdfast._async.client import Client
from holdfast._async.multi import Tree, TreeLease
from holdfast.core.claim import MAX
from holdfast.core.fence import Seen, enter
from holdfast.errors import AcquireTimeout, Deadlock, LeaseLost, StaleToken
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


async def take(tree: Tree) -> TreeLease:
    return await tree.acquire()


async def busy(locks: Client, *paths: str) -> list[str]:
    """Return those of the paths that another actor cannot have now."""
    found = []
    for path in paths:
        lease = await spawn(locks.tree(path).try_acquire).join()
        if lease is None:
            found.append(path)
        else:
            await lease.release()
    return found


async def test_a_path_is_held_from_the_root_down(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        async with locks.tree("orders/7/99") as lease:
            assert list(lease) == ["orders", "orders/7", "orders/7/99"]
            held = {state.resource: state.holders[0] for state in await locks.inspect()}
            assert {name: claim.weight for name, claim in held.items()} == {
                "orders": 1, "orders/7": 1, "orders/7/99": MAX,
            }  # fmt: skip
            assert (lease.resource, lease.token) == ("orders/7/99", held["orders/7/99"].token)
            assert lease.leaf is lease["orders/7/99"]
            lease.check()
        assert await locks.inspect() == []


async def test_a_node_excludes_all_below_and_all_above_but_no_sibling(url: str, clock: ManualClock) -> None:
    paths = ("a", "a/b", "a/b/c", "a/b/c/d", "a/x", "a/b/x", "ab", "a/bc", "x")
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        assert await busy(other, *paths) == []
        async with locks.tree("a/b"):
            assert await busy(other, *paths) == ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/x"]
        async with locks.tree("a"):
            assert await busy(other, *paths) == ["a", "a/b", "a/b/c", "a/b/c/d", "a/x", "a/b/x", "a/bc"]
        assert await busy(other, *paths) == []


async def test_plain_locks_of_the_same_names_do_not_know_of_parents(url: str, clock: ManualClock) -> None:
    """The control of the test above: a tree is more than its leaf."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other, locks.lock("a"):
        async with other.lock("a/b", timeout=0):
            pass


async def test_locks_and_rwlocks_mix_with_a_tree(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        async with locks.tree("a/b"):
            assert await other.lock("a/b").try_acquire() is None
            assert await other.lock("a").try_acquire() is None
            assert await other.rwlock("a").write().try_acquire() is None
            reader = await other.rwlock("a").read().try_acquire()
            assert reader is not None
            await reader.release()
        async with locks.rwlock("a").read():
            assert await busy(other, "a", "a/b") == ["a"]
        async with locks.lock("a"):
            assert await busy(other, "a", "a/b") == ["a", "a/b"]


async def test_who_wants_a_parent_is_not_starved_by_its_children(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        child = await locks.tree("a/1").acquire()
        parent = spawn(take, other.tree("a"))
        await waiting(locks, "a")
        assert await busy(other, "a/2") == ["a/2"]
        await child.release()
        await (await parent.join()).release()
        assert await busy(other, "a/2") == []


async def test_nothing_is_kept_when_the_leaf_stays_busy(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        async with other.lock("a/b/c", ttl=1000):
            waiting = spawn(locks.tree("a/b/c", ttl=1000, timeout=5).acquire)
            await eventually(lambda: waiting.done, lambda: clock.advance(0.5))
            with pytest.raises(AcquireTimeout, match="'a/b/c'"):
                await waiting.join()
            assert [state.resource for state in await other.inspect()] == ["a/b/c"]


async def test_two_branches_of_one_actor_share_their_parents(url: str, clock: ManualClock) -> None:
    """Also while somebody waits for the parent: taking another share would be waiting for oneself."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        async with locks.tree("a/1") as first:
            parent = spawn(take, other.tree("a"))
            await waiting(locks, "a")
            async with locks.tree("a/2") as second:
                assert second["a"].token == first["a"].token
                assert not parent.done
            first.check()
        await (await parent.join()).release()


async def test_an_actor_does_not_wait_for_itself(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        async with locks.tree("a/b"):
            with pytest.raises(Deadlock, match="block holds 'a/b'"):
                await locks.tree("a/b/c").acquire()
            with pytest.raises(Deadlock, match="holds a share of 'a'"):
                await locks.tree("a").acquire()
            with pytest.raises(Deadlock, match="'a/b'"):
                await locks.lock_all("a/a", "a/b").acquire()
            assert [state.resource for state in await locks.inspect()] == ["a", "a/b"]
        async with locks.tree("a/b", reentrant=True), locks.tree("a/b/c", reentrant=True):
            assert [state.resource for state in await locks.inspect()] == ["a", "a/b", "a/b/c"]


async def test_a_tree_enters_the_fence_of_every_node(url: str, clock: ManualClock) -> None:
    """A branch that was paused past its lease is refused by the parent's fence, not by its own."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        stale = await locks.tree("a/b", renew=False).acquire()
        assert [(fence.resource, fence.shared) for fence in stale.fences] == [("a", True), ("a/b", False)]
        assert stale.fence == stale.fences[-1]
        sibling = await locks.tree("a/c", renew=False).acquire()
        seen: dict[str, Seen] = {}

        def guarded(lease: TreeLease) -> None:
            entered = {fence.resource: enter(seen.get(fence.resource, Seen()), fence) for fence in lease.fences}
            seen.update(entered)

        guarded(sibling)
        guarded(stale)  # live readers of the parent pass each other
        clock.advance(31)
        async with other.tree("a") as parent:
            guarded(parent)
            with pytest.raises(StaleToken, match="'a'"):
                guarded(stale)
            enter(seen["a/b"], stale.fence)  # the control: its leaf alone would have let it in


async def test_the_loss_of_a_parent_is_the_loss_of_the_path(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        lease = await locks.tree("a/b").acquire()
        (state,) = [state for state in await other.inspect() if state.resource == "a"]
        await other._engine.store.release("a", state.holders[0].holder)
        with pytest.raises(LeaseLost, match="'a'"):
            await lease["a"].renew()
        assert lease.lost
        assert not lease.leaf.lost
        with pytest.raises(LeaseLost, match="'a'"):
            lease.check()
        with pytest.raises(LeaseLost, match="'a'"):
            await lease.release()
        assert await other.inspect() == []


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a//b", 5, "a/\n"], ids=repr)
async def test_a_path_is_names_with_single_slashes(url: str, path: object) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match=r"path|'a/b/c'"):
            locks.tree(path)  # type: ignore[arg-type]
