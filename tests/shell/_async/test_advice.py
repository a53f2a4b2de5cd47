"""What people write in the first hour, and in other libraries: the error says what to write instead."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect

MADE: dict[str, Callable[[Client], Any]] = {
    "client": lambda locks: locks,
    "lock": lambda locks: locks.lock("r"),
    "rwlock": lambda locks: locks.rwlock("r"),
    "semaphore": lambda locks: locks.semaphore("r", permits=2),
    "lock_all": lambda locks: locks.lock_all("a", "b"),
    "tree": lambda locks: locks.tree("a/b"),
    "election": lambda locks: locks.election("r"),
    "rate_limit": lambda locks: locks.rate_limit("r", 1, per=1),
    "once": lambda locks: locks.once("r"),
}


@pytest.mark.parametrize("names", [["a", "b"], ("a", "b"), {"a"}, iter("ab")], ids=lambda names: type(names).__name__)
async def test_several_names_in_one_argument(names: Any, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        for describe in (locks.lock_all, locks.lock, locks.rwlock):
            with pytest.raises(ValueError, match=r"must be a str .*; for several names write lock_all\(\*names\)$"):
                describe(names)
        with pytest.raises(ValueError, match=r"not b'ab'$"):
            locks.lock(b"ab")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"not \['me'\]$"):
            locks.lock("r", owner=["me"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "move"),
    [
        ({"blocking": False}, r"'blocking'; to ask once, write try_acquire\(\) or acquire\(timeout=0\)$"),
        ({"blocking_timeout": 3}, r"'blocking_timeout'; write acquire\(timeout=seconds\)$"),
        ({"poll_interval": 0.1}, "'poll_interval'; leave it out: a waiter is woken$"),
        ({"nosuch": 1}, "'nosuch'$"),
    ],
    ids=str,
)
async def test_arguments_of_other_libraries(argument: dict[str, Any], move: str, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lock, permits, several = locks.lock("r"), locks.semaphore("r", permits=2), locks.lock_all("a", "b")
        for acquire in (lock.acquire, permits.acquire, several.acquire):
            with pytest.raises(TypeError, match=rf"^acquire\(\) has no argument .*{move}"):
                await acquire(**argument)
        for attempt in (lock.try_acquire, permits.try_acquire, several.try_acquire):
            with pytest.raises(TypeError, match=rf"^try_acquire\(\) has no argument .*{move}"):
                await attempt(**argument)
        with pytest.raises(ValueError, match=r"timeout must be .* 0: ask once\), not False"):
            await lock.acquire(False)
        assert tap.claims == []


@pytest.mark.parametrize("kind", MADE)
async def test_what_belongs_to_this_process_is_not_pickled(kind: str, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(TypeError, match=r"cannot be pickled; call connect\(\) in the other process.*lease\.fence"):
            pickle.dumps(MADE[kind](locks))


@pytest.mark.parametrize("kind", ["client", "lock"])
async def test_what_belongs_to_this_process_is_not_sent_to_one_that_is_spawned(
    kind: str, name: str, clock: ManualClock
) -> None:
    async with connect(name, clock) as locks:
        process = multiprocessing.get_context("spawn").Process(target=print, args=(MADE[kind](locks),))
        with pytest.raises(TypeError, match=r"cannot be pickled; call connect\(\) in the other process"):
            process.start()
