"""What a client notes of its claims: what lapses, and what must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast._clock import SystemClock
from holdfast.core.claim import Claim
from holdfast.core.urls import parse_url
from holdfast.stores.zookeeper.session import Session
from holdfast.stores.zookeeper.shared import LocalClaim, Shared
from holdfast.stores.zookeeper.wire import Op

CLOCK = SystemClock()
CLAIM = Claim("r", "actor.1")


@pytest.fixture
def shared() -> Shared:
    return Shared(parse_url("zookeeper://nowhere"), "default", 1.0, CLOCK)


@pytest.fixture
def lapsed(shared: Shared) -> Iterator[LocalClaim]:
    """A claim whose time is over, in a session that was never started."""
    session = Session(shared.link, 1000, 1.0, CLOCK, shared, shared.space.root, shared.acl)
    local = LocalClaim(CLAIM, shared.space.queue("r"), "x", session)
    local.name, local.until = f"{local.stem}0000000001", CLOCK.now() - 1
    shared.add(local)
    try:
        yield local
    finally:
        session.forsake()


def deleted(shared: Shared, local: LocalClaim) -> bool:
    requests, _ = shared.tidy(local.session, None, CLOCK.now())
    return [kind for kind, _ in requests] == [Op.DELETE]


def test_a_claim_that_nobody_asks_for_is_forgotten_and_its_node_deleted(shared: Shared, lapsed: LocalClaim) -> None:
    assert deleted(shared, lapsed)
    assert shared.ask_for(CLAIM.holder)[0] is None, "whoever asks now begins anew, and is not granted by what was read"
    assert lapsed.session.load == 0


def test_a_claim_that_is_asked_for_does_not_lapse(shared: Shared, lapsed: LocalClaim) -> None:
    before = lapsed.until
    assert shared.ask_for(CLAIM.holder) == (lapsed, before)
    assert not deleted(shared, lapsed)
    assert shared.get(CLAIM.holder) is lapsed
