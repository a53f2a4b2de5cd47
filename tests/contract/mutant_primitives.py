"""Mutants of the primitives: one function of a flavour replaced."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

from holdfast.core.deadlock import Wait
from holdfast.errors import LeaseLost
from tests.contract import mutants
from tests.contract.mutants import Mutant, afterwards, either

MUTANTS: list[Mutant] = []

shell = partial(mutants.shell, MUTANTS)


# -- shares


@shell("_{}.engine", "Engine._again", "nested_read_shares_although_a_writer_waits", "reader_does_not_become_a_writer")
def forgets_what_it_holds(original: Any, asynchronous: bool) -> Any:
    return lambda engine, lock, strand, entry, endless: None


@shell(
    "_{}.ratelimit",
    "RateLimit._count",
    "hits_outlive_their_client",
    "rate_is_kept_in_any_window",
    "hits_that_wait_keep_the_rate",
)
def counts_no_hits(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda limit, hits, timeout, cancel: None)


@shell("_{}.ratelimit", "RateLimit._wait", "hits_that_wait_keep_the_rate")
def counts_no_hits_that_waited(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda limit, asked, timeout, started, silence, cancel: None)


@shell("_{}.ratelimit", "Claim", "hits_are_served_in_order_of_arrival")
def hits_overtake(original: Any, asynchronous: bool) -> Any:
    return lambda *args, fair, **options: original(*args, fair=False, **options)


@shell("_{}.engine", "Engine._adopt_leftover", "hit_that_is_given_up_leaves_no_place_in_line")
def leaves_hits_in_line(original: Any, asynchronous: bool) -> Any:
    return lambda engine, acquisition: None


@shell("_{}.lock", "Lock._supported", "claim_for_many_permits_is_not_starved")
def permits_overtake(original: Any, asynchronous: bool) -> Any:
    return lambda lock, fair: False


@shell("_{}.lock", "Semaphore._checked", "claim_for_many_permits_is_not_starved")
def takes_one_permit(original: Any, asynchronous: bool) -> Any:
    return lambda semaphore, weight: 1


# -- registers


@shell("_{}.register", "Register._tell", "paused_holder_cannot_write_after_its_successor")
def refuses_in_silence(original: Any, asynchronous: bool) -> Any:
    return lambda register, stale, fence: None


@shell("_{}.register", "Register.write", "paused_holder_cannot_write_after_its_successor")
def writes_with_any_token(original: Any, asynchronous: bool) -> Any:
    def write(register: Any, value: str, *, fence: Any, keep: float | None = None) -> Any:
        return original(register, value, fence=fence._replace(token=1 << 52), keep=keep)

    return write


@shell("_{}.register", "MOST_BYTES", "value_that_a_register_cannot_keep_is_refused")
def keeps_any_length(original: Any, asynchronous: bool) -> Any:
    return 1 << 40


@shell("_{}.register", "check_fence", "value_that_a_register_cannot_keep_is_refused")
def takes_any_fence(original: Any, asynchronous: bool) -> Any:
    return lambda fence, namespace: fence


# -- several


@shell("_{}.multi", "_give_back", "lock_all_takes_all_or_nothing", "opposite_orders_that_are_kept_do_not_deadlock")
def keeps_what_it_took(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda leases: None)


@shell("_{}.multi", "MultiLock.__init__", "opposite_orders_do_not_deadlock")
def takes_them_as_they_come(original: Any, asynchronous: bool) -> Any:
    def unsort(several: Any, engine: Any, resources: tuple[str, ...], order: str) -> None:
        several._locks = sorted(several._locks, key=lambda lock: resources.index(lock.resource))

    return afterwards(original, unsort)


@shell("_{}.multi", "_SHORT", "opposite_orders_that_are_kept_do_not_deadlock")
def waits_and_holds(original: Any, asynchronous: bool) -> Any:
    return inf


@shell("_{}.multi", "Leases.lost", "loss_of_one_is_loss_of_all")
def looks_at_the_first(original: Any, asynchronous: bool) -> Any:
    return property(lambda leases: next(iter(leases.values())).lost)


@shell(
    "_{}.multi",
    "Tree.__init__",
    "node_of_a_tree_excludes_all_below_it",
    "tree_mixes_with_locks_and_rwlocks",
    "children_do_not_starve_their_parent",
)
def locks_the_leaf_alone(original: Any, asynchronous: bool) -> Any:
    def cut(tree: Any, engine: Any, path: str) -> None:
        tree._locks = tree._locks[-1:]

    return afterwards(original, cut)


@shell("_{}.acquire", "find_deadlock", "waiter_that_closes_a_cycle_raises")
def sees_no_deadlock(original: Any, asynchronous: bool) -> Any:
    return lambda states, holder: ()


@shell("_{}.acquire", "find_deadlock", "wait_that_ends_is_no_deadlock")
def takes_every_wait_for_a_deadlock(original: Any, asynchronous: bool) -> Any:
    def found(states: Any, holder: str) -> tuple[Wait, ...]:
        return tuple(
            Wait(state.resource, waiter, state.holders[0])
            for state in states
            for waiter in state.waiters
            if waiter.holder == holder
        )

    return found


# -- elections


@shell(
    "_{}.election", "Election._shown", "one_leads_at_a_time_and_all_see_who", "observer_sees_every_change_of_the_leader"
)
def shows_nobody(original: Any, asynchronous: bool) -> Any:
    return lambda election, state: None


@shell("_{}.election", "Term.resign", "office_passes_on_when_its_leader_resigns")
def clings_to_the_office(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda term: None)


@shell("_{}.election", "Term.resign", "loss_ends_a_term_and_not_the_campaign")
def takes_a_loss_for_the_end(original: Any, asynchronous: bool) -> Any:
    def give_up(term: Any) -> None:
        if term.lost:
            raise LeaseLost("the campaign is over")

    async def resign(term: Any) -> None:
        give_up(term)
        await original(term)

    def resign_at_once(term: Any) -> None:
        give_up(term)
        original(term)

    return resign if asynchronous else resign_at_once


# -- once


@shell(
    "_{}.once",
    "Once._record",
    "concurrent_callers_get_one_result",
    "caller_that_does_not_wait_is_refused",
    "paused_run_cannot_overwrite_the_result",
    "result_whose_reply_was_lost_is_recorded_once",
)
def records_nothing(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda once, lease, outcome: outcome)


@shell("_{}.once", "Once.forget", "forgotten_result_does_not_come_back")
def forgets_nothing(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda once, name: name == "r2")


@shell("_{}.once", "FORGOTTEN", "forgotten_result_does_not_come_back")
def forgets_with_a_result(original: Any, asynchronous: bool) -> Any:
    return '["1", null]'


@shell("_{}.once", "Once.__init__", "caller_that_does_not_wait_is_refused")
def waits_anyway(original: Any, asynchronous: bool) -> Any:
    def wait(once: Any, *args: Any) -> None:
        once._wait = True

    return afterwards(original, wait)


@shell("_{}.once", "Once._enter", "concurrent_callers_get_one_result", "paused_run_cannot_overwrite_the_result")
def does_not_look_again(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda once, lease: None)


@shell("_{}.once", "Once._run", "exception_is_not_recorded")
def records_exceptions(original: Any, asynchronous: bool) -> Any:
    async def caught(run: Any, lease: Any) -> Any:
        try:
            return await run(lease)
        except KeyError:
            return None

    def caught_at_once(run: Any, lease: Any) -> Any:
        try:
            return run(lease)
        except KeyError:
            return None

    if asynchronous:
        return lambda once, name, run: original(once, name, lambda lease: caught(run, lease))
    return lambda once, name, run: original(once, name, lambda lease: caught_at_once(run, lease))


@shell("_{}.once", "backoff", "result_whose_reply_was_lost_is_recorded_once")
def sends_the_record_once(original: Any, asynchronous: bool) -> Any:
    def give_up(attempt: int) -> float:
        raise LeaseLost("no second try")

    return give_up
