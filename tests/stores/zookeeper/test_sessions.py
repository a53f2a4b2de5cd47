"""How many sessions a client has, how long each is kept, what it may ask of an ensemble, and how it finds a server."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from holdfast._clock import SystemClock
from holdfast._sync.client import connect
from holdfast.core.names import NAME_BYTES
from holdfast.errors import LeaseLost, StoreUnavailable, Unsupported
from holdfast.stores.zookeeper.link import Link
from holdfast.stores.zookeeper.session import IDLE, Session
from holdfast.stores.zookeeper.shared import MOST_BYTES
from holdfast.testing._sync.runtime import eventually, spawn
from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed
from tests.stores.zookeeper.rig import Raw
from tests.stores.zookeeper.session_kit import (
    BAD_HOSTS,
    BAD_NAMES,
    HOST,
    bad_host,
    connected_sessions,
    known,
    paths_by_session,
    session_of,
    sessions_of,
    that_drops,
)

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

IO = 0.4
LONG = 60.0
LIMIT = 20.0
SLACK = 4.0
LEAST, MOST = 0.5, 100.0  # seconds that a session of this server may have
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    settings = {"min_session_timeout": round(LEAST * 1000), "max_session_timeout": round(MOST * 1000)}
    with needed(lambda: ZooKeeperServer(**settings)) as found:  # type: ignore[arg-type]
        yield found


@pytest.fixture
def raw(server: ZooKeeperServer) -> Iterator[Raw]:
    found = Raw(server.port)
    found.clear()
    yield found
    found.close()


# -- how long a session is kept


def of_sessions() -> tuple[int, int]:
    """Return how many threads sessions have, and how many files this process has."""
    threads = sum(thread.name.startswith("holdfast-zookeeper") for thread in threading.enumerate())
    return threads, len(os.listdir("/proc/self/fd"))


def test_a_session_is_closed_after_two_timeouts_in_which_nobody_needed_it(server: ZooKeeperServer) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    with connect(server.url) as locks:
        before = of_sessions()
        began = CLOCK.now()
        with locks.lock("r", ttl=LEAST, timeout=LIMIT) as lease:
            first = session_of(locks, "r")
        assert known(server, first)
        eventually(lambda: first.over, limit=LIMIT)
        assert CLOCK.now() - began >= IDLE * LEAST
        eventually(lambda: not known(server, first))
        assert sessions_of(locks) == []
        eventually(lambda: of_sessions() <= before, limit=LIMIT)
        with locks.lock("r", ttl=LEAST, timeout=LIMIT) as again:
            assert session_of(locks, "r").id != first.id
            assert again.token > lease.token


def test_a_session_is_kept_while_somebody_holds_or_waits(server: ZooKeeperServer, raw: Raw) -> None:
    with connect(server.url) as locks, connect(server.url) as rival:
        held = locks.lock("r", ttl=1).acquire(LIMIT)
        call = spawn(rival.lock("r", ttl=1).acquire, LIMIT)
        eventually(lambda: len(raw.claims()) == 2)
        sessions = {session_of(locks, "r"), session_of(rival, "r")}
        until = CLOCK.now() + IDLE + 0.5
        eventually(lambda: CLOCK.now() > until)
        assert {session_of(locks, "r"), session_of(rival, "r")} == sessions
        assert not [session.over for session in sessions if session.over]
        held.release()
        call.join(LIMIT).release()


# -- how many sessions there are


def test_there_is_one_session_for_each_ttl(server: ZooKeeperServer) -> None:
    before = set(connected_sessions(server))
    with connect(server.url) as locks, ExitStack() as stack:
        for number in range(12):
            lease = locks.lock(f"r{number}", ttl=20 + number % 3).acquire(LIMIT)
            stack.callback(lease.release)
        assert len(set(connected_sessions(server)) - before) == 3
        locks.inspect()
        locks.register("k").read()
        assert len(set(connected_sessions(server)) - before) == 3, "what is no claim takes any of them"
    eventually(lambda: not set(connected_sessions(server)) - before)


def test_no_session_has_more_than_its_share_of_bytes_in_paths(server: ZooKeeperServer) -> None:
    """A server cannot log the end of a session with 2 MB, and does not start again. Waiting claims count, too."""
    name = "é" * (NAME_BYTES // 2 - 2)  # which takes three times as much in a path
    before = set(paths_by_session(server))
    with connect(server.url, io_timeout=10) as locks:
        count = MOST_BYTES // (len(name) * 6) + 20
        leases = [locks.lock(f"{name}{number}", ttl=LONG).acquire(LIMIT) for number in range(count)]
        found = {session: paths for session, paths in paths_by_session(server).items() if session not in before}
        assert len(found) == 2
        assert sum(map(len, found.values())) == count
        sizes = sorted(sum(map(len, paths)) for paths in found.values())
        assert sizes[1] <= MOST_BYTES < sum(sizes)
        assert not [lease for lease in leases if lease.lost]
    assert set(paths_by_session(server)) <= before


# -- what an ensemble gives


def test_a_ttl_that_the_ensemble_cannot_give_is_refused_with_its_limits(server: ZooKeeperServer, raw: Raw) -> None:
    with connect(server.url) as locks:
        with pytest.raises(Unsupported, match=r"100 s.*ttl=101.*maxSessionTimeout.*minSessionTimeout"):
            locks.lock("r", ttl=MOST + 1).acquire(LIMIT)
        assert raw.all_claims() == []
        with locks.lock("r", ttl=MOST, timeout=LIMIT):
            assert session_of(locks, "r").timeout == MOST


def test_a_ttl_below_the_least_that_the_ensemble_gives_gets_that() -> None:
    with needed(lambda: ZooKeeperServer(min_session_timeout=3000)) as server, connect(server.url) as locks:
        with locks.lock("r", ttl=0.5, timeout=LIMIT) as lease:
            session = session_of(locks, "r")
            assert session.timeout == 3.0
            assert lease.remaining <= 0.5, "what was asked for is what the holder may count on"
            connections, until = session.connections, CLOCK.now() + 1
            eventually(lambda: CLOCK.now() > until)
            lease.check()
            assert session.connections == connections


def test_leases_of_a_session_that_gets_less_time_than_before_are_told_and_are_lost(raw: Raw) -> None:
    """An administrator has lowered maxSessionTimeout, and restarts the servers."""
    with needed(lambda: ZooKeeperServer(max_session_timeout=30_000)) as server, connect(server.url) as locks:
        lease = locks.lock("r", ttl=30).acquire(LIMIT)
        first = session_of(locks, "r")
        server.stop()
        server.settings["max_session_timeout"] = 10_000
        server.start()
        eventually(lambda: first.connected and first.timeout == 10.0, limit=LIMIT)
        with pytest.raises(LeaseLost):
            lease.renew()
        with pytest.raises(Unsupported, match="10 s"):
            locks.lock("other", ttl=30).acquire(LIMIT)
        with locks.lock("other", ttl=10, timeout=LIMIT):
            assert session_of(locks, "other") is not first


# -- hosts


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with the first host of a URL, not with any."""
    monkeypatch.setattr(Link, "first", lambda link: 0)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("kind", [*BAD_HOSTS, *BAD_NAMES])
