"""Fixtures of more than one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.redis_kit import Place, bad_network


@pytest.fixture(scope="module")
def module_place() -> Iterator[Place]:
    """A Redis behind a bad network."""
    with bad_network() as place:
        yield place


@pytest.fixture
def place(module_place: Place) -> Iterator[Place]:
    """The same, empty and healed."""
    module_place.server.call("FLUSHALL")
    yield module_place
    module_place.proxy.heal()
