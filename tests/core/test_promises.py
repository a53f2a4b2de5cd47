"""Promises: the fault model, and what require="correctness" is checked against."""

from __future__ import annotations

import pytest

from holdfast.core.promises import (
    FENCING_LAW,
    KEEPS_ALL,
    LAWS,
    Capabilities,
    Fault,
    Scope,
    check_promises,
    check_require,
)
from holdfast.errors import StoreError
from holdfast.stores.memory._sync.store import MemoryStore
from holdfast.stores.sqlite._sync.store import SQLiteStore


def capabilities(**faults: frozenset[int]) -> Capabilities:
    return Capabilities(store="toy", scope=Scope.HOST, faults={Fault[name]: broken for name, broken in faults.items()})


def test_there_are_the_fifteen_laws() -> None:
    assert list(LAWS) == list(range(1, 16))
    assert "token" in LAWS[FENCING_LAW]


def test_a_law_is_kept_if_no_fault_breaks_it() -> None:
    can = capabilities(CLOCK_STEP=frozenset({1, 9}), CLIENT_CRASH=KEEPS_ALL)
    assert can.keeps(2)
    assert not can.keeps(1)
    assert can.breaking(9) == [Fault.CLOCK_STEP]
    assert can.breaking(2) == []


def test_a_fault_that_cannot_happen_breaks_nothing() -> None:
    assert all(capabilities().keeps(law) for law in LAWS)


def test_capabilities_are_frozen() -> None:
    with pytest.raises(AttributeError):
        capabilities().fair = False  # type: ignore[misc]


def test_correctness_needs_rising_tokens_and_nothing_else() -> None:
    check_promises(capabilities(CLOCK_STEP=frozenset({1, 9})), "correctness")
    broken = capabilities(SERVER_FAILOVER=frozenset({1, 2}), SERVER_RESTART=frozenset({2}))
    check_promises(broken, None)
    check_promises(broken, "efficiency")
    with pytest.raises(StoreError, match=r"law 2 .*toy breaks it on: server failover, server restart"):
        check_promises(broken, "correctness")


@pytest.mark.parametrize("require", ["", "Correctness", True, 1, b"correctness"])
def test_an_unknown_requirement_is_refused(require: object) -> None:
    with pytest.raises(ValueError, match="require must be"):
        check_require(require)


@pytest.mark.parametrize("store", [MemoryStore, SQLiteStore])
def test_our_stores_keep_every_law_through_every_fault_that_they_can_have(
    store: type[MemoryStore] | type[SQLiteStore],
) -> None:
    assert all(store.capabilities.keeps(law) for law in LAWS)


def test_what_our_stores_can_have() -> None:
    assert MemoryStore.capabilities.scope is Scope.PROCESS
    assert SQLiteStore.capabilities.scope is Scope.HOST
    assert Fault.SERVER_FAILOVER not in SQLiteStore.capabilities.faults
    assert Fault.SERVER_RESTART in SQLiteStore.capabilities.faults, "the host restarts"
    assert Fault.SERVER_RESTART not in MemoryStore.capabilities.faults
