"""Claims that somebody breaks by hand, and leases that get longer: laws 1, 2, 3, 8 and 9."""

from __future__ import annotations

from typing import cast

from ..._async.store import FullStore
from ...core.claim import LOST, Evicted, Granted, Renewed, Waiting
from ...errors import LeaseLost, StoreUnavailable
from ..check import ROUNDING, raises
from ..law import law
from .case import Case
from .runtime import Gate, eventually, pause
from .tap import unanswered

_LONGER = 4  # times the ttl


async def _store(case: Case) -> FullStore:
    return cast(FullStore, await case.store())


@law(1, "evict")
async def broken_claim_keeps_the_resource_to_its_end(case: Case) -> None:
    """Nobody is granted beside it: it ends where the last renewal has put its end, not before and not after."""
    store, other = await _store(case), await _store(case)
    mine, rival = case.claim(), case.claim(ttl=10 * case.ttl)
    await store.claim(mine)
    await case.advance(case.ttl / 3)
    await store.renew([mine])  # between the look and the break: a time taken at the look would be too short
    evicted = await other.evict("r", mine.holder)
    assert evicted is not None
    assert case.ttl * 0.6 <= evicted.left <= case.ttl + case.past + ROUNDING
    assert isinstance(await other.claim(rival, False), Waiting)
    await case.advance(case.ttl * 0.4)
    assert isinstance(await other.claim(rival, False), Waiting)
    await case.advance(case.ttl * 0.6 + case.past)
    assert isinstance(await other.claim(rival, False), Granted)


@law(3, "evict")
async def broken_claim_is_renewed_no_more(case: Case) -> None:
    """From then on its renewals are lost, and others see it; a break that is repeated changes nothing."""
    store, other = await _store(case), await _store(case)
    mine = case.claim()
    await store.claim(mine)
    first = await other.evict("r", mine.holder)
    assert await store.renew([mine]) == [LOST]
    again = await other.evict("r", mine.holder)
    assert first is not None
    assert again is not None
    assert 0 < again.left <= first.left + ROUNDING
    (seen,) = await case.holders()
    assert (seen.holder, seen.broken) == (mine.holder, True)
    await case.advance(case.ttl + case.past)
    assert await case.holders() == []


@law(3, "evict")
async def only_who_is_named_is_broken(case: Case) -> None:
    """Whoever has come meanwhile, and whoever waits, is left alone."""
    store, other = await _store(case), await _store(case)
    gone, mine, waiting = case.claim(), case.claim(), case.claim()
    await store.claim(gone)
    await store.release("r", gone.holder)
    await store.claim(mine)
    assert isinstance(await store.claim(waiting), Waiting)
    for at_once in (False, True):
        assert await other.evict("r", gone.holder, at_once) is None
        assert await other.evict("r", waiting.holder, at_once) is None
    (renewed,) = await store.renew([mine])
    assert isinstance(renewed, Renewed)
    assert await store.release("r", mine.holder) is True


@law(3, "evict")
async def release_of_a_broken_claim_ends_it(case: Case) -> None:
    """A holder that gives back what was broken frees it: there is nothing left to wait for."""
    store, other = await _store(case), await _store(case)
    mine = case.claim()
    await store.claim(mine)
    assert await other.evict("r", mine.holder) is not None
    assert await store.release("r", mine.holder) is True
    assert isinstance(await other.claim(case.claim(), False), Granted)


@law(3, "evict", "detached")
async def what_is_only_kept_taken_ends_when_it_is_broken(case: Case) -> None:
    """Its holder has released it, with a time to keep. Nobody works under it, so nothing has to be waited for."""
    store, other = await _store(case), await _store(case)
    mine = case.claim(detached=True)
    await store.claim(mine)
    assert await store.release("r", mine.holder, case.ttl / 2) is True
    assert isinstance(await other.claim(case.claim(), False), Waiting)
    assert await other.evict("r", mine.holder) == Evicted(0.0)
    assert isinstance(await other.claim(case.claim(), False), Granted)


@law(2, "evict")
async def successor_of_a_broken_lease_has_a_higher_token(case: Case) -> None:
    """Broken at once, a lock goes to the next in line, who is woken (law 8), and a guard can tell the two apart."""
    client, other = await case.client(), await case.client()
    lease = await client.lock("r", ttl=60).acquire()
    call = case.spawn(other.lock("r", ttl=60).acquire)
    await case.waiting(1)
    (broken,) = await other.break_lock("r", reason="hung", now=True)
    assert (broken.token, broken.left, broken.broken) == (lease.token, 0.0, True)
    assert (await call.join()).token > lease.token


