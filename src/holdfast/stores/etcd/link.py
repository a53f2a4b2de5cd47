"""The way to a cluster: one channel at a time, to the endpoint that answered last."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from math import inf
from typing import Any, Protocol

import grpc

from ..._fork import Turn, at_fork
from ...core.urls import StoreURL
from ...errors import StoreError, StoreUnavailable

_PORT = 2379
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # connections of its own: closing one client must not touch another's
    ("grpc.enable_retries", 0),  # idempotence is ours
    ("grpc.max_receive_message_length", -1),
    # etcd ends a connection that pings more than every 5 s, or without a call under way.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),  # a watch is silent for long
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long it may take to connect, whatever the name says
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
# A member that has lost its leader says so, instead of holding a call or a watch that cannot succeed.
REQUIRE_LEADER = ("hasleader", "true")


class LeaseGoneError(StoreError):
    """etcd no longer has a lease that was named."""


class NoTokenError(Exception):
    """etcd wants a new token."""


class Stream(Protocol):
    """A stream of replies that can be cancelled from any thread."""

    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> object:
        """End it."""
        ...


class Peer:
    """A channel to one endpoint."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.heard = -inf  # when a call was last answered
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        self._stubs: dict[str, Any] = {}
        _alive.add(self._channel)

    def unary(self, method: str) -> Any:
        """Return the callable of a method. A keep-alive is a stream of one request and one reply, so this will do."""
        stub = self._stubs.get(method)
        if stub is None:
            stub = self._stubs[method] = self._channel.unary_unary(method)
        return stub

    def stream(self, method: str, requests: Iterator[bytes], metadata: tuple[tuple[str, str], ...]) -> Stream:
        """Open a stream both ways.

        Raises: StoreUnavailable if another has just given this endpoint up.
        """
        stub: Any = self._channel.stream_stream(method)
        try:
            found: Stream = stub(requests, metadata=metadata)
        except ValueError as error:
            raise explain(error, self) from None
        _alive.add(found)
        return found

    def close(self) -> None:
        """End everything that goes through it."""
        self._channel.close()


class Link:
    """The endpoints of a cluster, and the channel that is in use."""

    def __init__(self, url: StoreURL) -> None:
        self._url = url
        names = [(f"[{host}]" if ":" in host else host, port) for host, port in url.hosts]
        self.addresses = [f"{host}:{port or _PORT}" for host, port in names]
        self._mutex = threading.Lock()
        self._at = 0
        self._peer: Peer | None = None
        self._closed = False

    def peer(self) -> Peer:
        """Return the channel in use; opens it.

        Raises: StoreUnavailable after the end: whoever is late must not open another, which nobody would close.
        """
        with self._mutex:
            if self._closed:
                raise StoreUnavailable("the client of etcd is closed")
            if self._peer is None:
                self._peer = Peer(self.addresses[self._at], self._credentials())
            return self._peer

    def leave(self, peer: Peer, asked: float) -> bool:
        """Turn to the next endpoint: this one has not answered what was asked then. False if somebody has done so.

        The only endpoint gets a new channel: its connection may be dead without anybody having said so, behind a load
        balancer for instance, and gRPC would stay with it. Not if it has answered others since: to give it up ends all
        calls that are under way.
        """
        with self._mutex:
            if self._peer is not peer or (len(self.addresses) == 1 and peer.heard >= asked):
                return False
            self._at = (self._at + 1) % len(self.addresses)
            self._peer = None
        peer.close()
        return True

    def close(self) -> None:
        """Close the channel, for good."""
        with self._mutex:
            self._closed = True
            peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self._url.scheme != "etcds":
            return None
        parts = [_file(self._url.options.get(name)) for name in ("ca", "key", "cert")]
        return grpc.ssl_channel_credentials(*parts)


def _file(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StoreError(f"the file {path!r} of the etcds:// URL cannot be read: {error.strerror}") from error


_UNAVAILABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # etcd's word for what has no code of its own: its own deadlines, among others
    grpc.StatusCode.INTERNAL,
)


def explain(error: Exception, peer: Peer) -> Exception:
    """Say in holdfast's words what went wrong with a call."""
    if not isinstance(error, grpc.Call):  # another call has given this endpoint up, and closed the channel
        return StoreUnavailable(f"etcd at {peer.address}: the connection was given up")
    code, details = error.code(), error.details() or ""
    said = f"etcd at {peer.address}: {details or code.name.lower()}"
    if code in _UNAVAILABLE or "too many requests" in details:
        return StoreUnavailable(said)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return LeaseGoneError(details)
    if code is grpc.StatusCode.UNAUTHENTICATED or "revision of the auth store is changed" in details:
        return NoTokenError(details)
    return StoreError(said)


_alive: weakref.WeakSet[Any] = weakref.WeakSet()  # channels and streams


def _after_fork() -> None:
    # The threads that serve these stayed with the parent. To close one here, be it by the collector or at the end of
    # the interpreter, could hang: they are kept for ever.
    for thing in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _alive.clear()


at_fork(Turn.CONNECTIONS, in_child=_after_fork)
