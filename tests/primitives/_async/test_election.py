"""Elections: one leads, everybody sees who, and the office passes on without waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast._async.client import Client
from holdfast._async.election import Election, Leader, Term
from holdfast._async.lease import Lease
from holdfast.errors import AcquireTimeout, LeaseLost, LockError, NotHeld, StoreUnavailable
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing._async.tap import unanswered
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


class Candidate:
    """Campaigns for ever; resigns each term when it is told to."""

    def __init__(self, election: Election, most: int = 100) -> None:
        self.terms: list[Term] = []
        self.gates: list[Gate] = []
        self._call = spawn(self._campaign, election, most)

    async def _campaign(self, election: Election, most: int) -> int:
        async for term in election.terms():
            gate = Gate()
            self.terms.append(term)
            self.gates.append(gate)
            await gate.wait()
            if len(self.terms) == most:
                break
        return len(self.terms)

    async def leads(self, count: int = 1) -> Term:
        """Wait for its term of that number."""
        await eventually(lambda: len(self.gates) >= count)
        return self.terms[count - 1]

    def resign(self) -> None:
        """Let the loop come back for the next term."""
        self.gates[-1].open()

    async def join(self) -> int:
        return await self._call.join()


async def test_one_leads_and_everybody_sees_who(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock, owner="web-3:81") as locks, Client(url, clock=clock) as other:
        election = locks.election("scheduler", value="http://web-3\n✓")
        assert await election.leader() is None
        async with election.lead() as lease:
            seen = Leader("http://web-3\n✓", "web-3:81", lease.token)
            assert await election.leader() == seen
            assert await other.election("scheduler").leader() == seen
            assert await other.election("sched").leader() is None
            assert await other.election("scheduler").lead().try_acquire() is None
        async with locks.election("scheduler").lead() as lease:  # without a value the owner stands for it
            assert await election.leader() == Leader("web-3:81", "web-3:81", lease.token)


async def test_the_office_passes_on_without_waiting_for_the_ttl(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        began = clock.now()
        first = Candidate(one.election("scheduler", value="one"), most=2)
        before = await first.leads()
        second = Candidate(two.election("scheduler", value="two"), most=1)
        await waiting(one, "scheduler")
        assert second.terms == []
        first.resign()
        after = await second.leads()
        assert after.token > before.token
        leader = await one.election("scheduler").leader()
        assert leader is not None
        assert leader.value == "two"
        await waiting(one, "scheduler")  # the first campaigns again
        second.resign()
        assert await second.join() == 1
        assert (await first.leads(2)).token > after.token
        first.resign()
        assert await first.join() == 2
        assert clock.now() == began


async def test_a_loss_ends_a_term_and_not_the_loop(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as one, Client(url, clock=clock) as two:
        first = Candidate(one.election("scheduler"), most=2)
        term = await first.leads()
        one.tap.before["renew"] = unanswered
        second = Candidate(two.election("scheduler"), most=1)
        await waiting(two, "scheduler")
        clock.advance(31)
        newer = await second.leads()
        assert term.lost
        assert term.remaining == 0
        with pytest.raises(LeaseLost):
            term.check()
        assert await term.wait_lost() is True
        assert newer.token > term.token
        newer.check()
        one.tap.heal()
        first.resign()  # the body goes on to its next term, and queues behind the second
        await waiting(two, "scheduler")
        second.resign()
        assert await second.join() == 1
        assert (await first.leads(2)).token > newer.token
        first.resign()
        assert await first.join() == 2


async def test_a_term_as_a_context_ends_quietly_when_it_is_lost(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        ended = []

        async def campaign() -> None:
            async for term in locks.election("scheduler").terms():
                async with term:
                    clock.advance(31)
                    term.check()
                    raise AssertionError("the body went on")
                ended.append(term.token)
                if len(ended) == 2:
                    return

        await spawn(campaign).join()
        assert ended[0] < ended[1]


async def test_a_term_hides_no_other_error(url: str, clock: ManualClock) -> None:
    """Neither the body's own one nor the loss of another lease."""
    async with Client(url, clock=clock) as locks:
        other = await locks.lock("other", renew=False).acquire()
        election = locks.election("scheduler", ttl=1000)

        async def lead(body: Callable[[], object]) -> None:
            async with Term(await election.lead().acquire()):
                body()

        with pytest.raises(KeyError):
            await lead(lambda: {"a": 1}["b"])
        clock.advance(31)
        with pytest.raises(LeaseLost, match="'other'"):
            await lead(other.check)
        assert await election.leader() is None


