"""Mutants of what both flavours share: the pure core and the keeper."""

from __future__ import annotations

import threading
import time
from functools import partial
from math import inf
from typing import Any

from holdfast.core.acquisition import Acquisition, Action, Fail, Failure, GiveBack, Pause, Wait
from holdfast.core.claim import LOST, Evicted, Lost, Renewal, Renewed, Unknown, Waiting
from holdfast.core.lease import LIVE, Fact, Hold, Outcome, State
from holdfast.core.queue import BROKEN, Queue, Step
from holdfast.errors import StoreUnavailable
from holdfast.keeper.keeper import Keeper
from tests.contract import mutants
from tests.contract.mutants import Mutant, afterwards

MUTANTS: list[Mutant] = []

shared = partial(mutants.shared, MUTANTS)


# -- acquiring


@shared(
    "core.acquisition", "local_deadline", "grant_that_ran_out_on_its_way_is_not_used", "slow_reply_shortens_the_lease"
)
def believes_later_grants_too_long(original: Any) -> Any:
    return lambda asked, ttl, left: asked + ttl + 3.0


@shared("core.acquisition", "Acquisition._granted", "slow_reply_shortens_the_lease")
def counts_from_the_answer(original: Any) -> Any:
    def granted(acquisition: Acquisition, grant: Any, since: float, now: float) -> Action:
        acquisition._asked = now
        answer: Action = original(acquisition, grant, since, now)
        return answer

    return granted


@shared(
    "core.acquisition",
    "Acquisition.silent",
    "acquire_returns_although_the_store_is_silent",
    "body_does_not_start_without_an_answer",
    "acquire_cut_off_by_an_outage_leaves_nothing",
)
def takes_an_outage_for_busy(original: Any) -> Any:
    def silent(acquisition: Acquisition, now: float) -> Action:
        original(acquisition, now)
        acquisition.waiting = Waiting(0, 1.0)
        return Fail(Failure.BUSY)

    return silent


@shared(
    "core.acquisition",
    "Acquisition.silent",
    "outage_that_ends_in_time_is_survived",
    "grant_whose_reply_was_lost_is_found_again",
    "outage_during_the_wait_is_survived",
)
def bears_no_outage(original: Any) -> Any:
    def silent(acquisition: Acquisition, now: float) -> Action:
        original(acquisition, now)
        return Fail(Failure.UNAVAILABLE)

    return silent


@shared(
    "core.acquisition",
    "Acquisition.silent",
    "acquire_returns_although_the_store_is_silent",
    "calls_return_although_the_server_is_silent",
)
def never_gives_up(original: Any) -> Any:
    def silent(acquisition: Acquisition, now: float) -> Action:
        original(acquisition, now)
        if now > acquisition.started + 0.8:  # the control has seen enough
            return Fail(Failure.UNAVAILABLE)
        return Pause(now + 0.05)

    return silent


@shared("core.acquisition", "Acquisition._give_back", "wait_ends_in_time_although_the_store_falls_silent", limit=2.5)
def withdraws_until_it_is_answered(original: Any) -> Any:
    def give_back(acquisition: Any, why: Failure, now: float) -> Action:
        original(acquisition, why, now)
        given_back = acquisition.given_back

        def again(answered: bool, now: float) -> Action:
            enough = answered or now >= acquisition.started + 1.3  # then the control has seen it
            action: Action = given_back(answered, now) if enough else GiveBack()
            return action

        acquisition.given_back = again
        return GiveBack()  # however late it is

    return give_back


@shared("core.acquisition", "Acquisition._wait", "waiter_does_not_poll")
def polls(original: Any) -> Any:
    return lambda acquisition: Wait(acquisition.waiting, acquisition._asked + 0.1)


@shared("core.acquisition", "Acquisition._wait", "waiter_refreshes_its_place")
def does_not_refresh_its_place(original: Any) -> Any:
    return lambda acquisition: Wait(acquisition.waiting, acquisition._asked + acquisition.waiting.retry_after)


