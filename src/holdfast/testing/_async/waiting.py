"""Laws 6, 7 and 8: who comes after a crash, in which order, and who is woken."""

from __future__ import annotations

from ...core.claim import Claim, Granted, Waiting
from ..law import law
from . import runtime
from .case import Case, CaseClient
from .runtime import Call, eventually

_FAR = 1e6


@law(6)
async def crashed_holder_is_followed_by_the_next_live_waiter(case: Case) -> None:
    """A holder that is kept no more loses the resource to who waits, past a waiter that is dead too."""
    store, crashed, client = await case.store(), await case.client(), await case.client()
    lease = await crashed.lock("r", ttl=case.ttl).acquire()
    await crashed.orphan()
    await store.claim(case.claim())  # a waiter that never asks again
    call = case.spawn(client.lock("r", ttl=case.ttl).acquire)
    await case.waiting(2)
    await case.advance(case.ttl + case.capabilities.waiting_life + 0.5)
    next_lease = await call.join()
    assert next_lease.token > lease.token
    assert lease.lost


@law(6, "fair")
async def dead_waiter_does_not_block_the_line(case: Case) -> None:
    """Whoever stands behind a dead waiter moves up when that one's waiting life is over."""
    store, client = await case.store(), await case.client()
    holder, dead = case.claim(ttl=100), case.claim()
    await store.claim(holder)
    await store.claim(dead)
    call = case.spawn(client.lock("r", ttl=60).acquire)
    await case.waiting(2)
    await store.release("r", holder.holder)
    await case.advance(case.capabilities.waiting_life + case.past)
    await (await call.join()).release()


