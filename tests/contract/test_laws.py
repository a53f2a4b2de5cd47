"""Every store, in both flavours, against every law that applies to it. A new store is one line in STORES."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

from holdfast.core.promises import LAWS
from holdfast.core.urls import parse_url
from holdfast.testing import contract
from holdfast.testing.contract import Law, Target


@contextmanager
def locked_file(url: str) -> Iterator[None]:
    """Keep everybody else from writing, as a process does that was stopped in the middle of a write."""
    connection = sqlite3.connect(parse_url(url).path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


STORES = [
    Target("memory://", driven=True),
    Target("sqlite://{folder}/locks.db", driven=True, silence=locked_file),
]

TABLE = [(store, law) for store in STORES for law in contract.laws(store)]


@pytest.mark.parametrize(("store", "law"), TABLE, ids=str)
def test_law(store: Target, law: Law):
    law.run(store)


def test_every_law_is_put_to_every_store_in_both_flavours():
    found = {(str(store), law.flavour, law.number) for store, law in TABLE}
    stores = ("memory", "sqlite")
    assert found == {(store, flavour, number) for store in stores for flavour in ("sync", "async") for number in LAWS}


def test_both_flavours_have_the_same_laws():
    names = {flavour: {law.name for _, law in TABLE if law.flavour == flavour} for flavour in ("sync", "async")}
    needing_cancel = {law.name for _, law in TABLE if "cancel" in law.needs}
    assert names["async"] - names["sync"] == needing_cancel
    assert names["sync"] <= names["async"]


def test_every_law_says_what_it_demands():
    assert [law.name for _, law in TABLE if not (law.function.__doc__ or "").strip().endswith(".")] == []


@pytest.mark.parametrize("law", [law for law in contract.laws(Target("memory://")) if law.number in (3, 4)], ids=str)
def test_laws_hold_in_real_time(law: Law):
    """A store with a clock of its own is put to the laws in real time; a few of them, for they take that time."""
    law.run(Target("memory://"))


def poor(patch: pytest.MonkeyPatch) -> Target:
    """A store that can do little, and says so."""
    for flavour in ("sync", "async"):
        store = import_module(f"holdfast.stores.memory._{flavour}.store").MemoryStore
        limits = {"unfair": False, "shared": False, "detached": False, "register": False}
        limited = store.capabilities._replace(**limits, herd=True, min_ttl=2.0, max_ttl=3600.0)
        patch.setattr(store, "capabilities", limited)
    return Target("memory://", driven=True)


with pytest.MonkeyPatch.context() as patch:
    LEFT = contract.laws(poor(patch))


def test_capabilities_decide_what_applies():
    rich = {law.name for law in contract.laws(STORES[0])}
    missing = {"unfair", "shared", "detached", "register", "exact"}
    assert not any(law.needs & missing for law in LEFT)
    assert "register_refuses_the_stale_writer" in rich - {law.name for law in LEFT}


@pytest.mark.parametrize("law", [law for law in LEFT if law.flavour == "sync"], ids=str)
def test_law_that_is_left_holds_for_a_store_that_can_do_little(law: Law, monkeypatch):
    law.run(poor(monkeypatch))


@pytest.mark.control
def test_promise_that_is_not_kept_is_noticed(monkeypatch):
    store = poor(monkeypatch)
    monkeypatch.setattr("holdfast._sync.lock.Lock._supported", lambda lock, fair: True)
    law = next(law for law in contract.laws(store) if law.name == "what_the_store_cannot_do_is_refused")
    with pytest.raises(AssertionError):
        law.run(store)


def test_folder_of_a_law_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = Target("sqlite://{folder}/locks.db", driven=True)
    contract.laws(store)[0].run(store)
    assert list(tmp_path.iterdir()) == []
