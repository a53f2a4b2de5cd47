"""Redlock on five nodes: every law that applies, in both flavours, on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redlock import RedlockServers
from tests.contract.redis_targets import restart, silence
from tests.servers import needed

pytestmark = pytest.mark.server

LAWS = contract.laws(Target("redlock://listed:1,listed:2,listed:3", restart=restart, silence=silence))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Target]:
    # Five for each worker of a test run on one disk: if all of them waited for it, leases of a second would not last.
    # None is killed here, and a restart in order writes everything down.
    with needed(lambda: RedlockServers("--appendfsync", "no")) as servers:
        yield Target(servers.url, restart=lambda url: servers.restart(), silence=lambda url: servers.silenced())


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_law(law: Law, nodes: Target):
    law.run(nodes)
