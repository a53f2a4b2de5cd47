"""The rule of one list: claims that look only when they are woken, each through a server that may lag behind.

The model has what matters of ZooKeeper, and of what the store does around the rule.

*Servers.* All changes are one log: a node is made, is marked, goes. Each claim sees it through a server of its own,
which has applied a part of it. A claim's own node is there from its first look on. A watch fires once, when that server
comes to the change.

*A claim* makes its node, lists, and holds if it may. Else it asks for what `to_watch` says. That is another request:
the line may have changed meanwhile. A list that comes with the watch is looked at again if it decides something. A node
that is gone by then, or marked, means: list again. Otherwise it sleeps, and only its watch wakes it. A claim that holds
marks itself if it must, later than it has found out.

A story mixes arrivals, ends and steps of everybody in any order. Sometimes everybody may do what there is to do; then
nobody may be left asleep who may hold. What was granted is judged afterwards, in the order of the states that it was
decided on, by the one rule itself.

The queue is the oracle. Where all capacities but those of exclusive claims are the same, it has the same holders. Where
they differ, a claim may have to wait that the queue would grant, for the list does not say who was granted: then one
behind it would hold, too, but for somebody else behind that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core import line as rule
from holdfast.core.claim import MAX, Claim
from holdfast.core.line import Place, ToWatch, fits, holders, in_order
from holdfast.core.queue import Entry, Queue

EXCLUSIVE = Place(MAX, MAX)
READER = Place(1, MAX)


# -- the model


class Rules(NamedTuple):
    """What claims go by. `must_tell` is also told whether the claim has waited."""

    may_hold: Callable[[Sequence[Place], int], bool] = rule.may_hold
    to_watch: Callable[[Sequence[Place], int], ToWatch] = rule.to_watch
    must_tell: Callable[[Sequence[Place], int, bool], bool] = lambda line, at, waited: rule.must_tell(line, at)


class Change(NamedTuple):
    """One entry of the log."""

    what: str  # made, marked, gone
    who: int


class Server:
    """What one server has applied of the log."""

    def __init__(self) -> None:
        self.applied = 0
        self.line: list[int] = []
        self.marked: set[int] = set()

    def apply(self, change: Change) -> None:
        self.applied += 1
        match change.what:
            case "made":
                self.line.append(change.who)
            case "marked":
                self.marked.add(change.who)
            case "gone":
                self.line.remove(change.who)


class Actor:
    """A claim, and whoever makes it."""

    def __init__(self, number: int, place: Place) -> None:
        self.number = number
        self.place = place
        self.server = Server()
        self.listed: list[int] | None = None  # what it has seen, and has to watch something of
        self.watching: int | str | None = None  # somebody, or "all"
        self.asleep = False
        self.waited = False
        self.wakeups = 0
        self.granted_at: int | None = None  # how long the log was that it was decided on
        self.owes_mark = False
        self.gone = False

    @property
    def holds(self) -> bool:
        return self.granted_at is not None and not self.gone

    @property
    def waits(self) -> bool:
        return self.granted_at is None and not self.gone


class World:
    """Everybody, and the log."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.log: list[Change] = []
        self.actors: list[Actor] = []
        self.queue = Queue()  # the same story told to the oracle, in which everybody asks at once
        self.alike = True  # all capacities but those of exclusive claims

    # -- what happens

    def arrive(self, place: Place) -> Actor:
        actor = Actor(len(self.actors), place)
        self.alike &= place.exclusive or all(
            place.capacity == a.place.capacity for a in self.actors if not a.place.exclusive
        )
        self.actors.append(actor)
        self.write("made", actor)
        self.catch_up(actor)
        self.queue.claim(Claim("r", str(actor.number), *place, ttl=inf), 0.0, 1, inf)
        return actor

    def leave(self, actor: Actor) -> None:
        """End a hold, or withdraw."""
        if actor.owes_mark:
            self.mark(actor)
        actor.gone, actor.asleep = True, False
        self.write("gone", actor)
        self.queue.release(str(actor.number), 0.0)
        while woken := self.queue.grantable():
            self.queue.claim(woken[0].claim, 0.0, 1, inf)

    def steps(self) -> list[Callable[[], None]]:
        """Return everything that may happen next by itself."""
        found: list[Callable[[], None]] = []
        for actor in self.actors:
            if actor.gone:
                continue
            if actor.owes_mark:
                found.append(partial(self.mark, actor))
            if actor.waits and not actor.asleep:
                found.append(partial(self.look if actor.listed is None else self.watch, actor))
            if actor.server.applied < len(self.log):
                found.append(partial(self.advance, actor))
        return found

    def rush(self, actor: Actor) -> None:
        """Let one claim do all that it can, while the others stand still."""
        self.catch_up(actor)
        while actor.waits and not actor.asleep:
            self.look(actor) if actor.listed is None else self.watch(actor)

    def write(self, what: str, actor: Actor) -> None:
        self.log.append(Change(what, actor.number))

    def mark(self, actor: Actor) -> None:
        actor.owes_mark = False
        self.write("marked", actor)

    def advance(self, actor: Actor) -> None:
        """Let the server of a claim apply one more change, and tell of it."""
        change = self.log[actor.server.applied]
        actor.server.apply(change)
        seen = change.what != "marked" if actor.watching == "all" else change.who == actor.watching
        if seen:
            actor.watching, actor.asleep = None, False
            actor.wakeups += 1

    def catch_up(self, actor: Actor) -> None:
        while actor.server.applied < len(self.log):
            self.advance(actor)

    def look(self, actor: Actor) -> None:
        self.decide(actor, list(actor.server.line))

    def decide(self, actor: Actor, line: list[int]) -> None:
        places, at = self.places(line), line.index(actor.number)
        if not self.rules.may_hold(places, at):
            actor.listed = line
            return
        actor.granted_at, actor.listed, actor.watching = actor.server.applied, None, None
        actor.owes_mark = self.rules.must_tell(places, at, actor.waited)
        self.check_together()

    def watch(self, actor: Actor) -> None:
        assert actor.listed is not None
        line, actor.listed, actor.waited = actor.listed, None, True
        watched = self.rules.to_watch(self.places(line), line.index(actor.number)).at
        if watched is None:
            actor.watching = "all"
            seen = list(actor.server.line)
            places, at = self.places(seen), seen.index(actor.number)
            if seen != line and (self.rules.may_hold(places, at) or self.rules.to_watch(places, at).at is not None):
                return self.decide(actor, seen)
        else:
            actor.watching = line[watched]
            if actor.watching not in actor.server.line:
                actor.watching = None
                return
            if actor.place.capacity < MAX and actor.watching in actor.server.marked:
                return
        actor.asleep = True

    def places(self, line: Sequence[int]) -> list[Place]:
        return [self.actors[number].place for number in line]

    # -- what has to be true

    def check_together(self) -> None:
        """Judge who is inside at this moment by the largest capacity: one that was granted later may be told first."""
        inside = [actor.place for actor in self.actors if actor.holds]
        assert sum(place.weight for place in inside) <= max(place.capacity for place in inside)
        assert len(inside) == 1 or not any(place.exclusive for place in inside), "an exclusive grant is not alone"

    def check_grants(self) -> None:
        """Judge every grant by the one rule, in the state that it was decided on."""
        for actor in self.actors:
            if actor.granted_at is None:
                continue
            then = Server()
            for change in self.log[: actor.granted_at]:
                then.apply(change)
            ahead = then.line[: then.line.index(actor.number)]
            granted = {
                a.number for a in self.actors if a.granted_at is not None and a.granted_at <= actor.granted_at
            } & set(then.line)
            counted = granted | set(ahead) | {actor.number}
            assert sum(place.weight for place in self.places(sorted(counted))) <= actor.place.capacity

    def settle(self) -> None:
        """Let everybody do what there is to do; then nobody may sleep who could go."""
        for _ in range(50 * (len(self.actors) + 1)):
            if not (steps := self.steps()):
                break
            for step in steps:
                step()
        else:
            raise AssertionError("claims go on looking, and nothing changes")
        self.check_rest()

    def check_rest(self) -> None:
        line = [actor.number for actor in self.actors if not actor.gone]
        places = self.places(line)
        for at, number in enumerate(line):
            assert self.actors[number].holds or not rule.may_hold(places, at), f"{number} may hold, and sleeps"
        granted = {number for number in line if self.actors[number].holds}
        assert granted or not line, "nobody holds, and everybody sleeps"
        assert {line[at] for at, holds in enumerate(holders(places)) if holds} >= granted
        if self.alike:
            assert granted == {int(e.claim.holder) for e in self.queue.entries if e.token}
        for late in self.queue_would_grant(line, granted):
            behind = range(line.index(late) + 1, len(line))
            assert [at for at in behind if fits(places, at) and line[at] not in granted], f"{late} waits for nothing"

    def queue_would_grant(self, line: list[int], granted: set[int]) -> list[int]:
        entries = [
            Entry(at, Claim("r", str(number), *self.actors[number].place), number in granted, inf)
            for at, number in enumerate(line)
        ]
        return [int(entry.claim.holder) for entry in Queue(entries).grantable()]


