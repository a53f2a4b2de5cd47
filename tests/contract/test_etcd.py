"""etcd on real servers: every law that applies, in both flavours, on one member; on three those that they can change.
With HOLDFAST_VERIFY set, all laws are put to both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.core.promises import LAWS
from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.etcd import EtcdCluster, EtcdServer
from tests.servers import needed

pytestmark = pytest.mark.server


def restart(url: str) -> None:
    """Stand in for the real thing while laws are listed."""


@contextmanager
def silence(url: str) -> Iterator[None]:
    """Stand in for the real thing while laws are listed."""
    yield


# Capabilities ask no server: the laws are listed by the scheme.
TABLE = contract.laws(Target("etcd://listed", restart=restart, silence=silence))

# What is above the store (threads, forks, input, how a body ends) does not depend on how many members there are.
OF_THE_STORE = (*range(1, 10), 12)
OF_A_CLUSTER = [
    law for law in TABLE if os.environ.get("HOLDFAST_VERIFY") or (law.flavour == "sync" and law.number in OF_THE_STORE)
]


@contextmanager
def paused(members: list[EtcdServer]) -> Iterator[None]:
    for member in members:
        member.pause()
    try:
        yield
    finally:
        for member in members:
            member.resume()


@pytest.fixture(scope="module")
def single() -> Iterator[Target]:
    with needed(EtcdServer) as server:

        def restart(url: str) -> None:
            server.stop()
            server.start()

        yield Target(server.url, restart=restart, silence=lambda url: paused([server]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Target]:
    with needed(EtcdCluster) as servers:

        def restart(url: str) -> None:
            leader = servers.leader
            assert leader is not None
            leader.kill()
            servers.new_leader(leader)
            leader.start(wait=False)
            servers.wait_ready()

        yield Target(servers.url, restart=restart, silence=lambda url: paused(servers.members))


@pytest.mark.parametrize("law", TABLE, ids=str)
def test_single(law: Law, single: Target):
    law.run(single)


@pytest.mark.parametrize("law", OF_A_CLUSTER, ids=str)
def test_cluster(law: Law, cluster: Target):
    law.run(cluster)


def test_every_law_is_put_to_etcd_in_both_flavours():
    assert {(law.flavour, law.number) for law in TABLE} == {
        (flavour, number) for flavour in ("sync", "async") for number in LAWS
    }
