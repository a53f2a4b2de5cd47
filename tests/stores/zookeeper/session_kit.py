"""What the tests of sessions share: how servers see them, how others end them, and hosts that are no help."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper.session import Session
from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers.zookeeper import ZooKeeperServer

HOST = "127.0.0.1"
_SECONDS = 10.0


def sessions_of(locks: Any) -> list[Session]:
    """Return the sessions of a client of either flavour."""
    return list(locks._engine.store._shared.sessions)


def session_of(locks: Any, resource: str) -> Session:
    """Return the session that a claim of a client belongs to."""
    claims = locks._engine.store._shared.claims.values()
    (found,) = {local.session for local in claims if local.claim.resource == resource}
    assert isinstance(found, Session)
    return found


def connected_sessions(server: ZooKeeperServer) -> list[str]:
    """Return the ids of the sessions that have a connection to a server."""
    return re.findall(r"sid=(0x\w+)", server.four("cons", _SECONDS))


def known(server: ZooKeeperServer, session: Session) -> bool:
    """Return whether the ensemble has this session; asked of a leader, or of a server by itself."""
    tracked = server.four("dump", _SECONDS).partition("ephemeral nodes dump")[0]
    return f"0x{session.id:x}" in tracked.split()


def paths_by_session(server: ZooKeeperServer) -> dict[str, list[str]]:
    """Return the ephemeral nodes of each session, as a leader or a server by itself has them."""
    found: dict[str, list[str]] = {}
    for line in server.four("dump", _SECONDS).partition("Sessions with Ephemerals")[2].splitlines()[1:]:
        if line.startswith("0x"):
            paths = found.setdefault(line.rstrip(":"), [])
        elif line.startswith("\t/"):
            paths.append(line.strip())
    return found


def expire(server: ZooKeeperServer, session: Session) -> None:
    """End a session on the server: whoever has its password can take it up and close it."""

    def ended() -> bool:
        # Its owner may take it up again in between. Then nothing was closed, and this has to be tried again.
        with suppress(OSError), socket.create_connection((HOST, server.port), timeout=_SECONDS) as connection:
            connection.sendall(wire.connect(0, session.asked_ms, session.id, session._password))
            connection.recv(4096)
            connection.sendall(wire.frame(1, wire.CLOSE))
            while connection.recv(4096):
                pass
        return not known(server, session)

    eventually(ended)


# -- hosts that are no help; each gives the port of one


@contextmanager
def that_holds() -> Iterator[int]:
    """Takes connections, and never says a word."""
    with socket.create_server((HOST, 0)) as listening:
        yield listening.getsockname()[1]


@contextmanager
def that_drops() -> Iterator[int]:
    """Answers no packet: whoever connects has to wait."""
    with socket.create_server((HOST, 0), backlog=0) as listening, ExitStack() as stack:
        port = listening.getsockname()[1]

        def full() -> bool:
            caller = stack.enter_context(socket.socket())
            caller.settimeout(0.1)
            try:
                caller.connect((HOST, port))
            except TimeoutError:
                return True
            return False

        eventually(full)
        yield port


@contextmanager
def that_refuses() -> Iterator[int]:
    """Has nobody who listens."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield bound.getsockname()[1]


@contextmanager
def that_says(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Speaks another protocol, or hangs up if it has nothing to say."""
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.settimeout(_SECONDS)
                        said = answer(connection.recv(4096))
                        connection.sendall(said)
                        while said and connection.recv(4096):
                            pass

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)  # wakes it; a close does not
        serving.join(_SECONDS)


BAD_HOSTS: dict[str, Callable[[], Any]] = {
    "holds": that_holds,
    "drops": that_drops,
    "refuses": that_refuses,
    "closes": partial(that_says, lambda asked: b""),
    "http": partial(that_says, lambda asked: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "echo": partial(that_says, lambda asked: asked),
}
BAD_NAMES = {"unknown": "nowhere.invalid", "empty label": "nowhere..invalid", "long label": "x" * 64 + ".invalid"}


@contextmanager
def bad_host(kind: str) -> Iterator[str]:
    """Give a host, and its port, that are no help."""
    if kind in BAD_NAMES:
        yield f"{BAD_NAMES[kind]}:2181"
    else:
        with BAD_HOSTS[kind]() as port:
            yield f"{HOST}:{port}"
