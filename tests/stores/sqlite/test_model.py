"""The SQLite store with the pure queue as its oracle: the same answers, tokens, views and wake-ups."""

from __future__ import annotations

import contextlib
import select
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core.claim import Claim, Granted, Renewed, ResourceState
from holdfast.core.queue import TOKEN_LIMIT, Queue, Step
from holdfast.errors import StoreError
from holdfast.stores.sqlite.claims import Claims
from tests.core.naive import WAITING_LIFE, Ask, Break, Bury, Operation, Pass, Release, Renew, casts, operations

from .driven import DAY, driven_clock, open_claims, sql

HOUR = 3600.0
RESOURCES = 2


class Reopen(NamedTuple):
    """A process goes and another comes: a new connection to the same file."""

    client: int


class Leap(NamedTuple):
    """Nothing happens for so long that the sweep has something to do."""

    seconds: float


class Both:
    """Two clients of one file, used in turn, and the pure queues that say what must happen."""

    def __init__(self, path: Path, cast: list[Claim]) -> None:
        self.path = path
        self.cast = cast
        self.clock = driven_clock()
        self.queues = {f"r{i}": Queue() for i in range(RESOURCES)}
        self.clients = [self._open(), self._open()]
        self.next_sweep = [0.0, 0.0]
        self.woken: set[str] = set()  # who must have been woken since they last asked
        self.deaf: set[str] = set()  # who waits with the wake-up of a client that is gone

    def _open(self) -> Claims:
        return open_claims(self.path, self.clock, waiting_life=WAITING_LIFE)

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def run(self, story: list[Operation | Reopen | Leap]) -> None:
        for what in story:
            match what:
                case Pass(seconds, wall_us):
                    self.clock.advance(seconds)
                    self.clock.step_wall(abs(wall_us) / 1e6 - seconds)
                case Leap(seconds):
                    self.clock.advance(seconds)
                case Reopen(i):
                    self.clients[i].close()
                    self.clients[i] = self._open()
                    self.next_sweep[i] = 0.0
                    self.deaf |= {claim.holder for claim in self.cast[i::2] if self._waits(claim.holder)}
                case Bury():
                    pass  # both clients live in this process; the dead are dealt with in test_processes
                case Ask(who) if self._is_kept(who):
                    pass  # a holder is new for every acquire
                case Ask(who, queue, twice):
                    for _ in range(1 + twice):
                        self._ask(who, queue)
                case Renew(who):
                    self._renew(who)
                case Release(who, keep):
                    self._release(who, keep)
                case Break(who, at_once):
                    self._break(who, at_once)
            self._compare_views()
            self._compare_wakeups()

    def _ask(self, who: int, queue: bool) -> None:
        claim, clock = self.cast[who], self.clock
        if clock.now() >= self.next_sweep[who % 2]:
            self.next_sweep[who % 2] = clock.now() + HOUR
            for other in self.queues.values():
                other.sweep(clock.now() - DAY)
        mine = self.queues[claim.resource].find(claim.holder)
        if mine is None or mine.expires <= clock.now():
            self.deaf.discard(claim.holder)  # it comes anew, with a wake-up of its own
        answer = self.clients[who % 2].claim(claim, queue)
        wall_us = clock.wall_ns() // 1000
        step = self.queues[claim.resource].claim(claim, clock.now(), wall_us, WAITING_LIFE, queue=queue)
        assert answer == step.answer
        self.woken.discard(claim.holder)
        self._told(step)

    def _renew(self, who: int) -> None:
        """Renew this one and all others of its client in one batch, as the keeper does."""
        batch = self.cast[who % 2 :: 2]
        answers = self.clients[who % 2].renew(batch)
        now = self.clock.now()
        # A renewal looks at its own row alone: whoever has expired meanwhile is noticed by the next claim or release.
        expected = [Queue(self.queues[c.resource].entries).renew(c.holder, now, c.ttl).answer for c in batch]
        assert answers == expected

    def _release(self, who: int, keep: float) -> None:
        claim = self.cast[who]
        had = self.clients[who % 2].release(claim.resource, claim.holder, keep)
        step = self.queues[claim.resource].release(claim.holder, self.clock.now(), keep)
        assert had is step.answer
        self.woken.discard(claim.holder)
        self._told(step)

    def _break(self, who: int, at_once: bool) -> None:
        claim = self.cast[who]
        answer = self.clients[1 - who % 2].evict(claim.resource, claim.holder, at_once)  # by somebody else
        step = self.queues[claim.resource].evict(claim.holder, self.clock.now(), at_once)
        assert answer == step.answer
        self._told(step)

    def _told(self, step: Step) -> None:
        self.woken -= {entry.claim.holder for entry in step.drop}
        self.woken |= {entry.claim.holder for entry in step.wake}
        if isinstance(step.answer, Granted):
            self.woken -= {entry.claim.holder for entry in step.put}

    def _compare_views(self) -> None:
        now = self.clock.now()
        expected = [queue.state(name, now) for name, queue in sorted(self.queues.items())]
        expected = [state for state in expected if state.holders or state.waiters]
        for client in self.clients:
            assert client.inspect("") == expected
        assert self.clients[0].inspect("r1") == [state for state in expected if state.resource == "r1"]

    def _compare_wakeups(self) -> None:
        """Law 8, down to the datagram: those who can go have been woken, and nobody else has."""
        woken = set()
        for who, claim in enumerate(self.cast):
            wakeup, pidfds = self.clients[who % 2].watched(claim.holder)
            assert not pidfds
            if wakeup is not None and self._waits(claim.holder) and select.select([wakeup], [], [], 0)[0]:
                woken.add(claim.holder)
        assert woken - self.deaf == {holder for holder in self.woken - self.deaf if self._waits(holder)}

    def _waits(self, holder: str) -> bool:
        return any((e := q.find(holder)) is not None and not e.token for q in self.queues.values())

    def _is_kept(self, who: int) -> bool:
        entry = self.queues[self.cast[who].resource].find(self.cast[who].holder)
        return entry is not None and bool(entry.kept) and entry.expires > self.clock.now()


