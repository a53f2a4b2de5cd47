"""ZooKeeper servers: one, or an ensemble of three whose members can be cut off from each other."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

from .._sync.runtime import eventually
from ..faults.proxy import Again, Proxy
from . import START_SECONDS, Missing, Server, free_port
from .certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates, trust
from .ports import PORTS

JAR = Path("/usr/share/java/zookeeper.jar")
_HOST = "127.0.0.1"
_ASK_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_SERVES = ("standalone", "leader", "follower")
_JVM = ("-Xmx64m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# How a member introduces itself to another before an election: version of the protocol, number, length of its address.
_HELLO = struct.Struct(">qqi")
_NOWHERE = b"0.0.0.0:1"


class Settings(TypedDict, total=False):
    """What may be set of a server; times are in milliseconds."""

    tick: int
    init_limit: int  # ticks that a member may take to find its leader and to catch up
    sync_limit: int  # ticks of silence after which leader and follower give each other up
    min_session_timeout: int
    max_session_timeout: int
    container_check: int  # how often containers that have been emptied are removed
    fsync: bool
    read_only: bool  # a member without a majority serves readers


# Short times, so that sessions of half a second can be had and elections are soon over.
DEFAULTS: Settings = {
    "tick": 200,
    "init_limit": 10,
    "sync_limit": 3,  # two were enough on a machine with four times as much to do as it could
    "min_session_timeout": 500,
    "max_session_timeout": 3_600_000,
    "container_check": 1000,
    "fsync": True,
    "read_only": False,
}


class ZooKeeperServer(Server):
    """One server: by itself, or a member of an ensemble. `lines` are further ones of its zoo.cfg."""

    program = "java"

    def __init__(self, *lines: str, number: int = 1, tls: bool = False, **settings: Unpack[Settings]) -> None:
        super().__init__()
        self.lines = lines
        self.number = number
        self.tls = tls
        if tls:
            make_certificates(self.folder)
            pair = ((self.folder / name).read_text() for name in (KEY, CERTIFICATE))
            (self.folder / "both.pem").write_text("".join(pair))
        self.settings: Settings = {**DEFAULTS, **settings}
        self.quorum_port = free_port()
        self.election_port = free_port()
        # By number, the ports under which this member reaches all of them; its own are where it listens.
        self.peers: dict[int, tuple[int, int]] = {}

    def find(self) -> str:
        """See Server."""
        if not JAR.exists():
            raise Missing(f"{JAR} is missing: run `make servers`, or install ZooKeeper (Debian: package zookeeper)")
        return super().find()

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self.tls:
            return f"zookeepers://{_HOST}:{self.port}?ca={self.folder / AUTHORITY}"
        return f"zookeeper://{_HOST}:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        properties = {  # those that zoo.cfg has no name for
            "znode.container.checkIntervalMs": self.settings["container_check"],
            "readonlymode.enabled": str(self.settings["read_only"]).lower(),
            # A member that was cut off for long asks ever more seldom who leads: up to a minute by itself.
            "zookeeper.fastleader.maxNotificationInterval": 300,
            "org.slf4j.simpleLogger.defaultLogLevel": "warn",
            "org.slf4j.simpleLogger.log.org.apache.zookeeper.server.quorum.FastLeaderElection": "info",
            "org.slf4j.simpleLogger.showDateTime": "true",
        }
        # What the jar itself does not name: a place for its log; and Netty, which alone speaks TLS.
        jars = [JAR, JAR.with_name("slf4j-simple.jar"), *(sorted(JAR.parent.glob("netty-*.jar")) if self.tls else [])]
        return [
            self.executable, *_JVM, *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp", ":".join(map(str, [self.folder, *jars])),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg",
        ]  # fmt: skip

    def start(self, *, wait: bool = True) -> Self:
        """See Server."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number))
        (self.folder / "zoo.cfg").write_text("\n".join([*self._config(), *self.lines, ""]))
        return super().start(wait=wait)

    def _config(self) -> Iterator[str]:
        settings = self.settings
        yield f"dataDir={self.folder / 'data'}"
        yield f"tickTime={settings['tick']}"
        yield f"initLimit={settings['init_limit']}"
        yield f"syncLimit={settings['sync_limit']}"
        yield f"minSessionTimeout={settings['min_session_timeout']}"
        yield f"maxSessionTimeout={settings['max_session_timeout']}"
        yield f"forceSync={'yes' if settings['fsync'] else 'no'}"
        yield "maxClientCnxns=0"
        yield "4lw.commands.whitelist=*"
        yield "admin.enableServer=false"
        if self.tls:
            yield f"secureClientPort={self.port}"
            yield f"secureClientPortAddress={_HOST}"
            yield "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
            yield f"ssl.keyStore.location={self.folder / 'both.pem'}"
            yield "ssl.keyStore.type=PEM"
            yield "ssl.clientAuth=none"
        else:
            yield f"clientPort={self.port}"
            yield f"clientPortAddress={_HOST}"
        for number, (quorum, election) in self.peers.items():
            yield f"server.{number}={_HOST}:{quorum}:{election}"

    def close(self) -> None:
        """See Server."""
        super().close()
        PORTS.give_back(self.quorum_port)
        PORTS.give_back(self.election_port)

    def four(self, word: str, timeout: float = _ASK_SECONDS) -> str:
        """Return what it prints for a four letter word (srvr, mntr, cons, dump, wchs …), past every client.

        Raises: OSError if it does not answer.
        """
        with socket.create_connection((_HOST, self.port), timeout=timeout) as plain:
            with trust(self.folder).wrap_socket(plain, server_hostname=_HOST) if self.tls else plain as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def mode(self, timeout: float = _ASK_SECONDS) -> str | None:
        """Return what it is, as it sees it: standalone, leader, follower, read-only; None if it does not serve."""
        try:
            found = re.search(r"^Mode: (.+)$", self.four("srvr", timeout), re.MULTILINE)
        except OSError:
            return None
        return found and found[1]

    def answers(self) -> bool:
        """See Server."""
        return self.mode(_LOOK_SECONDS) in _SERVES  # while it starts, it leaves some connections without any answer

    def leads(self) -> bool:
        """Return whether it is the leader, as it sees it."""
        return self.mode() == "leader"


