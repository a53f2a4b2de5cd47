"""A part of a server's tree for one test alone, and a look at it past the store."""

from __future__ import annotations

import json
from itertools import count
from typing import Any, NamedTuple

from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper.nodes import escape
from holdfast.stores.zookeeper.wire import Code, Stat
from tests.stores.zookeeper.rig import Rig

_NUMBERS = count(1)
_MOST = 1000  # requests at once


class Node(NamedTuple):
    """What is in a node."""

    data: bytes
    stat: Stat


class Chroot:
    """A chroot that no other test has: it begins empty, and whatever is in it at the end harms nobody."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.path = f"/test{next(_NUMBERS)}"
        self.root = f"{self.path}/holdfast"

    @property
    def url(self) -> str:
        """Where clients connect, by the lossy way."""
        return self.rig.url + self.path

    @property
    def direct(self) -> str:
        """Where clients connect that nothing happens to."""
        return self.rig.server.url + self.path

    def get(self, path: str) -> Node | None:
        """Read a node; its path begins below /holdfast."""
        (reply,) = self.rig.raw.ask(wire.get_data(f"{self.root}/{path}"))
        assert reply.code in (Code.OK, Code.NO_NODE), reply.code
        return None if reply.code else Node(*wire.read_data(reply))

    def put(self, path: str, data: bytes = b"") -> None:
        """Write a node, and make it and what is above it if need be."""
        parts = f"{self.root}/{path}".split("/")
        above = ["/".join(parts[:end]) for end in range(2, len(parts))]
        full = "/".join(parts)
        requests = [wire.create(one, b"", wire.OPEN_ACL) for one in above]
        *_, reply = self.rig.raw.ask(*requests, wire.create(full, data, wire.OPEN_ACL), wire.set_data(full, data))
        assert reply.code == Code.OK, reply.code

    def delete(self, path: str) -> None:
        """Delete a node."""
        assert self.rig.raw.delete(f"{self.root}/{path.removeprefix('/')}")

    def children(self, path: str) -> list[str]:
        """Return the names below a node, in order."""
        return sorted(self.rig.raw.children(f"{self.root}/{path}"))

    def tree(self, path: str = "") -> dict[str, int]:
        """Return all nodes from this one on, and when each was last touched: itself, or what is in it."""
        level, found = [f"{self.root}/{path}".rstrip("/")], dict[str, int]()
        while level:
            replies = self._ask_all([wire.exists(one) for one in level])
            stats = {one: wire.read_stat(reply) for one, reply in zip(level, replies, strict=True) if not reply.code}
            found |= {one.removeprefix(self.root): max(stat.mzxid, stat.pzxid) for one, stat in stats.items()}
            parents = [one for one, stat in stats.items() if stat.children]
            listed = self._ask_all([wire.get_children(one) for one in parents])
            level = [
                f"{one}/{name}"
                for one, reply in zip(parents, listed, strict=True)
                if not reply.code
                for name in wire.read_texts(reply)
            ]
        return found

    def _ask_all(self, requests: list[wire.Request]) -> list[wire.Reply]:
        return [
            reply
            for start in range(0, len(requests), _MOST)
            for reply in self.rig.raw.ask(*requests[start : start + _MOST])
        ]

    # -- registers

    def register(self, key: str) -> list[Any] | None:
        """Return what the node of a register holds: newest, exclusive, token, value, keep, since, entry."""
        node = self.get(f"values/default/{escape(key)}")
        facts: list[Any] | None = json.loads(node.data) if node is not None else None
        return facts

    def registers(self) -> list[str]:
        """Return the registers that have a node, as they are written there."""
        return self.children("values/default")

    def values(self) -> list[str]:
        """Return the registers that have a value."""
        paths = [f"{self.root}/values/default/{name}" for name in self.registers()]
        replies = self._ask_all([wire.get_data(path) for path in paths])
        read = {path: json.loads(wire.read_data(one)[0]) for path, one in zip(paths, replies, strict=True)}
        return [path.rpartition("/")[2] for path, facts in read.items() if facts[3] is not None]

    def entries(self) -> list[str]:
        """Return the entries of the index of all registers, without their slots."""
        return sorted(
            entry for slot in self.children("ends/default") for entry in self.children(f"ends/default/{slot}")
        )
