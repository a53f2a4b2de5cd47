"""Claims that are broken by hand while nodes are away or slow, and leases that get longer there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import LOST, Claim, Evicted, Granted, Renewed, Waiting, find
from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.script import Script, load
from holdfast.stores.redlock._async import store as module
from holdfast.stores.redlock._async.store import RedlockStore
from holdfast.testing._async.runtime import eventually
from holdfast.testing.servers.redlock import RedlockServers
from tests.faults.clock import moved, why_not
from tests.stores.redlock.kept import KEY, ballot, counter, holders

pytestmark = pytest.mark.server

EVICT, RELEASE, RENEW = (load("redlock", verb) for verb in ("evict", "release", "renew"))
IO_TIMEOUT = 4.0  # a node has half of it
HELD, RIVAL = Claim("r", "actor.1", ttl=60.0), Claim("r", "rival.1", ttl=60.0)


@asynccontextmanager
async def stores(nodes: RedlockServers) -> AsyncIterator[tuple[RedlockStore, RedlockStore]]:
    """Two clients: whoever holds, and somebody else. Nothing is renewed behind their back."""
    async with connect(nodes.url, io_timeout=IO_TIMEOUT) as one, connect(nodes.url, io_timeout=IO_TIMEOUT) as other:
        mine, theirs = one._engine.store, other._engine.store
        assert isinstance(mine, RedlockStore)
        assert isinstance(theirs, RedlockStore)
        await mine.ready()
        await theirs.ready()
        yield mine, theirs


async def held(store: RedlockStore, nodes: RedlockServers) -> None:
    """Have HELD granted on every node that is alive."""
    assert isinstance(await store.claim(HELD), Granted)
    await eventually(lambda: all(ballot(node) for node in nodes.nodes if node.alive))


def before(store: RedlockStore, script: Script, do: Callable[[], Awaitable[object]]) -> None:
    """Have something happen after the look, right before the nodes are asked to run a script."""
    run = store._nodes.run

    async def hooked(which: Script, *args: Any, **more: Any) -> list[Any]:
        if which.sha == script.sha:
            await do()
        return await run(which, *args, **more)

    vars(store._nodes)["run"] = hooked


async def answers(store: RedlockStore, count: int = 5) -> bool:
    """Return whether so many nodes take part; a client finds that out by and by."""
    try:
        return len(await store._read_rows([KEY])) == count
    except StoreUnavailable:
        return False


async def seen_broken(store: RedlockStore) -> bool:
    state = await store.state("r")
    assert state is not None
    (seen,) = state.holders
    assert seen.holder == HELD.holder
    return seen.broken


# -- some nodes are away


@pytest.mark.parametrize("how", ["down", "hanging"])
async def test_claim_is_broken_without_a_minority(nodes: RedlockServers, how: str):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        for node in nodes.nodes[:2]:
            node.kill() if how == "down" else node.pause()
        try:
            evicted = await other.evict("r", HELD.holder)
            assert evicted is not None
            assert 30.0 < evicted.left <= 60.0
            assert await seen_broken(other)
        finally:
            for node in nodes.nodes[:2]:
                node.start() if how == "down" else node.resume()
        await eventually(lambda: answers(mine))
        # They come back without the mark, and renew; that is not enough, and frees nothing.
        ended = ends(nodes)
        assert await mine.renew([HELD]) == [LOST]
        assert [one > other for one, other in zip(ends(nodes), ended, strict=True)] == [True] * 2 + [False] * 3
        assert holders(nodes) == [HELD.holder] * 2 + ["!" + HELD.holder] * 3
        await eventually(lambda: answers(other))
        assert isinstance(await other.claim(RIVAL, False), Waiting)
        assert await seen_broken(other)
        assert await mine.release("r", HELD.holder) is True
        assert isinstance(await other.claim(RIVAL, False), Granted)


@pytest.mark.control
async def test_without_a_word_for_broken_a_lost_renewal_would_free_it_under_its_holder(
    nodes: RedlockServers, monkeypatch: pytest.MonkeyPatch
):
    """The control: to a renewal that takes a broken claim for one that has ended, what is left is in the way."""
    monkeypatch.setattr(module, "BROKEN", -1)
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        for node in nodes.nodes[:2]:
            node.kill()
        assert await other.evict("r", HELD.holder) is not None
        for node in nodes.nodes[:2]:
            node.start()
        await eventually(lambda: answers(mine))
        await eventually(lambda: answers(other))
        assert await mine.renew([HELD]) == [LOST]
        assert isinstance(await other.claim(RIVAL, False), Granted)  # before the holder was told


@pytest.mark.parametrize("at_once", [False, True])
async def test_break_that_a_majority_does_not_answer_is_an_outage_and_can_be_repeated(
    nodes: RedlockServers, at_once: bool
):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        with nodes.silenced(3), pytest.raises(StoreUnavailable, match="2 of 5 nodes answered, and 3 are needed"):
            await other.evict("r", HELD.holder, at_once)
        await eventually(lambda: not other._shared.silent)
        assert [type(one) for one in await mine.renew([HELD])] == [Renewed]  # nothing has happened yet
        assert await other.evict("r", HELD.holder, at_once) is not None
        assert await mine.renew([HELD]) == [LOST]


async def test_marks_on_a_minority_are_safe_and_the_next_break_completes_them(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)

        async def go_away() -> None:
            for node in nodes.nodes[:3]:
                node.kill()

        before(other, EVICT, go_away)
        with pytest.raises(StoreUnavailable):
            await other.evict("r", HELD.holder)
        for node in nodes.nodes[:3]:
            node.start()
        assert holders(nodes) == [HELD.holder] * 3 + ["!" + HELD.holder] * 2
        await eventually(lambda: answers(other))
        await eventually(lambda: renewed(mine))  # its connections have ended, too
        assert not await seen_broken(other)
        del vars(other._nodes)["run"]
        evicted = await other.evict("r", HELD.holder)
        assert evicted is not None
        assert holders(nodes) == ["!" + HELD.holder] * 5
        assert await mine.renew([HELD]) == [LOST]


async def renewed(store: RedlockStore) -> bool:
    (answer,) = await store.renew([HELD])
    assert answer != LOST
    return isinstance(answer, Renewed)


async def test_nobody_is_broken_while_nobody_can_tell_whether_it_holds(nodes: RedlockServers):
    """Two of five have the grant, two do not, and one is away: that may be a waiter with a few votes."""
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        for node in nodes.nodes[3:]:
            node.call("DEL", KEY)
        nodes.nodes[0].kill()
        for at_once in (False, True):
            with pytest.raises(StoreUnavailable, match="nobody can tell whether 'r' is held"):
                await other.evict("r", HELD.holder, at_once)
        with pytest.raises(StoreUnavailable, match="nobody can tell"):
            await other.state("r")
        nodes.nodes[0].start()
        await eventually(lambda: not other._shared.silent)
        assert holders(nodes) == [HELD.holder] * 3 + [""] * 2
        assert await other.evict("r", HELD.holder) is not None


async def test_votes_of_a_round_that_is_not_won_are_no_claim_to_break(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        claim = load("redlock", "claim").source
        for node in nodes.nodes[:2]:
            node.call("DEL", KEY)
            node.call("EVAL", claim, 1, KEY, "waits.1", time.time_ns() // 1000, 60_000_000, "w\n", 0, "c")
        for at_once in (False, True):
            assert await other.evict("r", "waits.1", at_once) is None
        assert holders(nodes) == ["waits.1"] * 2 + [HELD.holder] * 3


# -- what happens between the look and the break


async def test_renewal_between_look_and_break_counts(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        short = HELD._replace(ttl=5.0)
        assert isinstance(await mine.claim(short), Granted)
        looked: list[float] = []

        async def renew() -> None:
            state = await mine.state("r")
            assert state is not None
            looked.append(state.holders[0].left)
            assert [type(one) for one in await mine.renew([HELD])] == [Renewed]

        before(other, EVICT, renew)
        evicted = await other.evict("r", HELD.holder)
        assert evicted is not None
        assert evicted.left > 30.0
        assert looked[0] < 6.0  # the control: what the look has shown would be too short


async def test_left_is_what_the_holder_may_believe_also_if_its_renewal_reached_a_majority_only(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        assert isinstance(await mine.claim(HELD._replace(ttl=20.0)), Granted)
        await eventually(lambda: all(ballot(node) for node in nodes.nodes))
        for node in nodes.nodes[3:]:
            node.kill()
        await eventually(lambda: renewed(mine))  # by the first three
        for node in nodes.nodes[3:]:
            node.start()
        for node in nodes.nodes[:2]:  # of the three only one is there to be broken
            node.kill()
        await eventually(lambda: answers(other, 3))
        evicted = await other.evict("r", HELD.holder)
        assert evicted is not None
        assert evicted.left > 30.0
        # The control: what a majority has left, by which a view goes, is too short.
        state = await other.state("r")
        assert state is not None
        assert state.holders[0].left < 21.0


@pytest.mark.parametrize("at_once", [False, True])
async def test_whoever_came_between_look_and_break_is_left_alone(nodes: RedlockServers, at_once: bool):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)

        async def hand_over() -> None:
            assert await mine.release("r", HELD.holder) is True
            assert isinstance(await mine.claim(RIVAL), Granted)

        before(other, RELEASE if at_once else EVICT, hand_over)
        assert await other.evict("r", HELD.holder, at_once) is None
        assert [type(one) for one in await mine.renew([RIVAL])] == [Renewed]
        assert RIVAL.holder in holders(nodes)


# -- copies that come late


@pytest.mark.parametrize("again", ["rival", "the same holder"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_late_copy_of_a_break_does_not_touch_a_later_grant(nodes: RedlockServers, at_once: bool, again: str):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        first = ballot(nodes.nodes[0])
        assert await other.evict("r", HELD.holder, True) == Evicted(0.0)
        assert [counter(node) for node in nodes.nodes] == [first] * 5
        assert await mine.renew([HELD]) == [LOST]
        later = RIVAL if again == "rival" else HELD
        granted = await mine.claim(later)
        assert isinstance(granted, Granted)
        assert granted.token > first
        await eventually(lambda: holders(nodes) == [later.holder] * 5)
        for node in nodes.nodes:
            if at_once:
                assert node.call("EVAL", RELEASE.source, 1, KEY, HELD.holder, first, 0, "c", "")[0] == 0
            else:
                assert node.call("EVAL", EVICT.source, 1, KEY, HELD.holder, first)[0] == 0
        assert holders(nodes) == [later.holder] * 5
        assert [type(one) for one in await mine.renew([later])] == [Renewed]


@pytest.mark.control
async def test_late_copy_that_named_no_ballot_would_end_a_later_grant(nodes: RedlockServers):
    named = {RELEASE: "granted <= ballot", EVICT: "granted == ballot"}
    async with stores(nodes) as (mine, _):
        await held(mine, nodes)
        early = ballot(nodes.nodes[0]) - 1
        for script, compared in named.items():
            assert script.source.count(compared) == 1
            wrong = script.source.replace(compared, "true")
            node = nodes.nodes[script is RELEASE]
            assert node.call("EVAL", wrong, 1, KEY, HELD.holder, early, 0, "c", "")[0] > 0
        assert holders(nodes)[:2] == ["!" + HELD.holder, ""]


async def test_node_that_was_away_runs_a_break_at_once_when_it_is_back(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        await held(mine, nodes)
        nodes.nodes[0].pause()
        try:
            assert await other.evict("r", HELD.holder, True) == Evicted(0.0)
            assert isinstance(await other.claim(RIVAL), Granted)
        finally:
            nodes.nodes[0].resume()
        await eventually(lambda: not other._shared.silent)
        assert HELD.holder not in holders(nodes)
        assert RIVAL.holder in holders(nodes)


async def test_late_renewal_with_a_shorter_ttl_does_not_cut_a_longer_one_short(nodes: RedlockServers):
    """It was answered by a majority, which was not this node, and the lease was made longer since."""
    async with stores(nodes) as (mine, _):
        assert isinstance(await mine.claim(HELD._replace(ttl=5.0)), Granted)
        await eventually(lambda: all(ballot(node) for node in nodes.nodes))
        assert await mine.renew([HELD]) == [Renewed(60.0)]
        late = (HELD.holder, ballot(nodes.nodes[0]), 5_000_000)
        await eventually(lambda: min(ends(nodes)) > time.time() + 30)
        for node in nodes.nodes:
            assert node.call("EVAL", RENEW.source, 1, KEY, *late)[1] == 1
        assert min(ends(nodes)) > time.time() + 30
        # The control: a renewal that sets the end does.
        wrong = RENEW.source.replace("math.max(expires, now + tonumber(ARGV[3 * n]))", "now + ARGV[3 * n]")
        assert wrong != RENEW.source
        for node in nodes.nodes:
            node.call("EVAL", wrong, 1, KEY, *late)
        assert max(ends(nodes)) < time.time() + 30


def ends(nodes: RedlockServers) -> list[float]:
    return [int(node.call("GET", KEY).split()[2]) / 1e6 for node in nodes.nodes]


# -- what people see


async def test_state_shows_what_inspect_shows_without_a_scan(nodes: RedlockServers):
    async with stores(nodes) as (mine, other):
        assert await other.state("r") is None
        await held(mine, nodes)
        assert isinstance(await other.claim(RIVAL), Waiting)
        for node in nodes.nodes:
            node.call("CONFIG", "RESETSTAT")
        state = await other.state("r")
        assert state is not None
        stats = [node.call("INFO", "commandstats").decode() for node in nodes.nodes]
        assert not any("cmdstat_scan" in said for said in stats)
        listed = find(await other.inspect(), "r")
        assert listed is not None
        assert [(one.holder, one.token) for one in (*state.holders, *state.waiters)] == [
            (one.holder, one.token) for one in (*listed.holders, *listed.waiters)
        ]


async def test_time_is_that_of_the_nodes(nodes: RedlockServers):
    async with stores(nodes) as (_, other):
        earliest = time.time()
        seconds, off = await other.time()
        assert seconds - off <= time.time()
        assert seconds + off >= earliest
        for node in nodes.nodes[:2]:
            node.kill()
        assert len(await other.time()) == 2
        nodes.nodes[2].kill()
        with pytest.raises(StoreUnavailable, match="2 of 5 nodes answered, and 3 are needed"):
            await other.time()


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
async def test_clocks_that_differ_make_the_time_uncertain(nodes: RedlockServers):
    async with stores(nodes) as (_, other):
        with moved(nodes.nodes[0].pid, realtime=10.0):
            earliest = time.time()
            seconds, off = await other.time()
            assert off >= 4.9
            assert seconds - off <= time.time()
            assert seconds + off >= earliest + 9.9
