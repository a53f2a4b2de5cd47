"""The one rule of DESIGN section 3, told a second time as simply as possible: all is computed from the history.

Shares no code with `core.queue`. Slow on purpose: there is no state to get wrong, only a list of what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast.core.claim import MAX, Claim

WAITING_LIFE = 2.0


# -- what can happen


class Ask(NamedTuple):
    """A claim asks, perhaps twice because its first answer was lost."""

    who: int
    queue: bool = True
    twice: bool = False


class Renew(NamedTuple):
    """A holder renews."""

    who: int


class Release(NamedTuple):
    """A holder releases, or a waiter withdraws."""

    who: int
    keep: float = 0.0


class Leave(NamedTuple):
    """Whoever holds a resource, the nth of them, releases: chance alone hardly picks a holder for whom others wait."""

    resource: int
    nth: int


class Bury(NamedTuple):
    """The processes of these claims were found dead."""

    who: frozenset[int]


class Break(NamedTuple):
    """Somebody breaks a claim by hand."""

    who: int
    at_once: bool = False


class Pass(NamedTuple):
    """Time passes by the store's clock; the wall clock may do something else."""

    seconds: float
    wall_us: int


Act = Ask | Renew | Release | Break | Bury
Operation = Act | Pass


class Moment(NamedTuple):
    """An operation and the two clocks at its time."""

    what: Act
    now: float
    wall_us: int


# -- the specification


@dataclass(frozen=True)
class Row:
    """A claim that stands in line."""

    claim: Claim
    until: float
    token: int = 0
    kept: bool = False  # released, with a time to keep
    broken: bool = False


class Told(NamedTuple):
    """What an answer has to say: yes and a token, or no, how many are in the way and when the first of them ends."""

    yes: bool
    token: int = 0
    left: float = 0.0
    ahead: int = 0


class World(NamedTuple):
    """The line, in the order of arrival, the last token, and the answer to the last question."""

    line: tuple[Row, ...] = ()
    counter: int = 0
    told: Told = Told(False)
    left_line: bool = False  # did the last operation, or the time before it, take anybody out of the line?


def fits(line: Sequence[Row], claim: Claim) -> bool:
    """Say the rule: granted weight anywhere + waiting weight ahead (0 if unfair) + own weight <= own capacity."""
    holders = [row.claim.holder for row in line]
    place = holders.index(claim.holder) if claim.holder in holders else len(line)
    granted = sum(row.claim.weight for row in line if row.token)
    ahead = sum(row.claim.weight for row in line[:place] if not row.token)
    return granted + (ahead if claim.fair else 0) + claim.weight <= claim.capacity


def replay(cast: Sequence[Claim], history: Sequence[Moment]) -> World:
    """Compute the world from all that has happened, from the beginning."""
    world = World()
    for moment in history:
        world = _step(cast, world, moment)
    return world


def would_be_granted(world: World, now: float) -> list[str]:
    """Let every waiter ask, in the order of arrival; return those who would be granted."""
    line, granted = list(world.line), []
    for i, row in enumerate(line):
        if not row.token and fits(line, row.claim):
            line[i] = replace(row, token=1)
            granted.append(row.claim.holder)
    return granted


def _step(cast: Sequence[Claim], world: World, moment: Moment) -> World:
    what, now, wall_us = moment
    if isinstance(what, Bury):
        dead = {cast[i].holder for i in what.who}
        line = tuple(r for r in world.line if r.claim.holder not in dead or (r.token and (r.claim.detached or r.kept)))
        return World(line, world.counter, Told(True), line != world.line)
    line = tuple(row for row in world.line if row.until > now)
    left = line != world.line
    claim = cast[what.who]
    place = next((i for i, row in enumerate(line) if row.claim.holder == claim.holder), len(line))
    mine = line[place] if place < len(line) else None
    before, after = line[:place], line[place + 1 :]
    if isinstance(what, Renew):
        if mine is None or not mine.token or mine.kept or mine.broken:
            return World(line, world.counter, Told(False), left)
        return World((*before, replace(mine, until=now + claim.ttl), *after), world.counter, Told(True), left)
    if isinstance(what, Release):
        if mine is None:
            return World(line, world.counter, Told(False), left)
        if mine.kept:
            return World(line, world.counter, Told(True), left)
        if what.keep and mine.token and not mine.broken:
            kept = replace(mine, until=now + what.keep, kept=True)
            return World((*before, kept, *after), world.counter, Told(True), left)
        return World((*before, *after), world.counter, Told(True), True)
    if isinstance(what, Break):
        if mine is None or not mine.token:
            return World(line, world.counter, Told(False), left)
        if what.at_once or mine.kept:
            return World((*before, *after), world.counter, Told(True), True)
        told = Told(True, left=mine.until - now)
        return World((*before, replace(mine, broken=True), *after), world.counter, told, left)
    if mine is not None and mine.token:
        return World(line, world.counter, Told(True, mine.token, mine.until - now), left)
    if fits(line, claim):
        token = max(world.counter + 1, wall_us)
        row = Row(claim, now + claim.ttl, token)
        return World((*before, row, *after), token, Told(True, token, claim.ttl), left)
    way = [row for row in line if row.token] + [row for row in before if not row.token]
    no = Told(False, 0, min(row.until for row in way) - now, len(way))
    if what.queue:
        return World((*before, Row(claim, now + WAITING_LIFE), *after), world.counter, no, left)
    return World((*before, *after), world.counter, no, left or mine is not None)


# -- casts and stories

# Lock or writer, reader, permit, and k of n. What contends comes more often.
WEIGHTS = [(MAX, MAX), (MAX, MAX), (1, MAX), (1, MAX), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 4), (2, 4)]

_claims = st.tuples(
    st.sampled_from(WEIGHTS), st.sampled_from([1.0, 3.0, 10.0]), st.sampled_from([True, True, False]), st.booleans()
)


def casts(size: int = 6, resources: int = 1) -> st.SearchStrategy[list[Claim]]:
    """Draw claims: all mixes of weights, capacities, fair and unfair, detached or not."""
    return st.lists(_claims, min_size=size, max_size=size).map(
        lambda drawn: [
            Claim(f"r{i % resources}", f"h{i}", *weights, ttl, f"owner {i}", "v" if i % 2 else None, fair, detached)
            for i, (weights, ttl, fair, detached) in enumerate(drawn)
        ]
    )


def operations(
    size: int = 6, least: int = 20, most: int = 50, leave: Sequence[Leave] = ()
) -> st.SearchStrategy[list[Any]]:
    """Draw stories. Half of what happens is asking. Short ones come by shrinking alone."""
    everybody = range(size)
    asks = [Ask(i, queue, twice) for i in everybody for queue in (True, True, False) for twice in (False, True)]
    others = [
        *(Renew(i) for i in everybody),
        *(Release(i, keep) for i in everybody for keep in (0.0, 0.0, 2.5)),
        *(Break(i, i % 2 == 0) for i in everybody),
        *(Bury(frozenset({i, (i * 3 + 1) % size})) for i in everybody),
        *(Pass(s, us) for s in (0.25, 0.5, 1.0, 2.0, 3.0) for us in (0, 1, 500_000, -3, -90_000)),
        *leave,
    ]
    one: st.SearchStrategy[Any] = st.one_of(
        st.sampled_from(asks), st.sampled_from(asks), st.sampled_from(others), st.sampled_from(others)
    )
    return st.lists(one, min_size=least, max_size=most)
