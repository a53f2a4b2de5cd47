"""The scripts of one Redlock node against the pure rule of core/ballot.py, on a real server with its own clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.ballot import SECOND, WINDOW, Kind, Node, broken_by, left_by, prolonged, swept, vote
from holdfast.stores.redis._sync.transport import Connection
from holdfast.stores.redis.script import Script, load
from holdfast.stores.redis.wire import Access, Endpoint
from holdfast.stores.redlock.ballots import Row, read_row, read_votes
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server

CLAIM, RELEASE, RENEW, SHOW, EVICT = (load("redlock", verb) for verb in ("claim", "release", "renew", "show", "evict"))
SHORT, LONG = 3000, 60 * SECOND  # microseconds
DAY = 24 * WINDOW

numbers = itertools.count()


class Real:
    """One resource on a real node, and who is told that it is free."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(Endpoint("127.0.0.1", port), Access(), 10.0)
        self._ear = Connection(Endpoint("127.0.0.1", port), Access(), 10.0)
        self._channel = f"channel-{port}"
        self._ear.call("SUBSCRIBE", self._channel)
        self.key = ""

    def begin(self) -> int:
        """Take a new resource; return the time of the node."""
        self.key = f"key-{next(numbers)}"
        seconds, rest = self._connection.call("TIME")
        return int(seconds) * SECOND + int(rest)

    def call(self, *command: str | int) -> Any:
        """Send any command."""
        return self._connection.call(*command)

    def run(self, script: Script, *args: str | int) -> Any:
        """Run a script; returns what it answers."""
        return self._connection.call("EVAL", script.source, 1, self.key, *args)

    def claim(self, holder: str, ballot: int, ttl: int, life: int) -> Any:
        """Propose."""
        return self.run(CLAIM, holder, ballot, ttl, f"owner of {holder}\n=v", life, self._channel)

    def release(self, holder: str, ballot: int, stay: int) -> Any:
        """Release."""
        return self.run(RELEASE, holder, ballot, stay, self._channel, f"owner of {holder}\n")

    def row(self) -> Row:
        """Return what people see."""
        return read_row(self.run(SHOW)[0])

    def kept(self) -> list[int]:
        """Return counter, ballot and end of the grant, as they are kept."""
        return [int(number) for number in self._connection.call("GET", self.key).split()[:3]]

    def called(self) -> list[str]:
        """Return who was told since the last look: what was published before comes before the answer to a PING."""
        self._ear.send(("PING",))
        told = []
        while (message := self._ear.receive())[0] == b"message":
            self._ear.owed += 1
            told.append(message[2].decode())
        return told

    def close(self) -> None:
        """Close both connections."""
        self._connection.close()
        self._ear.close()


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with needed(lambda: RedisServer("--appendfsync", "no")) as server:
        found = Real(server.port)
        yield found
        found.close()


class Op(NamedTuple):
    """One thing that a client does, or time that passes."""

    verb: str
    holder: str
    ballot: int  # relative to the time when the example began
    ttl: int
    life: int


