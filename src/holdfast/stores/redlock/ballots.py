"""Replies of the Redlock scripts, turned into votes, states and registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...core.ballot import SECOND, Kind, Vote, Votes, majority
from ...core.claim import MAX, Claim, ClaimState, Record, ResourceState

_KINDS = {int(kind): kind for kind in Kind}


def read_votes(replies: Iterable[Any]) -> Votes:
    """Turn the replies to a proposal into votes."""
    return [
        None if reply is None else Vote._make((_KINDS[reply[0]], *reply[1:6], _read_facts(reply[6])[0]))
        for reply in replies
    ]


def write_facts(claim: Claim) -> str:
    """Write down what people see of a claim: owner and value. The value may have line breaks, and is last."""
    owner = claim.owner.replace("\n", " ")
    return f"{owner}\n" if claim.value is None else f"{owner}\n={claim.value}"


def _read_facts(facts: bytes) -> tuple[str, str | None]:
    owner, _, value = facts.decode().partition("\n")
    return owner, value[1:] if value else None


class Row(NamedTuple):
    """What one node shows of a resource; times in microseconds."""

    counter: int
    holder: str
    ballot: int
    left: int
    owner: str
    value: str | None
    line: tuple[tuple[str, int, str], ...]
    broken: bool


def read_row(reply: Sequence[Any]) -> Row:
    """Turn what a node shows of one resource into a row."""
    counter, holder, ballot, left, facts, line, broken = reply
    places = tuple((name.decode(), life, _read_facts(place)[0]) for name, life, place in line)
    return Row(counter, holder.decode(), ballot, left, *_read_facts(facts), places, bool(broken))


def merge(resource: str, rows: Sequence[Row], nodes: int) -> ResourceState:
    """Return what a majority of nodes agrees on."""
    needed = majority(nodes)
    holders = []
    grants = Counter((row.holder, row.ballot) for row in rows if row.ballot)
    for (holder, ballot), count in grants.items():
        if count >= needed:
            mine = sorted((row for row in rows if row.ballot == ballot and row.holder == holder), key=lambda r: -r.left)
            left, first = mine[needed - 1].left / SECOND, mine[0]
            # So many nodes refuse to renew it that no majority will. A few marks alone prevent nothing.
            broken = len(rows) - sum(not row.broken for row in mine) >= needed
            holders.append(ClaimState(holder, first.owner, ballot, left, MAX, MAX, first.value, False, False, broken))
    places = Counter(place[0] for row in rows for place in row.line)
    waiters = {
        name: ClaimState(name, label, 0, life / SECOND, MAX, MAX, None, False, False)
        for row in rows
        for name, life, label in row.line
        if places[name] >= needed
    }
    counters = sorted(row.counter for row in rows)
    token = holders[0].token if holders else counters[: majority(len(counters))][-1] if counters else 0
    return ResourceState(resource, token, tuple(holders), tuple(waiters.values()))


class Copy(NamedTuple):
    """A register as one node has it. Of two copies the one with the larger version is the later."""

    exclusive: int
    version: tuple[int, int, str]  # the epoch: the exclusive token that it was written under; a number; the writer
    record: Record | None
    left: int  # microseconds; -1: for ever


def read_copy(reply: Sequence[Any]) -> Copy:
    """Turn the reply of a node that let the fence in into its copy."""
    _, _, exclusive, epoch, number, writer, there, value, token, left = reply
    record = Record(value.decode(), token) if there else None
    return Copy(exclusive, (epoch, number, writer.decode()), record, left)
