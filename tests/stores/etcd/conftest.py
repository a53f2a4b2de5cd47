"""etcd behind a bad network, for the tests of a module; each test finds it empty and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.etcd.kit import Rig, bad_network


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with bad_network() as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Iterator[Rig]:
    module_rig.clear()
    yield module_rig
    module_rig.clear()