BALLOTS = st.one_of(st.integers(0, 6), st.sampled_from([-2 * WINDOW, -WINDOW // 2, WINDOW // 2, 2 * WINDOW]))
OPS = st.builds(
    Op,
    st.sampled_from(["claim", "claim", "claim", "release", "renew", "evict", "pause"]),
    st.sampled_from("abc"),
    BALLOTS,
    st.sampled_from([SHORT, LONG]),
    st.sampled_from([0, SHORT, LONG]),
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPS, max_size=14))
def test_scripts_decide_as_the_pure_rule_does(real: Real, ops: list[Op]):
    begun, node = real.begin(), Node()
    for verb, holder, offset, ttl, life in ops:
        ballot = begun + offset
        if verb == "claim":
            (answer,) = read_votes([real.claim(holder, ballot, ttl, life)])
            assert answer is not None
            # The rule is given the time that the node says it was: everything else has to come out the same.
            node, expected = vote(node, holder, ballot, ttl, answer.clock, owner=f"owner of {holder}", life=life)
            assert answer == expected
            now = answer.clock
        elif verb == "release":
            had, now = real.release(holder, ballot, life)
            node, expected_had, called = left_by(node, holder, ballot, now, life)
            assert bool(had) is expected_had
            assert real.called() == ([called] if called else [])
        elif verb == "renew":
            now, renewed = real.run(RENEW, holder, ballot, ttl)
            node, expected_renewed = prolonged(node, holder, ballot, ttl, now)
            assert renewed == expected_renewed
        elif verb == "evict":
            left, now = real.run(EVICT, holder, ballot)
            node, expected_left = broken_by(node, holder, ballot, now)
            assert left == expected_left
        else:
            time.sleep(SHORT / SECOND)
            continue
        same_state(real, node, now)


HELD = Op("claim", "a", 1, LONG, 0)

# A script, what is changed in it, and what shows that.
WRONG = {
    "grants the same again": (
        "CLAIM",
        ("elseif ballot <= counter then", "elseif ballot < counter then"),
        [HELD, Op("release", "a", 1, 0, 0), Op("claim", "b", 1, LONG, 0)],
    ),
    "renews what is broken": (
        "RENEW",
        ("if not broken then", "broken = false\n    if not broken then"),
        [HELD, Op("evict", "a", 1, 0, 0), Op("renew", "a", 1, LONG, 0)],
    ),
    "cuts a renewal short": (
        "RENEW",
        ("math.max(expires, now + tonumber(ARGV[3 * n]))", "now + tonumber(ARGV[3 * n])"),
        [HELD, Op("renew", "a", 1, LONG // 2, 0)],
    ),
    "breaks whoever holds": (
        "EVICT",
        ("by == holder and granted == ballot", "true"),
        [HELD, Op("evict", "b", 1, 0, 0), Op("renew", "a", 1, LONG, 0)],
    ),
    "lets what is broken come late": (
        "EVICT",
        ("elseif reached ~= counter then", "elseif false then"),
        [Op("evict", "a", 1, 0, 0), HELD],
    ),
    "forgets the mark when somebody waits": (
        "CLAIM",
        ("(broken and '!' or '')", "''"),
        [HELD, Op("evict", "a", 1, 0, 0), Op("claim", "b", 2, LONG, LONG), Op("renew", "a", 1, LONG, 0)],
    ),
}


@pytest.mark.control
@pytest.mark.parametrize(("script", "change", "ops"), WRONG.values(), ids=WRONG.keys())
def test_script_that_decides_otherwise_is_noticed(
    real: Real, monkeypatch: pytest.MonkeyPatch, script: str, change: tuple[str, str], ops: list[Op]
):
    """The control: a script with one thing changed does not pass for the rule."""
    test_scripts_decide_as_the_pure_rule_does.hypothesis.inner_test(real, ops)  # type: ignore[attr-defined]
    right: Script = globals()[script]
    assert right.source.count(change[0]) == 1
    monkeypatch.setattr(f"{__name__}.{script}", right._replace(source=right.source.replace(*change)))
    with pytest.raises(AssertionError):
        test_scripts_decide_as_the_pure_rule_does.hypothesis.inner_test(real, ops)  # type: ignore[attr-defined]


def same_state(real: Real, node: Node, now: int) -> None:
    row = real.row()
    if node.ballot and node.expires - now < 2 * SHORT:
        return  # it may run out while we look
    node = swept(node, now)
    assert (row.counter, row.holder, row.ballot) == (node.counter, node.holder, node.ballot)
    assert (row.owner, row.broken) == (node.owner, node.broken)
    if node.ballot:
        assert real.kept() == [node.counter, node.ballot, node.expires]
        assert row.value == "v"
    certain = [name for name, ends in node.line if ends - now > LONG // 2]
    assert [name for name, _, _ in row.line if name in certain] == certain
    if node.counter:
        # It is forgotten a day after the clock has passed it, and not before.
        assert real.call("PEXPIRETIME", real.key) * 1000 >= node.counter + DAY


def test_a_counter_goes_when_the_clock_exceeds_it_by_a_day(real: Real):
    now = real.begin()
    assert read_votes([real.claim("a", now, SHORT, 0)])[0].kind is Kind.GRANTED  # type: ignore[union-attr]
    assert 0 <= real.call("PEXPIRETIME", real.key) - (now + DAY) / 1000 <= 3
    real.begin()
    long = 3 * DAY
    real.claim("a", now, long, 0)
    assert real.call("PEXPIRETIME", real.key) * 1000 >= now + long  # a grant stays for as long as it was given


def test_nothing_is_left_a_day_after_the_last_use(real: Real):
    now = real.begin()
    real.claim("a", now, LONG, 0)
    real.claim("b", now, LONG, LONG)
    for key in real.call("KEYS", real.key + "*"):
        assert 0 < real.call("PTTL", key) <= DAY // 1000 + 1


def test_numbers_are_kept_to_the_last_digit(real: Real):
    now = real.begin()
    real.claim("a", now + 1, LONG, 0)
    counter, ballot, expires = real.kept()
    assert counter == ballot == now + 1
    assert now + LONG <= expires < now + 2 * LONG
