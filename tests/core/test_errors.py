"""Errors: one root, picklable with all their facts, and caught where Python's own would be."""

from __future__ import annotations

import copy
import pickle

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import AcquireTimeout, LockError, RateLimited, StoreError, StoreUnavailable

ALL = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockError)),
    key=lambda kind: kind.__name__,
)


def test_the_errors_are_those_of_the_design() -> None:
    assert {kind.__name__ for kind in ALL} == {
        *("LockError", "AcquireTimeout", "LeaseLost", "NotHeld", "StaleToken", "RateLimited", "Deadlock"),
        *("Unsupported", "StoreError", "StoreUnavailable", "AcquireCancelled"),
    }
    for kind in ALL:
        assert getattr(holdfast, kind.__name__) is kind


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling_with_their_facts(kind: type[LockError], protocol: int) -> None:
    error = kind("waited 5.0 s for 'invoices'", resource="invoices", owner="web-3:81", token=42)
    error.add_note("holdfast: a note")
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert str(twin) == "waited 5.0 s for 'invoices'"
        assert (twin.resource, twin.owner, twin.token) == ("invoices", "web-3:81", 42)
        assert twin.__notes__ == ["holdfast: a note"]


@pytest.mark.parametrize("kind", ALL)
def test_facts_that_are_not_known_are_none(kind: type[LockError]) -> None:
    error = kind()
    assert (str(error), error.resource, error.owner, error.token) == ("", None, None, None)
    assert pickle.loads(pickle.dumps(error)).resource is None


def test_the_delay_of_a_rate_limit_survives_pickling() -> None:
    error = RateLimited("too fast")
    assert error.retry_after == 0.0
    error.retry_after = 1.5
    assert pickle.loads(pickle.dumps(error)).retry_after == 1.5


def test_the_family() -> None:
    assert issubclass(AcquireTimeout, TimeoutError)
    assert issubclass(AcquireTimeout, OSError), "as TimeoutError is"
    assert issubclass(StoreUnavailable, StoreError)
    assert not issubclass(StoreUnavailable, TimeoutError), "an outage must not pass for a busy resource"
    assert [kind.__name__ for kind in ALL if issubclass(kind, TimeoutError)] == ["AcquireTimeout"]


def test_an_acquire_timeout_shows_its_message_and_not_an_errno() -> None:
    error = AcquireTimeout("waited 5.0 s", resource="r")
    assert str(error) == "waited 5.0 s"
    assert repr(error) == "AcquireTimeout('waited 5.0 s')"
    assert error.errno is None
