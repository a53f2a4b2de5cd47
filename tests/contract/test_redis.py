"""Redis, alone, behind sentinels and as a cluster: every law that applies, in both flavours, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1

import pytest

from holdfast._redis.scripts import Script, load
from holdfast.core.promises import LAWS
from holdfast.errors import LockError
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


# What each control breaks, and the law that has to notice.
CONTROLS = {
    "held_resource_is_refused_to_everybody_else": (
        "_CLAIM",
        "redis_claim",
        "not f[2] or tonumber(f[3]) <= now",
        "true",
    ),
    "renewal_never_brings_back_what_has_ended": ("_RENEW", "redis_renew", "or tonumber(f[3]) <= now", ""),
}


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", CONTROLS)
def test_control_a_broken_script_breaks_a_law(name: str, flavour: str, single: Target, monkeypatch):
    variable, script, right, wrong = CONTROLS[name]
    source = load(script).source
    assert right in source
    broken = source.replace(right, wrong)
    monkeypatch.setattr(
        f"holdfast._{flavour}.stores.redis.{variable}", Script(sha1(broken.encode()).hexdigest(), broken)
    )
    law = next(law for law in SINGLE if law.name == name and law.flavour == flavour)
    with pytest.raises((AssertionError, LockError)):
        law.run(single)
