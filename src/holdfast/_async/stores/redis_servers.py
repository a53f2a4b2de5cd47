"""Which server to ask: the only one, the master that sentinels name, or the one that has the slot."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from ..._redis.address import Address
from ..._redis.config import QUESTIONS, Found, judge
from ..._redis.wire import Command, Endpoint, ReplyError, explain
from ...errors import StoreError, StoreUnavailable
from .transport_redis import Node

_SLOTS = 16384
_MOST_REDIRECTS = 5

Learn = Callable[[Endpoint, Found], None]
Question = tuple[str, Command]  # the key that it is about, and the command


class Servers:
    """The server of redis:// and rediss://. The others are kinds of it."""

    def __init__(self, address: Address, timeout: float, learn: Learn) -> None:
        self.access = address.access
        self._address = address
        self._timeout = timeout
        self._learn = learn  # takes what was found at a server on its first use, and after it was away
        self._nodes: dict[Endpoint, Node] = {}
        self._node: Node | None = None  # that serves now, after it was looked at

    async def call(self, key: str, command: Command, until: float) -> Any:
        """Ask the server that has the key.

        Raises: ReplyError if it refused; StoreUnavailable; StoreError.
        """
        node = self._node
        if node is None or node.doubtful:
            node = await self._find(until)
        try:
            return await node.call(command, until)
        except (StoreUnavailable, ReplyError) as error:
            await self._doubt(node, error)
            raise

    async def calls(self, questions: Sequence[Question], until: float) -> list[Any]:
        """Ask for many at once; a refusal is a ReplyError among the replies."""
        node = self._node
        if node is None or node.doubtful:
            node = await self._find(until)
        try:
            return await node.calls([command for _, command in questions], until)
        except StoreUnavailable as error:
            await self._doubt(node, error)
            raise

    async def masters(self, until: float) -> list[Node]:
        """Return all servers that have keys."""
        return [self._node or await self._find(until)]

    async def home(self, until: float) -> Endpoint:
        """Return the server to be subscribed at."""
        return (self._node or await self._find(until)).endpoint

    def avoid(self, endpoint: Endpoint) -> None:
        """Be subscribed elsewhere, if there is a choice: this one cannot be reached."""

    def __str__(self) -> str:
        return ",".join(map(str, self._address.endpoints))

    async def close(self) -> None:
        """Close all connections."""
        for node in list(self._nodes.values()):
            await node.close()

    async def _find(self, until: float) -> Node:
        """Return the server to ask, after a look at its configuration."""
        node = self._reach(self._address.endpoints[0])
        await self._look_at(node, until)
        self._node = node
        return node

    def _reach(self, endpoint: Endpoint) -> Node:
        return self._nodes.setdefault(endpoint, Node(endpoint, self.access, self._timeout))

    async def _look_at(self, node: Node, until: float) -> None:
        replies = await node.calls(QUESTIONS, until)
        for reply in replies:
            if isinstance(reply, ReplyError) and reply.code in ("LOADING", "NOAUTH", "WRONGPASS"):
                raise explain(reply, node.endpoint)
        self._learn(node.endpoint, judge(node.endpoint, replies, self._address.trusted))
        node.doubtful = False

    async def _doubt(self, node: Node, error: StoreUnavailable | ReplyError) -> None:
        """Look again before this server is asked once more, if it may have become another one."""
        demoted = isinstance(error, ReplyError) and error.code == "READONLY"
        if not (demoted or isinstance(error, StoreUnavailable)):
            return
        if self._node is node:
            self._node = None
        if demoted and self._nodes.pop(node.endpoint, None) is not None:
            await node.close()  # its name may lead to another machine by now


class Sentinels(Servers):
    """The master that a group of sentinels names."""

    def __init__(self, address: Address, timeout: float, learn: Learn) -> None:
        super().__init__(address, timeout, learn)
        self._sentinels = [Node(place, address.sentinel_access, timeout) for place in address.endpoints]

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        for sentinel in self._sentinels:
            await sentinel.close()

    async def _find(self, until: float) -> Node:
        troubles: list[str] = []
        for left, sentinel in zip(range(len(self._sentinels), 0, -1), list(self._sentinels), strict=True):
            try:
                found = await self._ask(sentinel, _share(until, left + 1))
                if found is None:
                    troubles.append(f"the sentinel at {sentinel.endpoint} knows no {self._address.master!r}")
                    continue
                node = self._reach(found)
                await self._look_at(node, _share(until, left))
            except StoreError as error:  # a replica, too: the sentinel does not know of the failover yet
                troubles.append(str(error))
                continue
            self._sentinels.sort(key=lambda other: other is not sentinel)  # ask the one that knows first
            self._node = node
            return node
        raise StoreUnavailable(f"no sentinel leads to the master {self._address.master!r}: {'; '.join(troubles)}")

    async def _ask(self, sentinel: Node, until: float) -> Endpoint | None:
        try:
            reply = await sentinel.call(("SENTINEL", "get-master-addr-by-name", self._address.master), until)
        except ReplyError as error:
            raise explain(error, sentinel.endpoint) from None
        return None if reply is None else Endpoint(reply[0].decode(), int(reply[1]))


