"""When a lease ends as its holder must see it."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.names import MIN_TTL
from holdfast.core.timing import MARGIN, MARGIN_RATIO, RENEW_AT, backoff, local_deadline, renew_time, retry_time

times = st.floats(0, 1e9)
ttls = st.floats(MIN_TTL, 1e6)


@given(times, ttls, ttls)
def test_the_holder_gives_up_before_the_store_can_give_away(asked: float, ttl: float, left: float) -> None:
    # The store got the question after it was asked, so its own end is no earlier than asked + left.
    deadline = local_deadline(asked, ttl, left)
    assert deadline < asked + min(ttl, left)
    assert deadline > asked, "the shortest lease still has a life"


@given(times, ttls, ttls, st.floats(0.001, 1e3))
def test_a_later_question_or_a_longer_life_never_ends_earlier(
    asked: float, ttl: float, left: float, more: float
) -> None:
    assert local_deadline(asked + more, ttl, left) >= local_deadline(asked, ttl, left)
    assert local_deadline(asked, ttl + more, left) >= local_deadline(asked, ttl, left)
    assert local_deadline(asked, ttl, left + more) >= local_deadline(asked, ttl, left)


def test_the_margin_is_one_percent_and_two_milliseconds() -> None:
    assert (MARGIN_RATIO, MARGIN) == (0.01, 0.002)
    assert local_deadline(100.0, 30.0, 30.0) == 100.0 + 30.0 - (0.3 + 0.002)
    assert local_deadline(100.0, 30.0, 10.0) == 100.0 + 10.0 - (0.1 + 0.002)
    assert local_deadline(100.0, 10.0, 30.0) == local_deadline(100.0, 30.0, 10.0)


@given(times, ttls)
def test_two_more_tries_fit_between_the_first_renewal_and_the_deadline(asked: float, ttl: float) -> None:
    first = renew_time(asked, local_deadline(asked, ttl, ttl))
    second = retry_time(first, ttl)
    third = retry_time(second, ttl)
    assert asked < first < second < third < local_deadline(asked, ttl, ttl)
    assert first <= asked + ttl * RENEW_AT


def test_backoff_doubles_up_to_its_limit_and_takes_any_number_of_attempts() -> None:
    assert [backoff(n) for n in range(6)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert backoff(10**9) == 0.5
    assert backoff(3, least=0.1, most=0.2) == 0.2


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_backoff_never_shrinks(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 0 < backoff(low) <= backoff(high) <= 0.5
