"""Which server to ask: the only one, the master that sentinels name, or the one that has the slot."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from ....errors import StoreError, StoreUnavailable
from ..address import Address
from ..config import Found, assess, questions, unanswered
from ..wire import Command, Endpoint, ReplyError, explain
from .transport import Node

_SLOTS = 16384
_MOST_REDIRECTS = 5

NoteConfig = Callable[[Endpoint, Found], None]
Question = tuple[str, Command]  # the key that it is about, and the command


class Servers:
    """The one server of redis:// and rediss://. The other classes extend it."""

    def __init__(self, address: Address, timeout: float, note_config: NoteConfig) -> None:
        self.access = address.access
        self._address = address
        self._timeout = timeout
        self._note_config = note_config  # takes what was found at a server on its first use, and after it was away
        self._nodes: dict[Endpoint, Node] = {}
        self._node: Node | None = None  # that serves now; its configuration was checked

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
        """Ask for many at once; a refusal is a ReplyError among the replies.

        Raises: StoreUnavailable; StoreError. Where there are several servers, one that fails is a StoreError among the
        replies instead.
        """
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

    async def subscription_endpoint(self, until: float) -> Endpoint:
        """Return the server to subscribe at."""
        return (self._node or await self._find(until)).endpoint

    def avoid(self, endpoint: Endpoint) -> None:
        """Subscribe elsewhere, if there is a choice: this one cannot be reached."""

    def __str__(self) -> str:
        return ",".join(map(str, self._address.endpoints))

    async def close(self) -> None:
        """Close all connections."""
        for node in list(self._nodes.values()):
            await node.close()

    async def _find(self, until: float) -> Node:
        """Return the server to ask, after a check of its configuration."""
        node = self._reach(self._address.endpoints[0])
        await self._check_config(node, until)
        self._node = node
        return node

    def _reach(self, endpoint: Endpoint) -> Node:
        return self._nodes.setdefault(endpoint, Node(endpoint, self.access, self._timeout))

    async def _check_config(self, node: Node, until: float) -> None:
        trusted = self._address.trusted
        replies = await node.calls(questions(trusted), until)
        if (error := unanswered(node.endpoint, replies)) is not None:
            raise error
        self._note_config(node.endpoint, assess(node.endpoint, replies, trusted))
        node.doubtful = False

    async def _doubt(self, node: Node, error: StoreUnavailable | ReplyError) -> None:
        """Check it again before it is asked once more, if it may have become another server."""
        demoted = isinstance(error, ReplyError) and error.code == "READONLY"
        if not (demoted or isinstance(error, StoreUnavailable)):
            return
        if self._node is node:
            self._node = None
        if demoted and self._nodes.pop(node.endpoint, None) is not None:
            await node.close()  # its name may lead to another machine by now


