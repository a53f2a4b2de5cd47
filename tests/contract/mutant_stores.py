"""Mutants of a store: memory:// with another room, so that both flavours share them, and a few that are more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import pytest

from holdfast.core.claim import LOST, Answer, Claim, Granted, Renewal, Renewed
from holdfast.core.fence import Fence, Seen
from holdfast.core.queue import Queue, Step
from holdfast.stores.memory.room import Room, Wakeup
from holdfast.testing.contract import Target
from tests.contract import mutants
from tests.contract.mutants import MEMORY, SQLITE, Mutant, replace

MUTANTS: list[Mutant] = []

Key = tuple[str, str]


def room(*laws: str, store: Target = MEMORY) -> Callable[[type[Room]], type[Room]]:
    """Make a mutant of a room."""

    def register(kind: type[Room]) -> type[Room]:
        def apply(patch: pytest.MonkeyPatch, flavour: str) -> None:
            broken = kind()
            patch.setattr(f"holdfast.stores.memory._{flavour}.store.room", lambda name: broken)

        MUTANTS.append(Mutant(kind.__name__, apply, laws, store))
        return kind

    return register


shell = partial(mutants.shell, MUTANTS)


class Asking(NamedTuple):
    """The arguments of a claim."""

    namespace: str
    claim: Claim
    queue: bool
    wakeup: Callable[[], Wakeup]
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
    "no_more_than_there_are_permits_are_inside",
    "one_leads_at_a_time_and_all_see_who",
    "rate_is_kept_in_any_window",
    "concurrent_callers_get_one_result",
)
class GrantsWhatIsHeld(Room):
    def claim(self, *args: Any) -> Answer:
        answer = super().claim(*args)
        return answer if isinstance(answer, Granted) else Granted(1, Asking(*args).claim.ttl)


@room(
    "readers_share_and_writers_do_not",
    "granted_weight_never_exceeds_capacity",
    "readers_and_writers_are_served_in_order_of_arrival",
    "node_of_a_tree_excludes_all_below_it",
)
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
    "one_leads_at_a_time_and_all_see_who",
)
class ForgetsItsCounter(Bent):
    def bend(self, asking: Asking) -> Asking:
        self._floor = 0
        for queue in self._queues.values():
            queue.counter = 0
        return asking._replace(clock_us=0)


@room("tokens_rise_although_the_wall_clock_is_set_back")
class TrustsTheWallClock(Bent):
    ticks = 0

    def bend(self, asking: Asking) -> Asking:
        self._floor = 0
        self.ticks += 1
        return asking._replace(clock_us=asking.clock_us + self.ticks)


restarts: list[str] = []


@room("tokens_rise_across_server_restarts", store=dataclasses.replace(MEMORY, restart=restarts.append))
class StartsAnew(Bent):
    """A server that keeps its counters in memory alone."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = len(restarts)

    def bend(self, asking: Asking) -> Asking:
        if self.restarts < len(restarts):
            self.__init__()  # type: ignore[misc]
        return asking._replace(clock_us=0)


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


@room("stranger_can_neither_renew_nor_release", "renewals_keep_a_lease_over_many_ttls")
class RenewsNothing(Room):
    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        return [LOST for _ in claims]


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
    "rate_is_kept_in_any_window",
    "loss_ends_a_term_and_not_the_campaign",
    "work_of_a_crashed_runner_is_done_again",
)
class NeverExpires(Bent):
    def bend(self, asking: Asking) -> Asking:
        return asking._replace(claim=asking.claim._replace(ttl=1e9))

    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        return super().release(namespace, resource, holder, 1e9 if keep else 0.0, now)


@room(
    "late_claim_does_not_overtake",
    "readers_do_not_starve_a_waiting_writer",
    "readers_and_writers_are_served_in_order_of_arrival",
    "children_do_not_starve_their_parent",
)
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
    "office_passes_on_when_its_leader_resigns",
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


@room("watch_returns_when_the_holder_changes", "observer_sees_every_change_of_the_leader")
class TellsNoWatcher(Room):
    def watch(self, *args: Any) -> None:
        pass


@room(
    "loss_is_told_before_the_store_can_grant_to_another",
    "rate_is_kept_in_any_window",
    "refused_hit_says_when_to_come_again",
)
class ExpiresEarly(Room):
    def claim(self, *args: Any) -> Answer:
        asking = Asking(*args)
        answer = super().claim(*asking._replace(claim=asking.claim._replace(ttl=asking.claim.ttl * 0.9)))
        return Granted(answer.token, asking.claim.ttl) if isinstance(answer, Granted) else answer

    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        shorter = [claim._replace(ttl=claim.ttl * 0.9) for claim in claims]
        answers = super().renew(namespace, shorter, now)
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


