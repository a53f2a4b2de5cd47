"""Law 9: an unknown renewal extends nothing, and loss is told before the store can grant to another."""

from __future__ import annotations

import gc
import warnings

from ...core import events
from ...core.claim import Granted
from ...errors import LeaseLost, StoreUnavailable
from ..check import raises
from ..law import law
from . import runtime
from .case import Case
from .runtime import eventually
from .tap import times, unanswered


@law(9, "driven")
async def unknown_renewal_does_not_extend(case: Case) -> None:
    """Renewals without an answer leave the deadline where it was: at risk first, lost at the deadline."""
    seen: list[events.Event] = []
    client = await case.client(observers=[seen.append])
    client.tap.after["renew"] = unanswered
    lease = await client.lock("r", ttl=case.ttl).acquire()
    deadline = case.clock.now() + lease.remaining
    await case.advance(case.ttl / 3 + 0.01)
    await eventually(lambda: lease.state == "at risk")
    with raises(StoreUnavailable):
        await lease.renew()
    lease.check()
    assert case.clock.now() + lease.remaining <= deadline + 1e-6
    await case.advance(lease.remaining)
    assert lease.lost
    await eventually(lambda: {events.AtRisk, events.Lost} <= {type(event) for event in seen})


@law(9, "driven")
async def unknown_renewals_are_tried_again_before_the_deadline(case: Case) -> None:
    """One renewal that went astray does not end the keeper's work: a later one saves the lease."""
    client = await case.client()
    client.tap.before["renew"] = times(2, unanswered)
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await case.advance(case.ttl / 3 + 0.01)
    for tries in (1, 2):
        await eventually(lambda tries=tries: client.tap.count("renew") >= tries)  # type: ignore[misc]
        await eventually(lambda: lease.state == "at risk")
        await case.advance(case.ttl / 12 + 0.01)
    await case.until(lambda: lease.state == "held")  # in steps: the second answer may have come after that advance
    assert lease.remaining > case.ttl * 0.9


@law(9, "driven")
async def loss_is_told_before_the_store_can_grant_to_another(case: Case) -> None:
    """At the local deadline the holder knows; the store still refuses others then, and grants only after the ttl."""
    client, rival = await case.client(), await case.client()
    told: list[float] = []
    lease = await client.lock("r", ttl=case.ttl, on_lost=lambda lost: told.append(case.clock.now())).acquire()
    for _ in range(2):  # as granted, and as renewed
        await case.advance(case.ttl / 5)
        await lease.renew()
    renewed = case.clock.now()
    client.tap.before["renew"] = unanswered
    await case.advance(lease.remaining + 0.0001)
    assert lease.lost
    assert await rival.lock("r", ttl=60).try_acquire() is None
    await eventually(lambda: bool(told))
    assert told[0] < renewed + case.ttl
    await case.advance(renewed + case.ttl - case.clock.now() + 0.001)
    successor = await rival.lock("r", ttl=60).try_acquire()
    assert successor is not None
    assert successor.token > lease.token
    assert len(told) == 1


