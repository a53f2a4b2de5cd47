"""The way to an ensemble: where its servers are, and how a connection to one of them is opened.

All of it runs in the thread of a session, never in a caller's. Every wait is a poll with an end, and `stop` ends it
early; only the lookup of a host's name is the system's, and takes as long as that does.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from random import randrange
from select import POLLIN, POLLOUT, poll
from time import monotonic
from typing import Any

from ...core.urls import StoreURL
from ...errors import StoreError, StoreUnavailable
from . import wire

_PORT = 2181
_MOST_CONNECTED = 1 << 16  # bytes that the answer to a connect has at most: something else listens there

Blocked = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _StoppedError(Exception):
    """Somebody wants the thread for something else."""


class Link:
    """The servers of an ensemble, and what is needed to log in."""

    def __init__(self, url: StoreURL) -> None:
        self.tls = url.scheme == "zookeepers"
        url.allow(*(("ca", "cert", "key") if self.tls else ()))
        if not url.hosts:
            raise ValueError(f"write {url.scheme}://HOST:PORT,HOST:PORT/CHROOT, not {url}")
        if url.username is None and url.password is not None:
            raise ValueError(f"{url.scheme}:// needs a user name with its password: {url.scheme}://USER:PASSWORD@HOST")
        self._options = url.options
        if "key" in url.options and "cert" not in url.options:
            raise ValueError(f"{url.scheme}://…?key= needs the certificate of that key: ?cert=PATH&key=PATH")
        self.hosts = [(host, port or _PORT) for host, port in url.hosts]
        self.login = f"{url.username}:{url.password or ''}".encode() if url.username is not None else None
        self._context: ssl.SSLContext | None = None

    def first(self) -> int:
        """Return the number of the server to begin with: any, so that clients spread over all of them."""
        return randrange(len(self.hosts))

    def name(self, at: int) -> str:
        """Return how messages call a server."""
        host, port = self.hosts[at]
        return f"{f'[{host}]' if ':' in host else host}:{port}"

    def open(self, at: int, hello: bytes, limit: float, stop: int) -> tuple[Any, wire.Connected]:
        """Connect to a server and exchange greetings.

        stop: a descriptor; when it becomes readable, the try is over.

        Raises: StoreUnavailable; StoreError if the certificates cannot be used.
        """
        host, port = self.hosts[at]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # of a name that is none: too long, or with an empty part
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)}: this is no name of a host ({error})") from error
        except OSError as error:
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)}: {error.strerror or error}") from error
        opened: Any = None
        try:
            # A host that drops what is sent to it must not use up the time of the others.
            opened = _connect(found, monotonic() + limit / len(self.hosts), stop)
            until = monotonic() + limit
            if self.tls:
                opened = self._trust().wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
                _retry(opened, opened.do_handshake, until, stop)
            _retry(opened, partial(opened.send, hello), until, stop)  # so little that a new socket takes all of it
            return opened, wire.read_connected(_read_frame(opened, until, stop))
        except ssl.SSLError as error:
            _close(opened)
            # What is wrong with a certificate: its reason alone says only that something is.
            reason = getattr(error, "verify_message", "") or error.reason or error
            plain = "" if isinstance(error, ssl.SSLCertVerificationError) else "; zookeeper:// is without TLS"
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)}: TLS: {reason}{plain}") from error
        except (TimeoutError, _StoppedError):
            _close(opened)
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)} does not answer") from None
        except wire.WireError as error:
            _close(opened)
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)}: {error}") from error
        except OSError as error:
            _close(opened)
            raise StoreUnavailable(f"ZooKeeper at {self.name(at)}: {error.strerror or error}") from error
        except BaseException:
            _close(opened)
            raise

    def _trust(self) -> ssl.SSLContext:
        if self._context is None:
            files = {name: self._options.get(name) for name in ("ca", "cert", "key")}
            try:
                context = ssl.create_default_context(cafile=files["ca"])
                if files["cert"] is not None:
                    # Never without a password: OpenSSL would ask for that of a key at the terminal.
                    context.load_cert_chain(files["cert"], files["key"], lambda: "")
            except (OSError, ssl.SSLError) as error:  # neither says which file
                named = ", ".join(f"{name}={path}" for name, path in files.items() if path is not None)
                raise StoreError(
                    f"the certificates of the zookeepers:// URL cannot be used ({named}): {error}"
                ) from error
            self._context = context
        return self._context


def _connect(found: Sequence[Any], until: float, stop: int) -> socket.socket:
    """Connect to one of the addresses of a host: it may have some that nobody listens at.

    Raises: OSError of the last one; TimeoutError; _StoppedError.
    """
    for left, (kind, _, proto, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        now = monotonic()
        try:
            return _connect_to(kind, proto, address, now + (until - now) / left, stop)
        except OSError:  # a TimeoutError, too: one that drops what is sent to it has had its share of the time
            if left == 1:
                raise
    raise OSError(0, "it has no address")


def _connect_to(kind: int, proto: int, address: Any, until: float, stop: int) -> socket.socket:
    opened = socket.socket(kind, socket.SOCK_STREAM, proto)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            opened.connect(address)
        except Blocked:
            _wait(opened, POLLOUT, until, stop)
            if (code := opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                raise OSError(code, os.strerror(code)) from None
        return opened
    except BaseException:
        opened.close()
        raise


def _close(opened: Any) -> None:
    if opened is not None:
        opened.close()


def _wait(opened: Any, event: int, until: float, stop: int) -> None:
    """Return when the socket is ready.

    Raises: TimeoutError at `until`; _StoppedError when the try is over.
    """
    polled = poll()
    polled.register(opened.fileno(), event)
    polled.register(stop, POLLIN)
    left = until - monotonic()
    ready = polled.poll(int(left * 1000) + 1) if left > 0 else []
    if any(fd == stop for fd, _ in ready):
        raise _StoppedError
    if not ready:
        raise TimeoutError


def _retry(opened: Any, act: Callable[[], object], until: float, stop: int) -> Any:
    """Do something with a socket that does not block, until it is done."""
    while True:
        try:
            return act()
        except (ssl.SSLWantReadError, BlockingIOError):
            _wait(opened, POLLIN, until, stop)
        except ssl.SSLWantWriteError:
            _wait(opened, POLLOUT, until, stop)


def _read_frame(opened: Any, until: float, stop: int) -> bytes:
    """Read one message, and nothing of the next one."""
    size = int.from_bytes(_read(opened, 4, until, stop))
    if not 0 < size <= _MOST_CONNECTED:
        raise wire.WireError("what answers there does not speak ZooKeeper's protocol")
    return _read(opened, size, until, stop)


def _read(opened: Any, size: int, until: float, stop: int) -> bytes:
    data = bytearray()

    def more() -> bytes:
        found: bytes = opened.recv(size - len(data))
        return found

    while len(data) < size:
        if not (found := _retry(opened, more, until, stop)):
            raise ConnectionResetError(
                0, "it closed the connection: it has no quorum, is behind, or wants TLS (zookeepers://)"
            )
        data += found
    return bytes(data)
