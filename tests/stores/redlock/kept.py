"""What the nodes keep of the resource "r" of the default namespace, past any client."""

from __future__ import annotations

from holdfast.stores.redis.replies import Names
from holdfast.testing.servers.redis import RedisServer
from holdfast.testing.servers.redlock import RedlockServers

KEY = Names("default", "holdfast.redlock").queue("r")


def counter(node: RedisServer) -> int:
    """Return the highest ballot that a node has seen."""
    return int((node.call("GET", KEY) or b"0").split()[0])


def ballot(node: RedisServer) -> int:
    """Return the ballot that a node has granted."""
    return int((node.call("GET", KEY) or b"0 0").split()[1])


def holders(nodes: RedlockServers) -> list[str]:
    """Return who holds the resource, node by node."""
    return [(node.call("GET", KEY) or b"0 0 0 0  ").decode().split(" ")[4] for node in nodes.nodes]


def line(node: RedisServer) -> list[str]:
    """Return who waits."""
    return [name.decode() for name in node.call("ZRANGE", KEY + ":line", 0, -1)]


def poison(node: RedisServer, value: int) -> None:
    """Set the counter of a node."""
    node.call("SET", KEY, f"{value} 0 0 0  ")
