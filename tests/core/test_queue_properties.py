"""The queue against a naive telling of the same rule, and controls: queues with one mistake that must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core import queue as queue_module
from holdfast.core.claim import LOST, MAX, Claim, Evicted, Granted, Lost, Renewed, Waiting
from holdfast.core.queue import BROKEN, KEPT, Entry, Queue, Step

from .naive import (
    WAITING_LIFE,
    Act,
    Ask,
    Break,
    Bury,
    Moment,
    Operation,
    Pass,
    Release,
    Renew,
    World,
    casts,
    operations,
    replay,
    would_be_granted,
)

START_US = 1_000_000


class Trial:
    """One story told to a queue and to the specification; every law is checked after every sentence."""

    def __init__(self, queue: Queue, cast: Sequence[Claim]) -> None:
        self.queue = queue
        self.cast = cast
        self.history: list[Moment] = []
        self.now = 0.0
        self.wall_us = START_US
        self.tokens: list[int] = []
        self.woken: set[str] = set()  # and not asked since

    def run(self, story: Iterable[Operation]) -> None:
        for what in story:
            if isinstance(what, Pass):
                self.now += what.seconds
                self.wall_us += what.wall_us
                continue
            if isinstance(what, Ask) and self._is_kept(what.who):
                continue  # a holder is new for every acquire; one that has released does not ask again
            before = self._view()
            step = self._do(what)
            self._check(what, step, before)
            if isinstance(what, Ask) and what.twice and isinstance(step.answer, Granted | Waiting):
                self._ask_again(what, step)

    def _do(self, what: Act) -> Step:
        self.history.append(Moment(what, self.now, self.wall_us))
        match what:
            case Ask(who, wait, _):
                return self.queue.claim(self.cast[who], self.now, self.wall_us, WAITING_LIFE, queue=wait)
            case Renew(who):
                return self.queue.renew(self.cast[who].holder, self.now, self.cast[who].ttl)
            case Release(who, keep):
                return self.queue.release(self.cast[who].holder, self.now, keep)
            case Break(who, at_once):
                return self.queue.evict(self.cast[who].holder, self.now, at_once)
            case Bury(who):
                return self.queue.bury({self.cast[i].holder for i in who})

    def _check(self, what: Act, step: Step, before: dict[str, tuple[int, float]]) -> None:
        world = replay(self.cast, self.history)
        self._check_answer(what, step.answer, world)
        self._check_line(world)
        self._check_changes(step, before)
        self._check_weights()
        self._check_wake(what, step, world)
        if isinstance(what, Ask):
            self._check_token(step.answer)
            if not what.queue and isinstance(step.answer, Waiting):
                assert self.queue.find(self.cast[what.who].holder) is None, "queue=False left something behind"
        if isinstance(what, Renew | Release | Break):  # law 3: nobody else's claim is touched
            mine = self.cast[what.who].holder
            after = self._view()
            for holder, facts in before.items():
                if holder != mine and facts[1] > self.now:
                    assert after.get(holder) == facts, f"{what} touched {holder}"

    def _check_answer(self, what: Act, answer: object, world: World) -> None:
        told = world.told
        match what:
            case Ask() if told.yes:
                assert answer == Granted(told.token, told.left)
            case Ask(who):
                assert isinstance(answer, Waiting)
                assert (answer.ahead, answer.retry_after) == (told.ahead, told.left)
                assert answer.blocker is not None
                assert answer.blocker.owner in {claim.owner for claim in self.cast} - {self.cast[who].owner}
            case Renew(who):
                assert answer == (Renewed(self.cast[who].ttl) if told.yes else LOST)
            case Release():
                assert answer is told.yes
            case Break():
                assert answer == (Evicted(told.left) if told.yes else None)
            case Bury():
                assert answer is None

    def _check_line(self, world: World) -> None:
        """Compare the line, and see that nothing expired has survived."""
        line = [(e.claim, e.token, e.expires, e.kept) for e in self.queue.entries]
        assert line == [(r.claim, r.token, r.until, BROKEN if r.broken else KEPT * r.kept) for r in world.line]
        assert self.queue.counter == world.counter
        assert [e.seq for e in self.queue.entries] == sorted({e.seq for e in self.queue.entries})
        if not isinstance(self.history[-1].what, Bury):  # the only one that is not told the time
            assert all(e.expires > self.now for e in self.queue.entries)
        state = self.queue.state("r0", self.now)
        live = [row for row in world.line if row.until > self.now]
        assert [s.holder for s in state.holders] == [row.claim.holder for row in live if row.token]
        assert [s.holder for s in state.waiters] == [row.claim.holder for row in live if not row.token]

    def _check_changes(self, step: Step, before: dict[str, tuple[int, float]]) -> None:
        """See that what a store is told to write and delete is what has changed: it keeps only that."""
        after = self._view()
        changed = {holder for holder, facts in after.items() if before.get(holder) != facts}
        assert {e.claim.holder for e in step.put} >= changed
        assert all(self.queue.find(e.claim.holder) is e for e in step.put)
        dropped = [e.claim.holder for e in step.drop]
        assert len(dropped) == len(set(dropped))
        assert set(before) - set(after) == set(dropped) - set(after)

    def _check_weights(self) -> None:
        """Law 1. Whoever was granted last has found room for all who hold."""
        granted = [e for e in self.queue.entries if e.token]
        if granted:
            assert sum(e.claim.weight for e in granted) <= max(e.claim.capacity for e in granted)
        if any(e.claim.weight == MAX for e in granted):
            assert len(granted) == 1, "an exclusive grant is not alone"

    def _check_token(self, answer: object) -> None:
        """Law 2, and more than it asks for: every new token exceeds every earlier one."""
        if isinstance(answer, Granted) and answer.token not in self.tokens:
            assert answer.token > max(self.tokens, default=0)
            self.tokens.append(answer.token)
        live = [e.token for e in self.queue.entries if e.token]
        assert len(live) == len(set(live)), "two live grants share a token"

    def _check_wake(self, what: Act, step: Step, world: World) -> None:
        """Law 8: woken are exactly those who would be granted, whenever somebody has left the line."""
        wake = [e.claim.holder for e in step.wake]
        can = would_be_granted(world, self.now)
        if world.left_line:
            assert wake == can
        else:
            assert wake == []
        if isinstance(what, Ask):
            self.woken.discard(self.cast[what.who].holder)
        self.woken |= set(wake)
        assert set(can) <= self.woken, "somebody could go and was never told"

    def _ask_again(self, what: Ask, first: Step) -> None:
        """Law 4: a claim sent twice is one claim."""
        line = self._view()
        again = self._do(what)
        if isinstance(first.answer, Granted) or what.queue:
            assert again.answer == first.answer
        assert self._view() == line
        assert not again.drop
        assert not again.wake

    def _view(self) -> dict[str, tuple[int, float]]:
        return {e.claim.holder: (e.token, e.expires) for e in self.queue.entries}

    def _is_kept(self, who: int) -> bool:
        entry = self.queue.find(self.cast[who].holder)
        return entry is not None and bool(entry.kept) and entry.expires > self.now


@settings(max_examples=250, deadline=None)
@given(casts(), operations())
def test_the_queue_keeps_the_one_rule(cast: list[Claim], story: list[Operation]) -> None:
    Trial(Queue(), cast).run(story)


@settings(max_examples=100, deadline=None)
@given(casts(), operations())
def test_those_woken_are_granted_when_they_ask_in_order_and_nobody_else(
    cast: list[Claim], story: list[Operation]
) -> None:
    queue = Queue()
    trial = Trial(queue, cast)
    trial.run(story)
    queue.renew("nobody", trial.now, 1.0)  # forget what has expired
    wake = [e.claim.holder for e in queue.grantable()]
    granted = []
    for entry in [e for e in queue.entries if not e.token]:
        answer = queue.claim(entry.claim, trial.now, trial.wall_us, WAITING_LIFE).answer
        granted += [entry.claim.holder] if isinstance(answer, Granted) else []
    assert granted == wake
    assert not queue.grantable()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.sampled_from([(MAX, MAX), (1, MAX)]), min_size=6, max_size=6),
)
def test_readers_and_writers_are_served_in_the_order_of_arrival(
    askers: list[int], kinds: list[tuple[int, int]]
) -> None:
    cast = [Claim("r", f"h{i}", weight, capacity, 1000.0) for i, (weight, capacity) in enumerate(kinds)]
    queue = Queue()
    arrivals: list[int] = []
    grants: list[int] = []
    for who in askers:
        if who not in arrivals:
            arrivals.append(who)
        if isinstance(queue.claim(cast[who], 0.0, 1, WAITING_LIFE).answer, Granted) and who not in grants:
            grants.append(who)
        # Among writers nobody passes anybody; a reader passes no writer. Readers may be granted in any order.
        waiting = [i for i in arrivals if i not in grants]
        for first in waiting:
            behind = [i for i in arrivals[arrivals.index(first) :] if i in grants]
            assert not [i for i in behind if MAX in (cast[i].weight, cast[first].weight)]


def test_a_claim_that_asks_for_more_than_there_is_waits_for_ever_and_does_not_crash() -> None:
    answer = Queue().claim(Claim("r", "h", 5, 4), 0.0, 1, WAITING_LIFE).answer
    assert answer == Waiting(0, float("inf"))


@settings(max_examples=100, deadline=None)
@given(casts(), operations())
def test_a_queue_can_be_taken_apart_and_put_together_between_any_two_operations(
    cast: list[Claim], story: list[Operation]
) -> None:
    """Stores keep rows: what `put` and `drop` say must be all that there is to keep."""
    whole = Queue()
    rows: dict[int, Entry] = {}
    now, wall_us, counter = 0.0, START_US, 0
    for what in story:
        if isinstance(what, Pass):
            now, wall_us = now + what.seconds, wall_us + what.wall_us
            continue
        copies = [Entry(e.seq, e.claim, e.token, e.expires, e.kept, e.address) for _, e in sorted(rows.items())]
        parts = Queue(copies, counter)
        answers = []
        for queue in (whole, parts):
            match what:
                case Ask(who, wait, _):
                    step = queue.claim(cast[who], now, wall_us, WAITING_LIFE, queue=wait)
                case Renew(who):
                    step = queue.renew(cast[who].holder, now, cast[who].ttl)
                case Release(who, keep):
                    step = queue.release(cast[who].holder, now, keep)
                case Break(who, at_once):
                    step = queue.evict(cast[who].holder, now, at_once)
                case Bury(who):
                    step = queue.bury({cast[i].holder for i in who})
            answers.append(step)
        assert answers[0].answer == answers[1].answer
        assert [e.claim.holder for e in answers[0].wake] == [e.claim.holder for e in answers[1].wake]
        for entry in answers[1].drop:
            del rows[entry.seq]
        for entry in answers[1].put:
            rows[entry.seq] = entry
        counter = parts.counter


# -- controls: one mistake each


class OvertakesWaiters(Queue):
    """Every claim is unfair: readers starve a waiting writer."""

    __slots__ = ()

    def _admits(self, claim: Claim, seq: int) -> bool:
        return super()._admits(claim._replace(fair=False), seq)


class OneTooMany(Queue):
    """Forgets to count the one that asks."""

    __slots__ = ()

    def _admits(self, claim: Claim, seq: int) -> bool:
        return sum(e.claim.weight for e in self.entries if e.token or e.seq < seq) < claim.capacity


class NeverUnfair(Queue):
    """Nobody may overtake."""

    __slots__ = ()

    def _admits(self, claim: Claim, seq: int) -> bool:
        return super()._admits(claim._replace(fair=True), seq)


class Stingy(Queue):
    """Leaves one permit unused."""

    __slots__ = ()

    def _admits(self, claim: Claim, seq: int) -> bool:
        return super()._admits(claim, seq) and (
            claim.weight == claim.capacity or super()._admits(claim._replace(weight=claim.weight + 1), seq)
        )


class Immortal(Queue):
    """Does not notice expiry."""

    __slots__ = ()

    def sweep(self, now: float) -> tuple[Entry, ...]:
        return ()


class Lenient(Queue):
    """Expires a moment too late: at the very end the claim still counts."""

    __slots__ = ()

    def sweep(self, now: float) -> tuple[Entry, ...]:
        return super().sweep(now - 1e-9)


class WakesOne(Queue):
    """Wakes the first only: the other readers sleep on."""

    __slots__ = ()

    def grantable(self) -> tuple[Entry, ...]:
        return super().grantable()[:1]


class WakesAll(Queue):
    """A thundering herd."""

    __slots__ = ()

    def grantable(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if not e.token)


class WakesNobodyAtExpiry(Queue):
    """Tells those who come after a release, but not after an expiry."""

    __slots__ = ()

    def renew(self, holder: str, now: float, ttl: float) -> Step:
        return super().renew(holder, now, ttl)._replace(wake=())


class Resurrects(Queue):
    """A renewal brings an expired lease back, as some peers do."""

    __slots__ = ()

    def renew(self, holder: str, now: float, ttl: float) -> Step:
        mine = self.find(holder)
        if mine is not None and mine.token:
            mine.expires = now + mine.claim.ttl
        return super().renew(holder, now, ttl)


class AnybodyReleases(Queue):
    """Frees whoever holds, not only the one that asks."""

    __slots__ = ()

    def release(self, holder: str, now: float, keep: float = 0.0) -> Step:
        if self.find(holder) is None and self.entries:
            holder = self.entries[0].claim.holder
        return super().release(holder, now, keep)


class ForgetsItsPlace(Queue):
    """Asking again sends a waiter to the end of the line."""

    __slots__ = ()

    def claim(self, claim: Claim, *args: Any, **kwargs: Any) -> Step:
        mine = self.find(claim.holder)
        if mine is not None and not mine.token:
            self.entries.remove(mine)
        return super().claim(claim, *args, **kwargs)


class LeavesAClaim(Queue):
    """queue=False waits nevertheless."""

    __slots__ = ()

    def claim(self, claim: Claim, *args: Any, **kwargs: Any) -> Step:
        return super().claim(claim, *args, **(kwargs | {"queue": True}))


class BuriesDetached(Queue):
    """The death of a process frees its detached claims, too."""

    __slots__ = ()

    def bury(self, holders: Any) -> Step:
        dead = tuple(e for e in self.entries if e.claim.holder in holders)
        self.entries = [e for e in self.entries if e not in dead]
        return Step(None, (), dead, self.grantable() if dead else ())


class RenewsWhatIsBroken(Queue):
    """Goes on renewing a claim that was broken."""

    __slots__ = ()

    def renew(self, holder: str, now: float, ttl: float) -> Step:
        mine = self.find(holder)
        if mine is not None and mine.kept == BROKEN:
            mine.kept = 0
        return super().renew(holder, now, ttl)


class BreaksAtOnce(Queue):
    """Ends a claim that is broken at once, while its holder is at work."""

    __slots__ = ()

    def evict(self, holder: str, now: float, at_once: bool = False) -> Step:
        return super().evict(holder, now, True)


class BreaksWhoeverHolds(Queue):
    """Breaks whoever holds by now, not only the one that was meant."""

    __slots__ = ()

    def evict(self, holder: str, now: float, at_once: bool = False) -> Step:
        meant = self.find(holder)
        if meant is None or not meant.token:
            holder = next((e.claim.holder for e in self.entries if e.token), holder)
        return super().evict(holder, now, at_once)


MUTANTS = [
    OvertakesWaiters,
    OneTooMany,
    NeverUnfair,
    Stingy,
    Immortal,
    Lenient,
    WakesOne,
    WakesAll,
    WakesNobodyAtExpiry,
    Resurrects,
    AnybodyReleases,
    ForgetsItsPlace,
    LeavesAClaim,
    BuriesDetached,
    RenewsWhatIsBroken,
    BreaksAtOnce,
    BreaksWhoeverHolds,
]


def survives(make: Callable[[], Queue]) -> bool:
    """Return whether the properties find nothing wrong with a queue."""

    @settings(
        max_examples=2000,  # the first that fails ends it
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    @given(casts(), operations())
    def attempt(cast: list[Claim], story: list[Operation]) -> None:
        Trial(make(), cast).run(story)

    try:
        attempt()
    except AssertionError:
        return False
    return True


@pytest.mark.control
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_queue_with_a_mistake_is_caught(mutant: type[Queue]) -> None:
    assert not survives(mutant)


@pytest.mark.control
@pytest.mark.parametrize(
    "mistake",
    [
        lambda counter, clock_us: max(counter, clock_us),  # two grants within a microsecond
        lambda counter, clock_us: clock_us,  # a clock that steps back
        lambda counter, clock_us: counter + 1,  # a counter that is lost with its store
    ],
    ids=["not above the counter", "clock alone", "counter alone"],
)
def test_tokens_with_a_mistake_are_caught(monkeypatch: pytest.MonkeyPatch, mistake: Callable[[int, int], int]) -> None:
    monkeypatch.setattr(queue_module, "next_token", mistake)
    assert not survives(Queue)


def test_a_kept_claim_cannot_be_renewed_and_may_be_released_twice() -> None:
    queue = Queue()
    claim = Claim("r", "h", ttl=10.0)
    queue.claim(claim, 0.0, 1, WAITING_LIFE)
    assert queue.release("h", 1.0, keep=5.0).answer is True
    assert isinstance(queue.renew("h", 2.0, 1.0).answer, Lost)
    assert queue.release("h", 3.0, keep=5.0).answer is True
    assert queue.entries[0].expires == 6.0, "the second release must not prolong what the first one kept"
    assert queue.release("h", 6.0).answer is False
