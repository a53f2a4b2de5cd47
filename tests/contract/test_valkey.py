"""Valkey: the laws that another server can change, on a real one.

Both flavours send it the same commands and the same scripts, and what they do above that (threads, forks, input, how a
body ends) does not depend on it. So one flavour and the laws of the store are enough from day to day. With
HOLDFAST_VERIFY set, all laws are put to all deployments in both flavours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redis import ValkeyServer
from tests.contract import redis_targets

pytestmark = pytest.mark.server

OF_THE_STORE = range(1, 10)
LISTED = [(deployment, law) for deployment, laws in redis_targets.laws("valkey").items() for law in laws]
CHOSEN = [
    (deployment, law)
    for deployment, law in LISTED
    if os.environ.get("HOLDFAST_VERIFY")
    or (deployment == "single" and law.flavour == "sync" and law.number in OF_THE_STORE)
]


@pytest.fixture(scope="module")
def single() -> Iterator[Target]:
    with redis_targets.single(ValkeyServer) as target:
        yield target


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Target]:
    with redis_targets.sentinel(ValkeyServer) as target:
        yield target


@pytest.fixture(scope="module")
def cluster() -> Iterator[Target]:
    with redis_targets.cluster(ValkeyServer) as target:
        yield target


@pytest.mark.parametrize(("deployment", "law"), CHOSEN, ids=str)
def test_law(deployment: str, law: Law, request: pytest.FixtureRequest):
    law.run(request.getfixturevalue(deployment))
