"""What clients of an earlier version make of a claim that was broken: they know of no marks, and never do two hold."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.redis.script import load
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers
from tests.servers import needed
from tests.stores.redlock.kept import KEY, ballot, counter, holders

pytestmark = pytest.mark.server

COMPAT = Path(__file__).parents[2] / "compat"
SECOND = 1_000_000
TTL = 60 * SECOND
GRANTED, TAKEN = 1, 2


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version, unpacked."""
    folder = tmp_path_factory.mktemp("old")
    (archive,) = COMPAT.glob("holdfast-*.zip")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return folder / "src"


class OldNode:
    """A node, asked as an earlier version does."""

    def __init__(self, node: RedisServer, old: Path) -> None:
        self.node = node
        self._scripts = old / "holdfast" / "scripts"

    def run(self, verb: str, *args: str | int) -> list[int]:
        source = (self._scripts / f"redlock_{verb}.lua").read_text()
        source = re.sub(r"^-- include (\S+)$", lambda found: (self._scripts / found[1]).read_text(), source, flags=re.M)
        answer: list[int] = self.node.call("EVAL", source, 1, KEY, *args)
        return answer

    def claim(self, holder: str, number: int, ttl: int = TTL, life: int = 0) -> list[int]:
        return self.run("claim", holder, number, ttl, f"{holder}\n", life, "channel")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with needed(lambda: RedisServer("--appendfsync", "no")) as found:
        yield found


@pytest.fixture
def node(server: RedisServer, old: Path) -> OldNode:
    return OldNode(server, old)


def broken(node: OldNode, ttl: int = TTL) -> int:
    """Have an old client's grant broken by one of today; returns its ballot."""
    number = time.time_ns() // 1000
    assert node.claim("mine.1", number, ttl)[0] == GRANTED
    assert 0 < node.node.call("EVAL", load("redlock", "evict").source, 1, KEY, "mine.1", number)[0] <= ttl
    return number


def test_old_client_cannot_renew_what_is_broken(node: OldNode):
    number = broken(node)
    kept = node.node.call("GET", KEY)
    assert node.run("renew", "mine.1", number, TTL)[1] == 0
    assert node.node.call("GET", KEY) == kept


def test_old_client_cannot_take_what_is_broken_before_its_end(node: OldNode):
    number = broken(node, SECOND)
    for life in (0, TTL):  # with a place in line it writes the record back
        kind, _, shown, left, *_ = node.claim("rival.1", number + 1, life=life)
        assert (kind, shown) == (TAKEN, number)
        assert 0 < left <= SECOND
    assert node.node.call("EVAL", load("redlock", "renew").source, 1, KEY, "mine.1", number, TTL)[1] == 2
    eventually(lambda: node.claim("rival.1", number + 1)[0] == GRANTED)
    assert ballot(node.node) == counter(node.node) == number + 1


def test_old_holder_neither_gets_it_again_nor_frees_it_for_others(node: OldNode):
    """It gives back what a renewal that was lost has left, before its body is told: that must not free it."""
    number = broken(node)
    assert node.claim("mine.1", number)[0] == TAKEN
    assert node.claim("mine.1", number + 1)[0] == TAKEN
    assert node.run("release", "mine.1", number, 0, "channel", "")[0] == 0
    assert node.claim("rival.1", number + 2)[0] == TAKEN


@pytest.mark.control
def test_mark_beside_the_holder_would_be_overlooked(node: OldNode):
    """The control: old scripts renew, and give back, a grant of which the mark stands anywhere else."""
    number = broken(node)
    fields = node.node.call("GET", KEY).decode().split(" ")
    assert fields[4] == "!mine.1"
    fields[4], fields[5] = "mine.1", "!" + fields[5]
    node.node.call("SET", KEY, " ".join(fields), "KEEPTTL")
    assert node.run("renew", "mine.1", number, TTL)[1] == 1
    assert node.run("release", "mine.1", number, 0, "channel", "")[0] == 1


def test_lock_of_an_old_process_is_broken(nodes: RedlockServers, old: Path, tmp_path: Path):
    env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST")} | {"PYTHONPATH": str(old)}
    words = (nodes.url, "r", tmp_path, "old", 1, 4.0, 2.0)  # a ttl of 4 s, and 2 s inside
    process = subprocess.Popen(
        [sys.executable, str(COMPAT / "worker.py"), *map(str, words)], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        with holdfast.connect(nodes.url, io_timeout=10) as locks:
            eventually(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text(), limit=60)
            asked = time.monotonic()
            (seen,) = locks.break_lock("r", reason="test")
            assert f"old {seen.token}\n" == (tmp_path / "log").read_text()
            assert holders(nodes).count(f"!{seen_holder(nodes)}") >= 3
            with locks.lock("r", timeout=60) as lease, (tmp_path / "inside").open("a") as inside:
                fcntl.flock(inside, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else the old one is inside, too
                assert time.monotonic() - asked > seen.left - 0.5
                assert lease.token > seen.token
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "LeaseLost" in said
    finally:
        process.kill()
        process.communicate()


def seen_holder(nodes: RedlockServers) -> str:
    return max(holders(nodes), key=len).removeprefix("!")