@room(
    "register_refuses_the_stale_writer",
    "paused_holder_cannot_write_after_its_successor",
    "paused_run_cannot_overwrite_the_result",
)
class FencesNothing(_Fences):
    def seen(self, register: Any) -> Seen:
        return Seen()


@room("register_lets_live_readers_pass_each_other")
class FencesWithOneNumber(_Fences):
    def seen(self, register: Any) -> Seen:
        return Seen(register.seen.newest, register.seen.newest)


@room("register_forgets_its_value_and_not_its_fence")
class ForgetsTheFence(Room):
    def read(self, namespace: str, key: str, fence: Fence | None, now: float) -> Any:
        record = super().read(namespace, key, fence, now)
        if record is None:
            self._registers.pop((namespace, key), None)
        return record


@room("register_read_through_a_fence_shuts_older_writers_out")
class ReadsPastTheFence(Room):
    def read(self, namespace: str, key: str, fence: Fence | None, now: float) -> Any:
        return super().read(namespace, key, None, now)


@room("register_keeps_what_was_written")
class StripsValues(Room):
    def write(self, namespace: str, key: str, value: str, fence: Fence, expires: float) -> None:
        super().write(namespace, key, value.strip("\0\n'\""), fence, expires)


@room("inspect_lists_by_prefix", "inspect_shows_holders_and_waiters")
class ShowsTheExpired(Room):
    def inspect(self, namespace: str, prefix: str, now: float) -> Any:
        return super().inspect(namespace, prefix.rstrip("%_*"), 0.0)


@room("inspect_changes_nothing")
class ForgetsWhoWaitsWhenItIsLookedAt(Room):
    def inspect(self, namespace: str, prefix: str, now: float) -> Any:
        states = super().inspect(namespace, prefix, now)
        for queue in self._queues.values():
            queue.entries = [entry for entry in queue.entries if entry.token]
        return states


@room("inspect_changes_nothing")
class ProlongsWhatIsLookedAt(Room):
    def inspect(self, namespace: str, prefix: str, now: float) -> Any:
        for queue in self._queues.values():
            for entry in queue.entries:
                entry.expires += 1.0
        return super().inspect(namespace, prefix, now)


@room("permits_may_change")
class CountsByTheNumberOfTheFirst(Bent):
    """Whoever comes later is judged by the capacity of who holds."""

    def bend(self, asking: Asking) -> Asking:
        held = [e.claim.capacity for e in self._queue((asking.namespace, asking.claim.resource)).entries if e.token]
        return asking._replace(claim=asking.claim._replace(capacity=held[0] if held else asking.claim.capacity))


@room("refused_hit_says_when_to_come_again")
class SaysToComeTooEarly(Room):
    def claim(self, *args: Any) -> Answer:
        answer = super().claim(*args)
        return answer if isinstance(answer, Granted) else answer._replace(retry_after=answer.retry_after - 0.2)


# -- what does not stand in the room


@shell("stores.memory._{}.store", "MemoryStore.interrupt", "watch_returns_at_its_end_and_when_interrupted")
def cannot_be_interrupted(original: Any, asynchronous: bool) -> Any:
    return lambda store: None


@shell("stores.memory._{}.store", "MemoryStore.watch", "watch_returns_at_its_end_and_when_interrupted")
def watches_for_ever(original: Any, asynchronous: bool) -> Any:
    return lambda store, resource, seen, until: original(store, resource, seen, until + 1e6)


@shell("stores.memory._{}.store", "MemoryStore.wait", "watch_returns_at_its_end_and_when_interrupted")
def waits_for_ever(original: Any, asynchronous: bool) -> Any:
    return lambda store, claim, waiting, until: original(store, claim, waiting, until + 1e6)


def _know_no_death(patch: pytest.MonkeyPatch, flavour: str) -> None:
    replace(patch, "stores.sqlite.claims", "Claims._is_dead", lambda original: lambda claims, process: False)
    replace(patch, "core.queue", "Queue.sweep", lambda original: lambda queue, now: ())
    # Not a fault: so that the law does not wait as long as it has to otherwise.
    short = f"stores.sqlite._{flavour}.store", "SQLiteStore.capabilities"
    replace(patch, *short, lambda capabilities: capabilities._replace(waiting_life=0.3))


# A store that neither notices the end of a process nor lets its claims run out.
MUTANTS.append(
    Mutant(
        "KnowsNoDeath",
        _know_no_death,
        (
            "killed_holder_is_followed_by_the_next_waiter",
            "killed_waiter_does_not_block_the_line",
        ),
        SQLITE,
        limit=3.0,
    )
)