@contextlib.contextmanager
def new_file() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "locks.db"


def stories(*, rare: st.SearchStrategy[Reopen | Leap]) -> st.SearchStrategy[list[Operation | Reopen | Leap]]:
    """Draw stories in which something rare happens now and then."""

    def mix(usual: list[Operation], extra: list[Reopen | Leap]) -> list[Operation | Reopen | Leap]:
        return [*usual[:9], *extra[:1], *usual[9:18], *extra[1:2], *usual[18:27], *extra[2:], *usual[27:]]

    return st.builds(mix, operations(least=10, most=36), st.lists(rare, min_size=1, max_size=3))


def check(cast: list[Claim], story: list[Operation | Reopen | Leap]) -> None:
    with new_file() as path:
        both = Both(path, cast)
        try:
            both.run(story)
        finally:
            both.close()


@settings(max_examples=60, deadline=None)
@given(casts(resources=RESOURCES), stories(rare=st.builds(Reopen, st.integers(0, 1))))
def test_the_store_answers_as_the_queue_does(cast: list[Claim], story: list[Operation | Reopen | Leap]) -> None:
    check(cast, story)


@settings(max_examples=30, deadline=None)
@given(
    casts(resources=RESOURCES),
    stories(rare=st.one_of(st.builds(Leap, st.sampled_from([HOUR, DAY + HOUR, 9 * DAY])), st.just(Reopen(0)))),
)
def test_the_store_answers_as_the_queue_does_across_days(
    cast: list[Claim], story: list[Operation | Reopen | Leap]
) -> None:
    check(cast, story)


@pytest.mark.control
@pytest.mark.parametrize(
    ("statement", "mistake"),
    [
        ("_FREE", ("expires > ?", "? > 0")),  # frees what has expired
        ("_RENEW", ("expires > ?", "? > 0")),  # brings an expired lease back
        ("_RENEW", ("AND kept = 0", "")),  # prolongs what was released
        ("_TAKE", ("holder IS NULL AND ", "")),  # takes what is taken
        ("_TAKE", ("AND others = 0 ", "")),  # takes what others share or wait for
    ],
)
def test_control_a_statement_with_a_mistake_is_caught(
    monkeypatch: pytest.MonkeyPatch, statement: str, mistake: tuple[str, str]
) -> None:
    from holdfast.stores.sqlite import claims

    right = getattr(claims, statement)
    assert mistake[0] in right
    monkeypatch.setattr(claims, statement, right.replace(*mistake))

    @settings(max_examples=300, deadline=None, database=None, derandomize=True, phases=(Phase.generate,))
    @given(casts(resources=RESOURCES), stories(rare=st.just(Reopen(0))))
    def attempt(cast: list[Claim], story: list[Operation | Reopen | Leap]) -> None:
        check(cast, story)

    with pytest.raises((AssertionError, sqlite3.Error, StoreError)):
        attempt()


# -- the sweep


def rows(path: Path) -> int:
    return int(sql(path, "SELECT count(*) FROM claims")[0][0])


