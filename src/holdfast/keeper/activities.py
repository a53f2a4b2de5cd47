"""What the keeper's activities do, each a generator that yields what it waits for: `Until` a time or a signal, or a
`Call` of the store. They never wait, sleep or call the store themselves. So the same code runs in threads
(`threads.drive`) and in a simulation, where every yield is a point at which anything else may happen.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ..core.claim import Renewal, Unknown
from ..core.lease import LIVE, Fact
from ..core.timing import LATENESS
from ..errors import StoreError
from ..observe.log import logger
from .threads import Call, Steps, Until

if TYPE_CHECKING:
    from ..core.agenda import Batch, Orphan
    from ..core.lease import Hold
    from .keeper import Keeper

_IDLE = 2.0  # seconds that an activity without work stays
_AFTER_A_BUG = 0.1
_SOON = 0.02


def timekeeper(keeper: Keeper) -> Steps:
    """Decide what is due and who has lost, for ever or until there has been nothing for a while."""
    idle_until = inf
    while not keeper.closed:
        keeper.next = inf
        if keeper.pulse is not None and keeper.pulse.loop.closed():
            keeper.forsaken()
        if keeper.end_by < inf:
            yield from _end(keeper)
            return
        try:
            then = keeper.attend()
            if keeper.unstaffed:
                yield from _stand_in(keeper)
                then = keeper.now()
        except Exception:  # a bug must not end the keeper: every lease of the client hangs on it
            logger.exception("the keeper failed; it goes on")
            then = keeper.now() + _AFTER_A_BUG
        now = keeper.now()
        if then < inf or idle_until == inf:
            idle_until = now + _IDLE
        elif now >= idle_until and keeper.retires("timekeeper"):
            return
        # Also when there is nothing to keep: leases that come and go before it looks again need not wake it.
        keeper.next = min(then, idle_until) if then == inf else then
        yield Until(keeper.wake, keeper.next)


def _stand_in(keeper: Keeper) -> Steps:
    """Do the work of those for whom there is no thread. Losses may be told late by that; else all would be lost."""
    names = set(keeper.unstaffed)
    keeper.unstaffed.clear()
    while "renewer" in names and keeper.renewals:
        yield from _renew(keeper, keeper.renewals.popleft())
    if "releaser" in names and (orphan := keeper.next_orphan()) is not None:  # one, then back to the clock
        yield from _release(keeper, orphan)
        keeper.forget_orphan(orphan)


def renewer(keeper: Keeper) -> Steps:
    """Renew, batch by batch."""
    while not keeper.closed:
        while keeper.renewals and not keeper.closed:
            yield from _renew(keeper, keeper.renewals.popleft())
        if not (yield Until(keeper.renew_work, keeper.now() + _IDLE)) and keeper.retires("renewer"):
            return


def _renew(keeper: Keeper, batch: Batch) -> Steps:
    holds = [hold for hold in batch.holds if hold.state in LIVE]
    asked = keeper.now()  # before asking: a slow reply must shorten the leases, never extend them
    answers: list[Renewal] = []
    cause = "the store gave too few answers"
    try:
        if holds:
            answers = yield Call("renew", ([hold.claim for hold in holds], batch.limit))
    except Exception as error:
        cause = str(error)
        if not isinstance(error, StoreError):
            logger.exception("the store failed to renew")
    if len(answers) != len(holds):
        answers = [Unknown(cause)] * len(holds)
    for hold, answer in zip(holds, answers, strict=True):
        if isinstance(answer, Unknown):
            hold.short_until = keeper.now() + LATENESS  # before it is free for others: see Keeper.lengthened
    for hold in batch.holds:
        hold.renewing = False
    keeper.answered(holds, answers, asked)


def opener(keeper: Keeper) -> Steps:
    """Open the blocking side before it is needed: the first renewal of a short lease has little time for that."""
    try:
        yield Call("ready")
    except StoreError:
        pass  # the renewal will say so


def releaser(keeper: Keeper) -> Steps:
    """Release what nobody holds any more, one by one."""
    while not keeper.closed:
        while (orphan := keeper.next_orphan()) is not None and not keeper.closed:
            # It stays there until it is done: close() must not miss one that is under way. Released twice does no harm.
            yield from _release(keeper, orphan)
            keeper.forget_orphan(orphan)
        if not (yield Until(keeper.release_work, keeper.now() + _IDLE)) and keeper.retires("releaser"):
            return


def _release(keeper: Keeper, orphan: Orphan) -> Steps:
    if keeper.now() >= orphan.until:
        return
    try:
        yield Call("release", (orphan.resource, orphan.holder, orphan.keep))
    except Exception as error:
        if not isinstance(error, StoreError):
            logger.exception("the store failed to release %r", orphan.resource)
        _note_silence(keeper)
        again = orphan.unanswered(keeper.now())
    else:
        again = orphan.answered(keeper.now())
    if again:
        keeper.schedule(orphan)


def teller(keeper: Keeper) -> Steps:
    """Tell the log and the observers what has happened, in order; at the end, all that is left within its time."""
    while True:
        tell_all(keeper)
        if keeper.closed:
            return
        if not (yield Until(keeper.news, keeper.now() + _IDLE)) and keeper.retires("teller"):
            return


def tell_all(keeper: Keeper) -> None:
    """Tell what there is to tell."""
    stream = keeper.stream
    while stream.pending() or (keeper.closed and stream.missed):
        if keeper.closed and keeper.real_now() >= keeper.end_by:
            return
        try:
            stream.deliver(keeper.now(), last=keeper.closed)
        except BaseException:  # foreign code may raise anything, and the next event has others to be told
            logger.exception("whoever was told of an event failed")


def _end(keeper: Keeper) -> Steps:
    """Give everything back, as far as the time allows, and end all activities."""
    try:
        keeper.attend()
        held: list[Hold] = []
        for hold in keeper.agenda.holds():
            if hold.renew_until == -inf:
                keeper.record(hold, Fact.RELEASED)  # a detached claim ends at its expiry, not with its client
            else:
                held.append(hold)
        most = keeper.side.most_at_once
        for start in range(0, len(held), most):
            yield from _give_back(keeper, held[start : start + most])
        while keeper.half_released() and keeper.real_now() < keeper.end_by:
            yield Until(keeper.wake, keeper.now() + _SOON)
        for orphan in dict.fromkeys((*keeper.orphans, *keeper.agenda.orphans())):
            if _may_go_on(keeper):
                yield from _release(keeper, orphan)
        keeper.attend()
    except Exception:
        logger.exception("the keeper failed to give everything back; what is left ends at its ttl")
    finally:
        keeper.stop()
    try:
        yield Call("close")
    except Exception:
        logger.exception("the store of %r could not be closed", keeper.namespace)
    keeper.tell_ended()


def _may_go_on(keeper: Keeper) -> bool:
    """Return whether there is time for one more release.

    A signal handler that closes the client may be out of time only because its own thread was inside of a lock, which
    is free when it has returned. So go on for a little longer, until the store gives no answer.
    """
    late = keeper.real_now() - keeper.end_by
    return late < 0 or (late < keeper.grace and not keeper.unanswered)


def _note_silence(keeper: Keeper) -> None:
    keeper.unanswered = keeper.real_now() >= keeper.end_by


def _give_back(keeper: Keeper, holds: list[Hold]) -> Steps:
    """Release these in one go, or one alone."""
    in_time = _may_go_on(keeper)
    taken = [hold for hold in holds if keeper.take_away(hold)]
    if not in_time:
        for hold in taken:
            logger.warning(
                "%r (token %d) was not released within close(); it ends at its ttl", hold.claim.resource, hold.token
            )
        return
    claims = [(hold.claim.resource, hold.claim.holder, keeper.keep(hold)) for hold in taken]
    answers: list[bool | StoreError] = []
    try:
        if len(claims) > 1:
            answers = yield Call("release_many", (claims,))
        elif claims:
            answers.append((yield Call("release", claims[0])))
    except Exception as error:  # one that fails must not keep the others
        if not isinstance(error, StoreError):
            logger.exception("%d claims could not be released", len(claims))
        answers = [StoreError(str(error))] * len(claims)
    for hold, answer in zip(taken, answers, strict=True):
        if isinstance(answer, StoreError):
            _note_silence(keeper)
            keeper.unreleased(hold, str(answer))
        else:
            keeper.released(hold, answer)
