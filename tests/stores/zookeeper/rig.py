"""What the fault tests of ZooKeeper share: a look past the store, and a network that loses exactly one message."""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit
from typing import Unpack

import pytest

from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper.wire import Code, Op, Reply, Request
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.faults.proxy import Direction, Proxy
from holdfast.testing.servers.zookeeper import Settings, ZooKeeperServer
from tests.servers import needed

CLAIMS = "/holdfast/claims/default"
_HOST = "127.0.0.1"
_SECONDS = 10.0  # for an answer
_SESSION_MS = 60_000
_ROUNDS = 50
_ROOM = 96 * 1024  # bytes, for some hundred transactions
_HEAD = struct.Struct(">ii")  # of a request: its number and its kind


class Raw:
    """A session that nothing of the store goes through. It has no nodes, so that nobody has to keep it alive."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._socket: socket.socket | None = None
        self._numbers = count(1)

    def ask(self, *requests: Request) -> list[Reply]:
        """Ask for what the leader knows, and not for what a follower has last heard. Servers that are away are tried
        again, in turn, so what is asked for may be done twice.
        """
        for _ in range(_ROUNDS):
            for port in self._ports:
                try:
                    return self._ask(port, [wire.sync("/"), *requests])[1:]
                except OSError:
                    self.close()
        raise AssertionError("no server answers")

    def _ask(self, port: int, requests: list[Request]) -> list[Reply]:
        if self._socket is None:
            self._socket = socket.create_connection((_HOST, port), timeout=_SECONDS)
            self._socket.sendall(wire.connect(0, _SESSION_MS, 0, bytes(16)))
            self._message()
        self._socket.sendall(b"".join(wire.frame(next(self._numbers), request) for request in requests))
        bodies = [self._message() for _ in requests]
        return [Reply(*wire.read_head(body)[1:], body) for body in bodies]

    def _message(self) -> bytes:
        return self._read(int.from_bytes(self._read(4)))

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            if not (found := self._socket.recv(size - len(data))):
                raise ConnectionResetError
            data += found
        return data

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children; none if it is not there."""
        (reply,) = self.ask(wire.get_children(path))
        assert reply.code in (Code.OK, Code.NO_NODE), reply.code
        return wire.read_texts(reply) if not reply.code else []

    def claims(self, resource: str = "r") -> list[str]:
        """Return the nodes of the claims on a resource, the first one first."""
        return sorted(self.children(f"{CLAIMS}/{resource}"), key=lambda name: name.rpartition("-")[2])

    def tokens(self, resource: str = "r") -> list[int]:
        """Return the tokens of the claims on a resource, the first one first."""
        replies = self.ask(*(wire.exists(f"{CLAIMS}/{resource}/{name}") for name in self.claims(resource)))
        return [wire.read_stat(reply).czxid for reply in replies]

    def resources(self) -> list[str]:
        """Return the resources that have a node, whether or not somebody claims them."""
        return self.children(CLAIMS)

    def all_claims(self) -> list[str]:
        """Return the claims on all resources."""
        return [f"{resource}/{name}" for resource in self.resources() for name in self.claims(resource)]

    def delete(self, path: str) -> bool:
        """Delete a node; False if it is not there, or has children."""
        return not self.ask(wire.delete(path))[0].code

    def clear(self) -> None:
        """Forget all claims and their parents."""
        for claim in self.all_claims():
            self.delete(f"{CLAIMS}/{claim}")
        for resource in self.resources():
            self.delete(f"{CLAIMS}/{resource}")

    def close(self) -> None:
        """Hang up; the session ends by itself."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Loss:
    """Which message is lost, and how; it strikes the next `times` requests of this kind.

    what  "request": it never arrives, and the connection is reset. "reply": it is done, and the connection is reset
          when the answer comes. "silence": it is done, and from the answer on nothing comes any more on a connection
          that stays open.
    then_refuse  turn away whoever connects afterwards, until the proxy is healed.
    after  another loss, which has to be done before this one strikes.
    """

    def __init__(self, op: Op, what: str, times: int, then_refuse: bool, after: Loss | None) -> None:
        self.op = op
        self.what = what
        self.times = times
        self.then_refuse = then_refuse
        self.after = after
        self.seen = 0  # requests that are struck,
        self.lost = 0  # and of those the ones that were lost by now

    @property
    def done(self) -> bool:
        """Whether everything was lost that had to be."""
        return self.lost == self.times

    def strikes(self, op: int) -> bool:
        """Return whether it strikes a request of this kind now."""
        return op == self.op and self.seen < self.times and (self.after is None or self.after.done)


class LossyProxy(Proxy):
    """Reads along, and loses what it is told to.

    before    called with the kind of each request before it goes on, in a thread of its own
    requests  how many there were of each kind
    codes     the answers to requests: how often there was which code for which kind
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.losses: list[Loss] = []
        self.before: Callable[[int], object] | None = None
        self.requests: Counter[int] = Counter()
        self.codes: Counter[tuple[int, int]] = Counter()
        self._connections: dict[object, _Connection] = {}

    def lose(self, op: Op, what: str, times: int = 1, *, then_refuse: bool = False, after: Loss | None = None) -> Loss:
        """Lose the next such message, besides those that are to be lost already."""
        loss = Loss(op, what, times, then_refuse, after)
        self.losses.append(loss)
        return loss

    def heal(self) -> None:
        """Forward again, and lose nothing."""
        self.losses, self.before = [], None
        super().heal()

    def cut(self, loss: Loss) -> None:
        """End every connection, in the loop of the proxy."""
        self.refuse = self.refuse or loss.then_refuse
        self._reset_all()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        connection = self._connections.setdefault(pair, _Connection(self))
        passes = connection.goes_up if way is self.up else connection.comes_down
        try:
            await super()._carry(_Messages(reader, passes), writer, way, pair)
        finally:
            self._connections.pop(pair, None)