# -- renewing


@shared(
    "core.lease",
    "local_deadline",
    "loss_is_told_before_the_store_can_grant_to_another",
    "slow_reply_shortens_the_lease",
)
def believes_renewals_too_long(original: Any) -> Any:
    return lambda asked, ttl, left: asked + ttl + 3.0


@shared("keeper.activities", "_renew", "slow_reply_shortens_the_lease")
def looks_at_the_clock_after_the_renewal(original: Any) -> Any:
    def renew(keeper: Any, batch: Any) -> Any:
        answered = keeper.answered
        keeper.answered = lambda holds, answers, asked: answered(holds, answers, keeper.now())
        try:
            yield from original(keeper, batch)
        finally:
            del keeper.answered

    return renew


def _told(original: Any, *, for_unknown: Renewal | None = None, for_lost: Renewal | None = None) -> Any:
    """Return what an answer means, with another in the place of some."""

    def outcome_of(hold: Hold, answer: Renewal, asked: float, now: float) -> Outcome:
        other = for_unknown if isinstance(answer, Unknown) else for_lost if isinstance(answer, Lost) else None
        outcome: Outcome = original(hold, answer if other is None else other, asked, now)
        return outcome

    return outcome_of


@shared("keeper.keeper", "outcome_of", "unknown_renewal_does_not_extend")
def takes_unknown_for_renewed(original: Any) -> Any:
    return _told(original, for_unknown=Renewed(1e9))


@shared(
    "keeper.keeper",
    "outcome_of",
    "renewal_whose_reply_was_lost_harms_nobody",
    "unknown_renewals_are_tried_again_before_the_deadline",
)
def takes_unknown_for_lost(original: Any) -> Any:
    return _told(original, for_unknown=LOST)


@shared("keeper.keeper", "outcome_of", "claim_that_the_store_has_ended_is_lost_at_the_next_renewal")
def takes_lost_for_unknown(original: Any) -> Any:
    return _told(original, for_lost=Unknown())


@shared("keeper.keeper", "Keeper.answered", "unknown_renewals_are_tried_again_before_the_deadline")
def gives_up_after_one_failure(original: Any) -> Any:
    def answered(keeper: Keeper, holds: list[Hold], answers: list[Renewal], asked: float) -> None:
        original(keeper, holds, answers, asked)
        for hold, answer in zip(holds, answers, strict=True):
            if isinstance(answer, Unknown):
                hold.renew_until = -inf

    return answered


@shared("keeper.keeper", "Keeper.answered", "answer_after_the_deadline_does_not_revive")
def revives(original: Any) -> Any:
    def answered(keeper: Keeper, holds: list[Hold], answers: list[Renewal], asked: float) -> None:
        for hold in holds:
            hold.state, hold.deadline = State.HELD, keeper.now() + 5.0
        original(keeper, holds, answers, asked)

    return answered


@shared(
    "core.agenda",
    "Agenda._plan",
    "renewals_keep_a_lease_over_many_ttls",
    "many_leases_are_kept_by_few_renewals",
    "body_that_blocks_does_not_lose_its_lease",
    "busy_body_does_not_lose_its_lease",
    "full_executor_does_not_lose_a_lease",
    "burst_of_other_calls_does_not_lose_a_lease",
)
def never_renews(original: Any) -> Any:
    return lambda agenda, hold, now, batch: original(agenda, hold, now, [])


@shared("core.agenda", "RENEW_BATCH", "many_leases_are_kept_by_few_renewals")
def renews_one_by_one(original: Any) -> Any:
    return 1


@shared("keeper.keeper", "Keeper.add", "max_hold_ends_the_renewals", "unrenewed_lease_is_lost_at_its_ttl")
def renews_for_ever(original: Any) -> Any:
    def add(keeper: Keeper, hold: Hold) -> None:
        hold.renew_until, hold.due = inf, hold.granted
        original(keeper, hold)

    return add


