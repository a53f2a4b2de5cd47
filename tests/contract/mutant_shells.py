"""Mutants of the shell: one function of a flavour replaced."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from holdfast.core.claim import Renewal, Renewed, Unknown
from holdfast.core.lease import State
from holdfast.errors import AcquireTimeout, LockError, StoreUnavailable
from tests.contract.mutants import Mutant

MUTANTS: list[Mutant] = []


def shell(
    module: str, target: str, *laws: str, into: list[Mutant] = MUTANTS
) -> Callable[[Callable[[Any, bool], Any]], Callable[[Any, bool], Any]]:
    """Make a mutant of the shell: the function is given the original and whether it has to be a coroutine function."""

    def register(make: Callable[[Any, bool], Any]) -> Callable[[Any, bool], Any]:
        def apply(patch: pytest.MonkeyPatch, flavour: str) -> None:
            holder: Any = import_module(f"holdfast._{flavour}.{module}")
            *path, name = target.split(".")
            for part in path:
                holder = getattr(holder, part)
            if flavour == "sync":
                name = {"__aenter__": "__enter__"}.get(name, name)
            patch.setattr(holder, name, make(getattr(holder, name), flavour == "async"))

        into.append(Mutant(make.__name__, apply, laws))
        return make

    return register


def _nothing(asynchronous: bool) -> Any:
    async def wait(*args: Any) -> None:
        pass

    return wait if asynchronous else lambda *args: None


@shell(
    "acquire",
    "local_deadline",
    "slow_reply_shortens_the_lease",
    "grant_that_ran_out_on_its_way_is_not_used",
    "first_look_after_a_pause_tells",
)
def believes_too_long(original: Any, asynchronous: bool) -> Any:
    return lambda asked, ttl, left: asked + ttl + 3.0


@shell(
    "keeper", "local_deadline", "loss_is_told_before_the_store_can_grant_to_another", "slow_reply_shortens_the_lease"
)
def believes_renewals_too_long(original: Any, asynchronous: bool) -> Any:
    return lambda asked, ttl, left: asked + ttl + 3.0


@shell("keeper", "Keeper.renewed", "unknown_renewal_does_not_extend")
def takes_unknown_for_renewed(original: Any, asynchronous: bool) -> Any:
    def renewed(keeper: Any, hold: Any, answer: Renewal, asked: float) -> None:
        original(keeper, hold, Renewed(hold.claim.ttl) if isinstance(answer, Unknown) else answer, asked)

    return renewed


@shell("keeper", "Keeper.renewed", "unknown_renewals_are_tried_again_before_the_deadline")
def gives_up_after_one_failure(original: Any, asynchronous: bool) -> Any:
    def renewed(keeper: Any, hold: Any, answer: Renewal, asked: float) -> None:
        original(keeper, hold, answer, asked)
        if isinstance(answer, Unknown):
            hold.renew_until = float("-inf")

    return renewed


@shell("keeper", "Keeper.renewed", "answer_after_the_deadline_does_not_revive")
def revives(original: Any, asynchronous: bool) -> Any:
    def renewed(keeper: Any, hold: Any, answer: Renewal, asked: float) -> None:
        hold.state, hold.deadline = State.HELD, keeper.clock.now() + 5.0
        original(keeper, hold, answer, asked)

    return renewed


@shell("lease", "Hold.look", "first_look_after_a_pause_tells", "releasing_a_lost_lease_raises_and_touches_nobody")
def leaves_the_clock_to_the_keeper(original: Any, asynchronous: bool) -> Any:
    return lambda hold: hold.state


@shell("keeper", "Keeper._plan", "renewals_keep_a_lease_over_many_ttls", "many_leases_are_kept_by_few_renewals")
def never_renews(original: Any, asynchronous: bool) -> Any:
    def plan(keeper: Any, hold: Any, now: float, batch: list[Any]) -> None:
        original(keeper, hold, now, [])

    return plan


@shell("keeper", "RENEW_BATCH", "many_leases_are_kept_by_few_renewals")
def renews_one_by_one(original: Any, asynchronous: bool) -> Any:
    return 1


@shell(
    "keeper",
    "Keeper._tell_losses",
    "loss_is_told_to_everybody_who_asked",
    "loss_is_told_before_the_store_can_grant_to_another",
    "body_under_a_lost_lease_is_cancelled",
)
def tells_nobody(original: Any, asynchronous: bool) -> Any:
    return lambda keeper: keeper._losses.clear()


@shell("keeper", "Keeper.add", "max_hold_ends_the_renewals", "unrenewed_lease_is_lost_at_its_ttl")
def renews_for_ever(original: Any, asynchronous: bool) -> Any:
    def add(keeper: Any, hold: Any) -> None:
        hold.renew_until, hold.due = float("inf"), hold.granted
        original(keeper, hold)

    return add


@shell(
    "keeper",
    "Keeper.adopt",
    "acquire_cut_off_by_an_outage_leaves_nothing",
    "interrupted_acquire_leaves_nothing",
    "interrupted_wait_leaves_nothing",
    "interrupted_release_is_finished_by_the_keeper",
    "release_whose_reply_was_lost_is_done_once",
    "wait_cancelled_at_any_await_leaves_nothing",
    "wait_cancelled_when_its_turn_comes_leaves_nothing",
    "body_does_not_start_without_an_answer",
)
def abandons_orphans(original: Any, asynchronous: bool) -> Any:
    return lambda keeper, orphan: None


@shell("lease", "Lease.check", "lost_lease_cannot_be_entered", "first_look_after_a_pause_tells")
def never_checks(original: Any, asynchronous: bool) -> Any:
    return lambda lease: None


@shell(
    "lock",
    "Lock.__aenter__",
    "body_does_not_start_while_the_resource_is_busy",
    "body_does_not_start_without_an_answer",
    "interrupted_acquire_leaves_nothing",
)
def starts_the_body_anyway(original: Any, asynchronous: bool) -> Any:
    if asynchronous:

        async def wait(lock: Any) -> Any:
            try:
                return await original(lock)
            except BaseException:
                return None

        return wait

    def enter(lock: Any) -> Any:
        try:
            return original(lock)
        except BaseException:
            return None

    return enter


@shell(
    "acquire",
    "Outage.pause",
    "acquire_returns_although_the_store_is_silent",
    "body_does_not_start_without_an_answer",
    "acquire_cut_off_by_an_outage_leaves_nothing",
)
def takes_an_outage_for_busy(original: Any, asynchronous: bool) -> Any:
    def pause(*args: Any) -> float:
        raise AcquireTimeout("busy")

    return pause


@shell(
    "acquire",
    "Outage.pause",
    "outage_that_ends_in_time_is_survived",
    "grant_whose_reply_was_lost_is_found_again",
)
def bears_no_outage(original: Any, asynchronous: bool) -> Any:
    def pause(*args: Any) -> float:
        raise StoreUnavailable("at the first failure")

    return pause


@shell("acquire", "Outage.pause", "acquire_returns_although_the_store_is_silent")
def never_gives_up(original: Any, asynchronous: bool) -> Any:
    tries = []

    def pause(outage: Any, claim: Any, started: float, now: float, error: Any) -> float:
        tries.append(now)
        if len(tries) > 12:  # long after its timeout
            raise LockError("the control has seen enough")
        return now

    return pause


@shell("lock", "check_ttl", "bad_names_and_numbers_are_refused")
def takes_any_ttl(original: Any, asynchronous: bool) -> Any:
    return lambda ttl: 30.0


@shell("wish", "check_timeout", "bad_names_and_numbers_are_refused", "bad_timeouts_of_calls_are_refused")
def takes_any_timeout(original: Any, asynchronous: bool) -> Any:
    return lambda timeout: 1.0


@shell("client", "check_name", "bad_arguments_of_connect_are_refused")
def takes_any_namespace(original: Any, asynchronous: bool) -> Any:
    return lambda name, what="resource": "name"


@shell("keeper", "Keeper.close", "close_releases_what_is_held", "client_is_a_context_manager")
def leaves_everything_behind(original: Any, asynchronous: bool) -> Any:
    return _nothing(asynchronous)


@shell("client", "Client._close", "close_withdraws_what_waits", "close_ends_threads_tasks_and_sockets")
def does_not_close(original: Any, asynchronous: bool) -> Any:
    return _nothing(asynchronous)


@shell("keeper", "Keeper.close", "detached_claims_outlive_their_client")
def releases_detached_claims(original: Any, asynchronous: bool) -> Any:
    def detach(keeper: Any) -> None:
        for hold in [found for ref in keeper._held.values() if (found := ref()) is not None]:
            hold.renew_until = float("inf")

    async def wait(keeper: Any, seconds: float) -> None:
        detach(keeper)
        await original(keeper, seconds)

    def close(keeper: Any, seconds: float) -> None:
        detach(keeper)
        original(keeper, seconds)

    return wait if asynchronous else close
