"""The keeper in fair weather: when it renews, how many at once, and what it leaves alone."""

from __future__ import annotations

import gc
import logging
import pickle
import weakref
from typing import Any

import pytest

from holdfast.core.claim import Lost
from holdfast.core.fence import Fence
from holdfast.errors import LeaseLost, StoreUnavailable
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing._async.tap import unanswered
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, keeper_passes
from tests.shell._async.runtime import activities


async def test_renews_at_a_third_of_the_ttl(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r", ttl=30) as lease:
            clock.advance(9.5)
            await keeper_passes(locks, clock, tap)
            assert tap.renewals == []
            for times in range(1, 10):
                clock.advance(10)
                await tap.reached("renewals", times)
                await eventually(lambda: lease.remaining > 29)
            lease.check()
        assert tap.renewals == [["r"]] * 9


async def test_the_deadline_counts_from_before_the_question(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("r", ttl=30) as lease:
            assert lease.remaining == pytest.approx(30 * 0.99 - 0.002)
            clock.advance(4)
            await lease.renew()
            assert lease.remaining == pytest.approx(30 * 0.99 - 0.002)


async def test_a_thousand_leases_are_renewed_in_two_calls(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        leases = [await locks.lock(f"r{n}").acquire() for n in range(1000)]
        clock.advance(10.01)
        await eventually(lambda: len(tap.renewals) == 2)
        await eventually(lambda: leases[-1].remaining > 29)
        assert [len(batch) for batch in tap.renewals] == [500, 500]
        assert len(set(tap.renewals[0] + tap.renewals[1])) == 1000
        assert all(lease.state == "held" for lease in leases)


async def test_leases_that_are_due_soon_join_the_batch(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("a"):
            clock.advance(0.05)
            async with locks.lock("b"):
                clock.advance(9.96)
                await eventually(lambda: tap.renewals)
                assert tap.renewals == [["a", "b"]]


async def test_one_keeper_however_many_leases(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        assert activities() == []
        leases = [await locks.lock(f"r{n}").acquire() for n in range(50)]
        assert activities() == ["holdfast-timekeeper"]
        for times in range(1, 4):
            clock.advance(10.01)
            await tap.reached("renewals", times)
            running = [name for name in activities() if name != "holdfast-teller"]  # it may have something to tell
            assert running == ["holdfast-renewer", "holdfast-timekeeper"]
        assert all(lease.state == "held" for lease in leases)
    assert activities() == []


async def test_the_keeper_ends_when_there_is_nothing_to_keep_and_starts_again(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        for _ in range(3):
            before = len(tap.renewals)
            async with locks.lock("r") as lease:
                clock.advance(10.01)
                await tap.reached("renewals", before + 1)
                lease.check()
            await eventually(lambda: not activities(), lambda: clock.advance(1))


async def test_many_pairs_do_not_fill_the_keeper(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        keeper, lock, most = locks._engine.keeper, locks.lock("r"), 0
        async with locks.lock("kept"):
            for _ in range(10_000):
                lease = await lock.acquire()
                await lease.release()
                most = max(most, len(keeper.agenda._heap))
        assert most <= 200
        assert len(locks._engine.keeper.held) == 0


async def test_many_renewals_by_hand_do_not_fill_the_keeper(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("r") as lease:
            for _ in range(2_000):
                await lease.renew()
            assert len(locks._engine.keeper.agenda._heap) <= 200


async def test_max_hold_ends_the_renewals_and_says_so(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", ttl=30, max_hold=25).acquire()
        for times in (1, 2):
            clock.advance(10.01)
            await tap.reached("renewals", times)
            await eventually(lambda: lease.remaining > 29)
        clock.advance(29)  # due at 30, but max_hold was over at 25
        await keeper_passes(locks, clock, tap)
        assert len(tap.renewals) == 2
        lease.check()
        clock.advance(1)
        await eventually(lambda: caplog.records)
        with pytest.raises(LeaseLost, match="max_hold of 25 s has passed"):
            lease.check()
        assert "max_hold of 25 s has passed" in caplog.records[-1].getMessage()
        clock.advance(1)
        assert await is_free(locks, "r")


async def test_renew_false_is_not_renewed_and_says_so(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", ttl=30, renew=False).acquire()
        clock.advance(29)
        await keeper_passes(locks, clock, tap)
        assert tap.renewals == []
        lease.check()
        clock.advance(1)
        with pytest.raises(LeaseLost, match="it is not renewed"):
            lease.check()


async def test_renew_false_can_be_renewed_by_hand(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("r", ttl=30, renew=False) as lease:
            for _ in range(5):
                clock.advance(20)
                await lease.renew()
            lease.check()


async def test_min_hold_keeps_the_resource_taken_after_the_release(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        async with locks.lock("r", ttl=30, min_hold=20) as lease:
            clock.advance(5)
        assert lease.state == "released"
        clock.advance(14.9)
        assert await others.lock("r").try_acquire() is None
        clock.advance(0.2)
        async with await others.lock("r").acquire(timeout=0):
            pass


async def test_min_hold_that_has_passed_changes_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("r", ttl=30, min_hold=5):
            clock.advance(5.1)
        assert await is_free(locks, "r")


async def test_min_hold_holds_for_the_same_actor_too(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r", ttl=30, min_hold=5)
        async with lock:
            pass
        assert await lock.try_acquire() is None
        clock.advance(5.1)
        async with lock:
            pass


async def test_a_dropped_lease_is_renewed_no_more(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def ours() -> list[logging.LogRecord]:  # the collector may find, and log, what another test has left
        return [record for record in caplog.records if record.name == "holdfast"]

    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", ttl=30).acquire()
        clock.advance(10.01)
        await eventually(lambda: tap.renewals)
        await keeper_passes(locks, clock, tap)
        gone = weakref.ref(lease)
        with pytest.warns(ResourceWarning, match=r"'r' .*dropped without a release"):  # noqa: PT031
            del lease
            gc.collect()
            await eventually(lambda: gone() is None)
            await eventually(ours)
        assert [record.levelname for record in ours()] == ["WARNING"]
        assert "dropped without a release" in ours()[0].getMessage()
        clock.advance(19)
        await keeper_passes(locks, clock, tap)
        assert tap.renewals == [["r"]]
        assert await locks.lock("r").try_acquire() is None  # no Deadlock: this actor holds it no more
        clock.advance(11)
        assert await is_free(locks, "r")


async def test_a_dropped_lease_that_was_not_to_be_renewed_is_no_mistake(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r", ttl=30, renew=False).acquire()
        del lease
        gc.collect()
        assert caplog.records == []
        assert not await is_free(locks, "r")


async def test_the_keeper_goes_on_for_leases_of_dead_actors(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lock = locks.lock("r")

        async def take() -> object:
            return await lock.acquire()

        lease = await spawn(take).join()
        clock.advance(10.01)
        await eventually(lambda: tap.renewals)
        assert lease is not None


async def test_pickling_a_lease_names_the_fence(name: str, clock: ManualClock) -> None:
    async with connect(name, clock, namespace="billing") as locks:
        async with locks.lock("r") as lease:
            with pytest.raises(TypeError, match=r"lease\.fence"):
                pickle.dumps(lease)
            assert lease.fence == Fence("billing", "r", lease.token, False)
            assert pickle.loads(pickle.dumps(lease.fence)) == lease.fence


async def test_nothing_above_debug_is_logged_in_fair_weather(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r"):
            assert await spawn(locks.lock("r").try_acquire).join() is None
            clock.advance(10.01)
            await eventually(lambda: tap.renewals)
    assert [record for record in caplog.records if record.name.startswith("holdfast")] == []


@pytest.mark.parametrize("session", [True, False])
async def test_where_claims_share_a_session_one_loss_asks_for_all(name: str, clock: ManualClock, session: bool) -> None:
    async with connect(name, clock) as locks:
        store: Any = locks.tap.store
        store.capabilities = store.capabilities._replace(session=session)
        tap = locks.tap
        short, long = await locks.lock("short", ttl=30).acquire(), await locks.lock("long", ttl=300).acquire()
        tap.answers["renew"] = Lost()
        clock.advance(10)
        await eventually(lambda: short.lost)
        if session:  # nine tenths of a third of its ttl before its own renewal
            await eventually(lambda: long.lost)
        else:
            tap.answers.clear()
            await keeper_passes(locks, clock, tap)
            assert not long.lost
            await long.release()


async def test_an_extension_never_makes_a_lease_shorter_than_another_has_made_it(name: str, clock: ManualClock) -> None:
    """Two threads may extend at the same time, each after it has looked."""
    async with connect(name, clock) as locks:
        lease = await locks.lock("r", ttl=10).acquire()
        keeper = locks._engine.keeper
        keeper.lengthen(lease._hold, 40.0)
        keeper.lengthen(lease._hold, 20.0)
        assert lease.ttl == 40
        with pytest.raises(ValueError, match="must not be shorter than the lease, whose ttl is 40 s"):
            await lease.extend(20)
        await lease.release()


async def test_an_extension_in_an_outage_does_not_put_off_the_renewals(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", ttl=6).acquire()
        tap.before["renew"] = unanswered
        with pytest.raises(StoreUnavailable):
            await lease.extend(600)
        tap.heal()
        renewals = len(tap.renewals)
        await eventually(lambda: len(tap.renewals) > renewals, lambda: clock.advance(0.05))
        assert not lease.lost
        await eventually(lambda: lease.remaining > 500)
        await lease.release()
