"""The servers that tests start: ports that nobody else gets, and nothing left of a group that failed to start."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.servers import Server
from holdfast.testing.servers.etcd import EtcdCluster
from holdfast.testing.servers.ports import Ports
from holdfast.testing.servers.redis import RedisCluster, RedisServer, SentinelGroup
from holdfast.testing.servers.redlock import RedlockServers
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble
from tests.servers import needed

FEW = (10_000, 10_040)


def take_ten(path: Path, pipe: Connection) -> None:
    ports = Ports(path, *FEW)
    pipe.send([ports.take() for _ in range(10)])
    pipe.recv()


def take_all(ports: Ports) -> set[int]:
    taken = set[int]()
    while True:
        try:
            taken.add(ports.take())
        except OSError:
            return taken


def test_a_port_is_given_to_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "ports"
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=take_ten, args=(path, there))
    other.start()
    theirs = set(here.recv())
    ports = Ports(path, *FEW)
    mine = take_all(ports)
    assert len(theirs) == 10
    assert mine
    assert not mine & theirs
    here.send("end")
    other.join()
    assert take_all(ports) == theirs, "they are free again with the end of their process"
    port = mine.pop()
    ports.give_back(port)
    assert take_all(ports) == {port}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """All servers that are started. The third one of a kind of group does not come up."""
    found: list[Server] = []
    real = Server.start

    def start(server: Server, **options: Any) -> Any:
        found.append(server)
        if len(found) == 3:
            monkeypatch.setattr(type(server), "command", lambda self: [self.executable, "--no-such-option"])
        return real(server, **options)

    monkeypatch.setattr(Server, "start", start)
    return found


@pytest.mark.server
@pytest.mark.parametrize("group", [RedlockServers, RedisCluster, SentinelGroup, EtcdCluster, ZooKeeperEnsemble])
def test_a_group_that_does_not_start_leaves_nothing_running(group: Callable[[], Any], started: list[Server]) -> None:
    with pytest.raises(AssertionError, match="has ended"):
        with needed(group):
            pass
    assert len(started) >= 3
    assert not any(server.alive for server in started)
    assert not any(server.folder.exists() for server in started)


@pytest.mark.server
def test_a_server_that_does_not_start_leaves_nothing_behind() -> None:
    server = needed(lambda: RedisServer("--no-such-option", "no"))
    with pytest.raises(AssertionError, match="has ended"), server:
        pass
    assert not server.folder.exists()
