"""The keeper in foul weather: unanswered renewals, loss, and who is told of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from holdfast._async.lease import Lease
from holdfast.core.claim import Claim, Lost, Unknown
from holdfast.core.events import Event
from holdfast.errors import LeaseLost, StoreUnavailable
from holdfast.testing._async.runtime import eventually, spawn
from holdfast.testing._async.tap import Tap, failing
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, keeper_passes, kinds


async def at_risk(clock: ManualClock, tap: Tap, lease: Lease) -> None:
    """Let the next renewal go unanswered."""
    tap.answers["renew"] = Unknown("cut off")
    clock.advance(lease.ttl / 3 + 0.01)
    await eventually(lambda: lease.state == "at risk")


async def test_unknown_puts_at_risk_once_and_is_tried_again(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            await at_risk(clock, tap, lease)
            lease.check()
            assert not lease.lost
            assert lease.remaining == pytest.approx(29.698 - 10.01)  # Unknown does not extend
            for times in range(2, 5):
                clock.advance(2.51)
                await tap.reached("renewals", times)
            await keeper_passes_unanswered(clock, tap)
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "at risk: cut off" in caplog.records[0].getMessage()
            tap.answers.clear()
            clock.advance(2.51)
            await eventually(lambda: lease.state == "held")
            assert lease.remaining > 29
            lease.check()


async def keeper_passes_unanswered(clock: ManualClock, tap: Tap) -> None:
    """Let one more renewal be asked and answered with nothing."""
    before = len(tap.renewals)
    clock.advance(2.51)
    await eventually(lambda: len(tap.renewals) > before)


async def test_a_second_outage_is_told_again(name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            for outages in (1, 2):
                await at_risk(clock, tap, lease)
                tap.answers.clear()
                await eventually(lambda: lease.state == "held", lambda: clock.advance(0.1))
                assert [record.levelname for record in caplog.records] == ["WARNING"] * outages


@pytest.mark.parametrize("trouble", [StoreUnavailable("cut off"), RuntimeError("a bug in the store")], ids=repr)
async def test_a_renewal_that_raises_is_unknown(
    trouble: Exception, name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            tap.before["renew"] = failing(trouble)
            clock.advance(10.01)
            await eventually(lambda: lease.state == "at risk")
            await eventually(lambda: str(trouble) in caplog.text)
            tap.heal()
            clock.advance(2.51)
            await eventually(lambda: lease.state == "held")


async def test_a_store_that_answers_too_little_does_not_end_the_renewals(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap, store = locks.tap, cast(Any, locks.tap.store)
        renew, calls = store._keeping.renew, [0]

        def answer_nothing_once(claims: Sequence[Claim], limit: float) -> Any:
            calls[0] += 1
            return [] if calls[0] == 1 else renew(claims, limit)

        store._keeping.renew = answer_nothing_once
        async with locks.lock("r") as lease:
            clock.advance(10.01)
            await eventually(lambda: calls[0] == 1)
            await eventually(lambda: len(tap.renewals) > 1, lambda: clock.advance(0.1))
            lease.check()


async def test_unknown_until_the_deadline_is_loss(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Lease] = []
    events: list[Event] = []
    async with connect(name, clock, observers=[events.append]) as locks:
        tap = locks.tap
        lease = await locks.lock("r", on_lost=told.append).acquire()
        waiting = spawn(lease.wait_lost)
        await at_risk(clock, tap, lease)
        while clock.now() < 1029:
            clock.advance(1)
            lease.check()
        clock.advance(1)
        assert lease.lost
        await eventually(lambda: told)
        assert await waiting.join() is True
        assert await lease.wait_lost(0) is True
        with pytest.raises(LeaseLost, match="no renewal was answered within its ttl of 30 s"):
            lease.check()
        await keeper_passes(locks, clock, resumed(tap))
        assert told == [lease]
        assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
        assert "is lost: no renewal was answered" in caplog.records[1].getMessage()
        seen = [kind for kind, event in zip(kinds(events), events, strict=True) if event.resource == "r"]
        assert seen == ["Acquired", "AtRisk", "Lost"]


def resumed(tap: Tap) -> Tap:
    tap.answers.clear()
    return tap


async def test_gone_is_loss_at_once(name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r").acquire()
        tap.answers["renew"] = Lost()
        clock.advance(10.01)
        await eventually(lambda: lease.lost)
        await eventually(lambda: caplog.records)
        with pytest.raises(LeaseLost, match="the store no longer has the claim"):
            lease.check()
        assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_pause_longer_than_the_ttl_is_seen_at_the_first_look(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r").acquire()
        clock.advance(31)
        assert lease.lost  # before any keeper could run
        assert lease.state == "lost"
        with pytest.raises(LeaseLost, match="did not run for longer than its ttl"):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.renew()


async def test_a_late_answer_does_not_bring_a_lease_back(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        gate = tap.hold_up("renew")
        lease = await locks.lock("r").acquire()
        renewal = spawn(lease.renew)
        await eventually(lambda: gate.arrived)
        clock.advance(29.9)
        gate.open()
        with pytest.raises(LeaseLost):
            await renewal.join()
        assert lease.lost


async def test_a_renewal_by_hand_that_goes_unanswered(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            tap.answers["renew"] = Unknown("cut off")
            clock.advance(5)
            with pytest.raises(StoreUnavailable, match=r"'r' went unanswered \(cut off\); the lease is lost in 24.7 s"):
                await lease.renew()
            assert lease.state == "at risk"
            tap.answers.clear()
            await lease.renew()
            assert lease.state == "held"


async def test_a_renewal_by_hand_at_a_store_that_is_gone(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("r") as lease:
            tap.cut_off("renew")
            with pytest.raises(StoreUnavailable):
                await lease.renew()
            assert lease.state == "at risk"
            tap.heal()


async def test_a_hanging_renewal_does_not_delay_the_news_of_a_loss(name: str, clock: ManualClock) -> None:
    told: list[str] = []
    async with connect(name, clock) as locks:
        tap = locks.tap
        gate = tap.hold_up("renew")
        slow = await locks.lock("slow", ttl=3, on_lost=lambda lease: told.append(lease.resource)).acquire()
        other = await locks.lock("other", ttl=30, on_lost=lambda lease: told.append(lease.resource)).acquire()
        clock.advance(1.01)
        await eventually(lambda: gate.arrived)
        clock.advance(2)
        await eventually(lambda: told == ["slow"])
        clock.advance(27)
        await eventually(lambda: told == ["slow", "other"])
        assert slow.lost
        assert other.lost
        gate.open()


async def test_an_answer_after_the_release_changes_nothing(name: str, clock: ManualClock) -> None:
    events: list[Event] = []
    async with connect(name, clock, observers=[events.append]) as locks:
        tap = locks.tap
        gate = tap.hold_up("renew")
        async with locks.lock("r") as lease:
            clock.advance(10.01)
            await eventually(lambda: gate.arrived)
        gate.open()
        await keeper_passes(locks, clock, tap)
        assert lease.state == "released"
    assert kinds(event for event in events if event.resource == "r") == ["Acquired", "Released"]  # all was told


def raising(lease: Lease) -> None:
    raise ZeroDivisionError(lease.resource)


async def test_on_lost_that_raises_is_logged_and_stops_nobody(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Lease] = []
    async with connect(name, clock) as locks:
        tap = locks.tap
        bad = await locks.lock("bad", ttl=3, on_lost=raising).acquire()
        good = await locks.lock("good", ttl=3, on_lost=told.append).acquire()
        clock.advance(4)
        await eventually(lambda: told == [good])
        assert bad.lost
        assert "on_lost of 'bad' failed" in caplog.text
        assert "ZeroDivisionError: bad" in caplog.text
        await keeper_passes(locks, clock, tap)


@pytest.mark.parametrize("way", ["exit", "release", "renew", "check", "lost", "state"])
async def test_on_lost_is_called_once_whoever_finds_the_loss(way: str, name: str, clock: ManualClock) -> None:
    told: list[Lease] = []
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", on_lost=told.append).acquire()
        if way == "exit":
            with pytest.raises(LeaseLost):
                async with lease:
                    clock.advance(31)
        else:
            clock.advance(31)
            if way == "lost":
                assert lease.lost
            elif way == "state":
                assert lease.state == "lost"
            elif way == "check":
                with pytest.raises(LeaseLost):
                    lease.check()
            else:
                with pytest.raises(LeaseLost):
                    await (lease.release() if way == "release" else lease.renew())
        await keeper_passes(locks, clock, tap)
        await eventually(lambda: told)
        assert told == [lease]


async def test_on_lost_is_called_when_the_store_says_not_yours(name: str, clock: ManualClock) -> None:
    told: list[Lease] = []
    async with connect(name, clock) as locks:
        tap = locks.tap
        tap.answers["release"] = False
        lease = await locks.lock("r", on_lost=told.append).acquire()
        with pytest.raises(LeaseLost):
            await lease.release()
        tap.answers.clear()
        await keeper_passes(locks, clock, tap)
        await eventually(lambda: told)
        assert told == [lease]


async def test_wait_lost_ends_at_its_timeout_and_at_the_release(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r").acquire()
        assert await lease.wait_lost(0) is False
        waiting = spawn(lease.wait_lost, 5)
        await eventually(lambda: waiting.done, lambda: clock.advance(0.1))
        assert await waiting.join() is False
        assert clock.now() >= 1005
        forever = [spawn(lease.wait_lost) for _ in range(3)]
        await lease.release()
        assert [await one.join() for one in forever] == [False] * 3


async def test_a_lost_lease_costs_the_store_nothing_more(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r").acquire()
        clock.advance(31)
        assert lease.lost
        await keeper_passes(locks, clock, tap)
        assert tap.renewals == []
        assert await is_free(locks, "r")


async def test_levels_of_the_log(name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r", owner="web-3").acquire()
        await at_risk(clock, tap, lease)
        clock.advance(20)
        await eventually(lambda: len(caplog.records) == 2)
        assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
        assert all(record.name == "holdfast" for record in caplog.records)
        assert f"lease on 'r' (token {lease.token}) of web-3 is lost" in caplog.records[1].getMessage()