# -- stories


def _permit(capacity: int) -> st.SearchStrategy[Place]:
    return st.integers(1, min(3, capacity)).map(lambda weight: Place(weight, capacity))


def _kinds(capacities: st.SearchStrategy[int]) -> st.SearchStrategy[Place]:
    return st.one_of(st.just(EXCLUSIVE), capacities.flatmap(_permit), capacities.flatmap(_permit))


# Kinds of claims: those of one capacity and exclusive ones; and any.
alike = st.sampled_from([2, 3, 5, MAX]).flatmap(
    lambda capacity: st.lists(_kinds(st.just(capacity)), min_size=1, max_size=3)
)
mixed = st.lists(_kinds(st.sampled_from([1, 2, 3, 4, 5, MAX])), min_size=1, max_size=5)

Story = list[tuple[str, int]]
stories: st.SearchStrategy[Story] = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "leave", "leave", "withdraw", "rush", "rush", "step", "step", "settle"]),
        st.integers(0, 59),
    ),
    min_size=5,
    max_size=40,
)


def play(world: World, kinds: list[Place], story: Story) -> None:
    """Tell a story to its end: everybody has held, or has given up."""
    for what, number in story:
        held = [actor for actor in world.actors if actor.holds]
        waiting = [actor for actor in world.actors if actor.waits]
        if what == "arrive" and len(held) + len(waiting) < 9:
            world.arrive(kinds[number % len(kinds)])
        elif what == "leave" and held:
            world.leave(held[number % len(held)])
        elif what == "withdraw" and waiting:
            world.leave(waiting[number % len(waiting)])
        elif what == "rush" and waiting:
            world.rush(waiting[number % len(waiting)])
        elif what == "step" and (steps := world.steps()):
            steps[number % len(steps)]()
        elif what == "settle":
            world.settle()
    world.settle()
    while held := [actor for actor in world.actors if actor.holds]:
        world.leave(held[0])
        world.settle()
    assert not [actor for actor in world.actors if not actor.gone]
    world.check_grants()


