"""Two versions on one store: clients that knew of no formats contend with those of today, and never do two hold."""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.stores.redis.replies import Names
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers
from tests.servers import needed

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NEW = HERE.parents[1] / "src"
NAME = "shared"
MANY = 1_000_000
PATIENT = 60.0


class Place(NamedTuple):
    """Where clients meet, with the shortest lease there, and how data gets a later format there."""

    url: str
    ttl: float
    upgrade: Callable[[], None]


class Workers:
    """Processes of both versions, and what they have written."""

    def __init__(self, folder: Path, old: Path) -> None:
        self._folder = folder
        self._paths = {"old": old, "new": NEW}
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, version: str, place: Place, rounds: int = 1, inside: float = 0.0, name: str = NAME, ttl: float = 30.0
    ) -> subprocess.Popen[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST")}
        env["PYTHONPATH"] = str(self._paths[version])
        words = (place.url, name, self._folder, version, rounds, ttl, inside)
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), *map(str, words)], env=env, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    @contextmanager
    def gate(self, count: int) -> Iterator[None]:
        """Let those that are started inside the `with` begin together, when there are so many."""
        with (self._folder / "gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
            eventually(lambda: len(self._lines("started")) == count, limit=PATIENT)

    @property
    def log(self) -> list[tuple[str, str]]:
        return [(label, rest) for label, _, rest in (line.partition(" ") for line in self._lines("log"))]

    def _lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def join(self) -> None:
        """Wait for all of them: none may fail."""
        for process in self._started:
            _, said = process.communicate(timeout=PATIENT)
            assert process.returncode in (0, -signal.SIGKILL), said

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version, unpacked."""
    folder = tmp_path_factory.mktemp("old")
    (archive,) = HERE.glob("holdfast-*.zip")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return folder / "src"


@pytest.fixture
def workers(tmp_path: Path, old: Path) -> Iterator[Workers]:
    found = Workers(tmp_path, old)
    yield found
    found.end()


def sqlite_place(stack: ExitStack, folder: Path) -> Place:
    path = folder / "locks.db"

    def upgrade() -> None:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        renames = [f"ALTER TABLE {table} RENAME TO {table}_2" for table in ("meta", "claims", "registers")]
        for statement in ("BEGIN IMMEDIATE", *renames, "PRAGMA user_version = 2", "COMMIT"):
            connection.execute(statement)
        connection.close()

    return Place(f"sqlite:{path}", 1.0, upgrade)


def redis_place(stack: ExitStack, folder: Path) -> Place:
    server = stack.enter_context(needed(lambda: RedisServer("--appendfsync", "no")))
    fields = ("format", 2, "holder", "format 2", "ends", "format 2")
    return Place(server.url, 1.0, lambda: server.call("HSET", Names("default").queue(NAME), *fields))


def redlock_place(stack: ExitStack, folder: Path) -> Place:
    servers = stack.enter_context(needed(lambda: RedlockServers("--appendfsync", "no", count=3)))

    def upgrade() -> None:
        for node in servers.nodes:
            node.call("SET", Names("default", "holdfast.redlock").queue(NAME), "f2 whatever")

    return Place(servers.url, 1.0, upgrade)


def etcd_place(stack: ExitStack, folder: Path) -> Place:
    server = stack.enter_context(needed(EtcdServer))

    def upgrade() -> None:
        key, value = (base64.b64encode(text).decode() for text in (b"holdfast/offset", b"f2 0"))
        server.ask("kv/put", key=key, value=value)

    return Place(server.url, 2.0, upgrade)


PLACES = [
    pytest.param(sqlite_place, id="sqlite"),
    *(pytest.param(make, id=make.__name__[:-6], marks=pytest.mark.server) for make in (redis_place, redlock_place)),
    pytest.param(etcd_place, id="etcd", marks=pytest.mark.server),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        found: Place = request.param(stack, tmp_path)
        yield found


def check_alone(log: list[tuple[str, str]]) -> None:
    """Check that never two were inside, and that every hold had a larger token than the one before."""
    assert "overlap" not in [label for label, _ in log], log
    tokens = [int(token) for _, token in log]
    assert tokens == sorted(set(tokens))


def test_both_versions_take_turns_and_never_two_hold(place: Place, workers: Workers):
    with workers.gate(4):  # one that starts slowly would find the others gone
        for version in ("old", "new", "old", "new"):
            workers.start(version, place, rounds=75, inside=0.001)
    workers.join()
    log = workers.log
    check_alone(log)
    labels = [label for label, _ in log]
    assert {label: labels.count(label) for label in ("old", "new")} == {"old": 150, "new": 150}
    assert sum(one != other for one, other in pairwise(labels)) >= 30, "they ran one after the other"


@pytest.mark.parametrize(("holder", "waiter"), [("old", "new"), ("new", "old")])
def test_a_lease_is_renewed_and_ends_with_its_process(place: Place, workers: Workers, holder: str, waiter: str):
    killed = workers.start(holder, place, inside=PATIENT, ttl=place.ttl)
    eventually(lambda: len(workers.log) == 1, limit=PATIENT)
    waits = workers.start(waiter, place, ttl=place.ttl)
    with pytest.raises(subprocess.TimeoutExpired):  # it waits through more than two ttls
        waits.wait(2.5 * place.ttl)
    assert len(workers.log) == 1
    killed.send_signal(signal.SIGKILL)
    workers.join()
    check_alone(workers.log)
    assert [label for label, _ in workers.log] == [holder, waiter]


def test_clients_that_know_of_no_formats_cannot_hold_beside_a_later_one(place: Place, workers: Workers):
    before = workers.start("old", place, rounds=MANY, inside=0.001)
    eventually(lambda: len(workers.log) > 5, limit=PATIENT)
    place.upgrade()
    for process in (before, workers.start("old", place, rounds=MANY)):
        _, said = process.communicate(timeout=PATIENT)
        assert process.returncode == 1, said
        assert "StoreError" in said
    new = workers.start("new", place, rounds=MANY)
    _, said = new.communicate(timeout=PATIENT)
    assert "has format 2, and this version of holdfast reads format 1" in said
    assert {label for label, _ in workers.log} == {"old"}


@pytest.mark.control
def test_two_that_hold_at_once_are_noticed(workers: Workers, tmp_path: Path):
    with ExitStack() as stack:
        place = sqlite_place(stack, tmp_path)
        workers.start("old", place, inside=PATIENT)
        eventually(lambda: len(workers.log) == 1, limit=PATIENT)
        other = workers.start("new", place, name="another")
        assert other.wait(PATIENT) == 0
        assert workers.log[1] == ("overlap", "new")
        with pytest.raises(AssertionError):
            check_alone(workers.log)