class ZooKeeperEnsemble:
    """Three members. With `proxied` they reach each other through proxies, and one can be cut off from the others."""

    def __init__(self, *lines: str, proxied: bool = False, **settings: Unpack[Settings]) -> None:
        self.members = [ZooKeeperServer(*lines, number=number, **settings) for number in (1, 2, 3)]
        self._proxied = proxied
        # By the numbers of who calls and who is called: to the quorum port, and to the election port.
        self.ways: dict[tuple[int, int], tuple[PeerProxy, PeerProxy]] = {}
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.url_of(*self.members)

    def url_of(self, *members: ZooKeeperServer) -> str:
        """Return where clients connect that know these members, in this order."""
        return "zookeeper://" + ",".join(f"{_HOST}:{member.port}" for member in members)

    def start(self) -> Self:
        """Start all members; returns when all of them answer."""
        for member in self.members:
            member.peers = {other.number: (other.quorum_port, other.election_port) for other in self.members}
        if self._proxied:
            for one, other in permutations(self.members, 2):
                quorum = self._stack.enter_context(PeerProxy(other.quorum_port))
                election = self._stack.enter_context(PeerProxy(other.election_port, election=True))
                self.ways[one.number, other.number] = (quorum, election)
                one.peers[other.number] = (quorum.port, election.port)
        for member in self.members:
            # They end before their proxies, which would otherwise have to end while somebody calls.
            self._stack.callback(member.close)
            member.start(wait=False)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Return when all members answer, which they do when they follow or lead."""
        for member in self.members:
            member.wait_ready()

    @property
    def leader(self) -> ZooKeeperServer | None:
        """The member that leads."""
        return next((member for member in self.members if member.alive and member.leads()), None)

    @property
    def followers(self) -> list[ZooKeeperServer]:
        """The members that follow."""
        return [member for member in self.members if member.alive and member.mode() == "follower"]

    def in_order(self) -> list[ZooKeeperServer]:
        """Wait until one of the members leads; return them, the leader first."""
        leader = self.new_leader()
        return [leader, *(member for member in self.members if member is not leader)]

    def new_leader(self, old: ZooKeeperServer | None = None) -> ZooKeeperServer:
        """Wait until a member other than the old leader leads."""
        found: list[ZooKeeperServer] = []

        def led() -> bool:
            others = (member for member in self.members if member is not old and member.alive)
            found.extend(member for member in others if member.leads())
            return bool(found)

        eventually(led, limit=START_SECONDS)
        return found[0]

    @contextmanager
    def cut_off(self, member: ZooKeeperServer, *, reset: bool = False) -> Iterator[None]:
        """Cut a member off from the others; clients still reach it.

        Silently, as a network does that is parted: it takes a follower sync_limit ticks to notice, and until then it
        serves. With `reset` its connections end at once, and new ones are refused.
        """
        assert self.ways, "only members that reach each other through proxies can be cut off"
        ways = [way for pair, both in self.ways.items() if member.number in pair for way in both]
        # Silent first in any case: while one connection is reset after the other, the member would hear over the last
        # ones who leads, and would know whom to follow as soon as it can.
        for way in ways:
            way.refuse = reset
            way.silence()
        try:
            if reset:
                for way in ways:
                    way.reset()
                for way in ways:
                    way.up.mode = way.down.mode = "pass"  # there is nobody left to hold up
            yield
        finally:
            for way in ways:
                way.heal()

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
    """The way of one member to a port of another.

    Whoever connects for an election says where to call back, and those with a higher number do: that would lead past
    the proxies. So an address is put in its place that ZooKeeper ignores; it then takes the one of its own zoo.cfg.
    `election` may be changed at any time: without it, what goes to an election port leads around the proxies.
    """

    def __init__(self, port: int, *, election: bool = False) -> None:
        super().__init__(port)
        self.election = election

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.election:
                version, number, length = _HELLO.unpack(await reader.readexactly(_HELLO.size))
                await reader.readexactly(length)
                reader = Again(reader, _HELLO.pack(version, number, len(_NOWHERE)) + _NOWHERE)
            if self._silent():
                # Members take no connection during a silence: one that says nothing would keep them from hearing the
                # others. When it ends, whoever came meanwhile has to come again.
                while self._silent():  # noqa: ASYNC110 (set from other threads, which an Event is not made for)
                    await asyncio.sleep(0.002)
                return
            await super()._accept(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _stop(self) -> None:
        # Whoever called before the end is let in first: asyncio takes five steps from there to _accept, and leaves
        # a connection open that is between them when its server is closed or its tasks are cancelled.
        for _ in range(5):
            await asyncio.sleep(0)
        await super()._stop()

    def _silent(self) -> bool:
        return self.up.mode == "hold"

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A leader opens its quorum port a little after its election. A follower that is refused tries again soon; one
        # that a proxy accepts and then drops asks for a new election, and the leader waits for it in vain.
        for _ in range(0 if self.election else 50):
            try:
                return await super()._reach()
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        return await super()._reach()
