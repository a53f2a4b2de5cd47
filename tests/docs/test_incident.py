"""The commands of docs/incident.md do what it says: the next in line holds, and the holder is told."""

from __future__ import annotations

import base64
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.testing._sync.runtime import eventually, spawn
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.docs import pages
from tests.servers import needed

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGE = pages.ROOT / "docs" / "incident.md"
LIMIT = 20.0


def commands(tool: str) -> list[str]:
    """Return the commands of the page that call this tool, in order."""
    lines = [line for block in pages.blocks(PAGE) if block.language == "sh" for line in block.code.splitlines()]
    return [line for line in lines if line.startswith(f"{tool} ")]


@contextmanager
def stuck(url: str) -> Iterator[tuple[holdfast.Lease, Callable[[], holdfast.Lease]]]:
    """Have web-3 hold order:123 and web-4 wait for it; yield the lease, and what waits for the next one."""
    with holdfast.connect(url, owner="web-3") as old, holdfast.connect(url, owner="web-4") as new:
        lease = old.lock("order:123", ttl=6).acquire()
        waiter = spawn(new.lock("order:123", ttl=6, timeout=LIMIT).acquire)
        eventually(lambda: bool(old.inspect("order:123")[0].waiters), limit=LIMIT)
        yield lease, lambda: waiter.join(LIMIT)
        # The holder is told at its next renewal, a third of its ttl later at most.
        assert lease.wait_lost(timeout=LIMIT)
        with pytest.raises(holdfast.LeaseLost):
            lease.check()


def shell(command: str, folder: Path) -> str:
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_sqlite3(tmp_path: Path) -> None:
    look, free = commands("sqlite3")
    with stuck(f"sqlite://{tmp_path}/locks.db") as (lease, following):
        seen = shell(look, tmp_path)
        assert "web-3" in seen
        assert "web-4" in seen
        assert str(lease.token) in seen
        shell(free, tmp_path)
        assert following().token > lease.token


def test_redis_cli(tmp_path: Path) -> None:
    *looks, free = commands("redis-cli")
    with needed(RedisServer) as server, stuck(server.url) as (lease, following):

        def call(command: str) -> str:
            port = server.url.rpartition(":")[2].partition("/")[0]
            return shell(command.replace("redis-cli", f"redis-cli -p {port}", 1), tmp_path)

        keys, resource, claims = map(call, looks)
        assert "holdfast:{default:order:123}" in keys.splitlines()
        assert "web-3" in resource
        assert str(lease.token) in resource
        assert "web-4" in claims
        call(free)
        assert following().token > lease.token


def test_zkcli(tmp_path: Path) -> None:
    tool = Path("/usr/share/zookeeper/bin/zkCli.sh")
    listed, read, free = commands("zkCli.sh")
    with needed(ZooKeeperServer) as server, stuck(server.url) as (lease, following):

        def call(command: str) -> str:
            return shell(command.replace("zkCli.sh", f"{tool} -server 127.0.0.1:{server.port}", 1), tmp_path)

        found = next(line for line in call(listed).splitlines() if line.startswith("["))
        first, _ = sorted(found.strip("[]").split(", "), key=lambda name: name.rpartition("-")[2])
        assert "web-3" in call(read.replace("CLAIM", first))
        call(free.replace("CLAIM", first))
        assert following().token > lease.token


def test_etcdctl() -> None:
    # What etcdctl does with these arguments, through the server's own gateway: not every machine has the tool.
    look, free = (shlex.split(command) for command in commands("etcdctl"))
    assert look[1:3] == ["get", "--prefix"]
    assert free[1] == "del"
    with needed(EtcdServer) as server, stuck(server.url) as (lease, following):
        prefix = look[3].encode()
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        found = server.ask("kv/range", key=_text(prefix), range_end=_text(end))["kvs"]
        values = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in found}
        (key,) = (key for key, value in values.items() if "null" not in value.split(",")[6])
        assert "web-3" in values[key]
        assert free[2].removesuffix("HOLDER") == look[3]
        server.ask("kv/deleterange", key=_text(free[2].replace("HOLDER", key.rpartition("/")[2]).encode()))
        assert following().token > lease.token


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
