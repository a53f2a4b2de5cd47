"""Law 5: an acquire that was given up leaves nothing that outlives its waiting life, or its ttl if it was granted."""

from __future__ import annotations

from ...core.claim import Granted, Waiting
from ...errors import AcquireTimeout, StoreUnavailable
from ..check import Interrupt, raises
from ..law import law
from . import runtime
from .case import Case
from .tap import times, unanswered

_MOST_POINTS = 25  # await points of one acquire that are tried


async def _interrupted() -> None:
    raise Interrupt


@law(5)
async def timed_out_acquire_leaves_nothing(case: Case) -> None:
    """Whoever waited in vain is out of the line."""
    store, client = await case.store(), await case.client()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    call = case.spawn(client.lock("r", ttl=case.ttl).acquire, 0.5)
    await case.waiting(1)
    await case.advance(0.6)
    with raises(AcquireTimeout) as caught:
        await call.join()
    assert holder.owner in caught.message
    assert caught.error.owner == holder.owner
    await case.waiting(0)
    await store.release("r", holder.holder)
    await case.nothing_left()


@law(5)
async def asking_once_leaves_nothing(case: Case) -> None:
    """With timeout=0 a busy resource is told at once, and nobody stands in line for a moment."""
    store, client = await case.store(), await case.client()
    await store.claim(case.claim(ttl=100))
    with raises(AcquireTimeout):
        await client.lock("r", ttl=case.ttl).acquire(0)
    assert await client.lock("r", ttl=case.ttl).try_acquire() is None
    assert await case.waiters() == []
    assert isinstance(await store.claim(case.claim(), False), Waiting)
    assert await case.waiters() == []


@law(5)
async def acquire_cut_off_by_an_outage_leaves_nothing(case: Case) -> None:
    """The store granted, but no answer ever came: the claim is withdrawn when the store answers again."""
    for timeout in (0, 0.5, None):
        client = await case.client(io_timeout=1.0)
        client.tap.after["claim"] = unanswered
        client.tap.before["release"] = unanswered
        call = case.spawn(client.lock("r", ttl=60).acquire, timeout)
        await case.until(lambda call=call: call.done)  # type: ignore[misc]
        with raises(StoreUnavailable):
            await call.join()
        assert len(await case.holders()) == 1
        client.tap.heal()
        await case.advance(1.0)
        await case.nothing_left()


@law(5)
async def interrupted_acquire_leaves_nothing(case: Case) -> None:
    """An interrupt before, in or after the exchange with the store does not leave the claim behind."""
    client = await case.client()
    for hooks in (client.tap.before, client.tap.after):
        hooks["claim"] = _interrupted
        with raises(Interrupt):
            await client.lock("r", ttl=60).acquire()
        with raises(Interrupt):
            async with client.lock("r", ttl=60):
                raise AssertionError("the body started")
        client.tap.heal()
        await case.nothing_left()


@law(5)
async def interrupted_wait_leaves_nothing(case: Case) -> None:
    """An interrupt while waiting gives the place in line back."""
    store, client = await case.store(), await case.client()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    for hooks in (client.tap.before, client.tap.after):
        hooks["wait"] = _interrupted
        call = case.spawn(client.lock("r", ttl=60).acquire)
        await case.until(lambda call=call: call.done)  # type: ignore[misc]
        with raises(Interrupt):
            await call.join()
        client.tap.heal()
        await case.waiting(0)
    await store.release("r", holder.holder)
    await case.nothing_left()


@law(5)
async def interrupted_release_is_finished_by_the_keeper(case: Case) -> None:
    """An interrupt in the middle of a release does not leave the resource taken."""
    client = await case.client()
    for hooks in (client.tap.before, client.tap.after):
        lease = await client.lock("r", ttl=60).acquire()
        hooks["release"] = times(1, _interrupted)
        with raises(Interrupt):
            await lease.release()
        client.tap.heal()
        await case.nothing_left()


@law(5, "cancel")
async def acquire_cancelled_at_any_await_leaves_nothing(case: Case) -> None:
    """Wherever a cancellation strikes an acquire of a free resource, nothing stays behind."""
    client = await case.client()

    async def give_way() -> None:  # before the store has acted and after it, also where it answers at once
        await runtime.pause(0)

    for hooks in (client.tap.before, client.tap.after):
        hooks["claim"] = hooks["release"] = give_way

    async def take() -> None:
        lease = await client.lock("r", ttl=60).acquire()
        await lease.release()

    for point in range(_MOST_POINTS):
        struck = await runtime.cancelled_at(point, take)
        await case.nothing_left()
        if not struck:
            return
    raise AssertionError(f"an acquire and a release of a free resource have more than {_MOST_POINTS} await points")


@law(5, "cancel")
async def wait_cancelled_at_any_await_leaves_nothing(case: Case) -> None:
    """Wherever a cancellation strikes a waiting acquire, its place in line is given back."""
    store, client = await case.store(), await case.client()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    for point in range(6):
        assert await runtime.cancelled_at(point, client.lock("r", ttl=60).acquire, patience=0.5)
        await case.waiting(0)
    await store.release("r", holder.holder)
    await case.nothing_left()


@law(5, "cancel")
async def wait_cancelled_when_its_turn_comes_leaves_nothing(case: Case) -> None:
    """A cancellation and the release that it waited for may come together; either wins, and nothing stays behind."""
    store, client = await case.store(), await case.client()
    for cancel_first in (True, False):
        holder = case.claim(ttl=100)
        await store.claim(holder)
        call = case.spawn(client.lock("r", ttl=60).acquire)
        await case.waiting(1)
        if cancel_first:
            call.cancel()
            await store.release("r", holder.holder)
        else:
            await store.release("r", holder.holder)
            call.cancel()
        await runtime.eventually(lambda call=call: call.done)  # type: ignore[misc]
        for lease in client.leases:
            if lease.state == "held":
                await lease.release()
        await case.nothing_left()


@law(5)
async def crashed_waiter_is_forgotten_after_its_waiting_life(case: Case) -> None:
    """A place in line that nobody asks for any more ends by itself."""
    store = await case.store()
    await store.claim(case.claim(ttl=100))
    await store.claim(case.claim())
    assert len(await case.waiters()) == 1
    await case.advance(case.capabilities.waiting_life + case.past)
    await case.waiting(0)


@law(5)
async def claim_that_arrives_after_its_withdrawal_is_a_ghost_that_ends(case: Case) -> None:
    """A claim that overtakes nothing and nobody keeps ends at its ttl, or at its waiting life."""
    store = await case.store()
    late, later = case.claim(), case.claim()
    assert await store.release("r", late.holder) is False
    await store.claim(late)
    assert await store.release("r", later.holder) is False
    await store.claim(later)
    await case.advance(max(case.ttl, case.capabilities.waiting_life) + case.past)
    assert isinstance(await store.claim(case.claim()), Granted)