@law(3, "evict", "shared")
async def all_who_share_are_broken(case: Case) -> None:
    """Permits and readers, one by one; each ends by itself."""
    client, other = await case.client(), await case.client()
    first = await client.semaphore("r", permits=3, ttl=case.ttl).acquire()
    second = await other.semaphore("r", permits=3, ttl=60).acquire()
    broken = await other.break_lock("r", reason="wrong deploy")
    assert {one.token for one in broken} == {first.token, second.token}
    assert {one.token for one in await other.holders("r")} == {first.token, second.token}
    assert all(one.broken for one in await other.holders("r"))
    await other.break_lock("r", reason="wrong deploy", now=True)
    assert await other.holders("r") == []


@law(9, "evict")
async def holder_learns_that_its_lease_was_broken(case: Case) -> None:
    """The next renewal tells, and so does leaving the `with`; before that nobody else is granted."""
    client, other = await case.client(), await case.client()
    with raises(LeaseLost):
        async with client.lock("r", ttl=case.ttl, on_lost=bool) as lease:
            (broken,) = await other.break_lock("r", reason="hung")
            assert broken.token == lease.token
            assert await other.lock("r").try_acquire() is None
            with raises(LeaseLost):
                await lease.renew()
            assert lease.lost
            assert await other.lock("r").try_acquire() is None


@law(9, "extend")
async def extended_lease_lasts_longer(case: Case) -> None:
    """Its holder and the store agree on the longer time, also when the holder dies."""
    client, store = await case.client(), await case.store()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await lease.extend(_LONGER * case.ttl)
    assert lease.ttl == _LONGER * case.ttl
    assert lease.remaining > (_LONGER - 1) * case.ttl
    await client.orphan()
    await case.advance((_LONGER - 1) * case.ttl)
    lease.check()
    assert isinstance(await store.claim(case.claim(), False), Waiting)
    await case.advance(case.ttl + case.past)
    assert lease.lost
    assert isinstance(await store.claim(case.claim(), False), Granted)


@law(9, "extend")
async def renewals_keep_the_longer_time(case: Case) -> None:
    """What was extended stays so: the next renewal asks for the longer time, too."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    token = lease.token
    await lease.extend(_LONGER * case.ttl)
    await case.advance(case.ttl / 2)
    await lease.renew()
    assert lease.remaining > (_LONGER - 0.5) * case.ttl
    assert lease.token == token


@law(9, "extend")
async def extension_without_an_answer_extends_nothing(case: Case) -> None:
    """The deadline stays where it was."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    client.tap.before["renew"] = unanswered
    with raises(StoreUnavailable):
        await lease.extend(_LONGER * case.ttl)
    assert lease.remaining <= case.ttl


@law(9, "extend", "driven")
async def lost_lease_is_not_extended(case: Case) -> None:
    """A renewal that came in time at the store would hold the resource for the longer time, and nobody would know."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    gate = Gate()
    client.tap.before["renew"] = gate.wait
    await case.advance(case.ttl / 2)
    await eventually(lambda: gate.arrived == 1)
    call = case.spawn(lease.extend, _LONGER * case.ttl)
    await case.until(lambda: call.done)
    with raises(LeaseLost):
        await call.join()
    assert gate.arrived == 1
    client.tap.heal()
    gate.open()


@law(9, "extend", "driven")
async def late_renewal_does_not_cut_an_extended_lease_short(case: Case) -> None:
    """A renewal with the old ttl that is under way arrives first: the extension waits for it."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    gate = Gate()
    client.tap.before["renew"] = gate.wait
    await case.advance(case.ttl / 2)
    await eventually(lambda: gate.arrived == 1)
    call = case.spawn(lease.extend, _LONGER * case.ttl)
    for _ in range(20):
        await case.advance(0.01)
        await pause(0.002)
    assert gate.arrived == 1
    assert lease.remaining <= case.ttl
    client.tap.heal()
    gate.open()
    await case.until(lambda: call.done)
    await call.join()
    assert lease.remaining > (_LONGER - 1) * case.ttl
