"""Registers in ZooKeeper: writers that come late, values that are over, what is left behind, and lost messages.

Time is driven where a test needs an hour or a day: `Later` puts ZooKeeper's clock forward, as the store reckons it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest

from holdfast._async.client import connect
from holdfast._clock import SystemClock
from holdfast.core.claim import Record
from holdfast.core.fence import Fence
from holdfast.core.register import MOST_BYTES
from holdfast.core.urls import parse_url
from holdfast.errors import StaleToken, StoreError, StoreUnavailable
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper._async import registers
from holdfast.stores.zookeeper._async.registers import Registers
from holdfast.stores.zookeeper._async.store import ZooKeeperStore
from holdfast.stores.zookeeper.nodes import escape
from holdfast.stores.zookeeper.wire import Op
from holdfast.testing._async.runtime import eventually, pause, spawn
from tests.stores.zookeeper.chroots import Chroot
from tests.stores.zookeeper.rig import Rig, lossy_network

pytestmark = pytest.mark.server

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365 * 86_400.0
LIMIT = 30.0  # a busy machine
ONCE = 100_000 if os.environ.get("HOLDFAST_VERIFY") else 500


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with lossy_network(container_check=200) as rig:
        yield rig


@pytest.fixture
def chroot(module_rig: Rig) -> Iterator[Chroot]:
    module_rig.way.heal()
    yield Chroot(module_rig)
    module_rig.way.heal()


class Later:
    """Puts ZooKeeper's clock forward, as the store reckons it; what ZooKeeper writes down stays as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = Registers._now

        async def now(of: Registers, *rest: Any) -> int:
            return await real(of, *rest) + int(self.seconds * 1000)

        monkeypatch.setattr(Registers, "_now", now)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


def store_of(url: str, io_timeout: float = 20.0, clock: Any = None) -> ZooKeeperStore:
    return ZooKeeperStore(parse_url(url), namespace="default", io_timeout=io_timeout, clock=clock or SystemClock())


def fence(token: int, shared: bool = False) -> Fence:
    return Fence("default", "r", token, shared)


