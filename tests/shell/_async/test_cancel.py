"""Cancel: a wait is ended from another thread or task, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Cancel
from holdfast.errors import AcquireCancelled, AcquireTimeout
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect, is_free, kinds


async def test_a_waiter_is_cancelled_at_once(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks, connect(name, clock) as other:
        async with other.lock("r"):
            cancel = Cancel()
            waiter = spawn(locks.lock("r").acquire, cancel=cancel)
            await eventually(lambda: locks.tap.count("wait") == 1)
            cancel.cancel()
            with pytest.raises(AcquireCancelled, match="the acquire of 'r' was cancelled") as caught:
                await waiter.join()  # the clock stands still: nothing else wakes it
            assert caught.value.resource == "r"
            await eventually(lambda: locks.tap.released == ["r"])
        assert await is_free(other, "r")
    assert kinds(seen) == ["Queued", "Abandoned"]
    assert cancel.cancelled
    assert repr(cancel) == "<Cancel cancelled>"


async def test_one_cancel_ends_many_waits_of_several_clients(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as one, connect(name, clock) as two, connect(name, clock) as other:
        async with other.lock("r"), other.lock("s"):
            cancel, unrelated = Cancel(), Cancel()
            takes: list[Any] = [
                one.lock("r"),
                two.lock("s"),
                one.lock_all("q", "r"),
                one.tree("r/a"),
                two.election("s").lead(),
            ]
            waiters = [spawn(take.acquire, cancel=cancel) for take in takes]
            others = spawn(one.lock("r").acquire, cancel=unrelated)

            async def all_wait() -> bool:
                return sum(len(state.waiters) for state in await other.inspect()) == 6

            await eventually(all_wait)
            cancel.cancel()
            for waiter in waiters:
                with pytest.raises(AcquireCancelled):
                    await waiter.join()
            assert not others.done
            unrelated.cancel()
            with pytest.raises(AcquireCancelled):
                await others.join()

        async def nothing_is_left() -> bool:
            return await other.inspect() == []

        await eventually(nothing_is_left)


async def test_an_acquire_that_comes_too_late_sends_nothing(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        cancel = Cancel()
        cancel.cancel()
        cancel.cancel()
        with pytest.raises(AcquireCancelled):
            await locks.lock("r").acquire(cancel=cancel)
        with pytest.raises(AcquireCancelled):
            await locks.lock("r").try_acquire(cancel=cancel)
        assert locks.tap.claims == []


async def test_what_is_held_stays_held(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        cancel = Cancel()
        async with locks.lock("r").acquire(cancel=cancel) as lease:
            cancel.cancel()
            lease.check()
        assert not lease.lost


async def test_a_grant_that_comes_after_the_cancel_is_given_back(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        cancel = Cancel()

        async def cancel_first() -> None:
            cancel.cancel()

        locks.tap.after["claim"] = cancel_first
        with pytest.raises(AcquireCancelled):
            await locks.lock("r").acquire(cancel=cancel)
        await eventually(lambda: locks.tap.released == ["r"])
        assert await is_free(locks, "r")


async def test_an_outage_is_no_obstacle(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        cancel = Cancel()
        locks.tap.cut_off("claim")
        waiter = spawn(locks.lock("r").acquire, timeout=100, cancel=cancel)
        await eventually(lambda: locks.tap.count("claim") >= 2, lambda: clock.advance(0.01))
        cancel.cancel()
        await eventually(lambda: waiter.done, lambda: clock.advance(0.01))
        with pytest.raises(AcquireCancelled):
            await waiter.join()


async def test_a_campaign_ends_quietly(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        cancel, leads = Cancel(), Gate()

        async def campaign() -> list[int]:
            tokens = []
            async for term in locks.election("boss").terms(cancel=cancel):
                tokens.append(term.token)
                await leads.wait()
            return tokens

        candidate = spawn(campaign)
        await eventually(lambda: leads.arrived)
        rival = spawn(other.lock("boss").acquire)
        await eventually(lambda: other.tap.count("wait") == 1)
        leads.open()  # its term ends here, and it stands behind the rival
        lease = await rival.join()
        await eventually(lambda: locks.tap.count("wait") >= 1)
        cancel.cancel()
        assert len(await candidate.join()) == 1
        await eventually(lambda: locks.tap.released == ["boss", "boss"])  # its term, and the claim that waited
        await lease.release()
        assert await is_free(other, "boss")


async def test_a_timeout_is_still_a_timeout(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks, connect(name, clock) as other:
        async with other.lock("r"):
            with pytest.raises(AcquireTimeout):
                await locks.lock("r").acquire(timeout=0, cancel=Cancel())


@pytest.mark.parametrize("wrong", [True, 5, "yes"])
async def test_something_else_is_refused(wrong: object, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(ValueError, match=r"cancel must be a holdfast\.Cancel\(\) or None"):
            await locks.lock("r").acquire(cancel=wrong)  # type: ignore[arg-type]
        assert locks.tap.claims == []
