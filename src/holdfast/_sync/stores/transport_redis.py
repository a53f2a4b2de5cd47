"""Connections to Redis in the blocking flavour: a socket and hiredis' parser, every wait bounded by a deadline."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterable
from struct import Struct
from time import monotonic
from typing import Any

from ..._redis.wire import (
    Access,
    Command,
    Endpoint,
    ReplyError,
    explain,
    keep_alive,
    new_reader,
    pack,
    silent,
    unreachable,
)

_CHUNK = 65536
_TIME = Struct("@ll").pack  # a timeval
# A connection that nobody used for this long may have been closed by the server: look before the question is sent,
# for afterwards nobody can tell whether it was executed.
_STALE = 0.01


class Connection:
    """One connection to one server, for one caller at a time. Made without I/O; it opens itself.

    `send` starts an exchange and sets its deadline, `until` on time.monotonic(); `receive` reads one reply of it.
    When something goes wrong the socket is closed, for its next reply would answer somebody else's question; what is
    sent after that goes over a new one.
    """

    __slots__ = (
        *("_greets", "_kernel", "_limit", "_reader", "_socket", "access", "endpoint", "owed", "timeout", "until"),
    )

    def __init__(self, endpoint: Endpoint, access: Access, timeout: float) -> None:
        self.endpoint = endpoint
        self.access = access
        self.timeout = timeout
        self.until = 0.0
        self.owed = 0  # replies that are still to be received
        self._greets = 0  # replies to the greeting that come before them
        self._socket: Any = None
        self._reader: Any = None
        self._limit = 0.0
        self._kernel = False  # the kernel bounds its waits; Python would ask it twice each time, first whether it can

    def fileno(self) -> int:
        """Return its descriptor, for select: readable means that `receive` has something to read."""
        assert self._socket is not None, "nothing was sent yet"
        return int(self._socket.fileno())

    def pending(self) -> bool:
        """Tell whether there is something to read that select does not see: parsed or decrypted already."""
        decrypted = getattr(self._socket, "pending", None)
        return bool(self._reader.has_data() or (decrypted is not None and decrypted()))

    def send(self, *commands: Command, until: float | None = None) -> None:
        """Write commands, and open the connection if needed. Reads nothing.

        Raises: StoreUnavailable; StoreError if the certificates cannot be used.
        """
        self.until = monotonic() + self.timeout if until is None else until
        try:
            if self._socket is None:
                self._open()
            self.owed += len(commands)
            self._bound()
            self._socket.sendall(pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands)))
        except BaseException as error:
            self._fail(error)
            raise

    def receive(self) -> Any:
        """Read one reply of what was sent.

        Raises: ReplyError if the server refused that command, and the connection goes on; StoreUnavailable; StoreError
        if it refused the login.
        """
        try:
            reply = self._read()
        except BaseException as error:
            self._fail(error)
            raise
        self.owed -= 1
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def call(self, *command: str | bytes | int | float, until: float | None = None) -> Any:
        """Send one command and read its reply."""
        return self.ask(command, monotonic() + self.timeout if until is None else until)

    def ask(self, command: Command, until: float) -> Any:
        """Send one command and read its reply: `send` and `receive` in one, for every acquire comes through here."""
        self.until = until
        self.owed = 1
        try:
            if self._socket is None:
                self._open()
                self.owed = 1
            if self._limit != self.timeout or not 0.9 * self.timeout < until - monotonic() <= self.timeout:
                self._bound()
            self._socket.sendall(pack(command))
            if self._greets:
                reply = self._read()
            else:
                self._reader.feed(self._socket.recv(_CHUNK) or self._ended())
                if (reply := self._reader.gets()) is False:
                    reply = self._read()
        except BaseException as error:
            self._fail(error)
            raise
        self.owed = 0
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def listen(self, seconds: float) -> Any:
        """Read the next message of a subscription; None if none comes within that time."""
        try:
            reply = self._reader.gets()
            if reply is False:
                if not self.pending() and not _readable(self.fileno(), seconds):
                    return None
                self.until = monotonic() + self.timeout
                reply = self._read()
            return reply
        except BaseException as error:
            self._fail(error)
            raise

    def alive(self) -> bool:
        """Tell whether the server has not closed it, as far as this side knows. Nothing may be owed."""
        return self._socket is not None and not _readable(self._socket.fileno(), 0.0)  # only an end could be there

    def abort(self) -> None:
        """Make it useless. Safe in any thread: whoever is reading there fails at once."""
        if (sock := self._socket) is not None:
            try:
                # Not SSLSocket.shutdown, which pulls the TLS object from under the reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:  # it is dead already
                pass

    def close(self) -> None:
        """Close it. Only for the thread that uses it."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _open(self) -> None:
        self._reader = new_reader()
        self.owed = 0
        if self.endpoint.path:
            self._connect(socket.AF_UNIX, self.endpoint.path)
        else:
            places = socket.getaddrinfo(self.endpoint.host, self.endpoint.port, type=socket.SOCK_STREAM)
            for left, (family, _, _, _, address) in enumerate(places, 1 - len(places)):
                try:
                    self._connect(family, address)
                    break
                except OSError:
                    self.close()
                    if not left:
                        raise
        greeting = self.access.greeting
        self._greets = len(greeting)
        if greeting:
            self._bound()
            self._socket.sendall(b"".join(map(pack, greeting)))

    def _connect(self, family: int, address: Any) -> None:
        sock = self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._limit, self._kernel = 0.0, False
        self._bound()
        sock.connect(address)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        context = self.access.context()
        if context is not None:
            self._bound()
            self._socket = context.wrap_socket(sock, server_hostname=self.endpoint.host)
        else:
            sock.settimeout(None)
            self._kernel = True
        self._limit = 0.0

    def _read(self) -> Any:
        reader = self._reader
        while True:
            while (reply := reader.gets()) is False:
                self._bound()
                reader.feed(self._socket.recv(_CHUNK) or self._ended())
            if not self._greets:
                return reply
            self._greets -= 1
            if isinstance(reply, ReplyError):
                raise explain(reply, self.endpoint)

    def _bound(self) -> None:
        """Let the next wait of the socket end at the deadline.

        Raises: TimeoutError if that has passed.
        """
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError
        if 0.9 * self.timeout < left <= self.timeout:
            left = self.timeout  # close enough: most exchanges then set nothing, which would cost a system call
        if left != self._limit:
            self._limit = left
            if self._kernel:
                time = _TIME(int(left), int(left % 1 * 1_000_000) + 1)  # 0 would be: for ever
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
            else:
                self._socket.settimeout(left)

    def _ended(self) -> bytes:
        raise ConnectionResetError("the server closed it")

    def _fail(self, error: BaseException) -> None:
        """Close the connection.

        Raises: what an error of the network means.
        """
        self.close()
        if isinstance(error, TimeoutError | BlockingIOError):
            raise silent(self.endpoint, self.timeout) from error
        if isinstance(error, OSError):
            raise unreachable(self.endpoint, error) from error


