"""A session that is used all the time: it proves itself as well, and costs nobody a connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

import pytest

import holdfast
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim
from holdfast.stores.zookeeper.session import Session
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed

pytestmark = pytest.mark.server
TTL = 1.5


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with needed(ZooKeeperServer) as found:
        yield found


def connections(server: ZooKeeperServer) -> int:
    """Acquire and release without a pause, for longer than several proofs are apart; count the connections."""
    now = SystemClock().now
    with holdfast.connect(server.url) as locks:
        lock = locks.lock("r", ttl=TTL, timeout=10)
        until = now() + 3 * TTL
        while now() < until:
            lock.acquire().release()
        (session,) = locks._engine.store._shared.sessions  # type: ignore[attr-defined]
        return int(session.connections)


def test_a_busy_session_keeps_its_connection(server: ZooKeeperServer) -> None:
    # Just before each proof less than a third of its timeout is left. A machine that is busy may be slow once.
    assert min(connections(server) for _ in range(2)) == 1


@pytest.mark.control
def test_a_proof_that_does_not_wait_a_moment_costs_connections(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "ripe_at", inf)
    assert any(connections(server) > 1 for _ in range(6))  # it takes a grant in the moment before a proof


def test_a_waiter_that_asks_again_has_a_quiet_server_speak(server: ZooKeeperServer) -> None:
    """Some servers keep news back until the next request (ZOOKEEPER-4537)."""
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url) as waiter, holder.lock("q", ttl=30):
        store = waiter._engine.store
        claim = Claim("q", "waiter.1", ttl=30)
        store.claim(claim)
        local = store._shared.get(claim.holder)  # type: ignore[attr-defined]

        def received() -> int:
            found = re.search(rf"recved=(\d+).*sid={local.session.id:#x},", server.four("cons"))
            assert found is not None
            return int(found[1])

        heard, before = local.session._heard, received()
        local.session._heard = heard - 10  # it has not said anything for long
        store.claim(claim)
        eventually(lambda: received() > before)
        eventually(lambda: local.session._heard > heard)
        assert store.release("q", claim.holder)
