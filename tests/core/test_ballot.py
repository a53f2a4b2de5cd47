"""The ballot of Redlock: the rule of one node, and what a client concludes from the answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ballot import (
    AHEAD,
    BEHIND,
    BROKEN,
    GONE,
    GRANTED,
    LOW,
    PROLONGED,
    SECOND,
    TAKEN,
    WINDOW,
    Contended,
    Elected,
    Higher,
    Kind,
    Node,
    Silent,
    Skewed,
    Vote,
    backoff,
    broken_by,
    left_by,
    majority,
    prolonged,
    propose,
    tally,
    verdict_of,
    vote,
)
from holdfast.core.claim import Waiting
from holdfast.core.queue import TOKEN_LIMIT
from holdfast.errors import StoreError

NOW = 1_800_000_000 * SECOND
TTL = 30 * SECOND


def taken(node: Node, holder: str = "a", ballot: int = NOW, now: int = NOW) -> Node:
    """Have a node grant."""
    node, answer = vote(node, holder, ballot, TTL, now)
    assert answer.kind is GRANTED
    return node


# -- the rule of one node


def test_node_grants_what_is_free_and_keeps_the_ballot():
    node, answer = vote(Node(), "a", NOW, TTL, NOW, owner="web-1")
    assert node == Node(NOW, "a", NOW, NOW + TTL, "web-1")
    assert answer == Vote(GRANTED, NOW, NOW, TTL, NOW)


def test_node_tells_who_holds():
    node, answer = vote(taken(Node()), "b", NOW + 5, TTL, NOW + SECOND)
    assert answer[:4] == (TAKEN, NOW, NOW, TTL - SECOND)
    assert node.holder == "a"


@pytest.mark.parametrize("ballot", [NOW - 1, NOW])
def test_node_refuses_a_ballot_that_is_not_above_its_counter(ballot: int):
    node, answer = vote(Node(NOW), "b", ballot, TTL, NOW)
    assert answer[:2] == (LOW, NOW)
    assert node == Node(NOW)


def test_proposal_sent_twice_has_one_grant_whose_time_runs_on():
    node = taken(Node())
    again, answer = vote(node, "a", NOW, TTL, NOW + SECOND)
    assert again == node
    assert answer[:4] == (GRANTED, NOW, NOW, TTL - SECOND)


def test_higher_ballot_of_the_same_holder_replaces_its_own():
    node, answer = vote(taken(Node()), "a", NOW + 9, TTL, NOW + SECOND)
    assert answer.kind is GRANTED
    assert (node.ballot, node.counter, node.expires) == (NOW + 9, NOW + 9, NOW + SECOND + TTL)
    assert vote(node, "a", NOW, TTL, NOW)[1].kind is LOW  # a late message of the earlier round


@pytest.mark.parametrize(
    ("node", "ballot", "kind"),
    [
        (Node(), NOW + WINDOW, GRANTED),
        (Node(), NOW + WINDOW + 1, AHEAD),
        (Node(5), NOW + WINDOW + 1, AHEAD),
        (Node(), NOW - WINDOW, GRANTED),
        (Node(), NOW - WINDOW - 1, BEHIND),
        (Node(5), NOW - WINDOW - 1, GRANTED),  # it knows what it has seen: an old clock does no harm
    ],
)
def test_node_refuses_clocks_that_are_far_from_its_own(node: Node, ballot: int, kind: Kind):
    after, answer = vote(node, "a", ballot, TTL, NOW)
    assert answer.kind is kind
    assert kind is GRANTED or after == node


def test_poisoned_counter_stays_where_it_is():
    node = Node(NOW + 2 * WINDOW)
    assert vote(node, "a", NOW, TTL, NOW)[1].kind is LOW
    assert vote(node, "a", NOW + 2 * WINDOW + 1, TTL, NOW)[1].kind is AHEAD


def test_late_release_does_not_free_a_later_grant():
    node = taken(taken(Node()), ballot=NOW + 9)
    after, had, _ = left_by(node, "a", NOW, NOW)
    assert not had
    assert after == node
    after, had, _ = left_by(node, "a", NOW + 9, NOW)
    assert had
    assert after == Node(NOW + 9)


def test_proposal_that_its_release_has_overtaken_is_refused():
    node, had, _ = left_by(Node(), "a", NOW, NOW)
    assert not had
    assert vote(node, "a", NOW, TTL, NOW)[1].kind is LOW


@pytest.mark.parametrize("ballot", [NOW + WINDOW + 1, NOW - WINDOW - 1])
def test_release_of_a_wild_ballot_does_not_move_the_counter(ballot: int):
    assert left_by(Node(), "a", ballot, NOW)[0] == Node()


def test_only_the_exact_grant_is_renewed():
    node = taken(Node())
    after, done = prolonged(node, "a", NOW, TTL, NOW + SECOND)
    assert done
    assert after.expires == NOW + SECOND + TTL
    for holder, ballot, now in (("b", NOW, NOW), ("a", NOW + 1, NOW), ("a", NOW, NOW + TTL)):
        after, done = prolonged(node, holder, ballot, TTL, now)
        assert not done
        assert after.ballot in (0, node.ballot)
    assert prolonged(Node(NOW), "a", NOW, TTL, NOW) == (Node(NOW), GONE)


def test_renewal_that_comes_late_does_not_bring_the_end_nearer():
    node, done = prolonged(taken(Node()), "a", NOW, 4 * TTL, NOW)
    assert done == PROLONGED
    late, done = prolonged(node, "a", NOW, TTL, NOW + SECOND)
    assert done == PROLONGED
    assert late.expires == NOW + 4 * TTL


def test_broken_grant_stays_taken_to_its_end_and_is_renewed_no_more():
    node, left = broken_by(taken(Node()), "a", NOW, NOW + SECOND)
    assert left == TTL - SECOND
    assert broken_by(node, "a", NOW, NOW + SECOND) == (node, left)
    assert prolonged(node, "a", NOW, TTL, NOW + SECOND) == (node, BROKEN)
    assert vote(node, "b", NOW + 1, TTL, NOW + TTL - 1)[1].kind is TAKEN
    assert vote(node, "b", NOW + 1, TTL, NOW + TTL)[1].kind is GRANTED
    assert left_by(node, "a", NOW, NOW + SECOND)[:2] == (Node(NOW), True)


def test_holder_that_asks_again_has_what_is_left_of_a_broken_grant():
    node, _ = broken_by(taken(Node()), "a", NOW, NOW)
    again, answer = vote(node, "a", NOW, TTL, NOW + SECOND)
    assert (again, answer.kind, answer.left) == (node, GRANTED, TTL - SECOND)
    later, answer = vote(node, "a", NOW + 1, TTL, NOW + SECOND)  # another round of its own: that is another grant
    assert (later.broken, answer.kind) == (False, GRANTED)


@pytest.mark.parametrize(("holder", "ballot"), [("b", NOW), ("a", NOW - 1), ("a", NOW + 1)])
def test_only_the_grant_that_is_meant_is_broken(holder: str, ballot: int):
    node, left = broken_by(taken(Node()), holder, ballot, NOW)
    assert left == 0
    assert prolonged(node, "a", NOW, TTL, NOW)[1] == PROLONGED


def test_proposal_that_comes_after_its_break_is_refused():
    node, left = broken_by(Node(), "a", NOW, NOW)
    assert (node, left) == (Node(NOW), 0)
    assert vote(node, "a", NOW, TTL, NOW)[1].kind is LOW


def test_release_calls_the_first_who_is_still_waiting():
    node = taken(Node())
    for number, holder in enumerate(("dead", "b", "c"), 1):
        node, answer = vote(node, holder, NOW + 1, TTL, NOW, life=SECOND * number)
        assert answer.ahead == number
    node, had, called = left_by(node, "a", NOW, NOW + SECOND)
    assert had
    assert called == "b"
    assert [name for name, _ in node.line] == ["b", "c"]


def test_votes_given_back_keep_the_place_and_call_nobody():
    node, had, called = left_by(taken(Node(line=(("b", NOW + TTL),))), "a", NOW, NOW, stay=SECOND)
    assert had
    assert not called
    assert node.line == (("b", NOW + TTL), ("a", NOW + SECOND))


def test_refused_without_a_waiting_life_leaves_nothing():
    assert vote(taken(Node()), "b", NOW + 1, TTL, NOW)[0].line == ()


# -- what a client concludes


def votes(*kinds: Vote | None) -> Sequence[Vote | None]:
    return kinds


YES = Vote(GRANTED, NOW, NOW, TTL)
BUSY = Vote(TAKEN, NOW - 9, NOW - 9, 4 * SECOND, owner="web-3", ahead=1)


@pytest.mark.parametrize(("nodes", "needed"), [(3, 2), (5, 3), (7, 4)])
def test_majority(nodes: int, needed: int):
    assert majority(nodes) == needed
    assert 2 * needed > nodes


def test_majority_of_grants_is_the_token_for_as_long_as_a_majority_keeps_it():
    lefts = [YES._replace(left=left * SECOND) for left in (5, 9, 7)]
    assert tally(NOW, votes(lefts[0], lefts[1], None, lefts[2], BUSY)) == Elected(NOW, 5.0)
    assert tally(NOW, votes(*lefts, YES, BUSY)) == Elected(NOW, 7.0)


def test_grants_of_another_ballot_do_not_count():
    old = Vote(GRANTED, NOW - 1, NOW - 1, TTL)
    assert not isinstance(tally(NOW, votes(YES, old, old)), Elected)


def test_minority_is_never_enough():
    assert tally(NOW, votes(YES, YES, None, None, None)) == Silent(2)
    assert not isinstance(tally(NOW, votes(YES, YES, BUSY, BUSY, BUSY)), Elected)


def test_holder_of_a_majority_is_waited_for():
    late = BUSY._replace(left=6 * SECOND)
    verdict = tally(NOW, votes(BUSY, late, late, YES, None))
    assert isinstance(verdict, Waiting)
    assert verdict.retry_after == 6.0  # one is free; two more have to run out
    assert verdict.blocker is not None
    assert (verdict.blocker.owner, verdict.blocker.token) == ("web-3", NOW - 9)


def test_split_votes_are_no_holder():
    other = BUSY._replace(ballot=NOW - 8)
    assert isinstance(tally(NOW, votes(BUSY, BUSY, other, other, YES)), Contended)


def test_counters_in_the_way_ask_for_a_higher_ballot():
    low = Vote(LOW, NOW + 7)
    assert tally(NOW, votes(low, low, YES, BUSY, None)) == Higher()
    assert propose(votes(low, low, YES, BUSY, None), NOW) == NOW + 8


def test_clock_that_a_majority_refuses_is_named():
    ahead = Vote(AHEAD, clock=NOW - 7200 * SECOND)
    assert tally(NOW, votes(ahead, ahead, YES)) == Skewed(7200.0)
    behind = Vote(BEHIND, clock=NOW + 7200 * SECOND)
    assert tally(NOW, votes(behind, behind._replace(clock=NOW), YES)) == Skewed(-7200.0)


def test_one_wild_counter_does_not_carry_the_others_away():
    wild = Vote(LOW, NOW + 2 * WINDOW)
    fine = Vote(LOW, NOW + 1)
    assert propose(votes(wild, fine, fine, fine, wild), NOW) == NOW + 2


@given(
    st.lists(st.none() | st.integers(0, 2**52), min_size=3, max_size=7), st.integers(0, 2**52), st.integers(0, 2**52)
)
def test_proposal_is_above_the_counters_of_a_majority(counters: list[int | None], clock: int, last: int):
    answers = [None if counter is None else Vote(LOW, counter) for counter in counters]
    ballot = propose(answers, clock, last)
    assert ballot >= clock
    assert ballot > last
    known = [counter for counter in counters if counter is not None]
    assert sum(ballot > counter for counter in known) >= min(len(known), majority(len(counters)))


def test_proposal_past_the_limit_is_refused():
    with pytest.raises(StoreError, match="2\\^53"):
        propose((), TOKEN_LIMIT)


@pytest.mark.parametrize(
    ("yes", "no", "verdict"),
    [(3, 0, True), (5, 0, True), (3, 2, True), (2, 2, None), (0, 0, None), (2, 3, False), (0, 3, False), (0, 5, False)],
)
def test_renewal_is_told_by_a_majority(yes: int, no: int, verdict: bool | None):
    assert verdict_of(yes, no, 5) is verdict


def test_backoff_grows_differs_and_ends():
    assert backoff(0, 0.0) == backoff(6, 0.0) > 0
    assert backoff(3, 0.9) > backoff(2, 0.9) > backoff(2, 0.1)
    assert backoff(1000, 1.0) < 0.2
