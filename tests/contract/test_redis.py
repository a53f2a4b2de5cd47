"""Redis, alone, behind sentinels and as a cluster: every law that applies, in both flavours, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.core.promises import LAWS
from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redis import RedisCluster, RedisServer, SentinelGroup
from tests.servers import needed

pytestmark = pytest.mark.server


def restart(url: str) -> None:
    """Stand in for the real thing while laws are listed."""


@contextmanager
def silence(url: str) -> Iterator[None]:
    """Stand in for the real thing while laws are listed."""
    yield


# Capabilities ask no server: the laws are listed by the scheme.
SINGLE, SENTINEL, CLUSTER = (
    contract.laws(Target(url, restart=restart, silence=silence))
    for url in ("redis://listed", "redis+sentinel://listed/master", "redis+cluster://listed")
)


@pytest.fixture(scope="module")
def single() -> Iterator[Target]:
    with needed(RedisServer) as server:

        def restart(url: str) -> None:
            server.stop()
            server.start()

        @contextmanager
        def silence(url: str) -> Iterator[None]:
            server.pause()
            try:
                yield
            finally:
                server.resume()

        yield Target(server.url, restart=restart, silence=silence)


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Target]:
    with needed(SentinelGroup) as group:
        yield Target(group.url, restart=lambda url: group.failover(), silence=lambda url: group.silence(group.master))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Target]:
    with needed(RedisCluster) as servers:
        yield Target(servers.url, restart=lambda url: servers.restart(), silence=lambda url: servers.silence())


@pytest.mark.parametrize("law", SINGLE, ids=str)
def test_single(law: Law, single: Target):
    law.run(single)


@pytest.mark.parametrize("law", SENTINEL, ids=str)
def test_sentinel(law: Law, sentinel: Target):
    law.run(sentinel)


@pytest.mark.parametrize("law", CLUSTER, ids=str)
def test_cluster(law: Law, cluster: Target):
    law.run(cluster)


@pytest.mark.parametrize("laws", [SINGLE, SENTINEL, CLUSTER])
def test_every_law_is_put_to_it_in_both_flavours(laws: list[Law]):
    found = {(law.flavour, law.number) for law in laws}
    assert found == {(flavour, number) for flavour in ("sync", "async") for number in LAWS}