@shared("keeper.keeper", "Keeper.add", "lease_that_was_dropped_is_renewed_no_more")
def holds_on_to_what_was_dropped(original: Any) -> Any:
    kept = []

    def add(keeper: Keeper, hold: Hold) -> None:
        kept.append(hold)
        original(keeper, hold)

    return add


@shared("keeper.keeper", "Keeper.call", "releases_that_go_unanswered_do_not_hold_up_renewals", limit=3.0)
def calls_one_at_a_time(original: Any) -> Any:
    """Renewals stand in one line with releases."""

    def call(keeper: Keeper, verb: str, arguments: tuple[Any, ...]) -> Any:
        with vars(keeper).setdefault("mutex", threading.Lock()):
            return original(keeper, verb, arguments)

    return call


# -- losing


@shared(
    "keeper.keeper",
    "Keeper.look",
    "first_look_after_a_pause_tells",
    "releasing_a_lost_lease_raises_and_touches_nobody",
)
def leaves_the_clock_to_the_keeper(original: Any) -> Any:
    return lambda keeper, hold: hold.state


@shared(
    "keeper.keeper",
    "Keeper._tell_losses",
    "loss_is_told_to_everybody_who_asked",
    "loss_is_told_before_the_store_can_grant_to_another",
    "body_under_a_lost_lease_is_cancelled",
)
def tells_nobody(original: Any) -> Any:
    return lambda keeper: keeper.losses.clear()


# -- releasing


@shared(
    "keeper.keeper",
    "Keeper.adopt",
    "acquire_cut_off_by_an_outage_leaves_nothing",
    "interrupted_acquire_leaves_nothing",
    "interrupted_wait_leaves_nothing",
    "interrupted_release_is_finished_by_the_keeper",
    "release_whose_reply_was_lost_is_done_once",
    "acquire_cancelled_at_any_await_leaves_nothing",
    "wait_cancelled_at_any_await_leaves_nothing",
    "wait_cancelled_when_its_turn_comes_leaves_nothing",
    "body_does_not_start_without_an_answer",
    "lease_calls_return_although_the_store_is_silent",
)
def abandons_orphans(original: Any) -> Any:
    return lambda keeper, orphan: None


@shared(
    "keeper.keeper",
    "Keeper.unreleased",
    "lease_calls_return_although_the_store_is_silent",
    "release_whose_reply_was_lost_is_done_once",
)
def raises_when_a_release_goes_unanswered(original: Any) -> Any:
    def unreleased(keeper: Keeper, hold: Hold, cause: str) -> None:
        original(keeper, hold, cause)
        raise StoreUnavailable(cause)

    return unreleased


# -- beginning and ending


@shared("keeper.keeper", "Keeper.__init__", "unused_client_costs_nothing")
def starts_its_threads_at_once(original: Any) -> Any:
    return afterwards(original, lambda keeper, *args: keeper.poke())


@shared("keeper.activities", "_give_back", "close_releases_what_is_held", "client_is_a_context_manager")
def leaves_everything_behind(original: Any) -> Any:
    def give_back(keeper: Keeper, holds: list[Hold]) -> Any:
        for hold in holds:
            keeper.take_away(hold)
        yield from ()

    return give_back


@shared("keeper.activities", "_end", "detached_claims_outlive_their_client")
def releases_detached_claims(original: Any) -> Any:
    def end(keeper: Keeper) -> Any:
        keeper.attend()
        for hold in keeper.agenda.holds():
            hold.renew_until = inf
        yield from original(keeper)

    return end


@shared("keeper.keeper", "Keeper.take_away", "close_inside_a_body_ends_its_lease_quietly")
def takes_the_end_for_a_loss(original: Any) -> Any:
    return lambda keeper, hold: keeper.look(hold) in LIVE and keeper.record(hold, Fact.GONE, "closed")


