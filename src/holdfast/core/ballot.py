"""Fenced Redlock: a token on independent nodes without consensus is a ballot.

A client proposes a number to all nodes. A node grants it only if the resource is free there and the number is above the
node's counter, which then becomes that number. A majority of grants for one and the same number makes it the token. Two
majorities share a node, and a counter only rises: so tokens are unique, and whoever asks later gets a larger
one. No clock is trusted for that. Times are microseconds, as the nodes count them.

The first half is the rule of one node, which `stores/redlock/scripts` carry out; the second is what a client concludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from .claim import Blocker, Waiting
from .queue import next_token

SECOND = 1_000_000
# How far a ballot may be from a node's clock: ahead of it always, behind it where the node knows no counter.
WINDOW = 3600 * SECOND


class Kind(IntEnum):
    """How a node answers a proposal."""

    GRANTED = 1
    TAKEN = 2  # another holds the resource there
    LOW = 3  # the node has seen this ballot, or a higher one
    AHEAD = 4  # the ballot is too far ahead of the node's clock
    BEHIND = 5  # the node knows no counter, and the ballot is too old for its clock


GRANTED, TAKEN, LOW, AHEAD, BEHIND = Kind

GONE, PROLONGED, BROKEN = 0, 1, 2  # how a node answers a renewal; BROKEN: the grant is there, and is renewed no more


class Vote(NamedTuple):
    """The answer of one node. `ballot` and `left` are those of the grant that stands there, its own or another's."""

    kind: Kind
    counter: int = 0
    ballot: int = 0
    left: int = 0
    clock: int = 0
    ahead: int = 0
    owner: str = ""


class Node(NamedTuple):
    """What a node keeps of a resource. `line`: who waits and until when, in order of arrival."""

    counter: int = 0
    holder: str = ""
    ballot: int = 0  # of the grant; 0: nobody holds
    expires: int = 0
    owner: str = ""
    line: tuple[tuple[str, int], ...] = ()
    broken: bool = False  # somebody has evicted the grant


def swept(node: Node, now: int) -> Node:
    """Return the node without a grant that has expired. Places in line are looked at when their turn comes."""
    return Node(node.counter, line=node.line) if node.ballot and node.expires <= now else node


def vote(
    node: Node, holder: str, ballot: int, ttl: int, now: int, *, owner: str = "", life: int = 0
) -> tuple[Node, Vote]:
    """Decide on a proposal. With a waiting life, whoever is refused gets a place in line."""
    node = swept(node, now)
    kind = _kind(node, holder, ballot, now)
    if kind is not GRANTED:
        if life:
            node = node._replace(line=_placed(node.line, holder, now + life))
        ahead = next((n for n, place in enumerate(node.line) if place[0] == holder), len(node.line))
        left = node.expires - now if node.ballot else 0
        return node, Vote(kind, node.counter, node.ballot, left, now, ahead + 1, node.owner)
    if node.ballot != ballot:
        # Free, or held by the same holder with a lower ballot of an earlier round, which this one replaces.
        node = Node(ballot, holder, ballot, now + ttl, owner, _without(node.line, holder))
    return node, Vote(GRANTED, node.counter, ballot, node.expires - now, now)


def _kind(node: Node, holder: str, ballot: int, now: int) -> Kind:
    if node.ballot and node.holder != holder:
        return TAKEN
    if node.ballot == ballot:  # sent twice: the first answer stands, and its time runs on
        return GRANTED
    if ballot > now + WINDOW:
        return AHEAD
    if not node.counter and ballot < now - WINDOW:
        return BEHIND
    return LOW if ballot <= node.counter else GRANTED


def left_by(node: Node, holder: str, ballot: int, now: int, stay: int = 0) -> tuple[Node, bool, str]:
    """Release every grant of the holder up to this ballot; return also whether it had anything, and who is called.

    A release that comes late must not free a grant of a later round: that one has a higher ballot. The counter rises to
    the ballot, so that a proposal which the release has overtaken is refused instead of becoming a ghost. Whoever gives
    back the few votes of a round that it did not win stays in line, and calls nobody: nothing has become free.
    """
    node = swept(node, now)
    line = _placed(node.line, holder, now + stay) if stay else _without(node.line, holder)
    had = len(line) < len(node.line)
    if node.ballot and node.holder == holder and node.ballot <= ballot:
        node, had = Node(node.counter), True
    node = _past(node, ballot, now)
    if stay or node.ballot:
        return node._replace(line=line), had, ""
    while line and line[0][1] <= now:
        line = line[1:]
    return node._replace(line=line), had, line[0][0] if line else ""


def prolonged(node: Node, holder: str, ballot: int, ttl: int, now: int) -> tuple[Node, int]:
    """Renew exactly this grant; what has ended is never re-created.

    The end never comes nearer. A renewal is over when a majority has answered, and its copy to a slow node may run
    after a later one with a longer ttl, which the holder counts on.
    """
    node = swept(node, now)
    if not node.ballot or node.holder != holder or node.ballot != ballot:
        return node, GONE
    if node.broken:
        return node, BROKEN
    return node._replace(expires=max(node.expires, now + ttl)), PROLONGED


