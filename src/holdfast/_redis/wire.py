"""The pure side of the connection: where a server is, how to log in, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import hiredis

from ..errors import StoreError, StoreUnavailable

Command = tuple[str | bytes | int | float, ...]

# Packs one command for the wire; of C, as every acquire goes through it. (Its stub knows tuples of one only.)
pack: Callable[[Command], bytes] = cast("Any", hiredis.pack_command)

# Asking again may help: the server starts, stops, fails over or moves slots.
_PASSING = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "UNBLOCKED"}

_MOVES = {
    "NOAUTH": "it wants a password: write redis://user:password@host into the URL",
    "WRONGPASS": "it refuses the user name or the password of the URL",
    "NOPERM": "its user may not do this: let it use ~holdfast*, &holdfast* and the commands of docs/stores/redis.md",
    "OOM": "its memory is full and nothing may be evicted: raise maxmemory",
    "MISCONF": "it cannot save to its disk: look into its log",
}


class ReplyError(Exception):
    """The server refused a command. The connection is sound, and the command had no effect."""

    @property
    def code(self) -> str:
        """The first word: NOSCRIPT, MOVED, READONLY …"""
        return str(self).partition(" ")[0]


class Endpoint(NamedTuple):
    """Where one server is: a host and port, or the path of a UNIX socket."""

    host: str
    port: int = 6379
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TLS(NamedTuple):
    """How to trust the server, and how to be trusted by it. Empty paths: the system's certificates, and none."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True

    def context(self) -> Any:
        """Return a context of the ssl module. Reads files."""
        import ssl

        context = ssl.create_default_context(cafile=self.ca or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key or None)
        return context


class Access:
    """What every connection to a server begins with. Its repr shows nothing of it."""

    __slots__ = ("_tls", "greeting", "tls")

    def __init__(
        self, username: str | None = None, password: str | None = None, database: int = 0, tls: TLS | None = None
    ) -> None:
        self.tls = tls
        self._tls: Any = None
        self.greeting: list[Command] = []
        if password is not None:
            self.greeting.append(("AUTH", username, password) if username else ("AUTH", password))
        if database:
            self.greeting.append(("SELECT", database))

    def context(self) -> Any:
        """Return the TLS context, made once; None without TLS.

        Raises: StoreError if a certificate cannot be read.
        """
        if self.tls is not None and self._tls is None:
            try:
                self._tls = self.tls.context()
            except OSError as error:  # ssl.SSLError is one
                raise StoreError(f"the certificates of the URL cannot be used: {error}") from error
        return self._tls


def keep_alive(sock: Any) -> None:
    """Let the kernel notice within half a minute that the other side is gone: a subscription may be silent for long."""
    import socket

    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def new_reader() -> Any:
    """Return a parser of replies. Text stays bytes; an error is an instance of ReplyError."""
    return hiredis.Reader(replyError=ReplyError)


def explain(error: ReplyError, endpoint: object) -> StoreError:
    """Return what a refusal means to the one who asked."""
    if error.code in _PASSING:
        return StoreUnavailable(f"Redis at {endpoint} cannot serve now: {error}")
    move = _MOVES.get(error.code)
    return StoreError(f"Redis at {endpoint} refused: {error}" + (f"; {move}" if move else ""))


def unreachable(endpoint: object, error: BaseException) -> StoreError:
    """Return what a connection that could not be made, or broke, means to the one who asked."""
    if type(error).__name__ == "SSLCertVerificationError":  # by name: ssl is not imported for this
        return StoreError(f"the certificate of Redis at {endpoint} is not trusted: {error}; name its CA: ?ca=PATH")
    return StoreUnavailable(f"the connection to Redis at {endpoint} failed: {str(error) or type(error).__name__}")


def silent(endpoint: object, seconds: float) -> StoreUnavailable:
    """Return what no answer means to the one who asked."""
    return StoreUnavailable(f"Redis at {endpoint} did not answer within {seconds:g} s")
