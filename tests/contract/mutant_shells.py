"""Mutants of the shell: one function of a flavour replaced."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from holdfast.core.lease import EXITS, Ending, Raise
from holdfast.errors import LockError, StoreError, StoreUnavailable
from holdfast.keeper.keeper import Keeper
from holdfast.keeper.side import Side
from tests.contract import mutants
from tests.contract.mutants import SQLITE, Mutant, either, replace

MUTANTS: list[Mutant] = []

shell = partial(mutants.shell, MUTANTS)


# -- acquiring


@shell(
    "_{}.engine",
    "local_deadline",
    "slow_reply_shortens_the_lease",
    "grant_that_ran_out_on_its_way_is_not_used",
    "first_look_after_a_pause_tells",
)
def believes_too_long(original: Any, asynchronous: bool) -> Any:
    return lambda asked, ttl, left: asked + ttl + 3.0


@shell("_{}.lease", "Lease.check", "lost_lease_cannot_be_entered", "first_look_after_a_pause_tells")
def never_checks(original: Any, asynchronous: bool) -> Any:
    return lambda lease: None


class _Nothing:
    """What a `with` holds that was entered without a lease."""

    async def _end(self, entry: Any, error: Any) -> None:
        entry.disarm()


class _NothingAtOnce:
    def _end(self, entry: Any, error: Any) -> None:
        entry.disarm()


@shell(
    "_{}.acquirable",
    "Acquirable._enter",
    "body_does_not_start_while_the_resource_is_busy",
    "body_does_not_start_without_an_answer",
    "interrupted_acquire_leaves_nothing",
)
def starts_the_body_anyway(original: Any, asynchronous: bool) -> Any:
    async def enter(lock: Any, entry: Any) -> Any:
        try:
            return await original(lock, entry)
        except BaseException:
            entry.target = _Nothing()

    def enter_at_once(lock: Any, entry: Any) -> Any:
        try:
            return original(lock, entry)
        except BaseException:
            entry.target = _NothingAtOnce()

    return enter if asynchronous else enter_at_once


@shell("_{}.acquirable", "wants_lease", "body_runs_once_with_its_lease")
def passes_no_lease(original: Any, asynchronous: bool) -> Any:
    return lambda function: False


@shell("_{}.lock", "check_ttl", "bad_names_and_numbers_are_refused")
def takes_any_ttl(original: Any, asynchronous: bool) -> Any:
    return lambda ttl: 30.0


@shell("_{}.acquirable", "check_timeout", "bad_names_and_numbers_are_refused", "bad_timeouts_of_calls_are_refused")
def takes_any_timeout(original: Any, asynchronous: bool) -> Any:
    return lambda timeout: 1.0


@shell("_{}.client", "check_name", "bad_arguments_of_connect_are_refused")
def takes_any_namespace(original: Any, asynchronous: bool) -> Any:
    return lambda name, what="resource": "name"


def _promise_too_much(patch: pytest.MonkeyPatch, flavour: str) -> None:
    def limited(capabilities: Any) -> Any:
        return capabilities._replace(unfair=False, detached=False, min_ttl=2.0, max_ttl=3600.0)

    replace(patch, f"stores.memory._{flavour}.store", "MemoryStore.capabilities", limited)
    replace(patch, f"_{flavour}.lock", "Lock._supported", lambda original: lambda lock, fair: True)


# On a store that can do little: on one that can do everything there is nothing to refuse.
MUTANTS.append(Mutant("promises_too_much", _promise_too_much, ("what_the_store_cannot_do_is_refused",)))


# -- keeping and losing


@shell(
    "_{}.lease",
    "EXITS",
    "release_that_the_store_answers_with_not_yours_raises",
    "body_under_a_lost_lease_ends_with_lease_lost",
)
def leaves_without_a_word(original: Any, asynchronous: bool) -> Any:
    return {**EXITS, (Ending.RETURN, True): Raise.NOTHING}


@shell(
    "_{}.engine",
    "Engine.renew",
    "lease_calls_return_although_the_store_is_silent",
    "calls_return_although_the_server_is_silent",
)
def renews_until_it_is_answered(original: Any, asynchronous: bool) -> Any:
    async def renew(engine: Any, hold: Any) -> Any:
        for _ in range(3):  # then the control has seen enough
            try:
                return await original(engine, hold)
            except StoreError as error:
                last = error
        raise last

    def renew_at_once(engine: Any, hold: Any) -> Any:
        for _ in range(3):
            try:
                return original(engine, hold)
            except StoreError as error:
                last = error
        raise last

    return renew if asynchronous else renew_at_once


@shell(
    "_{}.runtime",
    "with_blocking",
    "body_that_blocks_does_not_lose_its_lease",
    "busy_body_does_not_lose_its_lease",
    flavours=("async",),
)
def renews_through_the_loop(original: Any, asynchronous: bool) -> Any:
    from holdfast._async.runtime import _ThroughTheLoop

    return _ThroughTheLoop


@shell("_{}.engine", "Keeper", "full_executor_does_not_lose_a_lease", flavours=("async",))
def renews_in_the_default_executor(original: Any, asynchronous: bool) -> Any:
    class Borrowing(Keeper):
        """Calls the store in a thread of the default executor."""

        def call(self, verb: str, arguments: tuple[Any, ...]) -> Any:
            if verb != "renew":
                return super().call(verb, arguments)
            home: Any = self.pulse and self.pulse.loop
            found: list[Any] = []
            done = threading.Event()

            def work() -> None:
                found.append(Keeper.call(self, verb, arguments))
                done.set()

            home.post(lambda: home._loop.run_in_executor(None, work))
            if not done.wait(0.2):
                raise StoreUnavailable("no thread was free")
            return found[0]

    return Borrowing


@shell(
    "stores.sqlite._{}.store",
    "SQLiteStore.blocking",
    "renewal_does_not_stand_in_line_behind_other_calls",
    store=SQLITE,
    flavours=("async",),
)
def queues_renewals(original: Any, asynchronous: bool) -> Any:
    """Renewals stand in line with all other calls."""

    def blocking(store: Any) -> Side:
        def renew(claims: Any, limit: float) -> Any:
            return store._worker.call(store._claims.renew, claims, limit)

        return Side(renew, store._release_in_order, store._close_now)

    return blocking


# -- ending


@shell("_{}.engine", "Engine.release", "body_runs_once_with_its_lease")
def releases_nothing(original: Any, asynchronous: bool) -> Any:
    def settle(engine: Any, lease: Any) -> bool:
        lease._settled = True
        return True

    return either(asynchronous, settle)


@shell("_{}.client", "Client.close", "close_withdraws_what_waits", "close_ends_threads_tasks_and_sockets")
def does_not_close(original: Any, asynchronous: bool) -> Any:
    return either(asynchronous, lambda client, timeout=5.0: None)


@shell("_{}.client", "Client.close", "close_may_be_called_twice")
def refuses_to_close_twice(original: Any, asynchronous: bool) -> Any:
    refused: list[Any] = []

    def close(client: Any, timeout: float = 5.0) -> Any:
        if client.closed and not refused:  # once will do: the law itself closes what it has made
            refused.append(client)
            raise LockError("it is closed")
        return original(client, timeout)

    return close


@shell("_{}.engine", "Engine.check_open", "close_may_be_called_twice")
def serves_after_its_end(original: Any, asynchronous: bool) -> Any:
    return lambda engine, strand=None: engine.home.check()


@shell("_{}.engine", "Engine.close", "close_returns_although_the_store_is_silent")
def closes_as_slowly_as_it_takes(original: Any, asynchronous: bool) -> Any:
    return lambda engine, seconds: original(engine, seconds + 0.8)  # longer than the control waits
