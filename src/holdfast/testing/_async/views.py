"""What people see, inspect and watch: a view that shows holders and waiters as they are (law 1, from outside)."""

from __future__ import annotations

from typing import Any

from ...core.claim import MAX, Waiting, find
from ..check import ROUNDING
from ..law import law
from . import runtime
from .case import Case
from .runtime import Call

_FAR = 1e6


@law(1, "fair")
async def inspect_shows_holders_and_waiters(case: Case) -> None:
    """Who holds and who waits, in line, with owner, token, time left, weight and value."""
    client, store = await case.client(owner="the holder"), await case.store()
    lease = await client.lock("r", ttl=60).acquire()
    first, second = case.claim(owner="first", value="a\nb", ttl=60), case.claim(owner="second", weight=1, ttl=60)
    await store.claim(first)
    await store.claim(second)
    (state,) = await client.inspect()
    (holder,) = state.holders
    assert state.resource == "r"
    assert state.token == holder.token == lease.token
    assert (holder.owner, holder.weight, holder.capacity, holder.detached) == ("the holder", MAX, MAX, False)
    assert 0 < holder.left <= 60 + ROUNDING
    assert [(claim.owner, claim.token, claim.value) for claim in state.waiters] == [
        ("first", 0, "a\nb"),
        ("second", 0, None),
    ]
    assert [claim.weight for claim in state.waiters] == [MAX, 1]
    assert all(0 < claim.left <= case.capabilities.waiting_life + ROUNDING for claim in state.waiters)


@law(1)
async def inspect_lists_by_prefix(case: Case) -> None:
    """The prefix is plain text, the order that of the names; what is free or has run out is not shown."""
    store = await case.store()
    for name in ("b", "a%", "a_1", "a*", "ab", "free"):
        await store.claim(case.claim(name, ttl=60))
    freed = case.claim("gone", ttl=60)
    await store.claim(freed)
    await store.release("gone", freed.holder)
    await store.claim(case.claim("expired", ttl=case.real_ttl))
    await case.advance(case.real_ttl + case.past)
    assert [state.resource for state in await store.inspect()] == ["a%", "a*", "a_1", "ab", "b", "free"]
    for prefix in ("a%", "a_", "a*"):
        assert [state.resource[:2] for state in await store.inspect(prefix)] == [prefix]
    assert await store.inspect("x") == []


@law(1)
async def inspect_changes_nothing(case: Case) -> None:
    """Looking leaves holders, waiters and tokens as they are, and prolongs nothing."""
    store = await case.store()
    for _ in range(2):
        await store.claim(case.claim(ttl=60))
    before, after = [find(await store.inspect(), "r") for _ in range(2)]
    assert before is not None
    assert after is not None
    assert before.token == after.token
    assert (len(before.holders), len(before.waiters)) == (len(after.holders), len(after.waiters)) == (1, 1)
    for earlier, later in zip((*before.holders, *before.waiters), (*after.holders, *after.waiters), strict=True):
        assert (earlier.holder, earlier.token) == (later.holder, later.token)
        assert later.left <= earlier.left + ROUNDING


@law(8)
async def watch_returns_when_the_holder_changes(case: Case) -> None:
    """A grant, a release and an expiry are told to who watches; other resources are not."""
    store, watcher = await case.store(), await case.store()
    lasting, short = case.claim(ttl=60), case.claim(ttl=case.real_ttl)

    async def seen_after(change: str) -> None:
        seen = find(await watcher.inspect("r"), "r")
        call = case.spawn(watcher.watch, "r", seen, case.clock.now() + _FAR)
        await store.claim(case.claim("r-other-" + change, ttl=60))
        await runtime.pause(0.02)
        assert not call.done
        if change == "release":
            await store.release("r", lasting.holder)
        elif change == "expiry":
            await case.advance(case.real_ttl + case.past)
        else:
            await store.claim(lasting if change == "grant" else short)
        await case.until(lambda: call.done)
        await call.join()

    for change in ("grant", "release", "second grant", "expiry"):
        await seen_after(change)


@law(8)
async def watch_returns_at_its_end_and_when_interrupted(case: Case) -> None:
    """Nothing happens: watch and wait come back at `until`, or at once when the client is about to close."""
    store = await case.store()
    await store.claim(case.claim(ttl=1000))
    seen = find(await store.inspect("r"), "r")
    mine = case.claim()
    answer = await store.claim(mine)
    assert isinstance(answer, Waiting)

    def start(until: float) -> list[Call[Any]]:
        return [case.spawn(store.watch, "r", seen, until), case.spawn(store.wait, mine, answer, until)]

    calls = start(case.clock.now() + 0.3)
    await case.advance(0.4)
    for call in calls:
        await case.until(lambda call=call: call.done)  # type: ignore[misc]
        await call.join()
    calls = start(case.clock.now() + _FAR)
    await runtime.pause(0.02)
    store.interrupt()
    for call in calls:
        await call.join()