async def test_resigning_is_quiet_and_final(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        election = locks.election("scheduler")
        async for term in election.terms():
            assert term.resource == "scheduler"
            assert term.fence.token == term.token
            assert await term.wait_lost(0) is False
            await term.resign()
            assert await election.leader() is None
            with pytest.raises(NotHeld):
                term.check()
            await term.resign()
            break
        async for term in election.terms():
            clock.advance(31)
            await term.resign()  # it is over anyway
            assert term.lost
            break


async def test_leaving_the_loop_resigns(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:

        async def campaign(error: type[Exception] | None) -> None:
            async for term in locks.election("scheduler").terms():
                term.check()
                if error is not None:
                    raise error
                break

        await spawn(campaign, None).join()
        async with other.election("scheduler").lead(timeout=5):  # in asyncio it takes a moment
            pass
        with pytest.raises(KeyError):
            await spawn(campaign, KeyError).join()
        async with other.election("scheduler").lead(timeout=5):
            pass


async def test_an_outage_only_delays_the_next_term(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        locks.tap.before["claim"] = unanswered
        candidate = Candidate(locks.election("scheduler"), most=1)
        # Longer than an acquire without a timeout bears it, several times over.
        await eventually(lambda: locks.tap.count("claim") > 50, lambda: clock.advance(0.5))
        assert candidate.terms == []
        locks.tap.heal()
        await eventually(lambda: candidate.terms, lambda: clock.advance(0.5))
        candidate.resign()
        assert await candidate.join() == 1


async def test_what_waiting_does_not_mend_ends_the_campaign(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as holder, holder.lock("scheduler", ttl=1000):
        async with Client(url, clock=clock) as locks:
            campaign = Candidate(locks.election("scheduler"))
            observer = spawn(observe, locks.election("scheduler"), 2)
            await waiting(holder, "scheduler")
        for call in (campaign, observer):
            with pytest.raises(LockError, match="closed"):
                await call.join()
        assert campaign.terms == []


async def observe(election: Election, count: int, seen: list[str | None] | None = None) -> list[str | None]:
    """Return the values that were seen, as soon as there are so many."""
    seen = [] if seen is None else seen
    async for leader in election.observe():
        seen.append(leader.value if leader is not None else None)
        if len(seen) == count:
            break
    return seen


async def test_an_observer_sees_every_change(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        seen: list[str | None] = []
        observer = spawn(observe, other.election("scheduler"), 5, seen)

        async def sees(*values: str | None) -> None:
            await eventually(lambda: seen == list(values), lambda: clock.advance(0.01))  # sqlite looks by the clock

        await sees(None)
        async with locks.election("scheduler", value="one", ttl=1000).lead() as lease:
            await sees(None, "one")
            await lease.renew()  # no change
        await sees(None, "one", None)
        last = await locks.election("scheduler", value="two", ttl=1000).lead().acquire()
        await sees(None, "one", None, "two")
        await last.release()
        await sees(None, "one", None, "two", None)
        await observer.join()


async def test_an_observer_sees_a_term_run_out(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks, Client(url, clock=clock) as other:
        lease = await locks.election("scheduler", value="one").lead().acquire()
        await locks.orphan()
        seen: list[str | None] = []
        observer = spawn(observe, other.election("scheduler"), 2, seen)
        await eventually(lambda: seen == ["one"])
        clock.advance(31)
        assert await observer.join() == ["one", None]
        assert lease.lost


async def test_an_observer_is_told_of_an_outage(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        locks.tap.before["inspect"] = unanswered
        with pytest.raises(StoreUnavailable):
            await observe(locks.election("scheduler"), 1)


async def test_one_term_is_a_lock(url: str, clock: ManualClock) -> None:
    told: list[Lease] = []
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        election = locks.election("scheduler", on_lost=told.append)
        lease = await election.lead().acquire()
        with pytest.raises(AcquireTimeout, match="'scheduler' is busy"):
            await other.election("scheduler").lead(timeout=0).acquire()
        assert await other.lock("scheduler").try_acquire() is None
        clock.advance(31)
        with pytest.raises(LeaseLost):
            await lease.release()
        await eventually(lambda: told == [lease])


@pytest.mark.parametrize("value", [5, b"a", "x" * 4097, "\ud800"], ids=lambda value: repr(value)[:9])
async def test_a_value_is_text_of_bounded_size(url: str, value: object) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match="value"):
            locks.election("scheduler", value=value)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ttl"):
            locks.election("scheduler", ttl=0)
        with pytest.raises(ValueError, match="resource"):
            locks.election("")
