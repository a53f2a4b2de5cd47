"""Events: plain facts, frozen and comparable; and the stream that hands them on."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.events import Event
from holdfast.observe.stream import Stream

KINDS: list[type[Event]] = sorted(
    (kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind != Event),
    key=lambda kind: kind.__name__,
)
VALUES: dict[str, Any] = {"float": 1.5, "int": 7, "str": "text"}


def make(kind: type[Event]) -> Event:
    return kind(**{field.name: VALUES[str(field.type)] for field in dataclasses.fields(kind)})


def test_the_kinds_of_events() -> None:
    assert [kind.__name__ for kind in KINDS] == [
        *("Abandoned", "Acquired", "AtRisk", "Dropped", "Lost", "Queued", "Released", "Renewed"),
        *("TimedOut", "Unreleased"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_a_frozen_fact(kind: type[Event]) -> None:
    event = make(kind)
    assert event == make(kind)
    assert {"at", "namespace", "resource", "owner"} <= {field.name for field in dataclasses.fields(event)}
    assert kind.__doc__
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.resource = "other"  # type: ignore[misc]


LOGGED = {"AtRisk": logging.WARNING, "Lost": logging.ERROR, "Unreleased": logging.WARNING, "Dropped": logging.WARNING}


@pytest.mark.parametrize("kind", KINDS)
def test_what_must_not_go_unseen_is_logged_without_an_observer(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    Stream().emit(make(kind))
    expected = LOGGED.get(kind.__name__)
    assert [record.levelno for record in caplog.records] == ([] if expected is None else [expected])
    assert all("text" in record.getMessage() for record in caplog.records)


def test_an_observer_that_fails_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def bad(event: Event) -> None:
        raise RuntimeError("observer down")

    event = make(events.Acquired)
    Stream([bad, seen.append]).emit(event)
    assert seen == [event]
    assert "observer down" in caplog.text


def test_an_observer_must_be_callable() -> None:
    with pytest.raises(ValueError, match="an observer is called"):
        Stream([None])  # type: ignore[list-item]
