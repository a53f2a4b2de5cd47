"""Stores and clients with one thing wrong each. A law that cannot tell them from the real ones is worth nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from holdfast._memory import Bell, Room
from holdfast.core.claim import Answer, Claim, Granted, Renewal, Renewed, Unknown
from holdfast.core.fence import Fence, Seen
from holdfast.core.lease import State
from holdfast.core.queue import Queue, Step
from holdfast.errors import AcquireTimeout, LockError, StoreUnavailable

Key = tuple[str, str]


class Mutant(NamedTuple):
    """How to break something, and the laws that must notice."""

    name: str
    apply: Callable[[pytest.MonkeyPatch, str], None]
    laws: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


MUTANTS: list[Mutant] = []


# -- stores: memory://, with another room


def room(*laws: str) -> Callable[[type[Room]], type[Room]]:
    """Make a mutant of a room."""

    def register(kind: type[Room]) -> type[Room]:
        def apply(patch: pytest.MonkeyPatch, flavour: str) -> None:
            broken = kind()
            patch.setattr(f"holdfast._{flavour}.stores.memory.room", lambda name: broken)

        MUTANTS.append(Mutant(kind.__name__, apply, laws))
        return kind

    return register


class Asking(NamedTuple):
    """The arguments of a claim."""

    namespace: str
    claim: Claim
    queue: bool
    bell: Bell
    now: float
    clock_us: int
    waiting_life: float


class Bent(Room):
    """A room whose claims arrive bent."""

    def bend(self, asking: Asking) -> Asking:
        return asking

    def claim(self, *args: Any) -> Answer:
        return super().claim(*self.bend(Asking(*args)))


@room(
    "exclusive_grants_do_not_overlap",
    "granted_weight_never_exceeds_capacity",
    "held_resource_is_refused_to_everybody_else",
    "readers_share_and_writers_do_not",
    "permits_are_counted",
)
class GrantsWhatIsHeld(Room):
    def claim(self, *args: Any) -> Answer:
        answer = super().claim(*args)
        return answer if isinstance(answer, Granted) else Granted(1, Asking(*args).claim.ttl)


@room("readers_share_and_writers_do_not", "granted_weight_never_exceeds_capacity")
class CountsHeads(Bent):
    """Every claim weighs one."""

    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(weight=1))


@room("namespaces_do_not_meet")
class KnowsNoNamespaces(Room):
    def _queue(self, key: Key) -> Queue:
        self._queues[key] = self._queues.setdefault(("", key[1]), Queue())
        return self._queues[key]

    def _step(self, key: Key, step: Step) -> Step:
        return step


@room("names_are_never_mixed_up")
class FoldsNames(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(resource=asking.claim.resource.casefold()))


@room(
    "tokens_rise_from_grant_to_grant",
    "tokens_are_unique_among_contenders",
    "tokens_rise_across_client_restarts",
    "shared_tokens_rise_around_exclusive_ones",
)
class ForgetsItsCounter(Bent):
    def bend(self, asking: Asking) -> Asking:
        self._floor = 0
        return asking._replace(clock_us=0)


@room("tokens_rise_although_the_wall_clock_is_set_back")
class TrustsTheWallClock(Bent):
    ticks = 0

    def bend(self, asking: Asking) -> Asking:
        self._floor = 0
        self.ticks += 1
        return asking._replace(clock_us=asking.clock_us + self.ticks)


@room("tokens_rise_after_an_expiry", "tokens_rise_from_grant_to_grant")
class CountsBackwards(Room):
    issued = 1 << 50

    def claim(self, *args: Any) -> Answer:
        answer = super().claim(*args)
        self.issued -= 1
        return answer._replace(token=self.issued) if isinstance(answer, Granted) else answer


@room("stranger_can_neither_renew_nor_release", "renewal_never_brings_back_what_has_ended")
class RenewsAnything(Room):
    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        super().renew(namespace, claims, now)
        return [Renewed(claim.ttl) for claim in claims]


@room("stranger_can_neither_renew_nor_release")
class ReleasesForAnybody(Room):
    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        queue = self._queue((namespace, resource))
        holders = [entry.claim.holder for entry in queue.entries if entry.token]
        return super().release(namespace, resource, holders[0] if holders else holder, keep, now)


@room("release_that_the_store_answers_with_not_yours_raises", "stranger_can_neither_renew_nor_release")
class AlwaysSaysReleased(Room):
    def release(self, *args: Any) -> bool:
        super().release(*args)
        return True


@room("waiter_cannot_renew_itself_into_a_lease")
class RenewsWaiters(Room):
    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        for claim in claims:
            for entry in self._queue((namespace, claim.resource)).entries:
                entry.token = entry.token or 1
        return super().renew(namespace, claims, now)


@room(
    "claim_sent_twice_is_one_claim",
    "grant_whose_reply_was_lost_is_found_again",
    "place_in_line_whose_reply_was_lost_is_found_again",
)
class TakesEveryClaimForANewOne(Bent):
    asked = 0

    def bend(self, asking: Asking) -> Asking:
        self.asked += 1
        return asking._replace(claim=asking.claim._replace(holder=f"{asking.claim.holder}.{self.asked}"))


@room("asking_again_does_not_prolong")
class ProlongsWhoAsks(Room):
    def claim(self, *args: Any) -> Answer:
        answer = super().claim(*args)
        return Granted(answer.token, Asking(*args).claim.ttl) if isinstance(answer, Granted) else answer


@room("asking_once_leaves_nothing")
class QueuesWhoAsksOnce(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(queue=True)


@room("timed_out_acquire_leaves_nothing", "wait_cancelled_at_any_await_leaves_nothing", "close_withdraws_what_waits")
class NeverWithdraws(Room):
    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        entry = self._queue((namespace, resource)).find(holder)
        if entry is not None and not entry.token:
            return False
        return super().release(namespace, resource, holder, keep, now)


@room("crashed_waiter_is_forgotten_after_its_waiting_life", "dead_waiter_does_not_block_the_line")
class KeepsDeadWaiters(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(waiting_life=1e9)


@room(
    "tokens_rise_after_an_expiry",
    "crashed_holder_is_followed_by_the_next_live_waiter",
    "holder_that_runs_out_is_followed_without_any_wake_up",
    "claim_that_arrives_after_its_withdrawal_is_a_ghost_that_ends",
    "detached_claims_outlive_their_client",
    "end_of_min_hold_reaches_who_waits",
)
class NeverExpires(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(ttl=1e9))

    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        return super().release(namespace, resource, holder, 1e9 if keep else 0.0, now)


@room("late_claim_does_not_overtake", "readers_do_not_starve_a_waiting_writer")
class KnowsNoOrder(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(fair=False))


@room("waiters_are_served_in_order_of_arrival")
class ServesTheLastFirst(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(fair=False))

    def _step(self, key: Key, step: Step) -> Step:
        waiting = [entry for entry in self._queue(key).entries if not entry.token]
        return super()._step(key, step._replace(wake=tuple(waiting[-1:]) if step.wake else ()))


@room("unfair_claim_overtakes_when_the_resource_is_free")
class KnowsNoUnfairness(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(fair=True))


@room(
    "release_wakes_the_next_at_once",
    "release_wakes_only_who_can_go",
    "release_wakes_all_readers_at_the_head",
    "withdrawn_writer_wakes_the_readers_behind_it",
    "permit_given_back_wakes_one",
    "noticed_expiry_wakes_who_can_go",
    "wake_up_before_the_wait_is_not_missed",
)
class LosesWakeUps(Room):
    def _step(self, key: Key, step: Step) -> Step:
        return super()._step(key, step._replace(wake=()))


@room(
    "release_wakes_only_who_can_go",
    "release_wakes_all_readers_at_the_head",
    "withdrawn_writer_wakes_the_readers_behind_it",
    "permit_given_back_wakes_one",
)
class WakesEverybody(Room):
    def _step(self, key: Key, step: Step) -> Step:
        everybody = tuple(entry for entry in self._queue(key).entries if not entry.token)
        return super()._step(key, step._replace(wake=everybody if step.drop else step.wake))


@room("watch_returns_when_the_holder_changes")
class TellsNoWatcher(Room):
    def watch(self, *args: Any) -> None:
        pass


@room("loss_is_told_before_the_store_can_grant_to_another")
class ExpiresEarly(Room):
    def claim(self, *args: Any) -> Answer:
        asking = Asking(*args)
        answer = super().claim(*asking._replace(claim=asking.claim._replace(ttl=asking.claim.ttl * 0.9)))
        return Granted(answer.token, asking.claim.ttl) if isinstance(answer, Granted) else answer

    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        answers = super().renew(namespace, claims, now)
        return [Renewed(answer.left / 0.9) if isinstance(answer, Renewed) else answer for answer in answers]


@room("min_hold_keeps_the_resource_taken", "min_hold_outlives_the_client")
class KeepsNothing(Room):
    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        return super().release(namespace, resource, holder, 0.0, now)


class _Fences(Room):
    def write(self, namespace: str, key: str, value: str, fence: Fence, expires: float) -> None:
        known = self._registers.get((namespace, key))
        if known is not None:
            self._registers[namespace, key] = known._replace(seen=self.seen(known))
        super().write(namespace, key, value, fence, expires)

    def seen(self, register: Any) -> Seen:
        raise NotImplementedError


@room("register_refuses_the_stale_writer", "paused_holder_cannot_write_after_its_successor")
class FencesNothing(_Fences):
    def seen(self, register: Any) -> Seen:
        return Seen()


@room("register_lets_live_readers_pass_each_other")
class FencesWithOneNumber(_Fences):
    def seen(self, register: Any) -> Seen:
        return Seen(register.seen.newest, register.seen.newest)


@room("register_forgets_its_value_and_not_its_fence")
class ForgetsTheFence(Room):
    def read(self, namespace: str, key: str, now: float) -> Any:
        record = super().read(namespace, key, now)
        if record is None:
            self._registers.pop((namespace, key), None)
        return record


@room("register_keeps_what_was_written")
class StripsValues(Room):
    def write(self, namespace: str, key: str, value: str, fence: Fence, expires: float) -> None:
        super().write(namespace, key, value.strip("\0\n'\""), fence, expires)


@room("inspect_lists_by_prefix", "inspect_shows_holders_and_waiters")
class ShowsTheExpired(Room):
    def inspect(self, namespace: str, prefix: str, now: float) -> Any:
        return super().inspect(namespace, prefix.rstrip("%_*"), 0.0)


# -- clients: the shell of one flavour, with one function replaced


def shell(module: str, target: str, *laws: str) -> Callable[[Callable[[Any, bool], Any]], Callable[[Any, bool], Any]]:
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

        MUTANTS.append(Mutant(make.__name__, apply, laws))
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
        if len(tries) > 20:  # long after its timeout
            raise LockError("the control has seen enough")
        return now

    return pause


@shell("lock", "check_ttl", "bad_names_and_numbers_are_refused")
def takes_any_ttl(original: Any, asynchronous: bool) -> Any:
    return lambda ttl: 30.0


@shell("lock", "check_timeout", "bad_names_and_numbers_are_refused", "bad_timeouts_of_calls_are_refused")
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