@settings(max_examples=200, deadline=None)
@given(alike, stories)
def test_with_one_capacity_the_list_grants_what_the_queue_grants(kinds: list[Place], story: Story) -> None:
    play(World(Rules()), kinds, story)


@settings(max_examples=300, deadline=None)
@given(mixed, stories)
def test_with_any_capacities_nobody_is_granted_too_much_and_nobody_sleeps_who_may_hold(
    kinds: list[Place], story: Story
) -> None:
    play(World(Rules()), kinds, story)


@settings(max_examples=200, deadline=None)
@given(st.lists(_kinds(st.sampled_from([1, 2, 3, 4, 5, MAX])), min_size=1, max_size=12), st.data())
def test_what_fits_goes_on_fitting(places: list[Place], data: st.DataObject) -> None:
    """Whoever leaves, and whoever comes: it is the reason why nobody has to write down who was granted."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places)))
    later = [place for place, stays in zip(places, kept, strict=True) if stays] + data.draw(st.lists(st.just(READER)))
    before = [holds for holds, stays in zip(holders(places), kept, strict=True) if stays]
    for at, held in enumerate(before):
        assert fits(later, at) or not held
    assert holders(places) == [fits(places, at) for at in range(len(places))]
    assert any(rule.may_hold(places, at) for at in range(len(places))), "nobody goes first"


def test_one_may_have_to_wait_for_one_behind_that_the_queue_would_not_wait_for() -> None:
    """The price of a list that does not say who was granted, and only where capacities differ."""
    line = [Place(2, 3), Place(2, 4), Place(1, MAX)]
    assert [rule.may_hold(line, at) for at in range(3)] == [False, False, True]
    entries = [Entry(at, Claim("r", str(at), *place), int(at == 2), inf) for at, place in enumerate(line)]
    assert [entry.claim.holder for entry in Queue(entries).grantable()] == ["0"]
    assert rule.may_hold(line[:2], 1)  # with the last one gone the second goes, and then the first


def late_first_look(rules: Rules) -> None:
    """Play out the rare case: one looks for the first time later than the one behind it, and never has to wait."""
    world = World(rules)
    all_of_it = world.arrive(Place(2, 2))
    world.rush(all_of_it)
    slow, quick = world.arrive(Place(1, 2)), world.arrive(Place(1, 2))
    world.rush(quick)  # finds that the slow one does not fit, and watches it
    world.leave(all_of_it)
    world.rush(slow)
    assert slow.holds
    assert not slow.waited
    world.settle()


def test_one_that_never_had_to_wait_tells_the_one_that_watches_it() -> None:
    late_first_look(Rules())


# -- wake-ups


def wakeups(rules: Rules, kinds: list[Place], waiting: int) -> int:
    """Return how often claims that do not hold are woken by one end of a hold, among many that wait."""
    world = World(rules)
    for number in range(waiting):
        world.arrive(kinds[number % len(kinds)])
        world.settle()
    before = sum(actor.wakeups for actor in world.actors)
    world.leave(next(actor for actor in world.actors if actor.holds))
    world.settle()
    granted = sum(actor.holds for actor in world.actors)
    return sum(actor.wakeups for actor in world.actors) - before - granted


HERDLESS = {
    "exclusive": [EXCLUSIVE],
    "writers and readers": [EXCLUSIVE, READER, READER],
    "permits": [Place(1, 3)],
    "permits of any weight": [Place(1, 4), Place(2, 4), Place(3, 4)],
    "permits and writers": [EXCLUSIVE, Place(1, 3), Place(1, 3)],
    "permits and readers behind a writer": [EXCLUSIVE, Place(1, 3), READER],
}


def test_an_end_wakes_as_many_with_many_that_wait_as_with_few() -> None:
    for name, kinds in HERDLESS.items():
        assert wakeups(Rules(), kinds, 48) <= wakeups(Rules(), kinds, 12), name


# -- the order


def as_suffix(number: int) -> int:
    """Return a counter as ZooKeeper writes it: an int of 32 bits."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@st.composite
