"""etcd servers: one, or a cluster of three whose members can be cut off from each other."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from .._sync.runtime import eventually
from ..faults.proxy import Again, Proxy
from . import START_SECONDS, Server, free_port
from .certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates, trust
from .ports import PORTS


class EtcdServer(Server):
    """One member, by itself a cluster. Its election timeout is short, so that leases of a second can be had."""

    program = "etcd"

    def __init__(self, *arguments: str, name: str = "e0", tls: bool = False) -> None:
        super().__init__()
        self.name = name
        self.tls = tls
        if tls:
            make_certificates(self.folder)
        self.arguments = arguments
        self.peer_port = free_port()
        self.peers = {name: self.peer_port}  # by name, the port under which the others reach it

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self.tls:
            return f"etcds://127.0.0.1:{self.port}?ca={self.folder / AUTHORITY}"
        return f"etcd://127.0.0.1:{self.port}"

    @property
    def _http(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        client, peer = self._http, f"http://127.0.0.1:{self.peer_port}"
        cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self.peers.items())
        return [
            self.executable, "--name", self.name, "--data-dir", str(self.folder / "data"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peers[self.name]}",
            "--initial-cluster", cluster, "--heartbeat-interval", "50", "--election-timeout", "650",
            *(["--cert-file", CERTIFICATE, "--key-file", KEY] if self.tls else []), *self.arguments,
        ]  # fmt: skip

    def close(self) -> None:
        """See Server."""
        super().close()
        PORTS.give_back(self.peer_port)

    def answers(self) -> bool:
        """See Server."""
        try:
            return bool(self._open("/health")["health"] == "true")
        except (OSError, ValueError):
            return False

    def ask(self, path: str, **facts: object) -> dict[str, Any]:
        """Call the server's JSON interface, past every client."""
        return self._open(f"/v3/{path}", json.dumps(facts).encode())

    def _open(self, path: str, data: bytes | None = None) -> dict[str, Any]:
        context = trust(self.folder) if self.tls else None
        with urllib.request.urlopen(self._http + path, data, timeout=10.0, context=context) as reply:
            found = json.load(reply)
            assert isinstance(found, dict)
            return found

    def lock_up(self, password: str) -> None:
        """Demand a login from now on: user root, this password."""
        self.ask("auth/user/add", name="root", password=password)
        self.ask("auth/role/add", name="root")
        self.ask("auth/user/grant", user="root", role="root")
        self.ask("auth/enable")

    def leads(self) -> bool:
        """Return whether it is the leader, as it sees it."""
        try:
            status = self.ask("maintenance/status")
        except OSError:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])


class EtcdCluster:
    """Three members. With `proxied` they reach each other through proxies, and one can be cut off from the others."""

    def __init__(self, *arguments: str, proxied: bool = False) -> None:
        self.members = [EtcdServer(*arguments, name=f"e{number}") for number in range(3)]
        self._proxied = proxied
        self._ways: dict[str, PeerProxy] = {}
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.url_of(*self.members)

    def url_of(self, *members: EtcdServer) -> str:
        """Return where clients connect that know these members, in this order."""
        return "etcd://" + ",".join(f"127.0.0.1:{member.port}" for member in members)

    def start(self) -> Self:
        """Start all members; returns when all of them answer."""
        peers = {member.name: member.peer_port for member in self.members}
        if self._proxied:
            self._ways = {name: self._stack.enter_context(PeerProxy(port)) for name, port in peers.items()}
            peers = {name: way.port for name, way in self._ways.items()}
        for member in self.members:
            self._stack.callback(member.close)
            member.peers = peers
            member.start(wait=False)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Return when all members answer, and one of them leads."""
        for member in self.members:
            member.wait_ready()
        eventually(lambda: self.leader is not None, limit=START_SECONDS)

    @property
    def leader(self) -> EtcdServer | None:
        """The member that leads."""
        return next((member for member in self.members if member.alive and member.leads()), None)

    def in_order(self) -> list[EtcdServer]:
        """Return the members, the leader first."""
        leader = self.leader
        assert leader is not None
        return [leader, *(member for member in self.members if member is not leader)]

    def new_leader(self, old: EtcdServer) -> EtcdServer:
        """Wait until another member leads."""
        others = [member for member in self.members if member is not old and member.alive]
        eventually(lambda: any(member.leads() for member in others), limit=START_SECONDS)
        return next(member for member in others if member.leads())

    @contextmanager
    def cut_off(self, member: EtcdServer) -> Iterator[None]:
        """Cut a member off from the others; clients still reach it."""
        assert self._ways, "only members that reach each other through proxies can be cut off"
        identity = format(int(member.ask("maintenance/status")["header"]["member_id"]), "x").encode()
        for name, way in self._ways.items():
            way.refuse = name == member.name
            way.banned.add(identity)
            way.reset()
        try:
            yield
        finally:
            for way in self._ways.values():
                way.heal()
                way.banned.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._stack.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class PeerProxy(Proxy):
    """The way of the other members to one. etcd's members name themselves in every request."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.banned: set[bytes] = set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return
        named = re.search(rb"(?i)^X-Server-From: *(\w+)", head, re.MULTILINE)
        if named is not None and named[1] in self.banned:
            writer.transport.abort()
            return
        await super()._accept(Again(reader, head), writer)
