"""The pure side of the connection: where a server is, how to log in, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import hiredis

from ...core.urls import Login
from ...errors import StoreError, StoreUnavailable
from ..format import other_format
from ..logins import LoginSource

Command = tuple[str | bytes | int | float, ...]

# Packs one command for the wire; in C, as every acquire goes through it. (Its stub knows only tuples of one.)
pack: Callable[[Command], bytes] = cast("Any", hiredis.pack_command)

# Asking again may help: the server starts, stops, fails over or moves slots.
PASSING = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "UNBLOCKED"}

_MOVES = {
    "NOAUTH": "it wants a password: write redis://user:password@host, or pass password= to connect()",
    "WRONGPASS": "it refuses the user name or the password",
    "NOPERM": "its user may not do this: let it use ~holdfast*, &holdfast* and the commands of docs/stores/redis.md",
    "OOM": "its memory is full and nothing may be evicted: raise maxmemory",
    "MISCONF": "it cannot save to its disk: see its log",
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
    """How to trust the server, and how to be trusted by it. Empty: what the system trusts, and nothing to show."""

    ca: str = ""  # a file
    certificate: str = ""
    key: str = ""
    verify: bool = True
    check_hostname: bool = True
    ca_path: str = ""  # a directory
    ca_data: str = ""  # the certificates themselves
    key_password: str = ""
    min_version: str = ""  # as 1.3
    ciphers: str = ""

    def __repr__(self) -> str:
        return f"<TLS verify={self.verify}>"

    def context(self) -> Any:
        """Return a context of the ssl module. Reads files.

        Raises: StoreError naming what cannot be used.
        """
        import ssl

        named = ", ".join(filter(None, (self.ca, self.ca_path))) or "given as text"
        with _telling(f"the CA certificates ({named})"):
            context = ssl.create_default_context(
                cafile=self.ca or None, capath=self.ca_path or None, cadata=self.ca_data or None
            )
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        with _telling(f"the ciphers {self.ciphers!r} or the version {self.min_version!r}"):
            if self.min_version:
                context.minimum_version = ssl.TLSVersion["TLSv" + self.min_version.replace(".", "_")]
            if self.ciphers:
                context.set_ciphers(self.ciphers)
        if self.certificate:
            named = ", ".join(filter(None, (self.certificate, self.key)))
            with _telling(f"the certificate and key of this client ({named})"):
                # Never None: OpenSSL would ask for the password of a key at the terminal.
                context.load_cert_chain(self.certificate, self.key or None, lambda: self.key_password)
        return context


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Name what cannot be used: the errors of OpenSSL do not say which file is missing."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        said = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"{what} cannot be used for TLS: {said}") from error


class Access:
    """What every connection to a server begins with. Its repr shows nothing of it."""

    __slots__ = ("_database", "_tls", "_username", "greeting", "source", "tls")

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        tls: TLS | None = None,
        source: LoginSource | None = None,
    ) -> None:
        self.tls = tls
        self.source = source  # of a login that has to be asked for, every time
        self._username = username
        self._database = database
        self._tls: Any = None
        self.greeting = self.greet((username, password))

    def greet(self, login: Login) -> list[Command]:
        """Return the commands that log in so."""
        username, password = login[0] or self._username, login[1]
        commands: list[Command] = []
        if username:
            commands.append(("AUTH", username, password or ""))
        elif password is not None:
            commands.append(("AUTH", password))
        if self._database:
            commands.append(("SELECT", self._database))
        return commands

    def explain(self, refusal: ReplyError, endpoint: Endpoint) -> StoreError:
        """Return what it means that this login was refused."""
        error = explain(refusal, endpoint)
        if self.source is None or not (refusal.code == "WRONGPASS" or "invalid password" in str(refusal)):
            return error
        # A password that changes may have changed just now: the next login asks for it again.
        return StoreUnavailable(f"Redis at {endpoint} refused the password that was asked for: {refusal}")

    def context(self) -> Any:
        """Return the TLS context, made once; None without TLS.

        Raises: StoreError if a certificate cannot be read.
        """
        if self.tls is not None and self._tls is None:
            self._tls = self.tls.context()
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
    """Return what a refusal means to the caller."""
    if error.code == "FORMAT":  # said by our scripts
        known, _, found = str(error).partition(" ")[2].partition(" ")
        return other_format(f"Redis at {endpoint}", found, known)
    if error.code in PASSING:
        return StoreUnavailable(f"Redis at {endpoint} cannot serve now: {error}")
    move = _MOVES.get(error.code)
    return StoreError(f"Redis at {endpoint} refused: {error}" + (f"; {move}" if move else ""))


def unreachable(endpoint: object, error: BaseException) -> StoreError:
    """Return what a connection that could not be made, or broke, means to the caller."""
    if type(error).__name__ == "SSLCertVerificationError":  # by name: ssl is not imported for this
        return StoreError(f"the certificate of Redis at {endpoint} is not trusted: {error}; name its CA: ?ca=PATH")
    return StoreUnavailable(f"the connection to Redis at {endpoint} failed: {str(error) or type(error).__name__}")


def silent(endpoint: object, seconds: float) -> StoreUnavailable:
    """Return what silence means to the caller."""
    return StoreUnavailable(f"Redis at {endpoint} did not answer within {seconds:g} s")
