"""Laws 3 and 4: only its holder ends or prolongs a claim, and a claim sent twice is one claim."""

from __future__ import annotations

from ...core.claim import LOST, Granted, Renewed, Waiting
from ...errors import LeaseLost, StoreUnavailable
from ..check import ROUNDING, raises
from ..law import law
from .case import Case
from .tap import times, unanswered


@law(3)
async def stranger_can_neither_renew_nor_release(case: Case) -> None:
    """Another holder's renewal is lost and its release is refused; the claim stays what it was."""
    store, other = await case.store(), await case.store()
    mine, foreign = case.claim(), case.claim()
    granted = await store.claim(mine)
    assert await other.renew([foreign]) == [LOST]
    assert await other.release("r", foreign.holder) is False
    assert await other.release("r", foreign.holder, 5.0) is False
    (seen,) = await case.holders()
    assert isinstance(granted, Granted)
    assert (seen.holder, seen.token) == (mine.holder, granted.token)
    (renewed,) = await store.renew([mine])
    assert isinstance(renewed, Renewed)
    assert await store.release("r", mine.holder) is True


@law(3)
async def waiter_cannot_renew_itself_into_a_lease(case: Case) -> None:
    """A claim that waits has nothing to renew."""
    store = await case.store()
    await store.claim(case.claim())
    waiting = case.claim()
    assert isinstance(await store.claim(waiting), Waiting)
    assert await store.renew([waiting]) == [LOST]
    assert len(await case.holders()) == 1


@law(3)
async def renewal_never_brings_back_what_has_ended(case: Case) -> None:
    """A claim that ran out or was released is lost to its holder, even while nobody else wants the resource."""
    store = await case.store()
    expired, released, alive = case.claim("r1"), case.claim("r2"), case.claim("r3", ttl=4 * case.ttl)
    for claim in (expired, released, alive):
        await store.claim(claim)
    await store.release("r2", released.holder)
    await case.advance(case.ttl + case.past)
    answers = await store.renew([expired, alive, released])
    assert answers[0] == LOST
    assert isinstance(answers[1], Renewed)
    assert answers[2] == LOST
    assert [state.resource for state in await store.inspect()] == ["r3"]


@law(3)
async def releasing_a_lost_lease_raises_and_touches_nobody(case: Case) -> None:
    """The former holder learns that it is too late; the present one notices nothing."""
    client, store = await case.client(), await case.store()
    lease = await client.lock("r", ttl=case.ttl).acquire()
    await client.orphan()
    await case.advance(case.ttl + case.past)
    successor = case.claim(ttl=10 * case.ttl)
    assert isinstance(await store.claim(successor), Granted)
    with raises(LeaseLost) as caught:
        await lease.release()
    assert "'r'" in caught.message
    assert caught.error.token == lease.token
    (seen,) = await case.holders()
    assert seen.holder == successor.holder
    await lease.release()  # a second time does nothing


@law(3)
async def release_that_the_store_answers_with_not_yours_raises(case: Case) -> None:
    """A claim that an administrator ended is lost, and leaving the `with` says so."""
    client, store = await case.client(), await case.store()
    with raises(LeaseLost):
        async with client.lock("r", ttl=case.ttl) as lease:
            (seen,) = await case.holders()
            assert await store.release("r", seen.holder)
            assert not lease.lost  # nobody has told yet, and the deadline is far
    assert lease.lost


@law(4)
async def claim_sent_twice_is_one_claim(case: Case) -> None:
    """Granted twice it has the same token and one release ends it; waiting twice it has one place in line."""
    store = await case.store()
    mine, waiting = case.claim(), case.claim()
    first, again = await store.claim(mine), await store.claim(mine)
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert first.token == again.token
    assert again.left <= case.ttl + ROUNDING
    await store.claim(waiting)
    await store.claim(waiting)
    assert len(await case.holders()) == 1
    assert len(await case.waiters()) == 1
    assert await store.release("r", mine.holder) is True
    assert await store.release("r", mine.holder) is False
    assert isinstance(await store.claim(waiting), Granted)


@law(4)
async def asking_again_does_not_prolong(case: Case) -> None:
    """A claim that is sent once more after its grant has no more time left than before."""
    store = await case.store()
    mine = case.claim()
    await store.claim(mine)
    await case.advance(case.ttl / 2)
    again = await store.claim(mine)
    assert isinstance(again, Granted)
    assert again.left <= case.ttl * 0.51


@law(4)
async def grant_whose_reply_was_lost_is_found_again(case: Case) -> None:
    """The store granted, the answer went astray: the next try gets that grant, and one release ends it."""
    client = await case.client()
    client.tap.after["claim"] = times(2, unanswered)
    call = case.spawn(client.lock("r", ttl=100).acquire)
    await case.until(lambda: call.done)
    lease = await call.join()
    (seen,) = await case.holders()
    assert seen.token == lease.token
    assert client.tap.count("claim") == 3
    await lease.release()
    await case.nothing_left()


@law(4)
async def place_in_line_whose_reply_was_lost_is_found_again(case: Case) -> None:
    """A waiting claim that had to be sent again stands in line once."""
    store, client = await case.store(), await case.client()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    client.tap.after["claim"] = times(1, unanswered)
    call = case.spawn(client.lock("r", ttl=100).acquire)
    await case.until(lambda: client.tap.count("wait") > 0)
    assert len(await case.waiters()) == 1
    await store.release("r", holder.holder)
    await (await call.join()).release()
    await case.nothing_left()


@law(4)
async def release_whose_reply_was_lost_is_done_once(case: Case) -> None:
    """A release without an answer raises nothing, and the keeper sees to it that the resource becomes free."""
    client = await case.client()
    for hooks in (client.tap.after, client.tap.before):
        hooks["release"] = times(1, unanswered)
        lease = await client.lock("r", ttl=100).acquire()
        await lease.release()
        await case.until(lambda: client.tap.count("release") % 2 == 0)
        await case.nothing_left()


@law(4)
async def renewal_whose_reply_was_lost_harms_nobody(case: Case) -> None:
    """A renewal without an answer may have happened; asking again settles it, and the lease lives on."""
    client = await case.client()
    lease = await client.lock("r", ttl=100).acquire()
    client.tap.after["renew"] = times(1, unanswered)
    with raises(StoreUnavailable):
        await lease.renew()
    await lease.renew()
    assert lease.state == "held"
    await lease.release()
