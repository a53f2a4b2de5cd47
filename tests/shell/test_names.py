"""The public names. Adding one is a decision; taking one away breaks somebody."""

from __future__ import annotations

import pickle

import pytest

import holdfast
import holdfast.aio

ERRORS = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Deadlock",
    "LeaseLost",
    "LockError",
    "NotHeld",
    "RateLimited",
    "StaleToken",
    "StoreError",
    "StoreUnavailable",
    "Unsupported",
]


def test_names_of_holdfast() -> None:
    others = [
        "Capabilities",
        "ClaimState",
        "Client",
        "Fence",
        "Holder",
        "Lease",
        "Lock",
        "ResourceState",
        "aio",
        "connect",
        "RWLock",
        "RateLimit",
        "Record",
        "Register",
        "Leases",
        "MultiLock",
        "Election",
        "Leader",
        "Term",
        "Tree",
        "TreeLease",
        "events",
        "observe",
        "release_on_sigterm",
        "stores",
        "Cancel",
        "Semaphore",
    ]
    assert holdfast.__all__ == sorted(ERRORS + others)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_names_of_aio() -> None:
    assert holdfast.aio.__all__ == [
        *("Client", "Election", "Leader", "Lease", "Leases", "Lock", "MultiLock", "RWLock", "RateLimit"),
        *("Register", "Semaphore", "Term", "Tree", "TreeLease", "connect"),
    ]
    assert all(hasattr(holdfast.aio, name) for name in holdfast.aio.__all__)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="'holdfast' has no attribute 'nosuch'"):
        getattr(holdfast, "nosuch")  # noqa: B009 (mypy knows that it is not there)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_one_root_and_can_be_pickled(name: str) -> None:
    kind = getattr(holdfast, name)
    assert issubclass(kind, holdfast.LockError)
    error = kind("what happened", resource="r", owner="me", token=5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what happened"
    assert (copy.resource, copy.owner, copy.token) == ("r", "me", 5)


def test_the_tree_of_errors() -> None:
    assert issubclass(holdfast.AcquireTimeout, TimeoutError)
    assert issubclass(holdfast.StoreUnavailable, holdfast.StoreError)
    assert not issubclass(holdfast.StoreUnavailable, TimeoutError)
