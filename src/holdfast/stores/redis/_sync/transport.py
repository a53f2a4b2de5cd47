"""Connections to Redis in the blocking flavour: a socket and hiredis' parser, every wait bounded by a deadline."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from select import POLLIN, POLLOUT, poll
from time import monotonic
from typing import Any
from weakref import WeakSet

from ...._fork import Turn, at_fork
from ...logins import Answer, no_login, read_login
from ..wire import (
    Access,
    Command,
    Endpoint,
    ReplyError,
    keep_alive,
    new_reader,
    pack,
    silent,
    unreachable,
)

_CHUNK = 65536
# A connection that nobody used for this long may have been closed by the server: check before the command is sent,
# for afterwards nobody can tell whether it was executed.
_STALE = 0.01


class Connection:
    """One connection to one server, for one caller at a time. Made without I/O; it opens itself.

    `send` starts an exchange and sets its deadline, `until` on time.monotonic(); `receive` reads one reply of it.
    When something goes wrong the socket is closed, for its next reply would answer somebody else's question; what is
    sent after that goes over a new one.

    The socket does not block, and waits are polls (TLS does that by itself). A limit that the kernel keeps would save
    them (SO_RCVTIMEO); but a call that a signal interrupts begins anew, limit and all, and a profiler's timer makes
    that never end.
    """

    __slots__ = (
        *("__weakref__", "_greets", "_plain", "_poll", "_reader", "_socket"),
        *("access", "endpoint", "owed", "timeout", "until"),
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
        self._poll: Any = None
        self._plain = True  # no TLS

    def fileno(self) -> int:
        """Return its descriptor, for select: readable means that `receive` has something to read."""
        assert self._socket is not None, "nothing was sent yet"
        return int(self._socket.fileno())

    def pending(self) -> bool:
        """Return whether there is something to read that select does not see: parsed or decrypted already."""
        decrypted = getattr(self._socket, "pending", None)
        return bool(self._reader.has_data() or (decrypted is not None and decrypted()))

    def send(self, *commands: Command, until: float | None = None) -> None:
        """Write commands, and open the connection if needed. Reads nothing.

        Raises: StoreUnavailable; StoreError if the certificates cannot be used.
        """
        self.send_packed(b"".join(map(pack, commands)), len(commands), until)

    def send_packed(self, data: bytes, count: int, until: float | None = None) -> None:
        """Write that many commands, as `pack` gives them: whoever asks several servers packs once. See `send`."""
        self.until = monotonic() + self.timeout if until is None else until
        try:
            if self._socket is None:
                self._open()
            self.owed += count
            if data:
                self._write(data)
        except BaseException as error:
            self._fail(error)
            raise

    def receive(self, *, ready: bool = False) -> Any:
        """Read one reply of what was sent. `ready`: select has said that there is something to read.

        Raises: ReplyError if the server refused that command, and the connection goes on; StoreUnavailable; StoreError
        if it refused the login.
        """
        try:
            if ready and self._plain and not self._reader.has_data():
                self._take()
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
            self._write(pack(command))
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
            self.until = monotonic() + seconds
            return self._read()
        except TimeoutError:
            return None  # what has come of a message stays with the parser
        except BaseException as error:
            self._fail(error)
            raise

    def alive(self) -> bool:
        """Return whether it is open, as far as this side knows. Nothing may be owed."""
        return self._socket is not None and not self._poll.poll(0)  # only an end could be there

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
        greeting = self._greeting()  # before it connects: a server does not wait long for a login
        if self.endpoint.path:
            self._connect(socket.AF_UNIX, self.endpoint.path)
        else:
            addresses = _look_up(self.endpoint.host, self.endpoint.port, self._left())
            for left, (family, _, _, _, address) in enumerate(addresses, 1 - len(addresses)):
                try:
                    self._connect(family, address)
                    break
                except OSError:
                    self.close()
                    if not left:
                        raise
        self._greets = len(greeting)
        if greeting:
            self._write(b"".join(map(pack, greeting)))

    def _greeting(self) -> list[Command]:
        """Return what logs in; a password that changes is asked for.

        Raises: StoreUnavailable; StoreError.
        """
        source = self.access.source
        if source is None:
            return self.access.greeting
        answers: SimpleQueue[Answer] = SimpleQueue()
        source.request(answers.put)
        try:
            return self.access.greet(read_login(answers.get(timeout=self._left())))
        except Empty:
            raise no_login(self.timeout) from None
        finally:
            source.forget(answers.put)

    def _connect(self, family: int, address: Any) -> None:
        context = self.access.context()  # first: a file that is missing is told also where nobody listens
        sock = self._socket = socket.socket(family, socket.SOCK_STREAM)
        _opened.add(self)  # now: a fork may come while it connects
        sock.settimeout(self._left())
        sock.connect(address)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        self._plain = context is None
        if context is not None:
            sock.settimeout(self._left())
            sock = self._socket = context.wrap_socket(sock, server_hostname=self.endpoint.host)
        else:
            sock.setblocking(False)
        self._poll = poll()
        self._poll.register(sock.fileno(), POLLIN)

    def _write(self, data: bytes) -> None:
        sock = self._socket
        if not self._plain:
            sock.settimeout(self._left())
            sock.sendall(data)
            return
        while True:
            try:
                sent = sock.send(data)
                if sent == len(data):
                    return
                data = data[sent:]
            except BlockingIOError:
                writable = poll()
                writable.register(sock.fileno(), POLLOUT)
                if not writable.poll(self._left() * 1000):
                    raise TimeoutError from None

    def _read(self) -> Any:
        reader = self._reader
        while True:
            while (reply := reader.gets()) is False:
                reader.feed(self._receive())
            if not self._greets:
                return reply
            self._greets -= 1
            if isinstance(reply, ReplyError):
                raise self.access.explain(reply, self.endpoint)

    def _take(self) -> None:
        """Take what is there, without asking the kernel first whether there is something."""
        try:
            self._reader.feed(self._socket.recv(_CHUNK) or self._ended())
        except BlockingIOError:  # the kernel was wrong about that
            pass

    def _receive(self) -> bytes:
        """Return what comes next.

        Raises: TimeoutError if nothing has come by the deadline.
        """
        sock = self._socket
        left = max(0.0, self.until - monotonic())  # nothing, after a pause: but what has come meanwhile is taken
        if not self._plain:
            sock.settimeout(left or 0.001)
            return sock.recv(_CHUNK) or self._ended()
        while self._poll.poll(left * 1000):  # which rounds up
            try:
                return sock.recv(_CHUNK) or self._ended()
            except BlockingIOError:  # the kernel may be wrong about that
                left = self._left()
        raise TimeoutError

    def _left(self) -> float:
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _ended(self) -> bytes:
        raise ConnectionResetError("the server closed it")

    def _fail(self, error: BaseException) -> None:
        """Close the connection.

        Raises: what an error of the network means.
        """
        self.close()
        if isinstance(error, TimeoutError):
            raise silent(self.endpoint, self.timeout) from error
        if isinstance(error, OSError):
            raise unreachable(self.endpoint, error) from error


_opened: WeakSet[Connection] = WeakSet()


def _close_inherited() -> None:
    """Close a forked child's copies. While one is open the server takes the parent for alive, even after it has died,
    and would hand a resource over to it.
    """
    for connection in list(_opened):
        connection.close()


at_fork(Turn.CONNECTIONS, in_child=_close_inherited)


def _look_up(host: str, port: int, seconds: float) -> list[Any]:
    """Return where a host is. The system knows no limit for that, so a name is looked up by a thread of its own, which
    is left behind if it takes too long.

    Raises: OSError.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    found: SimpleQueue[list[Any] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            found.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as error:
            found.put(error)

    try:
        threading.Thread(target=ask, name="holdfast-look-up", daemon=True).start()
    except RuntimeError:  # the interpreter is about to end
        ask()
    try:
        answer = found.get(timeout=seconds)
    except Empty:
        raise ConnectionError(f"the name {host!r} was not looked up within {seconds:.3g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


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
