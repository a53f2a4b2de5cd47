"""Redis, alone, behind sentinels and as a cluster: every law that applies, in both flavours, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed

pytestmark = pytest.mark.server


def no_restart(url: str) -> None:
    """Stand in for the real thing while laws are listed."""


@contextmanager
def no_silence(url: str) -> Iterator[None]:
    """Stand in for the real thing while laws are listed."""
    yield


SINGLE = contract.laws(Target("redis://listed", restart=no_restart, silence=no_silence))


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


@pytest.mark.parametrize("law", SINGLE, ids=str)
def test_single(law: Law, single: Target):
    law.run(single)
