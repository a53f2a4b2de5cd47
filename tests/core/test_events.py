"""Events: plain facts, frozen and comparable; and the stream that hands them on."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.events import Event
from holdfast.observe.stream import MOST, Stream
from holdfast.testing.check import Seen

KINDS: list[type[Event]] = sorted(
    (kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind != Event),
    key=lambda kind: kind.__name__,
)
VALUES: dict[str, Any] = {"float": 1.5, "int": 7, "str": "text"}


def facts(kind: type[Event]) -> dict[str, Any]:
    """Return a value for every field, by its type."""
    types = {
        name: hint for base in reversed(kind.__mro__) for name, hint in vars(base).get("__annotations__", {}).items()
    }
    return {name: VALUES[types[name]] for name in kind.fields}


def make(kind: type[Event]) -> Event:
    return kind(**facts(kind))


def test_the_kinds_of_events() -> None:
    assert [kind.__name__ for kind in KINDS] == [
        *("Abandoned", "Acquired", "AtRisk", "Broken", "Busy", "Dropped", "EventsMissed", "LoopBlocked", "Lost"),
        *("PermitsDiffer", "Queued", "Released", "Renewed", "StillWaiting", "TimedOut", "TokenRejected", "Unreleased"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_a_frozen_fact(kind: type[Event]) -> None:
    event = make(kind)
    assert {"at", "store", "namespace", "resource", "kind", "owner", "ttl"} <= set(kind.fields)
    assert kind.__doc__
    for twin in (make(kind), pickle.loads(pickle.dumps(event)), copy.copy(event)):
        assert twin == event
        assert hash(twin) == hash(event)
    assert repr(event).startswith(f"{kind.__name__}(at=1.5, store='text', namespace='text'")
    with pytest.raises(AttributeError):
        event.resource = "other"
    with pytest.raises(AttributeError):
        del event.resource
    assert event == make(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_events_have_equal_hashes_however_they_were_made(kind: type[Event]) -> None:
    event, other = make(kind), kind(**dict(reversed(facts(kind).items())))
    assert event == other
    assert hash(event) == hash(other)
    assert repr(event) == repr(other)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_takes_its_own_facts_and_no_others(kind: type[Event]) -> None:
    right = facts(kind)
    for name in right:
        with pytest.raises(TypeError):
            kind(**{key: value for key, value in right.items() if key != name})
        assert kind(**(right | {name: "different"})) != make(kind)
    with pytest.raises(TypeError):
        kind(**right, unknown=1)


def test_events_of_different_kinds_with_the_same_facts_differ() -> None:
    assert facts(events.Lost) == facts(events.Unreleased)
    assert make(events.Lost) != make(events.Unreleased)


LOGGED = {
    "AtRisk": logging.WARNING,
    "Dropped": logging.WARNING,
    "EventsMissed": logging.WARNING,
    "LoopBlocked": logging.WARNING,
    "Lost": logging.ERROR,
    "PermitsDiffer": logging.WARNING,
    "Unreleased": logging.WARNING,
    "Broken": logging.WARNING,
    "TokenRejected": logging.WARNING,
    "StillWaiting": logging.INFO,
}


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_must_not_go_unseen_is_logged_without_an_observer(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    Stream().emit(make(kind))
    expected = LOGGED.get(kind.__name__)
    assert [record.levelno for record in caplog.records] == ([] if expected is None else [expected])
    assert all("text" in record.getMessage() or "7 events" in record.getMessage() for record in caplog.records)


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_logger_that_takes_debug_is_told_of_every_kind_once(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    Stream().emit(make(kind))
    assert [record.levelno for record in caplog.records] == [LOGGED.get(kind.__name__, logging.DEBUG)]


def test_observers_are_called_by_whoever_delivers_and_inline_ones_at_once() -> None:
    later: list[Event] = []
    stream = Stream([later.append, now := Seen()])
    stream.attach(lambda: True)  # somebody will come
    event = make(events.Acquired)
    stream.emit(event)
    assert (now, later) == ([event], [])
    assert stream.pending()
    stream.deliver(0.0)
    assert later == [event]
    assert not stream.pending()
    stream.deliver(0.0)  # there is nothing: another was faster
    assert now == later == [event]


def test_nothing_is_queued_for_inline_observers_alone() -> None:
    stream = Stream([Seen()])
    stream.attach(lambda: True)
    stream.emit(make(events.Acquired))
    assert not stream.pending()
    stream.emit(make(events.Lost))  # which has to be logged
    assert stream.pending()


def test_what_observers_miss_is_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    stream = Stream([seen.append])
    stream.attach(lambda: True)
    called: list[int] = []
    for _ in range(MOST + 5):
        stream.emit(make(events.Acquired))
    stream.call(lambda: called.append(1))  # unlike an event it is never dropped
    while stream.pending():
        stream.deliver(100.0)
    assert called == [1]
    missed = [event for event in seen if isinstance(event, events.EventsMissed)]
    assert [event.count for event in missed] == [5]
    assert len(seen) == MOST + 1
    assert "5 events were not told" in caplog.text
    for _ in range(MOST + 2):
        stream.emit(make(events.Acquired))
    stream.deliver(159.0)
    assert len([event for event in seen if isinstance(event, events.EventsMissed)]) == 1
    stream.deliver(161.0)
    assert [event.count for event in seen if isinstance(event, events.EventsMissed)] == [5, 2]


@pytest.mark.parametrize("error", [RuntimeError("observer down"), SystemExit("observer down")])
def test_an_observer_that_fails_is_logged_and_the_others_are_called(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def bad(event: Event) -> None:
        raise error

    event = make(events.Acquired)
    Stream([bad, seen.append]).emit(event)
    assert seen == [event]
    assert "observer down" in caplog.text


def test_an_observer_must_be_callable() -> None:
    with pytest.raises(ValueError, match="an observer is called"):
        Stream([None])  # type: ignore[list-item]