@law(9, "driven")
async def slow_reply_shortens_the_lease(case: Case) -> None:
    """The time that an answer took is the holder's loss, whoever asked: the store counts from when it acted."""
    client, store = await case.client(), await case.store()

    async def slow() -> None:
        await case.advance(3.0)

    client.tap.after["claim"] = slow
    lease = await client.lock("r", ttl=case.ttl).acquire()
    assert lease.remaining <= case.ttl - 3.0
    client.tap.after["renew"] = slow
    await lease.renew()
    assert lease.remaining <= case.ttl - 3.0
    deadline = case.clock.now() + lease.remaining
    await case.advance(case.ttl / 3 - 3.0)  # the keeper renews
    await eventually(lambda: case.clock.now() + lease.remaining > deadline + 0.1)
    assert lease.remaining <= case.ttl - 3.0
    client.tap.heal()
    await lease.release()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    call = case.spawn(client.lock("r", ttl=case.ttl).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    client.tap.after["claim"] = slow
    await store.release("r", holder.holder)
    lease = await call.join()
    assert lease.remaining <= case.ttl - 3.0


@law(9, "driven")
async def first_look_after_a_pause_tells(case: Case) -> None:
    """A process that did not run past its ttl sees the loss at the first look, without its keeper's help."""
    client, store = await case.client(), await case.store()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await client.orphan()  # no keeper can help
    await case.advance(case.ttl + 1.0)
    assert isinstance(await store.claim(case.claim()), Granted)
    assert lease.lost
    assert lease.state == "lost"
    assert lease.remaining == 0.0
    with raises(LeaseLost):
        lease.check()
    with raises(LeaseLost):
        await lease.renew()


@law(9, "driven")
async def answer_after_the_deadline_does_not_revive(case: Case) -> None:
    """A loss that was there to be seen is final, even if the store had renewed in time."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()

    async def late() -> None:
        await case.advance(case.ttl)
        assert lease.lost

    client.tap.after["renew"] = late
    with raises(LeaseLost):
        await lease.renew()
    assert lease.lost
    assert lease.state == "lost"


@law(9)
async def renewals_keep_a_lease_over_many_ttls(case: Case) -> None:
    """A lease that is kept outlives its ttl many times, with the same token."""
    client, rival = await case.client(), await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    token = lease.token
    if case.driven:
        for _ in range(15):
            await case.advance(case.ttl / 3 + 0.01)
            await eventually(lambda: lease.remaining > case.ttl * 0.9)
    else:
        await case.advance(5 * case.ttl)
    assert lease.state == "held"
    assert lease.token == token
    assert await rival.lock("r", ttl=case.ttl).try_acquire() is None
    await lease.release()
    await case.nothing_left()


@law(9, "driven")
async def many_leases_are_kept_by_few_renewals(case: Case) -> None:
    """The leases of a client are renewed together."""
    client = await case.client()
    leases = [await client.lock(f"r{number}", ttl=case.ttl).acquire() for number in range(50)]
    for rounds in range(1, 4):
        await case.advance(case.ttl / 3 + 0.01)
        await eventually(lambda: all(lease.remaining > case.ttl * 0.9 for lease in leases))
        assert client.tap.count("renew") <= rounds * 2


@law(9)
async def loss_is_told_to_everybody_who_asked(case: Case) -> None:
    """wait_lost() returns True, on_lost is called once with the lease, and its error harms nobody."""
    client = await case.client()
    told: list[object] = []

    def on_lost(lease: object) -> None:
        told.append(lease)
        raise RuntimeError("a bug of the user")

    lease = await client.lock("r", ttl=case.ttl, renew=not case.capabilities.detached, on_lost=on_lost).acquire()
    client.tap.before["renew"] = unanswered
    assert await lease.wait_lost(0) is False
    call = case.spawn(lease.wait_lost)
    await case.advance(case.ttl)
    assert await call.join() is True
    await eventually(lambda: told == [lease])
    client.tap.heal()
    other = await client.lock("r2", ttl=case.ttl).acquire()
    call = case.spawn(other.wait_lost)
    await other.release()
    assert await call.join() is False


@law(9)
async def claim_that_the_store_has_ended_is_lost_at_the_next_renewal(case: Case) -> None:
    """The store's own word counts at once, however far the deadline is."""
    client, store = await case.client(), await case.store()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    (seen,) = await case.holders()
    await store.release("r", seen.holder)
    with raises(LeaseLost):
        await lease.renew()
    assert lease.lost


@law(9)
async def body_under_a_lost_lease_ends_with_lease_lost(case: Case) -> None:
    """A body that looks at its lease stops, and leaving the `with` raises LeaseLost."""
    client = await case.client()
    client.tap.before["renew"] = unanswered
    started = []

    async def body() -> None:
        async with client.lock("r", ttl=case.ttl) as lease:
            started.append(lease)
            while not lease.lost:
                await runtime.pause(0.002)

    call = case.spawn(body)
    await eventually(lambda: bool(started))
    await case.advance(case.ttl)
    with raises(LeaseLost):
        await call.join()


@law(9, "cancel")
async def body_under_a_lost_lease_is_cancelled(case: Case) -> None:
    """A body that never looks is cancelled, and that is told as LeaseLost, not as a cancellation."""
    client = await case.client()
    client.tap.before["renew"] = unanswered
    started: list[object] = []

    async def body() -> None:
        async with client.lock("r", ttl=case.ttl) as lease:
            started.append(lease)
            await runtime.pause(1000)

    call = case.spawn(body)
    await eventually(lambda: bool(started))
    await case.advance(case.ttl)
    with raises(LeaseLost):
        await call.join()


@law(9, "driven")
async def max_hold_ends_the_renewals(case: Case) -> None:
    """A body that hangs loses its lease after max_hold, and others can go on."""
    client, rival = await case.client(), await case.client()
    lease = await client.lock("r", ttl=case.ttl, max_hold=case.ttl).acquire()
    for _ in range(2):
        await case.advance(case.ttl / 3 + 0.01)
        await eventually(lambda: lease.remaining > case.ttl * 0.9)
    for _ in range(4):
        await case.advance(case.ttl / 3 + 0.01)
        await runtime.pause(0.03)  # time for a keeper that would go on
    assert lease.lost
    assert await rival.lock("r", ttl=60).try_acquire() is not None


@law(9, "driven")
async def lease_that_was_dropped_is_renewed_no_more(case: Case) -> None:
    """A lease that nobody can release any more ends at its ttl, with a warning."""
    client, rival = await case.client(), await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.leases.clear()
        del lease
        gc.collect()
        await eventually(lambda: any(warning.category is ResourceWarning for warning in caught))
    await case.advance(case.ttl / 3 + 0.01)
    await runtime.pause(0.02)
    await case.advance(case.ttl * 2 / 3)
    assert await rival.lock("r", ttl=60).try_acquire() is not None
    assert client.tap.count("renew") == 0
