"""So many hits in any window, and an exact word on when the next is possible."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast.errors import RateLimited, Unsupported
from holdfast.testing.clock import ManualClock


async def test_the_window_slides(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 3, per=60)
        for seconds in (0, 10, 10):
            clock.advance(seconds)
            await limit.hit()
        clock.advance(10)  # hits at 0, 10 and 20; it is 30 now
        with pytest.raises(RateLimited, match="3 hits within 60 s") as caught:
            await limit.hit()
        assert caught.value.retry_after == pytest.approx(30, abs=0.05)
        assert not await limit.try_hit()
        clock.advance(caught.value.retry_after)
        assert await limit.try_hit()
        assert not await limit.try_hit()  # the hit of 10 counts for another 10 seconds
        clock.advance(10)
        assert await limit.try_hit()


async def test_a_refused_hit_does_not_count(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=10)
        await limit.hit()
        for _ in range(5):
            clock.advance(1)
            assert not await limit.try_hit()
        clock.advance(5)
        assert await limit.try_hit()


async def test_clients_share_the_limit_and_their_end_gives_nothing_back(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        await locks.rate_limit("user:42", 2, per=60).hit()
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 2, per=60)
        await limit.hit()
        assert not await limit.try_hit()
        assert await locks.rate_limit("user:43", 2, per=60).try_hit()


async def test_the_error_can_be_pickled_with_its_facts(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        limit = locks.rate_limit("user:42", 1, per=60)
        await limit.hit()
        with pytest.raises(RateLimited) as caught:
            await limit.hit()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.retry_after, again.resource, str(again)) == (
        caught.value.retry_after,
        "user:42",
        str(caught.value),
    )


@pytest.mark.parametrize(("limit", "per"), [(0, 60), (1.5, 60), (True, 60), (3, 0), (3, float("inf")), (3, None)])
async def test_bad_numbers(url: str, limit: object, per: object) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match=r"limit must be an int|per must be a finite number"):
            locks.rate_limit("user:42", limit, per=per)  # type: ignore[arg-type]


async def test_a_window_that_the_store_cannot_count_is_refused(url: str) -> None:
    async with Client(url) as locks:
        store: Any = locks._engine.store
        store.capabilities = store.capabilities._replace(min_ttl=2.0)
        with pytest.raises(Unsupported, match=r"keeps claims for 2 s at least.*per=1"):
            locks.rate_limit("user:42", 1, per=1)