@law(6)
async def holder_that_runs_out_is_followed_without_any_wake_up(case: Case) -> None:
    """A waiter needs nobody to tell it that the claim ahead has expired."""
    store, client = await case.store(), await case.client()
    await store.claim(case.claim(ttl=case.real_ttl))
    call = case.spawn(client.lock("r", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    await case.advance(case.real_ttl + case.past)
    await call.join()


@law(7, "fair")
async def waiters_are_served_in_order_of_arrival(case: Case) -> None:
    """First come, first served, and nobody is left out."""
    store = await case.store()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    served: list[int] = []

    async def wait(client: CaseClient, number: int) -> None:
        async with client.lock("r", ttl=60):
            served.append(number)

    calls = []
    shared = await case.client()
    for number in range(6):
        calls.append(case.spawn(wait, shared if number % 2 else await case.client(), number))
        await case.waiting(number + 1)
    await store.release("r", holder.holder)
    for call in calls:
        await call.join()
    assert served == list(range(6))


@law(7, "fair")
async def late_claim_does_not_overtake(case: Case) -> None:
    """A free resource with a line before it is not free for who comes now; asking again keeps one's place."""
    store = await case.store()
    holder, first, second = case.claim(ttl=100), case.claim(), case.claim()
    for claim in (holder, first, second, first):
        await store.claim(claim)
    await store.release("r", holder.holder)
    assert isinstance(await store.claim(case.claim(), False), Waiting)
    assert isinstance(await store.claim(second), Waiting)
    assert isinstance(await store.claim(first), Granted)


@law(7, "unfair")
async def unfair_claim_overtakes_when_the_resource_is_free(case: Case) -> None:
    """fair=False takes a free resource although others wait, never one that is held; they keep their places."""
    store, client = await case.store(), await case.client()
    holder, waiter = case.claim(ttl=100), case.claim()
    await store.claim(holder)
    await store.claim(waiter)
    unfair = client.lock("r", ttl=60, fair=False)
    assert await unfair.try_acquire() is None
    await store.release("r", holder.holder)
    lease = await unfair.try_acquire()
    assert lease is not None
    assert isinstance(await store.claim(waiter), Waiting)
    await lease.release()
    assert isinstance(await store.claim(waiter), Granted)


@law(7, "fair", "shared")
async def readers_do_not_starve_a_waiting_writer(case: Case) -> None:
    """A reader that comes after a waiting writer waits behind it."""
    store = await case.store()
    reader, writer, late = case.claim(weight=1), case.claim(), case.claim(weight=1)
    assert isinstance(await store.claim(reader), Granted)
    assert isinstance(await store.claim(writer), Waiting)
    assert isinstance(await store.claim(late), Waiting)
    await store.release("r", reader.holder)
    assert isinstance(await store.claim(late), Waiting)
    assert isinstance(await store.claim(writer), Granted)
    assert isinstance(await store.claim(late), Waiting)
    await store.release("r", writer.holder)
    assert isinstance(await store.claim(late), Granted)


class _Line:
    """Waiters in a known order, each with its client: who asked the store again was woken."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clients: list[CaseClient] = []
        self.calls: list[Call[int]] = []

    async def join(self, *claims: Claim) -> None:
        """Add waiters, one after another."""
        for claim in claims:
            client = await self.case.client()
            self.clients.append(client)
            self.calls.append(self.case.spawn(client.claim, claim))
            await eventually(lambda client=client: client.tap.count("wait") > 0)  # type: ignore[misc]

    async def expect(self, *granted: int) -> None:
        """Demand that these are granted, having asked twice, and that nobody else was woken."""
        for number in granted:
            await self.calls[number].join()
        await runtime.pause(0.03)  # time to ask for whoever was woken in vain
        asked = [client.tap.count("claim") for client in self.clients]
        assert asked == [2 if number in granted else 1 for number in range(len(asked))]


@law(8)
async def release_wakes_the_next_at_once(case: Case) -> None:
    """A waiter gets the resource when it is released, not when it would have asked again anyway."""
    client, store = await case.client(), await case.store()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    call = case.spawn(client.lock("r", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    released = case.clock.now()
    await store.release("r", holder.holder)
    await call.join()
    # Where time is driven, none has passed; elsewhere the next refresh of its place is still far.
    assert case.clock.now() - released < case.capabilities.waiting_life / 6


@law(8, "driven", "exact")
async def release_wakes_only_who_can_go(case: Case) -> None:
    """Of many waiters the first is woken, and nobody else asks."""
    store, line = await case.store(), _Line(case)
    holder = case.claim(ttl=100)
    await store.claim(holder)
    await line.join(*(case.claim(ttl=100) for _ in range(4)))
    await store.release("r", holder.holder)
    await line.expect(0)


@law(8, "driven", "exact", "shared", "fair")
async def release_wakes_all_readers_at_the_head(case: Case) -> None:
    """Readers before the next writer go together; the writer and who stands behind it sleep on."""
    store, line = await case.store(), _Line(case)
    holder = case.claim(ttl=100)
    await store.claim(holder)
    await line.join(*(case.claim(weight=weight, ttl=100) for weight in (1, 1, holder.weight, 1)))
    await store.release("r", holder.holder)
    await line.expect(0, 1)


@law(8, "driven", "exact", "shared", "fair")
async def withdrawn_writer_wakes_the_readers_behind_it(case: Case) -> None:
    """A writer that gives up frees the way for the readers that only waited for it."""
    store, line = await case.store(), _Line(case)
    reader, writer = case.claim(weight=1, ttl=100), case.claim(ttl=100)
    await store.claim(reader)
    await store.claim(writer)
    await line.join(case.claim(weight=1, ttl=100), case.claim(weight=1, ttl=100), case.claim(ttl=100))
    await store.release("r", writer.holder)
    await line.expect(0, 1)


@law(8, "driven", "exact", "shared")
async def permit_given_back_wakes_one(case: Case) -> None:
    """One permit that becomes free is for one waiter."""
    store, line = await case.store(), _Line(case)
    holders = [case.claim(weight=1, capacity=2, ttl=100) for _ in range(2)]
    for claim in holders:
        await store.claim(claim)
    await line.join(*(case.claim(weight=1, capacity=2, ttl=100) for _ in range(3)))
    await store.release("r", holders[1].holder)
    await line.expect(0)


@law(8, "driven")
async def noticed_expiry_wakes_who_can_go(case: Case) -> None:
    """Whoever finds that the holder has run out wakes the waiter, even one that would have slept for much longer."""
    store, waiter, passer_by = await case.store(), await case.store(), await case.store()
    await store.claim(case.claim(ttl=1.0))
    waiting = case.claim()
    answer = await waiter.claim(waiting)
    assert isinstance(answer, Waiting)
    call = case.spawn(waiter.wait, waiting, answer, case.clock.now() + _FAR)
    await runtime.pause(0.05)  # most likely asleep by now; the law holds also if not
    await case.advance(1.1)
    assert isinstance(await passer_by.claim(case.claim(), False), Waiting)
    await call.join()
    assert isinstance(await waiter.claim(waiting), Granted)


@law(8, "driven")
async def wake_up_before_the_wait_is_not_missed(case: Case) -> None:
    """A release between the answer "wait" and the wait itself wakes all the same."""
    client, store = await case.client(), await case.store()
    holder = case.claim(ttl=100)
    await store.claim(holder)

    async def release() -> None:
        await store.release("r", holder.holder)

    client.tap.before["wait"] = release
    await case.spawn(client.lock("r", ttl=60).acquire).join()


@law(8, "driven")
async def waiter_does_not_poll(case: Case) -> None:
    """Nobody asks again before the claim ahead can have expired, or the own place in line has to be refreshed."""
    client, store = await case.client(), await case.store()
    await store.claim(case.claim(ttl=100))
    case.spawn(client.lock("r", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    for _ in range(10):
        await case.advance(case.capabilities.waiting_life / 40)
        await runtime.pause(0.01)
    assert client.tap.count("claim") == 1


@law(8, "driven")
async def waiter_refreshes_its_place(case: Case) -> None:
    """A waiter that lives keeps its place in line for longer than a waiting life."""
    client, store = await case.client(), await case.store()
    await store.claim(case.claim(ttl=100))
    case.spawn(client.lock("r", ttl=60).acquire)
    await case.waiting(1)
    (first,) = await case.waiters()
    for asked in range(2, 9):
        await case.advance(case.capabilities.waiting_life / 3 + 0.01)
        await eventually(lambda asked=asked: client.tap.count("claim") >= asked)  # type: ignore[misc]
    (still,) = await case.waiters()
    assert still.holder == first.holder
