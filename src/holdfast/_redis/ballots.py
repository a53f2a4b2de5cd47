"""Replies of the Redlock scripts, turned into votes, states and registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core.ballot import SECOND, Kind, Vote, Votes, majority
from ..core.claim import MAX, ClaimState, Record, ResourceState

_KINDS = {int(kind): kind for kind in Kind}


def read_votes(replies: Iterable[Any]) -> Votes:
    """Turn the replies to a proposal into votes."""
    return [
        None if reply is None else Vote(_KINDS[reply[0]], *reply[1:6])._replace(owner=reply[6].decode())
        for reply in replies
    ]


def write_value(value: str | None) -> str:
    """Write the value of a claim down so that "" and None differ."""
    return "" if value is None else f"={value}"


class Row(NamedTuple):
    """What one node shows of a resource; times in microseconds."""

    counter: int
    holder: str
    ballot: int
    left: int
    owner: str
    value: str | None
    line: tuple[tuple[str, int, str], ...]


def read_row(reply: Sequence[Any]) -> Row:
    """Turn what a node shows of one resource into a row."""
    counter, holder, ballot, left, owner, value, line = reply
    text = value.decode()
    return Row(
        counter, holder.decode(), ballot, left, owner.decode(), text[1:] if text else None,
        tuple((name.decode(), life, label.decode()) for name, life, label in line),
    )  # fmt: skip


def merge(resource: str, rows: Sequence[Row], nodes: int) -> ResourceState:
    """Return what a majority of nodes agrees on."""
    needed = majority(nodes)
    holders = []
    grants = Counter((row.holder, row.ballot) for row in rows if row.ballot)
    for (holder, ballot), count in grants.items():
        if count >= needed:
            mine = sorted((row for row in rows if row.ballot == ballot and row.holder == holder), key=lambda r: -r.left)
            left = mine[needed - 1].left / SECOND
            holders.append(ClaimState(holder, mine[0].owner, ballot, left, MAX, MAX, mine[0].value, False, False))
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
