"""Fixtures of more than one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.servers.redis import RedisCluster, RedisServer, SentinelGroup
from tests.servers import needed
from tests.stores.redis.kit import Deployment, Rig, bad_network


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    """A Redis behind a bad network."""
    with bad_network() as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    """The same, empty and healed."""
    module_rig.server.call("FLUSHALL")
    yield module_rig
    module_rig.proxy.heal()


@pytest.fixture(scope="session")
def single() -> Iterator[Deployment]:
    """One server, alone."""
    with needed(RedisServer) as server:
        yield Deployment(server.url, [server])


@pytest.fixture(scope="session")
def sentinels() -> Iterator[Deployment]:
    """A master and a replica, watched by sentinels."""
    with needed(SentinelGroup) as group:
        yield Deployment(group.url, group.data)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Deployment]:
    """Three masters that share the slots."""
    with needed(RedisCluster) as group:
        yield Deployment(group.url, group.servers)


@pytest.fixture
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """The one whose name is the parameter."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Deployment)
    return found
