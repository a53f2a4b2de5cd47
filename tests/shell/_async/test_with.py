# ruff: noqa: PT012 (how a `with` ends is what is tested: it has to stand inside)
"""How a `with` ends: the table of DESIGN section 2, row by row, for each of the three ways in."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import pytest

from holdfast.errors import AcquireTimeout, LeaseLost, NotHeld
from holdfast.keeper import entries
from holdfast.testing._async.runtime import eventually
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import WAYS, Way, connect, is_free, keeper_passes

INTERRUPTS = (KeyboardInterrupt, SystemExit)

all_ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def notes(error: object) -> list[str]:
    return list(getattr(error, "__notes__", ()))


@all_ways
async def test_return_releases(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with await way(locks.lock("r")) as lease:
            assert lease.state == "held"
            assert not await is_free(locks, "r")
        assert lease.state == "released"
        assert not lease.lost
        assert await is_free(locks, "r")


@all_ways
async def test_return_from_a_lost_lease_raises(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(LeaseLost, match=r"'r'.*was lost") as caught:
            async with await way(locks.lock("r")) as lease:
                clock.advance(31)
        assert caught.value.resource == "r"
        assert caught.value.token == lease.token
        assert lease.lost
        assert lease.state == "lost"


@all_ways
async def test_error_passes_as_it_is(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError) as caught:
            async with await way(locks.lock("r")):
                raise error
        assert caught.value is error
        assert notes(error) == []
        assert await is_free(locks, "r")


@all_ways
async def test_error_with_a_lost_lease_gets_a_note(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError) as caught:
            async with await way(locks.lock("r")):
                clock.advance(31)
                raise error
        assert caught.value is error
        (note,) = notes(error)
        assert "'r'" in note
        assert "was lost" in note


@all_ways
@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("lost", [False, True], ids=["held", "lost"])
async def test_interrupts_pass_as_they_are(
    way: Way, interrupt: type[BaseException], lost: bool, name: str, clock: ManualClock
) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(interrupt) as caught:
            async with await way(locks.lock("r")) as lease:
                if lost:
                    clock.advance(31)
                raise interrupt
        assert notes(caught.value) == []
        assert lease.lost is lost
        assert await is_free(locks, "r")


@all_ways
@pytest.mark.parametrize(
    "error", [None, ZeroDivisionError(), KeyboardInterrupt()], ids=["return", "error", "interrupt"]
)
async def test_unanswered_release_raises_nothing_new(
    way: Way, error: BaseException | None, name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        tap.cut_off("release")
        expected: Any = nullcontext() if error is None else pytest.raises(type(error))
        with expected as caught:
            async with await way(locks.lock("r")) as lease:
                if error is not None:
                    raise error
        raised: Any = caught and caught.value
        assert raised is error
        assert notes(raised) == []
        assert not lease.lost
        await eventually(lambda: caplog.records)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record.levelname for record in warnings] == ["WARNING"]
        assert "'r'" in warnings[0].getMessage()
        assert "unanswered" in warnings[0].getMessage()
        assert not await is_free(locks, "r")
        tap.heal()
        await eventually(lambda: tap.released, lambda: clock.advance(0.02))
        assert await is_free(locks, "r")


async def test_keeper_repeats_an_unanswered_release_until_it_is_answered(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        tap.cut_off("release")
        async with locks.lock("r"):
            pass
        for tries in range(2, 8):
            await tap.reached("releases", tries, lambda: clock.advance(0.02))
        assert clock.now() < 1_030
        tap.heal()
        before = len(tap.releases)
        await eventually(lambda: len(tap.releases) > before, lambda: clock.advance(0.02))
        assert await is_free(locks, "r")
        await keeper_passes(locks, clock, tap)
        assert tap.releases.count("r") == before + 1  # answered: not once more


async def test_keeper_gives_an_unanswered_release_up_at_the_deadline(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with locks.lock("canary", ttl=300):
            tap.cut_off("release")
            async with locks.lock("r", ttl=3):
                pass
            await eventually(lambda: len(tap.releases) >= 2)
            clock.advance(3)
            tried = len(tap.releases)
            clock.advance(97)
            await eventually(lambda: tap.renewals)  # the renewer has come past the release that was due before
            assert len(tap.releases) == tried
            tap.heal()


@all_ways
async def test_release_of_what_is_not_ours_raises_lease_lost(
    way: Way, name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        tap.answers["release"] = False
        with pytest.raises(LeaseLost, match="no longer had the claim"):
            async with await way(locks.lock("r")) as lease:
                pass
        assert lease.lost
        await eventually(lambda: caplog.records)
        assert [record.levelname for record in caplog.records] == ["ERROR"]


@all_ways
async def test_error_and_a_release_of_what_is_not_ours(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        locks.tap.answers["release"] = False
        with pytest.raises(ZeroDivisionError) as caught:
            async with await way(locks.lock("r")):
                raise ZeroDivisionError
        assert "was lost" in notes(caught.value)[0]


@all_ways
async def test_interrupt_and_a_release_of_what_is_not_ours(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        locks.tap.answers["release"] = False
        with pytest.raises(KeyboardInterrupt) as caught:
            async with await way(locks.lock("r")):
                raise KeyboardInterrupt
        assert notes(caught.value) == []


@all_ways
async def test_release_inside_the_with(way: Way, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        async with await way(locks.lock("r")) as lease:
            await lease.release()
            assert await is_free(locks, "r")
            clock.advance(31)  # what was released cannot be lost
        assert lease.state == "released"
        assert tap.releases == ["r"]


async def test_releasing_twice_does_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lease = await locks.lock("r").acquire()
        await lease.release()
        await lease.release()
        assert tap.releases == ["r"]
        with pytest.raises(NotHeld, match="released"):
            lease.check()


async def test_releasing_a_lost_lease_raises_and_touches_nobody(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as others:
        tap = locks.tap
        old = await locks.lock("r").acquire()
        clock.advance(31)
        async with others.lock("r") as new:
            with pytest.raises(LeaseLost):
                await old.release()
            new.check()
            assert new.token > old.token
        assert tap.releases == []
        await old.release()  # said once; twice does nothing


async def test_the_body_never_starts_without_a_lease(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lost = await locks.lock("a").acquire()
        clock.advance(31)
        with pytest.raises(LeaseLost):
            async with lost:
                pytest.fail("entered a lost lease")
        released = await locks.lock("b").acquire()
        await released.release()
        with pytest.raises(NotHeld):
            async with released:
                pytest.fail("entered a released lease")


async def test_a_lost_lease_stays_lost_whoever_enters_it(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r").acquire()
        clock.advance(31)
        with pytest.raises(LeaseLost):
            async with lease:
                pytest.fail("entered a lost lease")
        await keeper_passes(locks, clock, locks.tap)  # it finds a `with` that was left before it began
        assert lease.lost
        with pytest.raises(LeaseLost):
            await lease.release()


async def test_a_lease_is_entered_once_at_a_time(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        async with locks.lock("r") as lease:
            with pytest.raises(NotHeld, match="entered already"):
                async with lease:
                    pytest.fail("entered twice")
            lease.check()
        assert await is_free(locks, "r")


async def test_failures_leave_no_entries_behind(name: str, clock: ManualClock) -> None:
    # Nothing is held by these clients, so no keeper of theirs looks at what statements have left.
    async with connect(name, clock) as locks, connect(name, clock) as other:
        lease = await locks.lock("r", renew=False).acquire()
        before = len(entries.left)
        for _ in range(50):
            with pytest.raises(AcquireTimeout):
                async with other.lock("r", timeout=0):
                    pytest.fail("entered without a lease")
            with pytest.raises(AcquireTimeout):
                async with other.lock_all("a", "r", timeout=0):
                    pytest.fail("entered without a lease")
            with pytest.raises(AcquireTimeout):
                async with other.lock("r").acquire(timeout=0):
                    pytest.fail("entered without a lease")
        assert len(entries.left) <= before
        await lease.release()
