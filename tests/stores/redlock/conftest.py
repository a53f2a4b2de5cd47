"""Five nodes for the tests of a module; each test leaves them running and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.servers.redlock import RedlockServers
from tests.servers import needed


@pytest.fixture(scope="module")
def servers() -> Iterator[RedlockServers]:
    with needed(RedlockServers) as found:
        yield found


@pytest.fixture
def nodes(servers: RedlockServers) -> Iterator[RedlockServers]:
    yield servers
    for node in servers.nodes:
        if not node.alive:
            node.start()
        node.call("FLUSHALL")