class Sentinels(Servers):
    """The master that a group of sentinels names."""

    def __init__(self, address: Address, timeout: float, note_config: NoteConfig) -> None:
        super().__init__(address, timeout, note_config)
        self._sentinels = [Node(endpoint, address.sentinel_access, timeout) for endpoint in address.endpoints]

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
                await self._check_config(node, _share(until, left))
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

    def __init__(self, address: Address, timeout: float, note_config: NoteConfig) -> None:
        super().__init__(address, timeout, note_config)
        self._slots: dict[int, Endpoint] = {}
        self._checked: set[Endpoint] = set()
        self._subscription_endpoint: Endpoint | None = None
        self._avoided: Endpoint | None = None

    async def call(self, key: str, command: Command, until: float) -> Any:
        """See Servers. Follows the slot where it has moved to."""
        node = await self._node_of(key, until)
        for _ in range(_MOST_REDIRECTS):
            try:
                return await node.call(command, until)
            except StoreUnavailable:
                self._forget(node.endpoint)
                raise
            except ReplyError as error:
                if error.code not in ("MOVED", "ASK"):
                    raise
                _, slot, target = str(error).split(" ")
                node = await self._known(_read_endpoint(target, node.endpoint), until)
                if error.code == "ASK":  # this once: the slot is still on its way
                    return await _asking(node, command, until)
                self._slots[int(slot)] = node.endpoint
        raise StoreUnavailable(f"the cluster redirected the command for {key!r} {_MOST_REDIRECTS} times")

    async def calls(self, questions: Sequence[Question], until: float) -> list[Any]:
        """See Servers. One round trip for each server; a StoreError stands for the replies of one that gives none."""
        groups: dict[Endpoint, list[int]] = {}
        replies: list[Any] = [None] * len(questions)
        if any(slot_of(key) not in self._slots for key, _ in questions):
            await self._refresh(until)
        for number, (key, _) in enumerate(questions):
            slot = slot_of(key)
            if slot in self._slots:
                groups.setdefault(self._slots[slot], []).append(number)
            else:
                replies[number] = _unserved(slot)
        # Those that are known to answer first, and some time for each: one that is silent must not cost the others.
        # Some is left, too, for what a server refuses and is asked once more: it does not know the script yet.
        order = sorted(groups, key=lambda endpoint: endpoint not in self._checked)
        more = len(order) > 1
        for left, endpoint in zip(range(len(order), 0, -1), order, strict=True):
            numbers, by = groups[endpoint], _share(until, left + more)
            try:
                node = await self._known(endpoint, by)
                answers = await node.calls([questions[number][1] for number in numbers], by)
            except StoreError as error:
                self._forget(endpoint)
                answers = [error] * len(numbers)
            for number, answer in zip(numbers, answers, strict=True):
                replies[number] = answer
        return replies

    async def masters(self, until: float) -> list[Node]:
        """See Servers."""
        await self._refresh(until)
        return [await self._known(endpoint, until) for endpoint in set(self._slots.values())]

    async def subscription_endpoint(self, until: float) -> Endpoint:
        """See Servers. A notice reaches all servers of a cluster: any one will do."""
        if self._subscription_endpoint is None:
            if not self._slots:
                await self._refresh(until)
            endpoints = list(dict.fromkeys(self._slots.values()))
            self._subscription_endpoint = next(
                (endpoint for endpoint in endpoints if endpoint != self._avoided), endpoints[0]
            )
        return self._subscription_endpoint

    def avoid(self, endpoint: Endpoint) -> None:
        """See Servers."""
        self._subscription_endpoint, self._avoided = None, endpoint

    async def _node_of(self, key: str, until: float) -> Node:
        slot = slot_of(key)
        if slot not in self._slots:
            await self._refresh(until)
        if slot not in self._slots:
            raise _unserved(slot)
        return await self._known(self._slots[slot], until)

    async def _known(self, endpoint: Endpoint, until: float) -> Node:
        node = self._reach(endpoint)
        if endpoint not in self._checked or node.doubtful:
            await self._check_config(node, until)
            self._checked.add(endpoint)
        return node

    def _forget(self, gone: Endpoint) -> None:
        """Ask the others who has its slots, and check it again if it comes back."""
        self._checked.discard(gone)
        self._slots = {slot: endpoint for slot, endpoint in self._slots.items() if endpoint != gone}

    async def _refresh(self, until: float) -> None:
        """Find out who has which slot, from whoever answers first."""
        endpoints = list(dict.fromkeys([*self._checked, *self._address.endpoints, *self._nodes]))
        troubles: list[str] = []
        for left, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
            try:
                reply = await self._reach(endpoint).call(("CLUSTER", "SLOTS"), _share(until, left))
            except StoreUnavailable as error:
                troubles.append(str(error))
                continue
            except ReplyError as error:
                raise explain(error, endpoint) from None
            self._slots = _read_slots(reply, endpoint)
            return
        raise StoreUnavailable(f"no server of the cluster answers: {'; '.join(troubles)}")


def slot_of(key: str) -> int:
    """Return the slot of a key, by its hash tag."""
    tag = key[key.index("{") + 1 : key.index("}")]
    return crc_hqx(tag.encode(), 0) % _SLOTS


def _unserved(slot: int) -> StoreUnavailable:
    return StoreUnavailable(f"no server of the cluster has the slot {slot}: the cluster is not complete")


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
        endpoint = Endpoint((master[0] or b"").decode() or asked.host, int(master[1]))
        slots.update(dict.fromkeys(range(first, last + 1), endpoint))
    return slots


def _read_endpoint(text: str, asked: Endpoint) -> Endpoint:
    host, _, port = text.rpartition(":")
    return Endpoint(host or asked.host, int(port))
