"""The one rule where a store keeps nothing but a line: who may hold is a function of one list.

A store like ZooKeeper gives every claim a place when it comes, and its token with it. Nobody writes down who was
granted: each claim finds out by itself, from the weights and capacities of all that are in the line. What is ahead of a
claim only ever shrinks, and whoever comes later is behind. So a claim that fits together with all that is ahead of it
*is granted, or will be as soon as it looks*; it never stops fitting.

The one rule also counts what was granted behind a claim. That happens only where capacities differ: one that is judged
by four permits may go although another before it, judged by one, waits. So a claim counts those behind it that fit with
what is ahead of *them*, whether or not they have looked yet. It may wait for one that has not: that one goes first, and
nobody is granted too much. Among claims of one capacity there are none to count: if one behind fits, so does all before
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .claim import MAX

_NUMBERS = 1 << 32


class Place(NamedTuple):
    """What a claim in the line is judged by."""

    weight: int
    capacity: int

    @property
    def exclusive(self) -> bool:
        """Whether nobody may hold beside it, whatever its own capacity is."""
        return self.weight >= MAX


class ToWatch(NamedTuple):
    """What a claim that has to wait must notice: that this one goes or is granted; or any change, if it is None."""

    at: int | None


def in_order(numbers: Sequence[int]) -> list[int]:
    """Return the indices of numbers of 32 bits in the order in which they were given out. They start again below zero
    after the largest one, and those that are there at the same time are less than half a round apart.
    """
    if len(numbers) < 2:
        return [*range(len(numbers))]
    first, half = numbers[0], _NUMBERS // 2
    return sorted(range(len(numbers)), key=lambda at: (numbers[at] - first + half) % _NUMBERS)


def fits(line: Sequence[Place], at: int) -> bool:
    """Return whether a claim fits together with all that is ahead of it: then it holds, or will when it looks."""
    return sum(place.weight for place in line[: at + 1]) <= line[at].capacity


def may_hold(line: Sequence[Place], at: int) -> bool:
    """Return whether a claim that was not granted so far may hold."""
    mine = line[at]
    if mine.exclusive:
        return at == 0  # nobody behind it can hold: its weight would be ahead of them
    total = sum(place.weight for place in line[: at + 1])
    if total > mine.capacity:
        return False
    so_far = total
    for place in line[at + 1 :]:
        so_far += place.weight
        if so_far <= place.capacity:
            total += place.weight
    return total <= mine.capacity


def holders(line: Sequence[Place]) -> list[bool]:
    """Return, for people, who holds: whoever fits."""
    found, so_far = [], 0
    for place in line:
        so_far += place.weight
        found.append(so_far <= place.capacity)
    return found


def to_watch(line: Sequence[Place], at: int) -> ToWatch:
    """Return what a waiting claim must notice, as little as possible: a change must not wake everybody.

    An exclusive claim: that the one directly ahead goes. A reader, and one of several permits where others are judged
    by other capacities: that the last exclusive one ahead goes. A permit among its like: that the one directly ahead,
    which waits as well, goes or is granted. If there is none of these, any change: whichever permit is given back may
    be its own.
    """
    mine = line[at]
    if mine.exclusive:
        return ToWatch(at - 1) if at else ToWatch(None)
    if mine.capacity < MAX and all(place.capacity == mine.capacity or place.exclusive for place in line):
        return ToWatch(at - 1) if at and not fits(line, at - 1) else ToWatch(None)
    return ToWatch(next((index for index in reversed(range(at)) if line[index].exclusive), None))


def must_tell(line: Sequence[Place], at: int) -> bool:
    """Return whether a claim that finds in this line that it may hold has to say so: the one behind may watch it.

    Whether it has waited does not matter. The one behind may have looked earlier than the first look of this one, found
    that it does not fit, and watch it since. Whoever comes behind after this look finds that it fits, and does not.
    """
    return at + 1 < len(line) and line[at].capacity == line[at + 1].capacity < MAX
