"""The fence: two numbers that refuse the stale writer and nobody else."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fence import Fence, Seen, admits, enter
from holdfast.errors import StaleToken

tokens = st.integers(1, 20)
visits = st.lists(st.tuples(tokens, st.booleans()), max_size=20)


def visit(seen: Seen, token: int, shared: bool) -> tuple[Seen, bool]:
    try:
        return enter(seen, Fence("n", "r", token, shared)), True
    except StaleToken:
        return seen, False


@given(visits, tokens, st.booleans())
def test_a_fence_admits_by_what_it_has_let_in(story: list[tuple[int, bool]], token: int, shared: bool) -> None:
    """Recompute the rule from all visits: exclusive >= any seen, shared >= any exclusive seen."""
    seen, let_in = Seen(), []
    for old, old_shared in story:
        seen, entered = visit(seen, old, old_shared)
        let_in += [(old, old_shared)] if entered else []
    newest = max((old for old, _ in let_in), default=0)
    exclusive = max((old for old, old_shared in let_in if not old_shared), default=0)
    assert seen == (newest, exclusive)
    assert admits(seen, token, shared) is (token >= (exclusive if shared else newest))
    assert visit(seen, token, shared)[1] is admits(seen, token, shared)


@given(visits, tokens, st.booleans())
def test_the_numbers_never_fall(story: list[tuple[int, bool]], token: int, shared: bool) -> None:
    seen = Seen()
    for old, old_shared in [*story, (token, shared)]:
        after, _ = visit(seen, old, old_shared)
        assert after.newest >= seen.newest
        assert after.exclusive >= seen.exclusive
        assert after.newest >= after.exclusive
        seen = after


def test_one_holder_may_write_many_times() -> None:
    seen = Seen()
    for _ in range(3):
        seen, entered = visit(seen, 7, False)
        assert entered


@given(st.permutations([11, 12, 13, 14]), st.lists(st.sampled_from([11, 12, 13, 14]), max_size=12))
def test_live_readers_do_not_refuse_each_other(first: list[int], more: list[int]) -> None:
    seen, _ = visit(Seen(), 10, False)
    for token in first + more:
        seen, entered = visit(seen, token, True)
        assert entered, f"reader {token} was refused by {seen}"
    assert visit(seen, 15, False)[1]
    assert not visit(visit(seen, 15, False)[0], 14, True)[1], "a reader from before the writer is stale"


@pytest.mark.control
def test_control_with_one_number_live_readers_would_refuse_each_other() -> None:
    newest = 10
    refused = []
    for token in (12, 11):  # both granted while the other one holds
        if token >= newest:
            newest = token
        else:
            refused.append(token)
    assert refused == [11]


def test_a_writer_older_than_a_reader_is_refused() -> None:
    seen, _ = visit(Seen(), 12, True)
    with pytest.raises(StaleToken, match=r"token 11 for 'r' is stale: 12 was here before") as caught:
        enter(seen, Fence("n", "r", 11))
    assert (caught.value.resource, caught.value.token) == ("r", 11)


def test_a_fence_can_be_pickled_and_is_frozen() -> None:
    fence = Fence("billing", "order:1", 42, True)
    assert pickle.loads(pickle.dumps(fence)) == fence
    assert hash(fence) == hash(Fence("billing", "order:1", 42, True))
    with pytest.raises(AttributeError):
        fence.token = 43  # type: ignore[misc]