@shared("keeper.keeper", "Keeper.stop", "close_ends_threads_tasks_and_sockets")
def forgets_a_thread(original: Any) -> Any:
    def stop(keeper: Keeper) -> None:
        original(keeper)
        threading.Thread(target=time.sleep, args=(1.0,), daemon=True).start()  # longer than the control waits

    return stop


# -- addresses


@shared("core.urls", "StoreURL._shown", "passwords_are_never_shown")
def shows_the_password(original: Any) -> Any:
    return lambda url, login: "{}:{}@".format(*login)


# -- broken by hand, and extended


@shared("core.queue", "Queue.renew", "broken_claim_is_renewed_no_more", "holder_learns_that_its_lease_was_broken")
def renews_what_is_broken(original: Any) -> Any:
    def renew(queue: Queue, holder: str, now: float, ttl: float) -> Step:
        mine = queue.find(holder)
        if mine is not None and mine.kept == BROKEN:
            mine.kept = 0
        step: Step = original(queue, holder, now, ttl)
        return step

    return renew


@shared(
    "core.queue", "Queue.evict",
    "broken_claim_keeps_the_resource_to_its_end", "broken_claim_is_renewed_no_more",
    "holder_learns_that_its_lease_was_broken",
)  # fmt: skip
def breaks_at_once(original: Any) -> Any:
    return lambda queue, holder, now, at_once=False: original(queue, holder, now, True)


@shared(
    "core.queue", "Queue.evict", "successor_of_a_broken_lease_has_a_higher_token", "all_who_share_are_broken"
)  # fmt: skip
def breaks_when_it_ends(original: Any) -> Any:
    return lambda queue, holder, now, at_once=False: original(queue, holder, now, False)


@shared("core.queue", "Queue.evict", "only_who_is_named_is_broken")
def breaks_whoever_holds(original: Any) -> Any:
    def evict(queue: Queue, holder: str, now: float, at_once: bool = False) -> Step:
        held = [entry.claim.holder for entry in queue.entries if entry.token]
        step: Step = original(queue, held[0] if held else holder, now, at_once)
        return step

    return evict


@shared("core.queue", "Queue.release", "release_of_a_broken_claim_ends_it")
def keeps_what_was_broken(original: Any) -> Any:
    def release(queue: Queue, holder: str, now: float, keep: float = 0.0) -> Step:
        mine = queue.find(holder)
        step: Step = original(queue, holder, now, keep) if mine is None or not mine.kept else Step(True)
        return step

    return release


@shared("core.queue", "Queue.evict", "what_is_only_kept_taken_ends_when_it_is_broken")
def takes_what_is_kept_for_held(original: Any) -> Any:
    def evict(queue: Queue, holder: str, now: float, at_once: bool = False) -> Step:
        mine = queue.find(holder)
        kept = mine is not None and mine.kept
        step: Step = Step(Evicted(mine.expires - now)) if mine and kept else original(queue, holder, now, at_once)
        return step

    return evict


@shared("keeper.keeper", "Keeper.lengthen", "extended_lease_lasts_longer", "renewals_keep_the_longer_time")
def extends_nothing(original: Any) -> Any:
    return lambda keeper, hold, ttl: None


@shared("keeper.keeper", "Keeper.lengthen", "extension_without_an_answer_extends_nothing")
def counts_on_what_it_asks_for(original: Any) -> Any:
    def lengthen(keeper: Any, hold: Any, ttl: float) -> None:
        original(keeper, hold, ttl)
        hold.deadline += ttl

    return lengthen


@shared("keeper.keeper", "Keeper.lengthened", "late_renewal_does_not_cut_an_extended_lease_short")
def does_not_wait_for_late_renewals(original: Any) -> Any:
    def lengthened(keeper: Any, hold: Any) -> bool:
        hold.shorter = inf
        return True

    return lengthened


@shared("keeper.keeper", "Keeper.lengthened", "lost_lease_is_not_extended")
def extends_what_is_lost(original: Any) -> Any:
    def lengthened(keeper: Any, hold: Any) -> bool:
        hold.shorter = inf
        return True

    return lengthened
