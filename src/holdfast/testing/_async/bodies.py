"""Law 10: the body never starts without a lease."""

from __future__ import annotations

from ..._async.lease import Lease
from ..._async.lock import Lock
from ...core.lease import State
from ...errors import AcquireTimeout, LeaseLost, LockError, NotHeld, StoreUnavailable
from ..check import raises
from ..law import law
from .case import Case
from .tap import times, unanswered


async def _refused(lock: Lock, kind: type[LockError]) -> None:
    """Demand that every way to a body raises this error, and that no body runs."""
    with raises(kind):
        async with lock:
            raise AssertionError("the body of `with lock` started")
    with raises(kind):
        async with lock.acquire() as lease:
            raise AssertionError(f"the body of `with lock.acquire()` started: {lease}")

    @lock
    async def decorated() -> None:
        raise AssertionError("the decorated function started")

    with raises(kind):
        await decorated()


@law(10)
async def body_does_not_start_while_the_resource_is_busy(case: Case) -> None:
    """A `with` that timed out raises AcquireTimeout, and so does a decorated function."""
    store, client = await case.store(), await case.client()
    await store.claim(case.claim(ttl=100))
    await _refused(client.lock("r", ttl=case.ttl, timeout=0), AcquireTimeout)


@law(10)
async def body_does_not_start_without_an_answer(case: Case) -> None:
    """An outage raises StoreUnavailable, also where the store granted and only its answer went astray."""
    for lost in ("before", "after"):
        client = await case.client()
        getattr(client.tap, lost)["claim"] = unanswered
        await _refused(client.lock("r", ttl=case.ttl, timeout=0), StoreUnavailable)
        client.tap.heal()
        await case.nothing_left()


@law(10, "driven")
async def grant_that_ran_out_on_its_way_is_not_used(case: Case) -> None:
    """An answer that took longer than the ttl is no lease: the resource is asked for anew while there is time."""
    client = await case.client()

    async def slow() -> None:
        await case.advance(case.ttl)

    client.tap.after["claim"] = times(1, slow)
    async with client.lock("r", ttl=case.ttl) as lease:
        assert lease.remaining > case.ttl * 0.9
        (seen,) = await case.holders()
        assert seen.token == lease.token
    client.tap.after["claim"] = slow
    await _refused(client.lock("r", ttl=case.ttl, timeout=1.0), StoreUnavailable)
    client.tap.heal()
    await case.nothing_left()


@law(10)
async def lost_lease_cannot_be_entered(case: Case) -> None:
    """A lease that ended between acquire and `with` raises LeaseLost, one that was released NotHeld."""
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await client.orphan()
    await case.advance(case.ttl)
    with raises(LeaseLost):
        async with lease:
            raise AssertionError("the body started")
    other = await (await case.client()).lock("r2", ttl=60).acquire()
    await other.release()
    with raises(NotHeld):
        async with other:
            raise AssertionError("the body started")


@law(10)
async def body_runs_once_with_its_lease(case: Case) -> None:
    """The control of this law: with a free resource every way to a body runs it, and releases after it."""
    client = await case.client()
    lock = client.lock("r", ttl=case.ttl, timeout=0)
    ran: list[State | None] = []
    async with lock as lease:
        ran.append(lease.state)
    async with lock.acquire() as lease:
        ran.append(lease.state)

    @lock
    async def decorated(*, lease: Lease | None = None) -> None:
        ran.append(None if lease is None else lease.state)

    await decorated()
    assert ran == ["held"] * 3
    assert await case.holders() == []