def test_a_host_that_is_no_help_delays_the_first_use_and_a_reconnect_by_little(
    server: ZooKeeperServer, kind: str
) -> None:
    with bad_host(kind) as bad, Proxy(server.port) as way:
        with connect(f"zookeeper://{bad},{HOST}:{way.port}", io_timeout=IO) as locks:
            started = time.monotonic()
            lease = locks.lock("r", ttl=10).acquire(LIMIT)
            assert time.monotonic() - started < 2 * IO + SLACK
            session = session_of(locks, "r")
            connections = session.connections
            way.reset()
            eventually(lambda: session.connections > connections)
            assert time.monotonic() - started < 4 * IO + SLACK
            eventually(lambda: renewed(lease))
            assert lease.state == "held"
            lease.release()


def renewed(lease: Any) -> bool:
    """Renew; False if the outcome is unknown.

    Raises: LeaseLost.
    """
    try:
        lease.renew()
    except StoreUnavailable:
        return False
    return True


SILENT = "does not answer|could not be reached within"
REASONS = {
    "holds": SILENT,
    "drops": SILENT,
    "refuses": "refused",
    "closes": "closed|reset",
    "http": "does not speak ZooKeeper's protocol",
    "echo": "is no ZooKeeper",
    "unknown": "nowhere.invalid",
    "empty label": "nowhere..invalid",
    "long label": "invalid",
}


def stuck(made: list[Session]) -> str:
    """Show the sessions whose threads have not ended, and where all threads are: seen once, and not explained."""
    frames = {number: "".join(traceback.format_stack(frame)) for number, frame in sys._current_frames().items()}
    left = [(session.over, session.cause, session.used) for session in made if not session.activity.join(0.0)]
    return f"sessions that go on: {left}\n{frames}"


@pytest.mark.parametrize("kind", [*BAD_HOSTS, *BAD_NAMES])
def test_without_any_other_host_calls_end_in_time_and_say_why(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Session] = []
    start = Session.start

    def started_anew(session: Session) -> None:
        made.append(session)
        start(session)

    monkeypatch.setattr(Session, "start", started_anew)
    with bad_host(kind) as bad, closing(connect(f"zookeeper://{bad}", io_timeout=IO / 2)) as locks:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=REASONS[kind]):
            locks.lock("r").acquire(IO)
        assert time.monotonic() - started < 2 * IO + SLACK
        started = time.monotonic()
    assert time.monotonic() - started < IO + SLACK
    assert len(made) < 100, "sessions are opened as fast as can be"
    eventually(lambda: all(session.activity.join(0.0) for session in made), complaint=lambda: stuck(made))


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[socket.AddressFamily, Any]) -> None:
    """Let every name have these addresses."""
    found = [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **words: found)


def takes_a_lock(url: str) -> None:
    with connect(url, io_timeout=IO) as locks, locks.lock("r", ttl=LONG, timeout=LIMIT):
        pass


def test_a_host_is_found_by_its_second_address_if_nobody_listens_at_the_first(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` is: ::1 and 127.0.0.1."""
    resolve_to(monkeypatch, (socket.AF_INET6, ("::1", server.port, 0, 0)), (socket.AF_INET, (HOST, server.port)))
    takes_a_lock(f"zookeeper://localhost:{server.port}")


def test_a_host_is_found_by_its_second_address_if_the_first_drops_everything(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with that_drops() as port:
        resolve_to(monkeypatch, (socket.AF_INET, (HOST, port)), (socket.AF_INET, (HOST, server.port)))
        takes_a_lock(f"zookeeper://both:{server.port}")


def test_a_host_is_found_by_its_second_address_if_this_machine_cannot_speak_to_the_first(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoSix(socket.socket):
        def __init__(self, family: int = -1, *words: int, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *words, **more)

    resolve_to(monkeypatch, (socket.AF_INET6, ("::1", server.port, 0, 0)), (socket.AF_INET, (HOST, server.port)))
    monkeypatch.setattr(socket, "socket", NoSix)
    takes_a_lock(f"zookeeper://both:{server.port}")