class Node:
    """One server, for any number of threads: a free list of connections, one for each call under way."""

    __slots__ = ("_access", "_closed", "_idle", "_timeout", "doubtful", "endpoint")

    def __init__(self, endpoint: Endpoint, access: Access, timeout: float) -> None:
        self.endpoint = endpoint
        self._access = access
        self._timeout = timeout
        self._idle: deque[Connection] = deque()
        self._closed = False
        self.doubtful = False  # a connection has ended: it may have started again, as another one

    def call(self, command: Command, until: float) -> Any:
        """Send one command and return its reply.

        Raises: ReplyError; StoreUnavailable; StoreError.
        """
        idle = self._idle
        try:
            connection = idle.pop()
            if until - connection.until >= _STALE:
                connection = self._checked(connection, until)
        except IndexError:
            connection = Connection(self.endpoint, self._access, self._timeout)
        try:
            return connection.ask(command, until)
        finally:
            if connection.owed:
                self._put(connection)
            else:
                idle.append(connection)
                if self._closed:
                    self.close()

    def calls(self, commands: Iterable[Command], until: float) -> list[Any]:
        """Send commands at once and return their replies; a refusal is a ReplyError among them."""
        connection = self._take(until)
        try:
            connection.send(*commands, until=until)
            replies: list[Any] = []
            while connection.owed:
                try:
                    replies.append(connection.receive())
                except ReplyError as error:
                    replies.append(error)
            return replies
        finally:
            self._put(connection)

    def close(self) -> None:
        """Close what is idle now, and the others when their calls return."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # another thread was faster
                return

    def _take(self, until: float) -> Connection:
        try:
            return self._checked(self._idle.pop(), until)
        except IndexError:
            return Connection(self.endpoint, self._access, self._timeout)

    def _checked(self, connection: Connection, until: float) -> Connection:
        """Return this connection, or another one if the server has closed it since."""
        if until - connection.until < _STALE or connection.alive():  # two deadlines lie as far apart as two uses
            return connection
        self.doubtful = True
        connection.close()
        return self._take(until)

    def _put(self, connection: Connection) -> None:
        if connection.owed or connection._socket is None:  # interrupted between two replies, or broken
            self.doubtful = True
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:
            self.close()


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(int(seconds * 1000) + (seconds > 0)))