async def paused_before_its_change(store: ZooKeeperStore, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Have something happen between the next look of a store at a register and its change."""
    of: Any = store._registers
    real = of._transact

    async def transact(*args: Any) -> Any:
        of._transact = real
        await meanwhile()
        return await real(*args)

    of._transact = transact


async def clean(store: ZooKeeperStore, chroot: Chroot, done: Callable[[], bool], writes: int = 1) -> None:
    """Write somewhere else until what is over was cleaned; look after so many writes."""

    async def cleaned() -> bool:
        for _ in range(writes):
            store._registers._look_at = 0  # not only every second
            await store.write("sweeper", "", fence(1 << 40))
        return done()

    limit = max(LIMIT, ONCE / 20)
    await eventually(cleaned, limit=limit, complaint=lambda: f"{chroot.registers()[:20]} {chroot.entries()[:20]}")


# -- the stale writer


class Race:
    """A writer of token 10 is paused between its look and its change. Meanwhile one of token 20 comes."""

    def __init__(self, chroot: Chroot, later: Later) -> None:
        self.chroot, self.later = chroot, later
        self.stale, self.newer = store_of(chroot.direct), store_of(chroot.direct)

    async def write(self) -> None:
        await self.newer.write("k", "new", fence(20))

    async def enter(self) -> None:
        await self.newer.read("k", fence(20))

    async def over(self) -> None:
        """Its value is over, and was taken out."""
        await self.newer.write("k", "new", fence(20), 1.0)
        self.later.seconds += 10
        await clean(self.newer, self.chroot, lambda: "k" not in self.chroot.values())
        assert "k" in self.chroot.registers()

    async def forgotten(self) -> None:
        """It was forgotten, numbers and all."""
        await self.newer.write("k", "new", fence(20), 1.0)
        self.later.seconds += DAY + 10
        await clean(self.newer, self.chroot, lambda: "k" not in self.chroot.registers())

    async def made_again(self) -> None:
        """It was forgotten, and its node made again, with versions that a node has had before."""
        await self.forgotten()
        await self.newer.write("k", "new", fence(30))

    async def run(self, begun: bool, meanwhile: str, verb: str) -> None:
        if begun:
            await self.stale.write("k", "old", fence(10))
        await paused_before_its_change(self.stale, getattr(self, meanwhile))
        with pytest.raises(StaleToken):
            await (self.stale.write("k", "stale", fence(10)) if verb == "write" else self.stale.read("k", fence(10)))
        left = {"enter": Record("old", 10) if begun else None, "write": Record("new", 20)}
        left["made_again"] = Record("new", 30)
        assert await self.stale.read("k") == left.get(meanwhile)
        await self.stale.close()
        await self.newer.close()


MEANWHILE = ["write", "enter", "over", "forgotten", "made_again"]


@pytest.mark.parametrize("verb", ["write", "read"])
@pytest.mark.parametrize("begun", [False, True], ids=["no node", "a node"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_a_writer_that_was_paused_between_look_and_change_is_refused(
    chroot: Chroot, later: Later, meanwhile: str, begun: bool, verb: str
) -> None:
    await Race(chroot, later).run(begun, meanwhile, verb)


@pytest.mark.control
@pytest.mark.parametrize(("meanwhile", "begun"), [("forgotten", False), ("made_again", True)])
async def test_control_without_the_floor_in_the_transaction_a_pause_of_a_day_lets_it_in(
    chroot: Chroot, later: Later, monkeypatch: pytest.MonkeyPatch, meanwhile: str, begun: bool
) -> None:
    def any_floor(of: Registers, version: int) -> registers.Step:
        return registers.Step(of._space.floor, wire.check(of._space.floor, wire.ANY_VERSION))

    monkeypatch.setattr(Registers, "_nothing_forgotten", any_floor)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await Race(chroot, later).run(begun, meanwhile, "write")


@pytest.mark.control
async def test_control_without_the_version_it_is_let_in(
    chroot: Chroot, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = wire.set_data
    monkeypatch.setattr(wire, "set_data", lambda path, data, version=0: real(path, data))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await Race(chroot, later).run(True, "write", "write")


async def test_a_register_that_nobody_has_written_is_judged_by_those_that_were_forgotten(
    chroot: Chroot, later: Later
) -> None:
    store = store_of(chroot.direct)
    await store.write("gone", "v", fence(20), 1.0)
    await store.write("kept", "v", fence(10))
    later.seconds += DAY + 10
    await clean(store, chroot, lambda: chroot.registers() == ["kept", "sweeper"])
    with pytest.raises(StaleToken) as caught:
        await store.write("new", "v", fence(19))
    assert caught.value.newest == 20
    await store.write("new", "v", fence(20))
    await store.write("kept", "w", fence(10))  # it has numbers of its own
    await store.close()


async def test_a_floor_that_rises_meanwhile_is_seen(chroot: Chroot, later: Later) -> None:
    """The register of one writer has no node while that of another is forgotten."""
    store, other = store_of(chroot.direct), store_of(chroot.direct)

    async def forget() -> None:
        await other.write("other", "v", fence(20), 1.0)
        later.seconds += DAY + 10
        await clean(other, chroot, lambda: "other" not in chroot.registers())

    await paused_before_its_change(store, forget)
    with pytest.raises(StaleToken):
        await store.write("k", "v", fence(10))
    assert chroot.registers() == ["sweeper"]
    await store.close()
    await other.close()


async def test_whoever_reads_through_a_newer_fence_gets_what_was_written_meanwhile(chroot: Chroot) -> None:
    store, other = store_of(chroot.direct), store_of(chroot.direct)
    await paused_before_its_change(store, lambda: other.write("k", "v", fence(10)))
    assert await store.read("k", fence(20)) == Record("v", 10)
    with pytest.raises(StaleToken):
        await other.write("k", "w", fence(19))
    await store.close()
    await other.close()


async def test_of_many_writers_at_once_the_newest_stands_and_each_is_judged(chroot: Chroot) -> None:
    stores = [store_of(chroot.direct) for _ in range(4)]
    accepted, refused = list[int](), dict[int, int]()

    async def write(store: ZooKeeperStore, first: int) -> None:
        for token in range(first, 41, 4):
            try:
                await store.write("k", str(token), fence(token), 100.0)
                accepted.append(token)
            except StaleToken as stale:
                refused[token] = stale.newest

    for call in [spawn(write, store, at) for at, store in enumerate(stores, 1)]:
        await call.join(LIMIT)
    assert 40 in accepted
    assert len(accepted) + len(refused) == 40
    assert all(newest > token for token, newest in refused.items())
    assert await stores[0].read("k") == Record("40", 40)
    facts = chroot.register("k")
    assert facts is not None
    assert chroot.entries() == [f"{facts[6]}-k"]
    for store in stores:
        await store.close()


# -- time


class Astray(SystemClock):
    """A clock that is wrong: by a year, on the wall, and by some time since boot."""

    __slots__ = ("wrong",)

    def __init__(self, wrong: float) -> None:
        self.wrong = wrong

    def now(self) -> float:
        return SystemClock.now() + abs(self.wrong)

    def wall_ns(self) -> int:
        return time.time_ns() + int(self.wrong * 1e9)


async def check_over_by_the_servers_clock(chroot: Chroot, wrong: float) -> None:
    clock = Astray(wrong)
    store = store_of(chroot.direct, clock=clock)
    await store.write("k", "v", fence(1), 1.5)
    await store.write("long", "v", fence(1), 600.0)
    node = chroot.get("values/default/k")
    assert node is not None
    end = node.stat.mtime / 1000 + 1.5
    seen = 0

    async def gone() -> bool:
        nonlocal seen
        if await store.read("k") is None:
            return True
        seen += 1
        return False

    await eventually(gone, limit=LIMIT)
    now, uncertain = await store.time()
    assert now + uncertain >= end, "it is gone too early"
    assert seen
    assert await store.read("long") == Record("v", 1)
    await store.close()


@pytest.mark.parametrize("wrong", [YEAR, -YEAR])
async def test_a_value_is_over_by_the_servers_clock_whatever_the_client_has(chroot: Chroot, wrong: float) -> None:
    await check_over_by_the_servers_clock(chroot, wrong)


@pytest.mark.control
async def test_control_by_the_clients_clock_it_is_gone_at_once(chroot: Chroot, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wall(of: Registers, *rest: Any) -> int:
        return of._ensemble._clock.wall_ns() // 1_000_000

    monkeypatch.setattr(Registers, "_now", wall)
    with pytest.raises(AssertionError, match="too early"):
        await check_over_by_the_servers_clock(chroot, YEAR)


async def test_reading_through_a_fence_does_not_prolong_a_value(chroot: Chroot, later: Later) -> None:
    store = store_of(chroot.direct)
    await store.write("k", "v", fence(1), 100.0)
    node = chroot.get("values/default/k")
    assert node is not None
    for token in range(1, 20):
        later.seconds += 5
        assert await store.read("k", fence(token)) == Record("v", 1)
    facts = chroot.register("k")
    assert facts is not None
    assert facts[5] + facts[4] == node.stat.mtime + 100_000
    later.seconds += 5.5
    assert await store.read("k") is None
    assert await store.read("k", fence(20)) is None
    await store.close()


async def test_a_value_that_is_kept_for_ever_stays(chroot: Chroot, later: Later) -> None:
    store = store_of(chroot.direct)
    await store.write("k", "v", fence(1))
    await store.write("over", "v", fence(1), 1.0)
    later.seconds += 10 * YEAR
    await clean(store, chroot, lambda: chroot.registers() == ["k", "sweeper"])
    assert await store.read("k", fence(2)) == Record("v", 1)
    assert chroot.entries() == []
    await store.close()


async def test_numbers_stay_for_a_day_after_the_value(chroot: Chroot, later: Later) -> None:
    store = store_of(chroot.direct)
    await store.write("k", "v", fence(20), HOUR)
    await store.read("empty", fence(20))
    later.seconds += HOUR + 1
    await clean(store, chroot, lambda: chroot.values() == ["sweeper"])
    later.seconds += DAY - HOUR - 10
    for _ in range(3):
        store._registers._look_at = 0
        await store.write("sweeper", "", fence(1 << 40))
    assert chroot.registers() == ["empty", "k", "sweeper"]
    for key in ("k", "empty"):
        with pytest.raises(StaleToken):
            await store.write(key, "old", fence(19))
    later.seconds += HOUR + 20
    await clean(store, chroot, lambda: chroot.registers() == ["sweeper"])
    assert chroot.entries() == []
    await store.close()


# -- the index


async def test_a_register_has_one_entry_in_the_index_however_often_it_is_written(chroot: Chroot, later: Later) -> None:
    store = store_of(chroot.direct)
    for step, keep in enumerate([60.0, 60.0, 60.0, 1.0, 600.0, None, None, 5.0, "read", "read", 1e9, 1.0, "read"]):
        if keep == "read":
            await store.read("k", fence(1))
        else:
            await store.write("k", "v", fence(1), cast("float | None", keep))
        facts = chroot.register("k")
        assert facts is not None
        assert chroot.entries() == ([f"{facts[6]}-k"] if facts[6] is not None else []), step
        assert (facts[6] is None) == (keep is None), step
        later.seconds += 2
    await store.close()


async def too_early(chroot: Chroot, later: Later) -> None:
    """Have the entry of a value come before its end, as if the write had been on its way for long."""
    store = store_of(chroot.direct)
    later.seconds = -20
    await store.write("k", "v", fence(1), 60.0)
    later.seconds = 45
    for _ in range(3):
        store._registers._look_at = 0
        await store.write("sweeper", "", fence(2))
    assert await store.read("k") == Record("v", 1)
    later.seconds = 61
    await clean(store, chroot, lambda: chroot.values() == ["sweeper"])
    later.seconds = DAY + 62
    await clean(store, chroot, lambda: chroot.registers() == ["sweeper"])
    await store.close()


async def test_a_value_whose_entry_comes_too_early_is_found_again_at_its_end(chroot: Chroot, later: Later) -> None:
    await too_early(chroot, later)


@pytest.mark.control
async def test_control_a_register_whose_entry_is_dropped_stays_for_ever(
    chroot: Chroot, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Registers._move

    def drop(of: Registers, key: str, old: int | None, new: int | None) -> list[registers.Step]:
        return real(of, key, old, None if old is not None else new)

    monkeypatch.setattr(Registers, "_move", drop)
    monkeypatch.setattr(f"{__name__}.LIMIT", 1.0)
    monkeypatch.setattr(f"{__name__}.ONCE", 1)
    with pytest.raises(AssertionError, match="k"):
        await too_early(chroot, later)


async def test_an_entry_that_somebody_deleted_does_not_keep_its_register_from_being_written(
    chroot: Chroot, later: Later
) -> None:
    store = store_of(chroot.direct)
    await store.write("k", "v", fence(1), 60.0)
    for keep in (1.0, None):
        for path in chroot.tree("ends/default"):
            if "-" in path:
                chroot.delete(path)
        await store.write("k", "w", fence(1), keep)
    assert await store.read("k") == Record("w", 1)
    assert chroot.entries() == []
    await store.close()


async def test_what_is_not_ours_in_the_index_does_not_stand_in_the_way(chroot: Chroot, later: Later) -> None:
    """Other names, entries of nothing, registers that are none, and minutes that never had an entry."""
    store = store_of(chroot.direct)
    await store.write("k", "v", fence(1), 1.0)
    for name in ("x", "-1", "f" * 40, *(f"{number:x}" for number in range(1, 80))):
        chroot.put(f"ends/default/{name}")
    for name in ("x", "1-", "1-nobody", "9" * 30 + "-k", "x-k", "1-stranger"):
        chroot.put(f"ends/default/80/{name}")
    chroot.put("values/default/stranger", b"not ours")
    later.seconds += DAY + 10
    await clean(store, chroot, lambda: "k" not in chroot.registers())

    def rest() -> bool:
        return len(chroot.children("ends/default")) <= 4  # those that have a name or a content of another

    await clean(store, chroot, rest)
    stranger = chroot.get("values/default/stranger")
    assert stranger is not None
    assert stranger.data == b"not ours"
    await store.close()


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{}", b"[1,2]", b'["a",1,1,"v",null,null,null]', b'[1,1,1,"v","x",null,null]', b"[" * 9999]
)
async def test_a_register_that_is_none_is_named(chroot: Chroot, data: bytes) -> None:
    store = store_of(chroot.direct)
    chroot.put("values/default/k", data)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.read("k"),
        lambda: store.read("k", fence(1)),
        lambda: store.write("k", "v", fence(1)),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="values/default/k in ZooKeeper") as caught:
            await call()
        assert not isinstance(caught.value, StoreUnavailable)
    await store.write("other", "v", fence(1))
    await store.close()


@pytest.mark.parametrize("data", [b"", b"[1]", b'["x",1]', b"[null,null]"])
async def test_a_floor_that_is_none_is_named(chroot: Chroot, data: bytes) -> None:
    store = store_of(chroot.direct)
    chroot.put("floors/default", data)
    with pytest.raises(StoreError, match="floors/default in ZooKeeper"):
        await store.write("k", "v", fence(1))
    await store.close()


# -- what is left behind


@pytest.mark.timeout(max(120, ONCE / 20))
async def test_once_keys_leave_no_values_behind_and_after_a_day_no_nodes(chroot: Chroot, later: Later) -> None:
    workers = 10
    async with connect(chroot.direct, io_timeout=60) as locks:

        @locks.once("job:{number}", keep=1)
        async def job(number: int) -> int:
            return number

        async def work(first: int) -> None:
            for number in range(first, ONCE, workers):
                assert await job(number) == number

        for call in [spawn(work, first) for first in range(workers)]:
            await call.join(max(LIMIT, ONCE / 50))
        store = cast(ZooKeeperStore, locks._engine.store)
        before = len(chroot.registers())
        assert before == ONCE
        later.seconds += 2
        writes = ONCE // 10 + 1
        await clean(store, chroot, lambda: chroot.values() == ["sweeper"], writes)
        assert len(chroot.registers()) == before + 1
        assert len(chroot.entries()) == before
        later.seconds += DAY
        await clean(store, chroot, lambda: chroot.registers() == ["sweeper"], writes)
        await eventually(lambda: chroot.children("ends") == [], limit=LIMIT)
        chroot.delete("values/default/sweeper")
        await eventually(lambda: chroot.children("values") == [], limit=LIMIT)
        with pytest.raises(StaleToken):
            await store.write("job:1", "late", fence(1))


async def cleaned_together(chroot: Chroot, later: Later) -> None:
    """Have five clients clean half of what is there each, all at the same time."""
    stores = [store_of(chroot.direct) for _ in range(5)]
    for number in range(100):
        await stores[0].write(f"k{number}", "v", fence(1), 60.0)
    later.seconds += 61
    for store in stores:
        until = store._ensemble.until()
        session, of = await store._ensemble.any(until), store._registers
        of._due = await of._list_due(session, await of._now(session, until), until)
        assert len(of._due) == 100
    for store in stores:
        for _ in range(5):
            await store.write("sweeper", "", fence(2))
    left = len(chroot.values()) - 1
    assert left < 30, f"{left} are left: they have cleaned the same"
    for store in stores:
        await store.close()


async def test_clients_that_clean_at_the_same_time_do_not_do_the_same(chroot: Chroot, later: Later) -> None:
    await cleaned_together(chroot, later)


@pytest.mark.control
async def test_control_in_order_they_do(chroot: Chroot, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "shuffle", lambda found: found.sort())
    with pytest.raises(AssertionError, match="cleaned the same"):
        await cleaned_together(chroot, later)


# -- messages that are lost


WAYS = ["request", "reply", "silence"]


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("begun", [False, True], ids=["no node", "a node"])
@pytest.mark.parametrize("verb", ["write", "read"])
async def test_the_same_fence_goes_on_after_a_lost_change(chroot: Chroot, what: str, begun: bool, verb: str) -> None:
    store, other = store_of(chroot.url, 1.0), store_of(chroot.direct)
    await other.write("k" if begun else "x", "old", fence(1), 60.0)
    await other.read("warm", fence(1))  # there are places for all entries
    await store.read("x")  # it is connected
    loss = chroot.rig.way.lose(Op.TOGETHER, what)

    async def change() -> None:
        if verb == "write":
            await store.write("k", "new", fence(2), 60.0)
        else:
            await store.read("k", fence(2))

    with pytest.raises(StoreUnavailable):
        await change()
    assert loss.done
    facts = chroot.register("k")
    assert what != "request" or facts is None or facts[0] == 1
    # Either all of it is there, or nothing.
    assert [entry for entry in chroot.entries() if entry.endswith("-k")] == ([f"{facts[6]}-k"] if facts else [])

    async def retried() -> bool:
        try:
            await change()
        except StoreUnavailable:
            return False
        return True

    await eventually(retried, limit=LIMIT)
    expected = Record("new", 2) if verb == "write" else Record("old", 1) if begun else None
    assert await other.read("k") == expected
    with pytest.raises(StaleToken):
        await other.write("k", "stale", fence(1))
    facts = chroot.register("k")
    assert facts is not None
    assert [entry for entry in chroot.entries() if entry.endswith("-k")] == [f"{facts[6]}-k"]
    await store.close()
    await other.close()


@pytest.mark.parametrize("what", WAYS)
async def test_a_result_is_recorded_once_although_a_message_was_lost(chroot: Chroot, what: str) -> None:
    ran: list[int] = []
    async with connect(chroot.url, io_timeout=1) as locks:
        await locks.register("x").read()

        @locks.once("job:{number}", ttl=60, timeout=LIMIT)
        async def job(number: int) -> str:
            ran.append(number)
            chroot.rig.way.lose(Op.TOGETHER, what)  # the result
            return "done"

        assert await job(1) == "done"
        assert await job(1) == "done"
    assert ran == [1]
    assert (chroot.register("job:1") or [])[3] is not None


@pytest.mark.parametrize("what", ["request", "reply"])
async def test_a_look_that_was_lost_is_repeated_and_only_an_unanswered_change_is_told(
    chroot: Chroot, what: str
) -> None:
    store = store_of(chroot.url)
    await store.write("k", "v", fence(10))
    for number in range(5):
        loss = chroot.rig.way.lose(Op.GET_DATA, what)
        await store.write("k", str(number), fence(10))
        assert loss.done
        loss = chroot.rig.way.lose(Op.GET_DATA, what)
        with pytest.raises(StaleToken):
            await store.write("k", "stale", fence(9))
        assert loss.done
    await store.close()


async def test_a_write_is_done_even_if_nothing_can_be_cleaned(
    chroot: Chroot, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(of: Registers, *args: Any) -> None:
        raise StoreError("NoAuth")

    store = store_of(chroot.direct)
    await store.write("over", "v", fence(1), 1.0)
    later.seconds += 10
    monkeypatch.setattr(Registers, "_end", fail)
    await store.write("k", "v", fence(1))
    assert await store.read("k") == Record("v", 1)
    await store.close()


# -- the deadline of a verb


@pytest.mark.parametrize("verb", ["write", "read"])
async def test_a_verb_ends_in_time_although_others_change_the_register_all_the_time(chroot: Chroot, verb: str) -> None:
    store, other = store_of(chroot.direct, 0.5), store_of(chroot.direct)
    await other.write("k", "v", fence(1))
    await store.read("k")
    tries = 0
    of: Any = store._registers
    real = of._transact

    async def transact(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        await other.write("k", str(tries), fence(1))
        return await real(*args)

    of._transact = transact
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await (store.write("k", "mine", fence(1)) if verb == "write" else store.read("k", fence(1)))
    assert time.monotonic() - begun < LIMIT / 2
    assert tries > 1
    assert await other.read("k") == Record(str(tries), 1)
    await store.close()
    await other.close()


async def test_a_verb_of_many_exchanges_has_one_deadline(chroot: Chroot) -> None:
    """Every exchange is answered in time, and all together take too long."""
    store = store_of(chroot.url, 1.0)
    await store.ready()
    exchanges = 0
    ensemble: Any = store._ensemble
    real = ensemble.ask

    async def ask(*args: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        await pause(0.4)
        return await real(*args)

    ensemble.ask = ask
    with pytest.raises(StoreUnavailable):
        await store.write("k", "v", fence(1), 60.0)
    assert exchanges <= 3
    await store.close()


# -- values and names


VALUES = {
    "ascii": "x" * MOST_BYTES,
    "quotes": '"\\' * (MOST_BYTES // 2),
    "two bytes": "ü" * (MOST_BYTES // 2),
    "three bytes": "\ue000\uffff€" * (MOST_BYTES // 9),
    "non-BMP": "🔒" * (MOST_BYTES // 4),
    "control": "\0\x1f" * (MOST_BYTES // 12),
    "delete": "\x7f\x80" * (MOST_BYTES // 3),
    "lines": "\r\n" * (MOST_BYTES // 2),
}
KEYS = [
    *("k", "K", ".", "..", "...", "a.b", "/", "//", "a/b", "a%2Fb", "%", "%25", "-", "1-k", "a-b", " ", "  ", "+", "~"),
    *(
        "zookeeper",
        "ü",
        "🔒",
        "e\u0301",
        "é",
        "\ue000",
        "\uffff",
        "\u200b",
        "x" * 512,
        "ü" * 256,
        "/" * 512,
        "0",
        "null",
    ),
]


@pytest.mark.parametrize("kind", VALUES)
async def test_the_longest_values_of_every_kind_are_kept(chroot: Chroot, kind: str) -> None:
    async with connect(chroot.direct, io_timeout=20) as locks, connect(chroot.direct, io_timeout=20) as other:
        async with locks.lock("r", ttl=60) as lease:
            await locks.register("k").write(VALUES[kind], fence=lease.fence, keep=60)
            assert await other.register("k").read() == Record(VALUES[kind], lease.token)
            assert await locks.register("k").read(lease.fence) == Record(VALUES[kind], lease.token)


async def test_keys_of_every_kind_are_kept_apart_and_cleaned(chroot: Chroot, later: Later) -> None:
    store, other = store_of(chroot.direct), store_of(chroot.direct)
    for token, key in enumerate(KEYS, 1):
        await store.write(key, key, fence(token), 60.0)
    for token, key in enumerate(KEYS, 1):
        assert await other.read(key) == Record(key, token)
    assert chroot.registers() == sorted(map(escape, KEYS))
    later.seconds += DAY + 61
    await clean(store, chroot, lambda: chroot.registers() == ["sweeper"])
    assert chroot.entries() == []
    await store.close()
    await other.close()


async def test_namespaces_have_registers_and_floors_of_their_own(chroot: Chroot, later: Later) -> None:
    store = store_of(chroot.direct)
    other = ZooKeeperStore(parse_url(chroot.direct), namespace="a/b", io_timeout=20, clock=SystemClock())
    await store.write("k", "v", fence(20), 1.0)
    later.seconds += DAY + 10
    await clean(store, chroot, lambda: chroot.registers() == ["sweeper"])
    assert await other.read("k", fence(1)) is None
    await other.write("k", "v", fence(1))
    assert chroot.children("floors") == ["a%2Fb", "default"]
    await store.close()
    await other.close()