def numbered(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return numbers as they were given out, and an order in which they are listed."""
    near = st.sampled_from([0, (1 << 31) - 3, (1 << 32) - 3]).flatmap(lambda edge: st.integers(edge - 5, edge + 5))
    first = draw(st.one_of(near, st.integers(0, (1 << 32) - 1)))
    steps = draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, 1 << 27)), max_size=14))
    given = [first + sum(steps[:end]) for end in range(len(steps) + 1)]
    return [as_suffix(number) for number in given], draw(st.permutations(range(len(given))))


def check_order(order: Callable[[Sequence[int]], list[int]], given: list[int], shuffled: list[int]) -> None:
    listed = [given[at] for at in shuffled]
    assert [listed[at] for at in order(listed)] == given


@settings(deadline=None)
@given(numbered())
def test_numbers_are_in_order_across_their_largest(numbers: tuple[list[int], list[int]]) -> None:
    check_order(in_order, *numbers)


def test_an_empty_line_is_in_order() -> None:
    assert in_order([]) == []


# -- controls: one mistake each


def one_too_many(line: Sequence[Place], at: int) -> bool:
    return sum(place.weight for place in line[:at]) < line[at].capacity


def one_too_few(line: Sequence[Place], at: int) -> bool:
    return rule.may_hold(line, at) and (at == 0 or sum(place.weight for place in line[: at + 1]) < line[at].capacity)


def counts_all_behind(line: Sequence[Place], at: int) -> bool:
    return sum(place.weight for place in line) <= line[at].capacity


def overtakes(line: Sequence[Place], at: int) -> bool:
    ahead = sum(place.weight for place, holds in zip(line[:at], holders(line), strict=False) if holds)
    return ahead + line[at].weight <= line[at].capacity


def always_the_one_ahead(line: Sequence[Place], at: int) -> ToWatch:
    return ToWatch(at - 1 if at else None)


def always_the_first(line: Sequence[Place], at: int) -> ToWatch:
    return ToWatch(0 if at else None)


def readers_the_one_ahead(line: Sequence[Place], at: int) -> ToWatch:
    return ToWatch(at - 1) if line[at].capacity == MAX and at else rule.to_watch(line, at)


def one_capacity_for_all(line: Sequence[Place], at: int) -> ToWatch:
    return rule.to_watch([place if place.exclusive else Place(place.weight, line[at].capacity) for place in line], at)


def any_change(line: Sequence[Place], at: int) -> ToWatch:
    return ToWatch(None)


MUTANTS = {
    "one too many": Rules(may_hold=one_too_many),
    "one too few": Rules(may_hold=one_too_few),
    "nobody behind counts": Rules(may_hold=fits),
    "all behind count": Rules(may_hold=counts_all_behind),
    "overtakes those that wait": Rules(may_hold=overtakes),
    "always watches the one ahead": Rules(to_watch=always_the_one_ahead),
    "always watches the first": Rules(to_watch=always_the_first),
    "readers watch the one ahead": Rules(to_watch=readers_the_one_ahead),
    "other capacities are not seen": Rules(to_watch=one_capacity_for_all),
    "nobody tells": Rules(must_tell=lambda line, at, waited: False),
    "only those that have not waited tell": Rules(
        must_tell=lambda line, at, waited: not waited and rule.must_tell(line, at)
    ),
}
ONLY_AFTER_WAITING = Rules(must_tell=lambda line, at, waited: waited and rule.must_tell(line, at))


def survives(check: Callable[..., None], *drawn: st.SearchStrategy[object]) -> bool:
    """Return whether a property finds nothing wrong."""
    attempt = settings(
        max_examples=3000,  # the first that fails ends it
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )(given(*drawn)(check))
    try:
        attempt()
    except AssertionError:
        return False
    return True


@pytest.mark.control
@pytest.mark.parametrize("rules", MUTANTS.values(), ids=MUTANTS)
def test_a_rule_with_a_mistake_is_caught(rules: Rules) -> None:
    def check(kinds: list[Place], story: Story) -> None:
        play(World(rules), kinds, story)

    assert not survives(check, st.one_of(alike, mixed), stories)


class Unwatched(World):
    """Goes to sleep again although what was to be watched is gone or marked, as one does that trusts an old answer."""

    def watch(self, actor: Actor) -> None:
        super().watch(actor)
        actor.asleep = actor.waits and actor.listed is None


@pytest.mark.control
def test_sleeping_without_a_watch_is_caught() -> None:
    def check(kinds: list[Place], story: Story) -> None:
        play(Unwatched(Rules()), kinds, story)

    assert not survives(check, mixed, stories)


@pytest.mark.control
def test_telling_only_after_waiting_is_caught() -> None:
    with pytest.raises(AssertionError, match="2 may hold, and sleeps"):
        late_first_look(ONLY_AFTER_WAITING)


@pytest.mark.control
def test_a_herd_is_caught() -> None:
    rules = Rules(to_watch=any_change)
    assert wakeups(rules, [EXCLUSIVE], 48) > wakeups(rules, [EXCLUSIVE], 12)


@pytest.mark.control
@pytest.mark.parametrize("modulus", [1, 1 << 31], ids=["plain", "half a round"])
def test_an_order_with_a_mistake_is_caught(modulus: int) -> None:
    def order(numbers: Sequence[int]) -> list[int]:
        return sorted(range(len(numbers)), key=lambda at: numbers[at] if modulus == 1 else numbers[at] % modulus)

    def check(numbers: tuple[list[int], list[int]]) -> None:
        check_order(order, *numbers)

    assert not survives(check, numbered())
