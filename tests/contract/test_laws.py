"""Every store, in both flavours, against every law that applies to it. A new store is one line in STORES."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def lost_file(url: str) -> None:
    """Take the file away: what a restart of the server may lose, an embedded store loses like this."""
    path = parse_url(url).path
    for name in (path, path + "-wal", path + "-shm"):
        Path(name).unlink(missing_ok=True)


STORES = [
    Target("memory://", driven=True),
    Target("sqlite://{folder}/locks.db", driven=True, restart=lost_file, silence=locked_file),
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


def test_folder_is_made_for_each_law():
    store = Target("sqlite://{folder}/locks.db", driven=True)
    law = contract.laws(store)[0]
    before = set(Path("/tmp").glob("holdfast-*"))
    law.run(store)
    assert set(Path("/tmp").glob("holdfast-*")) <= before
