"""connect(): where to, without I/O and without a thread; and what it says when it cannot."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
import holdfast.aio
from tests.shell.script import run

FLAVOURS = (holdfast, holdfast.aio)

both = pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda module: module.__name__)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration; returns where the embedded file would be."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "holdfast" / "locks.db"


@both
def test_no_file_and_no_thread_before_first_use(flavour: ModuleType, state: Path) -> None:
    threads = set(threading.enumerate())
    locks = flavour.connect(f"sqlite://{state}")
    locks.lock("r")
    assert set(threading.enumerate()) == threads
    assert not state.parent.exists()


@both
def test_without_a_url_a_warning_names_the_file_and_its_scope(
    flavour: ModuleType, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locks = flavour.connect()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(state) in record.getMessage()
    assert "this user on this host" in record.getMessage()
    assert str(state) in repr(locks)
    assert not state.parent.exists()


def test_the_embedded_file_is_made_on_first_use_for_this_user_only(state: Path) -> None:
    with holdfast.connect() as locks, locks.lock("r"):
        assert state.stat().st_mode & 0o777 == 0o600


@both
@pytest.mark.parametrize("require", ["correctness", "efficiency"])
def test_a_requirement_needs_a_chosen_store(flavour: ModuleType, require: str, state: Path) -> None:
    with pytest.raises(holdfast.StoreError, match=rf"require='{require}'.*HOLDFAST_URL.*{state}"):
        flavour.connect(require=require)


@both
def test_a_bad_requirement_is_a_value_error_also_without_a_url(flavour: ModuleType, state: Path) -> None:
    with pytest.raises(ValueError, match="'efficiency', 'correctness' or None, not 'speed'"):
        flavour.connect(require="speed")


@both
def test_the_url_of_the_environment(
    flavour: ModuleType, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://from-env")
    assert str(flavour.connect().url) == "memory://from-env"
    assert str(flavour.connect(require="efficiency").url) == "memory://from-env"
    assert str(flavour.connect("memory://from-code").url) == "memory://from-code"
    assert caplog.records == []


@both
@pytest.mark.parametrize("url", ["", "locks.db", "/tmp/locks.db", None.__class__, 5, b"memory://"], ids=repr)
def test_what_is_no_url(flavour: ModuleType, url: Any) -> None:
    with pytest.raises(ValueError, match="store URL"):
        flavour.connect(url)


@both
def test_an_unknown_scheme_says_what_there_is(flavour: ModuleType) -> None:
    with pytest.raises(
        ValueError, match=r"no store is known for the scheme nosuch://.*memory://, sqlite://.*holdfast\.stores"
    ):
        flavour.connect("nosuch://host")


@both
def test_a_password_is_never_shown(flavour: ModuleType) -> None:
    with pytest.raises(ValueError, match="memory") as caught:
        flavour.connect("memory://user:s3cret@host/path?x=1")
    assert "s3cret" not in str(caught.value)


THIRD_PARTY = """
from holdfast.stores.memory._async.store import MemoryStore as AsyncStore
from holdfast.stores.memory._sync.store import MemoryStore as Store
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `acme-locks` that keeps acme:// and broken://."""
    info = tmp_path / "acme_locks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-locks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.stores]\nacme = acme_locks\nbroken = acme_locks_broken\n")
    (tmp_path / "acme_locks.py").write_text(THIRD_PARTY)
    (tmp_path / "acme_locks_broken.py").write_text("import acme_driver\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def test_a_store_of_a_third_party(third_party: Path) -> None:
    with holdfast.connect("acme://host") as locks, locks.lock("r") as lease:
        lease.check()


async def test_a_store_of_a_third_party_with_asyncio(third_party: Path) -> None:
    async with holdfast.aio.connect("acme://host") as locks, locks.lock("r") as lease:
        lease.check()


@both
def test_a_store_of_a_third_party_without_its_driver(flavour: ModuleType, third_party: Path) -> None:
    with pytest.raises(
        holdfast.StoreError, match=r"broken:// of acme-locks needs 'acme_driver'.*not installed: pip install"
    ):
        flavour.connect("broken://host")


def test_a_builtin_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.stores import registry

    monkeypatch.setitem(registry.STORES, "redis", registry.Builtin("nosuch", "RedisStore", "redis"))
    with pytest.raises(holdfast.StoreError, match=r"redis:// needs .*pip install 'holdfast\[redis\]'"):
        holdfast.connect("redis://host")


def test_correctness_on_stores_that_keep_it(state: Path) -> None:
    with holdfast.connect(f"sqlite://{state.parent.parent}/x.db", require="correctness") as locks, locks.lock("r"):
        pass


def test_import_and_connect_start_nothing() -> None:
    out, err = run(
        """
        import sys, threading
        import holdfast

        locks = holdfast.connect("memory://")
        locks.lock("r")
        print(threading.active_count(), "asyncio" in sys.modules)
        """
    )
    assert out.split() == ["1", "False"]
    assert err == ""
