"""Processes that lock in ZooKeeper: stopped past their session, interrupted anywhere, and with a server that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper.wire import Op
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.servers import needed
from tests.shell.script import SOURCE
from tests.stores.zookeeper.actors import PLAIN, WAYS
from tests.stores.zookeeper.rig import Rig, lossy_network

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]
LONG = 600.0
LIMIT = 30.0


class Actor:
    """A process that plays a role of actors.py. What it says goes to a file, so that nobody blocks reading."""

    def __init__(self, folder: Path, role: str, *arguments: object) -> None:
        self._out = folder / f"{role}-{os.urandom(4).hex()}"
        self.errors = self._out.with_suffix(".err")
        with self._out.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.stores.zookeeper.actors", role, *map(str, arguments)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )

    @property
    def said(self) -> list[Any]:
        """What it has said so far."""
        assert self.process.poll() in (None, 0), self.errors.read_text()
        return [json.loads(line) for line in self._out.read_text().rpartition("\n")[0].splitlines()]

    @property
    def stopped(self) -> bool:
        """Whether it stands still."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def end(self) -> list[Any]:
        """Wait for its end, and return what it has said."""
        self.process.wait(LIMIT * 2)
        return self.said

    def kill(self) -> None:
        """End it, wherever it is."""
        self.process.kill()
        self.process.wait()


@contextmanager
def acting(folder: Path, role: str, *arguments: object) -> Iterator[Actor]:
    actor = Actor(folder, role, *arguments)
    try:
        yield actor
    finally:
        actor.kill()


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with lossy_network() as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    module_rig.clear()
    yield module_rig
    module_rig.clear()


# -- stopped


def overtaken(rig: Rig, folder: Path, way: str) -> list[Any]:
    """Have a process stopped between its look at the lease and its write, and another take over; return what it says.

    Its session is over when it goes on, and whoever came after it has written.
    """
    rig.raw.ask(wire.create(PLAIN, b"", wire.OPEN_ACL))
    with acting(folder, "stale", rig.server.url, rig.server.port, way, 1.0) as actor:
        with holdfast.connect(rig.server.url, io_timeout=5) as rival:
            eventually(lambda: actor.said and actor.stopped, limit=LIMIT)
            with rival.lock("r", ttl=LONG, timeout=LIMIT) as lease:
                assert lease.token > actor.said[0][1]
                rival.register("k").write("new", fence=lease.fence)
                rig.raw.ask(wire.set_data(PLAIN, b"new"))
                actor.process.send_signal(signal.SIGCONT)
                return actor.end()


def test_a_process_that_was_stopped_past_its_session_writes_nothing_and_knows(rig: Rig, tmp_path: Path) -> None:
    assert overtaken(rig, tmp_path, "fenced")[1:] == [["refused"], ["lost", True]]
    with holdfast.connect(rig.server.url) as locks:
        record = locks.register("k").read()
        assert record is not None
        assert record.value == "new"


@pytest.mark.control
def test_control_without_a_fence_its_write_gets_through(rig: Rig, tmp_path: Path) -> None:
    assert overtaken(rig, tmp_path, "plain")[1:] == [["written"], ["lost", True]]
    (reply,) = rig.raw.ask(wire.get_data(PLAIN))
    assert wire.read_data(reply)[0] == b"stale"


# -- interrupted


@pytest.mark.parametrize("way", WAYS)
def test_whatever_an_interrupt_strikes_no_node_stays(rig: Rig, tmp_path: Path, way: str) -> None:
    with acting(tmp_path, "interrupted", rig.server.url, rig.server.port, way, 300, 7) as actor:
        ((_, struck, *rest),) = actor.end()
        assert "is lost" not in actor.errors.read_text(), "what is held to its end is not lost"
    assert struck > 250
    assert rest == ["works", True, "closed", True, "left", []]


@pytest.mark.parametrize("way", ["first", "closing"])
def test_whatever_a_signal_strikes_nothing_stays_taken_and_nothing_hangs(rig: Rig, way: str) -> None:
    """The program of all stores; what it leaves in the line is looked for past the store."""
    for seconds in (3, 20):  # a busy machine is still measuring its usual time when the first is over
        done = subprocess.run(
            [sys.executable, "-m", "tests.shell.interrupts", way, rig.server.url, str(seconds), "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if strikes := found.pop("strikes"):
            break
    assert strikes, done.stderr
    assert found == {"stuck": 0, "closed": True, "left": []}, done.stderr
    if way != "closing":  # which may be out of time inside of a lock
        assert rig.raw.all_claims() == []


@pytest.mark.parametrize("what", ["request", "reply", "silence"])
def test_an_acquire_that_is_interrupted_after_its_create_was_lost_leaves_no_node(rig: Rig, what: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with holdfast.connect(rig.url, io_timeout=0.4) as locks:
        with locks.lock("r", ttl=LONG, timeout=LIMIT):
            pass
        loss = rig.way.lose(Op.CREATE2, what, then_refuse=True)
        main = threading.get_ident()

        def strike() -> None:
            eventually(lambda: loss.done)
            signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=strike)
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                locks.lock("r", ttl=LONG).acquire(LIMIT)
        finally:
            thread.join()
            signal.signal(signal.SIGUSR1, before)
        rig.way.heal()
        eventually(lambda: rig.raw.claims() == [], limit=locks.capabilities.waiting_life + LIMIT)
        with locks.lock("r", ttl=LONG, timeout=LIMIT):
            pass


# -- a server that dies


def counted(members: list[ZooKeeperServer], url: str, folder: Path) -> None:
    """Have processes count while each member is killed and started again; see that nothing is counted twice or lost."""
    stop = folder / "stop"
    with ExitStack() as stack:
        actors = [stack.enter_context(acting(folder, "count", url, stop)) for _ in range(4)]

        def go_on(number: int) -> None:
            least = [len(actor.said) + number for actor in actors]
            eventually(
                lambda: all(len(actor.said) >= count for actor, count in zip(actors, least, strict=True)),
                limit=LIMIT,
                complaint=lambda: "\n".join(actor.errors.read_text() for actor in actors),
            )

        go_on(5)
        for member in members:
            member.kill()
            member.start(wait=False)
            member.wait_ready()
            go_on(5)
        stop.touch()
        told = [token for actor in actors for (token,) in actor.end()]
    with holdfast.connect(url, io_timeout=10) as locks:
        record = locks.register("k").read()
        assert record is not None
    tokens = json.loads(record.value)
    assert tokens == sorted(set(tokens))
    # What was told is there. What was written and could not be told, at most one by each process at each death, may be.
    assert set(told) <= set(tokens)
    assert len(told) == len(set(told))
    assert len(tokens) <= len(told) + 4 * len(members)


def test_a_server_that_is_killed_and_comes_back_loses_no_count(tmp_path: Path) -> None:
    with needed(ZooKeeperServer) as server:
        counted([server] * 3, server.url, tmp_path)


def test_members_that_are_killed_in_turn_and_come_back_lose_no_count(tmp_path: Path) -> None:
    with needed(ZooKeeperEnsemble) as ensemble:
        counted(ensemble.in_order(), ensemble.url, tmp_path)