def test_a_free_resource_costs_one_row_and_after_a_day_none(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    store = open_claims(path, clock)
    for i in range(50):
        claim = Claim(f"job:{i}", "h")
        assert isinstance(store.claim(claim, True), Granted)
        assert store.release(claim.resource, "h", 0.0)
    assert rows(path) == 50
    clock.advance(DAY - HOUR)
    store.claim(Claim("other", "h1"), True)
    assert rows(path) == 51, "forgotten too early: the clock has not left the counters a day behind"
    clock.advance(HOUR + 1)
    store.claim(Claim("other", "h2"), True)
    assert sql(path, "SELECT resource FROM claims") == [("other",)]
    store.close()


def test_a_shared_resource_comes_down_to_one_row(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    store = open_claims(path, clock)
    for i in range(10):
        assert isinstance(store.claim(Claim("gpu", f"h{i}", 1, 10), True), Granted)
    assert rows(path) == 10
    for i in range(10):
        assert store.release("gpu", f"h{i}", 0.0)
    assert rows(path) == 1
    store.close()


def test_the_claims_of_the_crashed_are_forgotten_too(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    store = open_claims(path, clock)
    store.claim(Claim("a", "h1"), True)
    store.claim(Claim("a", "h2"), True)
    store.claim(Claim("a", "h3"), True)
    clock.advance(2 * DAY)
    store.claim(Claim("b", "h4"), True)
    assert sql(path, "SELECT resource FROM claims") == [("b",)]
    store.close()


def test_tokens_rise_although_the_row_was_forgotten_and_the_clock_set_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    store = open_claims(path, clock)
    first = store.claim(Claim("a", "h1"), True)
    assert isinstance(first, Granted)
    store.release("a", "h1", 0.0)
    clock.advance(3 * DAY)
    store.claim(Claim("b", "h2"), True)
    assert sql(path, "SELECT resource FROM claims") == [("b",)]
    clock.step_wall(-300 * DAY)
    second = store.claim(Claim("a", "h3"), True)
    assert isinstance(second, Granted)
    assert second.token > first.token, "the floor was not kept"
    store.close()


def test_a_sweep_keeps_what_is_held_kept_or_waited_for(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    store = open_claims(path, clock)
    claims = [Claim("held", "h1", ttl=10 * DAY), Claim("kept", "h2", ttl=10 * DAY, detached=True)]
    for claim in claims:
        assert isinstance(store.claim(claim, True), Granted)
    assert store.release("kept", "h2", 9 * DAY)
    clock.advance(5 * DAY)
    store.claim(Claim("other", "h3"), True)
    view = store.inspect("")
    assert [(state.resource, len(state.holders)) for state in view] == [("held", 1), ("kept", 1), ("other", 1)]
    assert store.renew([claims[0]]) == [Renewed(10 * DAY)]
    store.close()


def test_a_token_past_the_limit_is_refused_and_nothing_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    for wrong in (TOKEN_LIMIT, TOKEN_LIMIT + 5):
        store = open_claims(path, driven_clock(wall_us=wrong))
        for resource in ("new", "new"):
            with pytest.raises(StoreError, match=r"2\^53"):
                store.claim(Claim(resource, "h"), True)
        store.close()
    store = open_claims(path, driven_clock())
    assert store.inspect("") == []
    assert isinstance(store.claim(Claim("new", "h"), True), Granted)
    sql(path, "UPDATE claims SET counter = ?, holder = NULL", TOKEN_LIMIT - 1)
    with pytest.raises(StoreError, match=r"2\^53"):
        store.claim(Claim("new", "h2"), True)
    store.close()


def test_namespaces_do_not_meet(tmp_path: Path) -> None:
    path, clock = tmp_path / "locks.db", driven_clock()
    one, other = open_claims(path, clock, namespace="one"), open_claims(path, clock, namespace="other")
    assert isinstance(one.claim(Claim("a", "h1"), True), Granted)
    assert isinstance(other.claim(Claim("a", "h2"), True), Granted)
    assert [state.holders[0].holder for state in one.inspect("")] == ["h1"]
    assert not other.release("a", "h1", 0.0)
    one.close()
    other.close()


@pytest.mark.parametrize("prefix", ["", "a", "a%", "a_", "'", "é", "\U0001f600", "A"])
def test_a_prefix_is_taken_literally(tmp_path: Path, prefix: str) -> None:
    store = open_claims(tmp_path / "locks.db", driven_clock())
    names = ["a", "a%b", "a_b", "ab", "A", "é", "é1", "\U0001f600", "\ufeff", "'x", "z" * 512]
    for name in names:
        store.claim(Claim(name, "h" + name[:3], value="ü", owner="o'w\"ner"), True)
    found: list[ResourceState] = store.inspect(prefix)
    assert [state.resource for state in found] == sorted(name for name in names if name.startswith(prefix))
    store.close()