class _Connection:
    """What a proxy has seen of one connection."""

    def __init__(self, proxy: LossyProxy) -> None:
        self._proxy = proxy
        self._asked: dict[int, int] = {}  # kinds of requests by their numbers
        self._struck: dict[int, Loss] = {}
        self._silent = False

    async def goes_up(self, body: bytes) -> bool:
        """Return whether a request goes on."""
        number, op = _HEAD.unpack_from(body)
        proxy = self._proxy
        proxy.requests[op] += 1
        self._asked[number] = op
        if proxy.before is not None:
            await asyncio.to_thread(proxy.before, op)
        loss = next((loss for loss in proxy.losses if loss.strikes(op)), None)
        if loss is None:
            return True
        loss.seen += 1
        if loss.what != "request":
            self._struck[number] = loss
            return True
        loss.lost += 1
        proxy.cut(loss)
        return False

    async def comes_down(self, body: bytes) -> bool:
        """Return whether a reply goes on."""
        number, _, code = wire.read_head(body)
        if number in self._asked:  # else it is news of a watch
            self._proxy.codes[self._asked.pop(number), code] += 1
        loss = self._struck.pop(number, None)
        if loss is not None:
            loss.lost += 1
            if loss.what == "silence":
                self._silent = True
                self._proxy.refuse = self._proxy.refuse or loss.then_refuse
            else:
                self._proxy.cut(loss)
        return loss is None and not self._silent


class _Messages(asyncio.StreamReader):
    """Gives out whole messages, those that pass. The first one is a greeting, which has no number, and passes."""

    def __init__(self, rest: asyncio.StreamReader, passes: Callable[[bytes], Awaitable[bool]]) -> None:
        super().__init__()
        self._rest = rest
        self._passes = passes
        self._greeted = False

    async def read(self, n: int = -1) -> bytes:
        while True:
            try:
                size = await self._rest.readexactly(4)
                body = await self._rest.readexactly(int.from_bytes(size))
            except asyncio.IncompleteReadError:
                return b""
            greeting, self._greeted = not self._greeted, True
            if greeting or await self._passes(body):
                return size + body


class Rig:
    """A server, a lossy way to it, and a look past both."""

    def __init__(self, server: ZooKeeperServer, way: LossyProxy) -> None:
        self.server = server
        self.way = way
        self.raw = Raw(server.port)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"zookeeper://{_HOST}:{self.way.port}"

    def remove_parent(self, times: int) -> list[int]:
        """Delete the parent of the claims just before the next requests for a node; returns what grows with each."""
        raw, gone = Raw(self.server.port), list[int]()

        def remove(op: int) -> None:
            if op == Op.CREATE2 and len(gone) < times:
                # The request that makes it may still be on its way.
                eventually(lambda: raw.delete(f"{CLAIMS}/r"))
                gone.append(op)
                if len(gone) == times:
                    raw.close()

        self.way.before = remove
        self.way.codes.clear()
        return gone

    def clear(self) -> None:
        """Let everything through, and forget everything."""
        self.way.heal()
        self.raw.clear()


@contextmanager
def lossy_network(**settings: Unpack[Settings]) -> Iterator[Rig]:
    """Start a server with a lossy way to it."""
    with needed(lambda: ZooKeeperServer(**settings)) as server, LossyProxy(server.port) as way:
        rig = Rig(server, way)
        yield rig
        rig.raw.close()


@contextmanager
def filling_disk(kind: str) -> Iterator[ZooKeeperServer]:
    """Start a server that runs out of room soon: the disk of its data is a small one, or its files may not grow."""
    if kind == "small disk" and os.getuid() != 0:
        pytest.skip("only root mounts; a limit of the size of files stands in for it")
    with ExitStack() as stack:
        server = needed(lambda: ZooKeeperServer("preAllocSize=4"))  # KiB by which its log grows, and not 64 MiB
        stack.callback(server.close)
        if kind == "small disk":
            stack.enter_context(_small_disk(server.folder / "data"))
        stack.callback(server.kill)
        server.start()
        if kind != "small disk":
            prlimit(server.pid, RLIMIT_FSIZE, (_ROOM, _ROOM))
        yield server


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=%d" % _ROOM) != 0:
        pytest.fail(f"cannot mount a tmpfs as root: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(bytes(folder), 2)
