"""Law 14: close() releases, withdraws and ends everything; detached claims stay until their time is over."""

from __future__ import annotations

from ...errors import LeaseLost, LockError, NotHeld
from ..check import ROUNDING, open_files, raises
from ..law import law
from . import runtime
from .case import Case
from .runtime import eventually
from .tap import times, unanswered


@law(14)
async def close_releases_what_is_held(case: Case) -> None:
    """When close() has returned, everything that the client held is free, and its leases say so."""
    client, rival = await case.client(), await case.client()
    leases = [await client.lock(f"r{number}", ttl=60).acquire() for number in range(3)]
    await client.close()
    for number, lease in enumerate(leases):
        assert await rival.lock(f"r{number}", ttl=60).try_acquire() is not None
        assert lease.state == "released"
        assert not lease.lost
        with raises(NotHeld):
            lease.check()
        await lease.release()


@law(14)
async def close_withdraws_what_waits(case: Case) -> None:
    """Acquires under way in other threads or tasks end with an error, and leave the line."""
    store, client = await case.store(), await case.client()
    await store.claim(case.claim(ttl=100))
    calls = [case.spawn(client.lock("r", ttl=60).acquire) for _ in range(3)]
    await case.waiting(3)
    await client.close()
    for call in calls:
        with raises(LockError):
            await call.join()
    assert await case.waiters() == []


@law(14)
async def close_may_be_called_twice(case: Case) -> None:
    """Closing again does nothing, also at the same time; a closed client refuses work and says why."""
    client = await case.client()
    await client.lock("r", ttl=60).acquire()
    calls = [case.spawn(client.close) for _ in range(2)]
    for call in calls:
        await call.join()
    await client.close()
    assert await case.holders() == []
    with raises(LockError) as caught:
        await client.lock("r", ttl=60).acquire()
    assert "closed" in caught.message
    with raises(LockError):
        await client.inspect()
    with raises(LockError):
        await client.ready()


@law(14)
async def close_ends_threads_tasks_and_sockets(case: Case) -> None:
    """After close() nothing of the client runs and no file or socket of it is open, although it renewed, waited, and
    released in the background.
    """
    store = await case.store()
    await store.claim(case.claim("busy", ttl=100))
    await store.close()  # its claim stays; SQLite keeps files open while another connection of the process has them
    ran, opened = runtime.running(), open_files()
    client = await case.client()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await lease.renew()
    await case.advance(case.ttl / 3)
    await client.tap.reached("renewals", 2)
    client.tap.before["release"] = times(1, unanswered)
    await (await client.lock("r2", ttl=60).acquire()).release()
    await case.until(lambda: "r2" in client.tap.released)
    call = case.spawn(client.lock("busy", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    await client.close()
    with raises(LockError):
        await call.join()
    await eventually(lambda: runtime.running() <= ran)
    await eventually(lambda: len(open_files()) <= len(opened))


@law(14)
async def unused_client_costs_nothing(case: Case) -> None:
    """Connecting does no I/O and starts nothing; closing an unused client is fine."""
    ran, opened = runtime.running(), open_files()
    client = await case.client()
    client.lock("r", ttl=60)
    await runtime.pause(0.02)  # time for a thread that would begin
    assert client.tap.calls == []
    assert runtime.running() <= ran
    assert len(open_files()) <= len(opened)
    await client.close()


@law(14)
async def client_is_a_context_manager(case: Case) -> None:
    """Leaving the `with` of a client closes it."""
    client = await case.client()
    async with client as entered:
        assert entered is client
        await client.lock("r", ttl=60).acquire()
    assert await case.holders() == []


@law(14)
async def close_inside_a_body_ends_its_lease_quietly(case: Case) -> None:
    """A body whose client was closed holds nothing any more; leaving it raises nothing."""
    client = await case.client()
    async with client.lock("r", ttl=60) as lease:
        await client.close()
        with raises(NotHeld):
            lease.check()
    assert await case.holders() == []


@law(14, "detached")
async def detached_claims_outlive_their_client(case: Case) -> None:
    """With renew=False neither close() nor the keeper touches the claim: it ends at its ttl."""
    client, rival = await case.client(), await case.client()
    lease = await client.lock("r", ttl=case.ttl, renew=False).acquire()
    await client.close()
    assert await rival.lock("r", ttl=60).try_acquire() is None
    (seen,) = await case.holders()
    assert seen.detached
    assert seen.token == lease.token
    await case.advance(case.ttl + case.past)
    assert await rival.lock("r", ttl=60).try_acquire() is not None


@law(14, "detached")
async def unrenewed_lease_is_lost_at_its_ttl(case: Case) -> None:
    """renew=False means what it says: the lease ends, its holder knows; released in time it is free at once."""
    client, rival = await case.client(), await case.client()
    lock = client.lock("r", ttl=case.ttl, renew=False)
    lease = await lock.acquire()
    await lease.release()
    lease = await lock.acquire()
    await runtime.pause(0.03)  # time for a keeper that would renew
    await case.advance(case.ttl)
    assert lease.lost
    assert client.tap.count("renew") == 0
    with raises(LeaseLost):
        await lease.release()
    await case.advance(case.past)
    assert await rival.lock("r", ttl=60).try_acquire() is not None


@law(14, "detached")
async def min_hold_keeps_the_resource_taken(case: Case) -> None:
    """A resource that was released early stays taken until min_hold is over, and not longer."""
    client, rival = await case.client(), await case.client()
    hold = case.real_ttl / 2
    async with client.lock("r", ttl=case.ttl, min_hold=hold) as lease:
        pass
    assert lease.state == "released"
    assert await rival.lock("r", ttl=60).try_acquire() is None
    (seen,) = await case.holders()
    assert seen.left <= hold + ROUNDING
    await case.advance(hold + case.past)
    second = await rival.lock("r", ttl=60).try_acquire()
    assert second is not None
    assert second.token > lease.token


@law(14, "detached")
async def min_hold_outlives_the_client(case: Case) -> None:
    """close() keeps the promise of min_hold, too; after min_hold a release frees at once."""
    client, other, rival = await case.client(), await case.client(), await case.client()
    hold = case.real_ttl / 2
    await client.lock("r", ttl=60, min_hold=hold).acquire()
    late = await other.lock("r2", ttl=60, min_hold=hold).acquire()
    await client.close()
    assert await rival.lock("r", ttl=60).try_acquire() is None
    await case.advance(hold + case.past)
    assert await rival.lock("r", ttl=60).try_acquire() is not None
    await late.release()
    assert await rival.lock("r2", ttl=60).try_acquire() is not None


@law(14, "detached", "driven")
async def end_of_min_hold_reaches_who_waits(case: Case) -> None:
    """A waiter gets the resource when min_hold is over, without anybody releasing it."""
    client, waiter = await case.client(), await case.client()
    lease = await client.lock("r", ttl=60, min_hold=1.0).acquire()
    call = case.spawn(waiter.lock("r", ttl=60).acquire)
    await eventually(lambda: waiter.tap.count("wait") > 0)
    await lease.release()
    await case.advance(1.1)
    await case.until(lambda: call.done)
    await call.join()
