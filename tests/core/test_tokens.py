"""Tokens: above the counter, helped by the clock, and below 2^53."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claim import MAX, Claim, actor_of, changed, find
from holdfast.core.queue import TOKEN_LIMIT, Queue, next_token
from holdfast.errors import StoreError

below = st.integers(0, TOKEN_LIMIT - 2)


@given(below, below)
def test_a_token_exceeds_the_counter_and_reaches_the_clock(counter: int, clock_us: int) -> None:
    token = next_token(counter, clock_us)
    assert token > counter
    assert token >= clock_us
    assert token in (counter + 1, clock_us)


@given(st.lists(below, min_size=2, max_size=20))
def test_tokens_rise_whatever_the_clock_does(clock: list[int]) -> None:
    counter = 0
    for clock_us in clock:
        token = next_token(counter, clock_us)
        assert token > counter
        counter = min(token, TOKEN_LIMIT - 2)


def test_the_limit_is_where_doubles_lose_integers() -> None:
    assert TOKEN_LIMIT == 2**53
    assert float(TOKEN_LIMIT) == float(TOKEN_LIMIT + 1)
    assert next_token(TOKEN_LIMIT - 2, 0) == TOKEN_LIMIT - 1
    assert next_token(0, TOKEN_LIMIT - 1) == TOKEN_LIMIT - 1
    for counter, clock_us in ((TOKEN_LIMIT - 1, 0), (0, TOKEN_LIMIT), (2**60, 0)):
        with pytest.raises(StoreError, match=r"past the limit of 2\^53"):
            next_token(counter, clock_us)


def test_a_queue_at_the_limit_refuses_and_changes_nothing() -> None:
    queue = Queue(counter=TOKEN_LIMIT - 1)
    with pytest.raises(StoreError):
        queue.claim(Claim("r", "h"), 0.0, 1, 6.0)
    assert queue.counter == TOKEN_LIMIT - 1
    assert not queue.entries


def test_a_million_exclusive_weights_can_be_added_as_doubles() -> None:
    assert 1_000_000 * MAX < 2**53


def test_the_actor_of_a_holder() -> None:
    assert actor_of("client.7.a1b2") == "client.7"


def test_a_change_is_one_of_holders_and_values_not_of_time() -> None:
    queue = Queue()
    queue.claim(Claim("r", "h", value="v"), 0.0, 1, 6.0)
    early, late = queue.state("r", 1.0), queue.state("r", 2.0)
    assert early != late
    assert not changed(early, late)
    assert changed(None, early)
    assert not changed(None, Queue().state("r", 0.0))
    assert changed(early, Queue().state("r", 0.0))
    assert find([early], "r") is early
    assert find([early], "rr") is None
