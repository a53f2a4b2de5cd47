"""A file of a later format: every verb is refused, also of a client that has the file open."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

import holdfast
from holdfast.core.claim import Claim, Granted
from tests.stores._async import formats as async_formats
from tests.stores._sync.formats import HELD, check_all_refused, check_goes_on, said_by, use

from .driven import sql

TABLES = ("meta", "claims", "registers")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


def change(path: Path, version: int, *statements: str) -> None:
    """Do what an upgrade would do: all in one transaction."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        for statement in ("BEGIN IMMEDIATE", *statements, f"PRAGMA user_version = {version}", "COMMIT"):
            connection.execute(statement)
    finally:
        connection.close()


def upgrade(path: Path) -> None:
    change(path, 2, *(f"ALTER TABLE {table} RENAME TO {table}_2" for table in TABLES))


def downgrade(path: Path) -> None:
    change(path, 1, *(f"ALTER TABLE {table}_2 RENAME TO {table}" for table in TABLES))


def content(path: Path) -> list[object]:
    names = [name for (name,) in sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    return [(name, sql(path, f"SELECT * FROM {name}")) for name in names]


def test_every_verb_refuses_a_later_format_and_names_both(path: Path) -> None:
    with holdfast.connect(f"sqlite:{path}") as client:
        used = use(client._engine.store)
        upgrade(path)
        check_all_refused(used, lambda: content(path))
        downgrade(path)  # the control: it was the format alone
        check_goes_on(used)


async def test_every_verb_of_an_asyncio_client_does_so_too(path: Path) -> None:
    async with holdfast.aio.connect(f"sqlite:{path}") as client:
        used = await async_formats.use(client._engine.store)
        await asyncio.to_thread(upgrade, path)
        await async_formats.check_all_refused(used, lambda: content(path))


def test_a_free_resource_is_not_taken_in_a_file_of_a_later_format(path: Path) -> None:
    """Without a check in between: the next statement fails by itself."""
    with holdfast.connect(f"sqlite:{path}") as client:
        store = client._engine.store
        for _ in range(2):  # the second time by the one statement of the fast way
            assert isinstance(store.claim(HELD), Granted)
            assert store.release("r", HELD.holder)
        upgrade(path)
        assert "has format 2, " in said_by(lambda: store.claim(HELD))
        downgrade(path)
        assert isinstance(store.claim(HELD), Granted)
        upgrade(path)
        assert "has format 2, " in said_by(lambda: store.release("r", HELD.holder))


@pytest.mark.control
def test_a_number_without_new_names_would_not_be_noticed(path: Path) -> None:
    """Why a later format has to rename its tables: an open client does not read the number by itself."""
    with holdfast.connect(f"sqlite:{path}") as client:
        store = client._engine.store
        store.claim(HELD)
        change(path, 2)
        assert isinstance(store.claim(Claim("free", "client.1")), Granted)


def test_another_error_of_a_statement_is_not_taken_for_a_format(path: Path) -> None:
    with holdfast.connect(f"sqlite:{path}") as client:
        store = client._engine.store
        store.claim(HELD)
        sql(path, "DROP TABLE registers")
        assert "no such table" in said_by(lambda: store.read("k"))
