"""Redis, alone, behind sentinels and as a cluster: every law that applies, in both flavours, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha1

import pytest

from holdfast.core.promises import LAWS
from holdfast.errors import LockError
from holdfast.stores.redis.script import Script, load
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redis import RedisServer
from tests.contract import redis_targets

pytestmark = pytest.mark.server


SINGLE, SENTINEL, CLUSTER = redis_targets.laws("redis").values()


@pytest.fixture(scope="module")
def single() -> Iterator[Target]:
    with redis_targets.single(RedisServer) as target:
        yield target


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Target]:
    with redis_targets.sentinel(RedisServer) as target:
        yield target


@pytest.fixture(scope="module")
def cluster() -> Iterator[Target]:
    with redis_targets.cluster(RedisServer) as target:
        yield target


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
        "claim",
        "not f[2] or tonumber(f[3]) <= now",
        "true",
    ),
    "renewal_never_brings_back_what_has_ended": ("_RENEW", "renew", "or tonumber(f[3]) <= now", ""),
}


@pytest.mark.control
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", CONTROLS)
def test_control_a_broken_script_breaks_a_law(name: str, flavour: str, single: Target, monkeypatch):
    variable, script, right, wrong = CONTROLS[name]
    source = load("redis", script).source
    assert right in source
    broken = source.replace(right, wrong)
    monkeypatch.setattr(
        f"holdfast.stores.redis._{flavour}.store.{variable}", Script(sha1(broken.encode()).hexdigest(), broken)
    )
    law = next(law for law in SINGLE if law.name == name and law.flavour == flavour)
    with pytest.raises((AssertionError, LockError)):
        law.run(single)