class Cluster(Servers):
    """The servers of a cluster, each with its slots."""

    def __init__(self, address: Address, timeout: float, learn: Learn) -> None:
        super().__init__(address, timeout, learn)
        self._slots: dict[int, Endpoint] = {}
        self._looked_at: set[Endpoint] = set()
        self._home: Endpoint | None = None
        self._avoided: Endpoint | None = None

    async def call(self, key: str, command: Command, until: float) -> Any:
        """See Servers. Follows the slot where it has moved to."""
        node = await self._node_of(key, until)
        for _ in range(_MOST_REDIRECTS):
            try:
                return await node.call(command, until)
            except StoreUnavailable:
                self._forget(node)
                raise
            except ReplyError as error:
                if error.code not in ("MOVED", "ASK"):
                    raise
                _, slot, place = str(error).split(" ")
                node = await self._known(_read_endpoint(place, node.endpoint), until)
                if error.code == "ASK":  # this once: the slot is still on its way
                    return await _asking(node, command, until)
                self._slots[int(slot)] = node.endpoint
        raise StoreUnavailable(f"the cluster sent the question about {key!r} around {_MOST_REDIRECTS} times")

    async def calls(self, questions: Sequence[Question], until: float) -> list[Any]:
        """See Servers. One round trip for each server."""
        groups: dict[Node, list[int]] = {}
        for number, (key, _) in enumerate(questions):
            groups.setdefault(await self._node_of(key, until), []).append(number)
        replies: list[Any] = [None] * len(questions)
        for node, numbers in groups.items():
            try:
                answers = await node.calls([questions[number][1] for number in numbers], until)
            except StoreUnavailable:
                self._forget(node)
                raise
            for number, answer in zip(numbers, answers, strict=True):
                replies[number] = answer
        return replies

    async def masters(self, until: float) -> list[Node]:
        """See Servers."""
        await self._refresh(until)
        return [await self._known(place, until) for place in set(self._slots.values())]

    async def home(self, until: float) -> Endpoint:
        """See Servers. A notice reaches all servers of a cluster: any one will do."""
        if self._home is None:
            if not self._slots:
                await self._refresh(until)
            places = list(dict.fromkeys(self._slots.values()))
            self._home = next((place for place in places if place != self._avoided), places[0])
        return self._home

    def avoid(self, endpoint: Endpoint) -> None:
        """See Servers."""
        self._home, self._avoided = None, endpoint

    async def _node_of(self, key: str, until: float) -> Node:
        slot = slot_of(key)
        if slot not in self._slots:
            await self._refresh(until)
        if slot not in self._slots:
            raise StoreUnavailable(f"no server of the cluster has the slot {slot}: it is not complete")
        return await self._known(self._slots[slot], until)

    async def _known(self, endpoint: Endpoint, until: float) -> Node:
        node = self._reach(endpoint)
        if endpoint not in self._looked_at or node.doubtful:
            await self._look_at(node, until)
            self._looked_at.add(endpoint)
        return node

    def _forget(self, node: Node) -> None:
        """Ask the others who has its slots, and look at it again if it comes back."""
        self._looked_at.discard(node.endpoint)
        self._slots = {slot: place for slot, place in self._slots.items() if place != node.endpoint}

    async def _refresh(self, until: float) -> None:
        """Learn who has which slot, from whoever answers first."""
        places = list(dict.fromkeys([*self._looked_at, *self._address.endpoints, *self._nodes]))
        troubles: list[str] = []
        for left, place in zip(range(len(places), 0, -1), places, strict=True):
            try:
                reply = await self._reach(place).call(("CLUSTER", "SLOTS"), _share(until, left))
            except StoreUnavailable as error:
                troubles.append(str(error))
                continue
            except ReplyError as error:
                raise explain(error, place) from None
            self._slots = _read_slots(reply, place)
            return
        raise StoreUnavailable(f"no server of the cluster answers: {'; '.join(troubles)}")


def slot_of(key: str) -> int:
    """Return the slot of a key, by its hash tag."""
    tag = key[key.index("{") + 1 : key.index("}")]
    return crc_hqx(tag.encode(), 0) % _SLOTS


def _share(until: float, parts: int) -> float:
    """Return the deadline of the next of several tries, so that one silent server leaves time for the others."""
    now = monotonic()
    return now + max(0.0, until - now) / parts


async def _asking(node: Node, command: Command, until: float) -> Any:
    _, reply = await node.calls([("ASKING",), command], until)
    if isinstance(reply, ReplyError):
        raise reply
    return reply


def _read_slots(reply: Iterable[Any], asked: Endpoint) -> dict[int, Endpoint]:
    slots: dict[int, Endpoint] = {}
    for first, last, master, *_ in reply:
        place = Endpoint((master[0] or b"").decode() or asked.host, int(master[1]))
        slots.update(dict.fromkeys(range(first, last + 1), place))
    return slots


def _read_endpoint(text: str, asked: Endpoint) -> Endpoint:
    host, _, port = text.rpartition(":")
    return Endpoint(host or asked.host, int(port))