def broken_by(node: Node, holder: str, ballot: int, now: int) -> tuple[Node, int]:
    """Break exactly this grant; return also how long it stays taken, 0 if it is not there.

    Its end stays where it is. Either way this node never renews it again: where it is not there the counter rises to
    the ballot, so that a proposal which comes late does not bring it there.
    """
    node = swept(node, now)
    if node.ballot and node.holder == holder and node.ballot == ballot:
        return node._replace(broken=True), node.expires - now
    return _past(node, ballot, now), 0


def _past(node: Node, ballot: int, now: int) -> Node:
    """Return the node with its counter at the ballot at least, if that is one it could grant."""
    if ballot > node.counter and ballot <= now + WINDOW and (node.counter or ballot >= now - WINDOW):
        return node._replace(counter=ballot)
    return node


def _without(line: tuple[tuple[str, int], ...], holder: str) -> tuple[tuple[str, int], ...]:
    return tuple(place for place in line if place[0] != holder)


def _placed(line: tuple[tuple[str, int], ...], holder: str, until: int) -> tuple[tuple[str, int], ...]:
    if any(place[0] == holder for place in line):
        return tuple((name, until if name == holder else end) for name, end in line)
    return (*line, (holder, until))


# -- what a client concludes


class Elected(NamedTuple):
    """A majority granted this ballot: it is the token. `left` is how long a majority keeps it, in seconds."""

    token: int
    left: float


class Higher(NamedTuple):
    """A majority could be won with a ballot above their counters."""


class Contended(NamedTuple):
    """Nobody is known to hold a majority: several ask at once, and the votes are split."""

    waiting: Waiting


class Skewed(NamedTuple):
    """Too many nodes refuse the clock that the ballot was made of; `ahead` is how far it is ahead of theirs."""

    ahead: float


class Silent(NamedTuple):
    """Fewer than a majority answered."""

    answered: int


Verdict = Elected | Waiting | Higher | Contended | Skewed | Silent
Votes = Sequence[Vote | None]


def majority(nodes: int) -> int:
    """Return how many of these nodes outvote the rest."""
    return nodes // 2 + 1


def propose(votes: Votes, clock_us: int, last: int = 0) -> int:
    """Return a ballot above the counters of a majority, as far as they are known; a few wild ones must not count.

    It is also above `last`, the holder's own last one: a ballot that was given back must never be won again.

    Raises: StoreError when it would not fit a double.
    """
    counters = sorted(vote.counter for vote in votes if vote is not None)
    known = counters[: majority(len(votes))]
    return next_token(max(last, known[-1] if known else 0), clock_us)


def tally(ballot: int, votes: Votes) -> Verdict:
    """Conclude from the votes of a round; None stands for a node that did not answer."""
    needed = majority(len(votes))
    answers = [vote for vote in votes if vote is not None]
    granted = [vote for vote in answers if vote.kind is GRANTED and vote.ballot == ballot]
    if len(granted) >= needed:
        lasting = sorted((vote.left for vote in granted), reverse=True)
        return Elected(ballot, lasting[needed - 1] / SECOND)
    if len(answers) < needed:
        return Silent(len(answers))
    winnable = sum(vote.kind in (GRANTED, LOW) for vote in answers)
    if winnable >= needed:
        return Higher()
    taken = [vote for vote in answers if vote.kind is TAKEN]
    if not taken:
        return Skewed(_skew(ballot, answers))
    return _blocked(taken, needed, winnable)


def _blocked(taken: list[Vote], needed: int, winnable: int) -> Waiting | Contended:
    rivals = [vote.ballot for vote in taken]
    rival = max(taken, key=lambda vote: (rivals.count(vote.ballot), vote.ballot))
    # Once so many of the others have run out, a majority can be had.
    ends = sorted(vote.left for vote in taken)
    retry_after = ends[min(len(ends), max(1, needed - winnable)) - 1] / SECOND
    waiting = Waiting(rival.ahead, retry_after, Blocker(rival.owner, rival.ballot, rival.left / SECOND))
    return waiting if rivals.count(rival.ballot) >= needed else Contended(waiting)


def _skew(ballot: int, answers: list[Vote]) -> float:
    clocks = sorted(vote.clock for vote in answers if vote.kind in (AHEAD, BEHIND))
    return (ballot - clocks[len(clocks) // 2]) / SECOND


def verdict_of(yes: int, no: int, nodes: int) -> bool | None:
    """Conclude from the answers to a renewal: a majority renewed, or it cannot any more; None: nobody can tell."""
    needed = majority(nodes)
    if yes >= needed:
        return True
    return False if no > nodes - needed else None


def backoff(attempt: int, chance: float) -> float:
    """Return the pause in seconds before round number `attempt` (from 0) of a contended ballot.

    `chance` in [0, 1) is drawn by each contender for itself: with equal pauses they would meet again.
    """
    return 0.001 + 0.002 * 2.0 ** min(attempt, 5) * chance
