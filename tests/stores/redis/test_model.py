"""The Lua scripts with the pure queue as their oracle: the same answers, tokens, views and notices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.core.claim import LOST, MAX, Claim, Granted, Renewed, Waiting
from holdfast.core.promises import Capabilities
from holdfast.core.queue import TOKEN_LIMIT, Queue, Step, next_token
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.redis._sync.store import RedisStore
from holdfast.testing.servers.redis import RedisServer
from tests.core.naive import WAITING_LIFE, Ask, Break, Bury, Leave, Operation, Pass, Release, Renew, casts, operations
from tests.servers import needed

from .driven import DrivenRedis, drive

pytestmark = pytest.mark.server

RESOURCES = 2
LEAVES = [Leave(resource, nth) for resource in range(RESOURCES) for nth in range(3)] * 2
DAY = 86400.0
_namespaces = itertools.count()


@pytest.fixture(scope="module")
def redis() -> Iterator[DrivenRedis]:
    with needed(lambda: RedisServer("--appendonly", "no")) as server:
        driven = DrivenRedis(server)
        yield driven
        driven.close()


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    drive(monkeypatch)
    short: Capabilities = RedisStore.capabilities._replace(waiting_life=WAITING_LIFE)
    monkeypatch.setattr(RedisStore, "capabilities", short)


class Both:
    """A store used by turns with the pure queues that say what must happen.

    If those that wait `listen`, the first of those that are told is given the resource.
    """

    def __init__(self, redis: DrivenRedis, cast: list[Claim], listen: bool) -> None:
        self.redis = redis
        self.listen = listen
        self.cast = cast
        self.namespace = f"n{next(_namespaces)}"
        self.queues = {f"r{i}": Queue() for i in range(RESOURCES)}
        self.store = redis.store(self.namespace)
        if listen:
            redis.listen(self.store)

    def run(self, story: list[Operation | Leave]) -> None:
        self.redis.told()
        try:
            for what in story:
                self._do(what)
                self._compare_views()
        finally:
            self.store.close()

    def _do(self, what: Operation | Leave) -> None:
        match what:
            case Pass(seconds, _):
                self.redis.advance(seconds)
            case Bury():
                pass  # nobody can see from there that a process is dead
            case Ask(who, queue, twice) if not self._is_kept(who):  # a holder is new for every acquire
                for _ in range(1 + twice):
                    self._ask(self.cast[who], queue)
            case Renew(who):
                self._renew(self.cast[who::2])
            case Leave(resource, nth):
                holders = [entry.claim.holder for entry in self.queues[f"r{resource}"].entries if entry.token]
                if holders:
                    holder = holders[nth % len(holders)]
                    self._do(Release([claim.holder for claim in self.cast].index(holder)))
            case Break(who, at_once):
                claim, queue_ = self.cast[who], self.queues[self.cast[who].resource]
                answer = self.store.evict(claim.resource, claim.holder, at_once)
                step = queue_.evict(claim.holder, self.redis.now, at_once)
                assert answer == step.answer
                self._compare_notices(step, queue_)
            case Release(who, keep):
                claim, queue_ = self.cast[who], self.queues[self.cast[who].resource]
                had = self.store.release(claim.resource, claim.holder, keep)
                step = queue_.release(claim.holder, self.redis.now, keep)
                assert had is step.answer
                self._compare_notices(step, queue_)

    def _ask(self, claim: Claim, queue: bool) -> None:
        now, pure = self.redis.now, self.queues[claim.resource]
        answer = self.store.claim(claim, queue)
        step = pure.claim(claim, now, self.redis.us, WAITING_LIFE, queue=queue)
        if isinstance(answer, Waiting) and isinstance(step.answer, Waiting) and answer.blocker != step.answer.blocker:
            # The queue names the holder that came first, Redis the one that ends first: it is for people.
            assert answer.blocker is not None
            assert answer.blocker.token in {entry.token for entry in pure.entries if entry.token}
            answer = answer._replace(blocker=step.answer.blocker)
        if isinstance(answer, Waiting) and isinstance(step.answer, Waiting):
            assert answer.newest == max(step.answer.newest, self.redis.us - 1)
            answer = answer._replace(newest=step.answer.newest)
        assert answer == step.answer
        self._compare_notices(step, pure)

    def _renew(self, batch: list[Claim]) -> None:
        answers, now = self.store.renew(batch), self.redis.now
        # A renewal looks at its own claim alone: whoever has expired is noticed by the next claim or release.
        assert answers == [Queue(self.queues[c.resource].entries).renew(c.holder, now, c.ttl).answer for c in batch]
        assert self.redis.told() == []

    def _compare_notices(self, step: Step, queue: Queue) -> None:
        """Law 8, down to the message: those who can go are told, in order, and nobody else is."""
        expected = [entry.claim.holder for entry in step.wake]
        if self.listen and step.wake and step.wake[0].claim.fair:
            heir = step.wake[0]
            heir.token = queue.counter = next_token(queue.counter, self.redis.us)
            heir.expires = self.redis.now + heir.claim.ttl
            expected[0] += f" {heir.token}"
        assert self.redis.told() == expected

    def _compare_views(self) -> None:
        expected = [queue.state(name, self.redis.now) for name, queue in sorted(self.queues.items())]
        assert self.store.inspect("") == [state for state in expected if state.holders or state.waiters]

    def _is_kept(self, who: int) -> bool:
        entry = self.queues[self.cast[who].resource].find(self.cast[who].holder)
        return entry is not None and bool(entry.kept) and entry.expires > self.redis.now


# A permit becomes free; the writer at the head cannot go, and the unfair waiter behind it can. Chance hardly finds it.
PASSED_BY = (
    [
        Claim("r0", "h0", 1, 2),
        Claim("r0", "h1", 1, 2),
        Claim("r0", "h2"),
        Claim("r0", "h3", 1, 2, fair=False),
        Claim("r0", "h4", 1, 2, fair=False),
    ],
    [Ask(0), Ask(1), Ask(2), Ask(3), Ask(4), Release(0)],
)
# A release with min_hold whose answer was lost is sent again; and a renewal comes too late.
KEPT = (
    [Claim("r0", "h0"), Claim("r0", "h1")],
    [Ask(0), Release(0, 2.5), Ask(1), Release(0), Pass(1.0, 0), Renew(0), Release(0)],
)
# One is given it, the other reader is told to ask.
READERS = (
    [Claim("r0", "h0"), Claim("r0", "h1", 1), Claim("r0", "h2", 1)],
    [Ask(0), Ask(1), Ask(2), Release(0), Ask(2), Release(1)],
)
# Broken twice, renewed in vain, given back; a permit likewise; and one that is broken at once while another waits.
_BREAKS = [Ask(0), Ask(1), Break(0), Break(0), Renew(0), Release(0, 2.5), Ask(1), Break(1, True), Renew(1)]
BROKEN = ([Claim("r0", "h0"), Claim("r0", "h1")], _BREAKS)
BROKEN_SHARE = ([Claim("r0", "h0", 2, 3), Claim("r0", "h1", 2, 3)], _BREAKS)
# A renewal and a release come after the end, and nobody else has come.
LATE = (
    [Claim("r0", "h0", ttl=1.0), Claim("r1", "h1", ttl=1.0)],
    [Ask(0), Ask(1), Pass(2.0, 0), Renew(0), Release(1)],
)

# One that was broken ends, asks again, and stays taken by its own release.
ASKED_AGAIN = (
    [Claim("r0", "h0", ttl=1.0), Claim("r1", "h1", 2, 3, ttl=1.0)],
    [Ask(0), Ask(1), Break(0), Break(1), Pass(1.0, 0), Ask(0), Ask(1), Release(0, 2.5), Release(1, 2.5)],
)


@settings(max_examples=200, deadline=None)
@example(*PASSED_BY, True)
@example(*KEPT, False)
@example(*READERS, True)
@example(*BROKEN, True)
@example(*BROKEN_SHARE, True)
@example(*LATE, False)
@example(*ASKED_AGAIN, False)
@given(casts(resources=RESOURCES), operations(leave=LEAVES), st.booleans())
def test_the_scripts_answer_as_the_queue_does(
    redis: DrivenRedis, cast: list[Claim], story: list[Operation | Leave], listen: bool
) -> None:
    Both(redis, cast, listen).run(story)


@pytest.mark.control
@pytest.mark.parametrize(
    "mistake",
    [
        ("claim", "and (f[4] or '') == '' and", "and"),  # takes what is kept, or past those who wait
        ("claim", "(not f[2] or tonumber(f[3]) <= now)", "true"),  # takes what is taken
        ("claim", "if fair and rank > 0", "if false"),  # overtakes
        ("claim", "  if waited then\n    drop(who)\n  end\n", ""),  # stays in line after its grant
        ("claim", "{0, rank + holders", "{0, rank"),  # counts waiters alone
        ("claim", "redis.call('ZADD', set, ends", "redis.call('ZADD', set, 'NX', ends"),  # no refresh
        ("claim", "    q.soonest = ends\n", ""),  # never sweeps
        (
            "claim",
            "last, counted = math.max(last, ends), true",
            "last = math.max(last, ends)",
        ),  # what was counted is not written down
        ("claim", "q.waiting = q.waiting - 1", ""),  # counts who has left
        ("release", "tonumber(f[3]) > now then\n  redis", "true then\n  redis"),  # frees what has expired
        ("release", "and (f[4] or '') == '' ", ""),  # frees and wakes nobody
        ("release", "elseif not q.kept or is_broken(me) then", "else"),  # frees what was to be kept
        ("release", "not q.kept or is_broken(me)", "not q.kept"),  # keeps what was broken
        ("release", "not mine.kept or is_broken(me)", "not mine.kept"),
        ("evict", "q.kept and not is_broken(me)", "q.kept"),  # a second break ends what its holder works under
        ("evict", "mine.kept and not is_broken(me)", "mine.kept"),
        ("evict", "q.kept, counted = true, true", ""),  # goes on being renewed
        ("evict", "if gone then\n  wake()", "if false then"),  # ends it, and tells nobody
        ("renew", "or tonumber(f[3]) <= now", ""),  # brings an expired lease back
        ("renew", "or string.match(f[4] or '', '^1') ", ""),  # prolongs what was released
        ("renew", "held_until <= now", "held_until == 0"),
        ("release", "and redis.pcall('PUBSUB', 'NUMSUB', waiter.channel)[2] or 0", "and 1 or 0"),  # to the dead
        ("release", "i == 1 and waiter.fair and", "i == 1 and"),  # nobody could pass an unfair one
        ("release", "i == 1 and waiter.fair and", "waiter.fair and"),  # to all readers at once
        ("release", "  if waited then\n    drop(who)\n  end\n", ""),  # whoever was given it still waits
        ("release", "waiter.fair and ahead or woken", "ahead"),  # tells no unfair waiter
        ("release", "q.unfair and woken or ahead", "ahead"),  # ends the walk before an unfair waiter
        ("claim", "math.max(q.slack, capacity - weight)", "0"),
        ("release", "q.weight, changed = q.weight - claim.weight, true", "changed = true"),
    ],
    ids=lambda mistake: f"{mistake[0]}: {mistake[1]}"[:60],
)
def test_control_a_script_with_a_mistake_is_caught(redis: DrivenRedis, mistake: tuple[str, str, str]) -> None:
    @settings(
        max_examples=400, deadline=None, database=None, derandomize=True, report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate),
    )  # fmt: skip
    @example(*PASSED_BY, True)
    @example(*KEPT, False)
    @example(*READERS, True)
    @example(*BROKEN, True)
    @example(*BROKEN_SHARE, True)
    @example(*LATE, False)
    @given(casts(resources=RESOURCES), operations(leave=LEAVES), st.booleans())
    def attempt(cast: list[Claim], story: list[Operation | Leave], listen: bool) -> None:
        Both(redis, cast, listen).run(story)

    with pytest.MonkeyPatch.context() as patch:
        drive(patch, mistake)
        with pytest.raises((AssertionError, StoreError)):
            attempt()


# -- what the story cannot show


def test_a_token_past_the_limit_is_refused_and_nothing_is_taken(redis: DrivenRedis) -> None:
    store = redis.store("limit")
    for claim in (Claim("r", "h1"), Claim("r", "h2", 1, 2)):
        redis.call("HSET", "holdfast:{limit:r}", "token", TOKEN_LIMIT - 1)
        with pytest.raises(StoreError, match=r"2\^53"):
            store.claim(claim)
        assert store.inspect() == []
    redis.call("HSET", "holdfast:{limit:r}", "token", TOKEN_LIMIT - 2)
    assert store.claim(Claim("r", "h3")) == Granted(TOKEN_LIMIT - 1, 30.0)
    store.close()


def test_tokens_are_written_in_full_and_rise_although_the_clock_is_set_back(redis: DrivenRedis) -> None:
    store = redis.store("back")
    first = store.claim(Claim("r", "h1"))
    assert first == Granted(redis.us, 30.0)
    assert redis.call("HGET", "holdfast:{back:r}", "token") == str(redis.us).encode()
    store.release("r", "h1")
    redis.advance(-1800)
    try:
        assert store.claim(Claim("r", "h2", 1, 3)) == Granted(first.token + 1, 30.0)
        assert store.claim(Claim("r", "h3", 1, 3)) == Granted(first.token + 2, 30.0)
    finally:
        redis.advance(1800)
        store.close()


def test_a_reader_that_renews_after_the_clock_was_set_back_is_not_forgotten(redis: DrivenRedis) -> None:
    """Its lease ends earlier than before: at that time it has to be noticed."""
    store, reader = redis.store("step"), Claim("r", "reader", 1, MAX, 60.0)
    store.claim(reader)
    redis.advance(-3600)
    try:
        assert store.renew([reader]) == [Renewed(60.0)]
        redis.advance(59)
        assert isinstance(store.claim(Claim("r", "writer"), False), Waiting)
        redis.advance(2)
        assert isinstance(store.claim(Claim("r", "writer"), False), Granted)
    finally:
        redis.advance(3600 - 61)
        store.close()


@pytest.mark.parametrize("gone", [":held", ":claims", ":line", ":lives"])
def test_nothing_is_decided_while_a_key_is_missing_and_somebody_may_live(redis: DrivenRedis, gone: str) -> None:
    """It is on its way to another server of the cluster, or evicted: that heals when all must have ended."""
    store = redis.store("gone" + gone.strip(":"))
    key = f"holdfast:{{gone{gone.strip(':')}:r}}"
    reader, writer = Claim("r", "reader", 1, MAX, 60.0), Claim("r", "writer")
    assert isinstance(store.claim(reader), Granted)
    assert isinstance(store.claim(writer), Waiting)
    redis.call("DEL", key + gone)
    for claim in (writer, Claim("r", "another"), Claim("r", "second reader", 1, MAX)):
        for queue in (True, False):
            with pytest.raises(StoreUnavailable, match="missing"):
                store.claim(claim, queue)
    assert store.renew([reader]) != [LOST]
    store.inspect()
    redis.advance(2 * 3600)
    try:
        assert isinstance(store.claim(writer), Granted)
        assert store.release("r", "writer")
        assert redis.call("HGET", key, "busy") == b""
    finally:
        redis.advance(-2 * 3600)
        store.close()


def lives(redis: DrivenRedis, namespace: str) -> dict[bytes, float]:
    """Return the keys of a namespace, and how many days each lives on after now."""
    keys = redis.call("KEYS", f"holdfast:{{{namespace}:*")
    return {key: (redis.call("PEXPIRETIME", key) * 1000 - redis.us) / 1e6 / DAY for key in keys}


@pytest.mark.parametrize("ttl", [30.0, 9 * DAY])
def test_everything_goes_a_day_after_its_last_use(redis: DrivenRedis, ttl: float) -> None:
    store = redis.store(f"life{ttl:.0f}")
    claims = [Claim("r", f"h{i}", weight, MAX, ttl) for i, weight in enumerate((1, 1, MAX, 1))]
    for claim in claims:
        store.claim(claim)
    found = lives(redis, f"life{ttl:.0f}")
    assert len(found) == 5
    assert len(set(found.values())) == 1, "one key without the others would mean something else"
    assert all(ttl / DAY + 1 <= days <= ttl / DAY + 1.05 for days in found.values())
    redis.advance(5.0)
    assert store.renew(claims[:1]) != []
    for claim in claims:
        store.release("r", claim.holder)
    assert len(lives(redis, f"life{ttl:.0f}")) == 1, "a free resource costs one key"
    store.close()


def test_a_key_never_goes_while_somebody_holds(redis: DrivenRedis) -> None:
    store = redis.store("long")
    long = Claim("r", "h1", 1, 4, 10 * DAY)
    store.claim(long)
    for i in range(3):
        store.claim(Claim("r", f"s{i}", 1, 4, 1.0))
        store.release("r", f"s{i}")
    assert all(days > 11 for days in lives(redis, "long").values())
    redis.advance(9 * DAY)
    store.renew([long])
    assert all(days > 11 for days in lives(redis, "long").values())
    redis.advance(-9 * DAY)
    store.close()


def commands(redis: DrivenRedis) -> int:
    """Return how many commands the server has run, those of scripts included."""
    lines = redis.call("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)


@pytest.mark.parametrize("kind", [(MAX, MAX), (1, 1), (1, MAX)], ids=["lock", "permit", "reader"])
def test_the_cost_of_a_verb_does_not_grow_with_the_waiters_behind(
    redis: DrivenRedis, monkeypatch: pytest.MonkeyPatch, kind: tuple[int, int]
) -> None:
    """Ask again at the head, renew, release, and be granted: the same number of commands with 20 and 500 behind."""
    counts = []
    for behind in (1, 20, 500):  # the first turn makes the scripts known to the server
        store = redis.store(f"cost{kind}{behind}".replace(" ", ""))
        store.claim(Claim("r", "holder", MAX, MAX))
        store.claim(Claim("r", "next", MAX, MAX))
        for i in range(behind):
            store.claim(Claim("r", f"w{i}", *kind))
        before = commands(redis)
        store.claim(Claim("r", "next", MAX, MAX))
        store.renew([Claim("r", "holder", MAX, MAX)])
        store.release("r", "holder")
        store.claim(Claim("r", "next", MAX, MAX))
        store.claim(Claim("r", "last", *kind))  # and to be the last of many is not more work than of few
        counts.append(commands(redis) - before)
        store.close()
    assert counts[1] == counts[2]
