"""Redis or Valkey as targets of the contract suite: alone, behind sentinels, as a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from holdfast.testing.servers.redis import RedisCluster, RedisServer, SentinelGroup
from tests.servers import needed

DEPLOYMENTS = ("single", "sentinel", "cluster")


def restart(url: str) -> None:
    """Stand in for the real thing while laws are listed."""


@contextmanager
def silence(url: str) -> Iterator[None]:
    """Stand in for the real thing while laws are listed."""
    yield


def laws(scheme: str) -> dict[str, list[Law]]:
    """Return the laws of each deployment. Capabilities ask no server: they are listed by the scheme."""
    urls = (f"{scheme}://listed", f"{scheme}+sentinel://listed/master", f"{scheme}+cluster://listed")
    listed = [contract.laws(Target(url, restart=restart, silence=silence)) for url in urls]
    return dict(zip(DEPLOYMENTS, listed, strict=True))


@contextmanager
def single(kind: type[RedisServer]) -> Iterator[Target]:
    """Start one server."""
    with needed(kind) as server:

        def start_anew(url: str) -> None:
            server.stop()
            server.start()

        @contextmanager
        def paused(url: str) -> Iterator[None]:
            server.pause()
            try:
                yield
            finally:
                server.resume()

        yield Target(server.url, restart=start_anew, silence=paused)


@contextmanager
def sentinel(kind: type[RedisServer]) -> Iterator[Target]:
    """Start a master, a replica and sentinels."""
    with needed(lambda: SentinelGroup(kind=kind)) as group:
        yield Target(group.url, restart=lambda url: group.failover(), silence=lambda url: group.silence(group.master))


@contextmanager
def cluster(kind: type[RedisServer]) -> Iterator[Target]:
    """Start three masters that share the slots."""
    with needed(lambda: RedisCluster(kind)) as servers:
        yield Target(servers.url, restart=lambda url: servers.restart(), silence=lambda url: servers.silence())
