"""etcd servers: one, or a cluster of three whose members can be cut off from each other."""

from __future__ import annotations

import json
import ssl
import urllib.request
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from . import Server, eventually, free_port


class EtcdServer(Server):
    """One member, by itself a cluster. Its election timeout is short, so that leases of a second can be had."""

    program = "etcd"

    def __init__(self, *arguments: str, name: str = "e0", tls: bool = False) -> None:
        super().__init__()
        self.name = name
        self.tls = tls  # with a certificate that it makes and signs itself
        self.arguments = arguments
        self.peer_port = free_port()
        self.peers = {name: self.peer_port}  # by name, the port under which the others reach it

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self.tls:
            return f"etcds://127.0.0.1:{self.port}?ca={self._certificate}"
        return f"etcd://127.0.0.1:{self.port}"

    @property
    def _certificate(self) -> str:
        return str(self.folder / "data" / "fixtures" / "client" / "cert.pem")

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
            *(["--auto-tls"] if self.tls else []), *self.arguments,
        ]  # fmt: skip

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
        trust = ssl.create_default_context(cafile=self._certificate) if self.tls else None
        with urllib.request.urlopen(self._http + path, data, timeout=1.0, context=trust) as reply:
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
        """Tell whether it is the leader, as it sees it."""
        try:
            status = self.ask("maintenance/status")
        except OSError:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])


class EtcdCluster:
    """Three members. With `proxied`, each reaches each other one through a proxy of its own."""

    def __init__(self, *arguments: str) -> None:
        self.members = [EtcdServer(*arguments, name=f"e{number}") for number in range(3)]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return "etcd://" + ",".join(f"127.0.0.1:{member.port}" for member in self.members)

    def start(self) -> Self:
        """Start all members; returns when all of them answer."""
        peers = {member.name: member.peer_port for member in self.members}
        for member in self.members:
            self._stack.callback(member.close)
            member.peers = peers
            member.start(wait=False)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Return when all members answer, and agree on a leader."""
        for member in self.members:
            member.wait_ready()
        eventually(lambda: self.leader is not None, "no leader was elected")

    @property
    def leader(self) -> EtcdServer | None:
        """The member that leads."""
        return next((member for member in self.members if member.alive and member.leads()), None)

    def new_leader(self, old: EtcdServer) -> EtcdServer:
        """Wait until another member leads."""
        others = [member for member in self.members if member is not old and member.alive]
        eventually(lambda: any(member.leads() for member in others), "no other leader was elected")
        return next(member for member in others if member.leads())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
