"""The pages whose examples need a server: run with a real one in the place of the address that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.servers import Server
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.docs import pages
from tests.docs.test_examples import named, run, with_blocks
from tests.servers import needed

pytestmark = pytest.mark.server

SERVERS: dict[str, Callable[[], Server | RedlockServers]] = {
    "etcd": EtcdServer,
    "redis": RedisServer,
    "redlock": RedlockServers,
    "zookeeper": lambda: ZooKeeperServer(max_session_timeout=40_000),
}


@pytest.mark.parametrize("page", [page for page in with_blocks("") if named(page) in pages.SERVED], ids=named)
def test_examples_run_on_a_real_server(page: Path, tmp_path: Path):
    url = pages.SERVED[named(page)]
    with needed(SERVERS[url.partition(":")[0]]) as server:
        run(tmp_path, "-m", "tests.docs.run_page", str(page), url, server.url)


def test_every_page_that_needs_a_server_is_run():
    assert {named(page) for page in with_blocks("")} >= set(pages.SERVED)
