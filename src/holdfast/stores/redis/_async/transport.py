"""Connections to Redis in the asyncio flavour: a protocol and hiredis' parser, every exchange bounded by a deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, cast

from ....errors import StoreError
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


class Connection(asyncio.Protocol):
    """One connection to one server, for any number of tasks. Made without I/O; it opens itself.

    Commands go out one behind the other, and replies come in that order. So a caller that is cancelled harms nobody:
    its reply is dropped when it comes. Whoever gets no answer by its deadline (`until` on time.monotonic()) ends the
    connection for all, and it is dead for good.
    """

    def __init__(
        self, endpoint: Endpoint, access: Access, timeout: float, heard: Callable[[Any], None] | None = None
    ) -> None:
        self.endpoint = endpoint
        self.access = access
        self.timeout = timeout
        self._heard = heard  # takes the messages of a subscription; None is its end
        self._reader = new_reader()
        self._transport: asyncio.Transport | None = None
        self._opening = asyncio.Lock()
        self._dead: StoreError | None = None
        self._owed: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unread: deque[asyncio.Future[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._greeting: list[Command] = []
        self._greet_until = 0.0
        self._greets = 0  # replies to the greeting that come before all others
        self._closed: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        """Return whether it is open."""
        return self._transport is not None and self._dead is None

    async def send(self, *commands: Command, until: float | None = None) -> None:
        """Write commands, and open the connection if needed. `receive` gives the replies.

        Raises: StoreUnavailable; StoreError if the certificates cannot be used.
        """
        until = monotonic() + self.timeout if until is None else until
        await self.open(until)
        self._unread.extend(self._write(commands, until))

    async def receive(self) -> Any:
        """Return the next reply of what was sent by `send`.

        Raises: ReplyError if the server refused that command, and the connection goes on; StoreUnavailable; StoreError
        if it refused the login.
        """
        return await self._unread.popleft()

    async def call(self, *command: str | bytes | int | float, until: float | None = None) -> Any:
        """Send one command and return its reply; tasks may do so at the same time."""
        return await self.ask(command, monotonic() + self.timeout if until is None else until)

    async def ask(self, command: Command, until: float) -> Any:
        """Do what `call` does: every acquire comes through here."""
        transport = self._transport
        if transport is None or self._dead is not None:
            await self.open(until)
            transport = self._transport
            assert transport is not None
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._owed.append((future, until))
        transport.write(pack(command))
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, until - monotonic()), self._check_deadlines)
        return await future

    async def calls(self, commands: Iterable[Command], until: float) -> list[Any]:
        """Send commands at once and return their replies; a refusal is a ReplyError among them."""
        await self.open(until)
        replies: list[Any] = []
        for future in self._write(list(commands), until):
            try:
                replies.append(await future)
            except ReplyError as error:
                replies.append(error)
        return replies

    async def open(self, until: float) -> None:
        """Connect, unless that is done. The login need not be confirmed yet: if it is refused, what comes next fails.

        Raises: StoreUnavailable; StoreError if the certificates cannot be used.
        """
        # Of several tasks one connects. If it is cancelled the next one does, each until its own deadline.
        async with self._opening:
            if self._dead is not None:
                raise _copy(self._dead)
            if self._transport is None:
                await self._open(until)

    def abort(self) -> None:
        """Make it useless at once."""
        self._fail(unreachable(self.endpoint, ConnectionAbortedError("it was closed here")))

    async def close(self) -> None:
        """Close it, and wait until the socket is gone."""
        self.abort()
        if self._closed is not None:
            # Bounded: uvloop may never say that a connection is gone that was cancelled while it was made.
            await asyncio.wait((self._closed,), timeout=self.timeout)

    async def _open(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        context, host = self.access.context(), self.endpoint.host
        self._greeting, self._greet_until = await self._ask_greeting(until), until
        if self._dead is not None:  # closed while it waited for its password
            raise _copy(self._dead)
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                if self.endpoint.path:
                    transport, _ = await loop.create_unix_connection(
                        lambda: self, self.endpoint.path, ssl=context, server_hostname=host if context else None
                    )
                else:
                    transport, _ = await loop.create_connection(lambda: self, host, self.endpoint.port, ssl=context)
        except TimeoutError as error:
            raise silent(self.endpoint, self.timeout) from error
        except OSError as error:
            raise unreachable(self.endpoint, error) from error
        except BaseException:
            if self._transport is not None:  # cancelled just when it was there
                self.abort()
            raise
        if self._dead is not None:  # closed while it connected
            raise _copy(self._dead)
        if not self.endpoint.path:
            keep_alive(transport.get_extra_info("socket"))

    async def _ask_greeting(self, until: float) -> list[Command]:
        """Return what logs in; a password that changes is asked for, and the loop goes on meanwhile.

        Raises: StoreUnavailable; StoreError.
        """
        source = self.access.source
        if source is None:
            return self.access.greeting
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def tell(answer: Answer) -> None:
            try:
                loop.call_soon_threadsafe(_settle, future, answer)
            except RuntimeError:  # the loop was closed meanwhile
                pass

        source.request(tell)
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                answer = await future
        except TimeoutError:
            raise no_login(self.timeout) from None
        finally:
            source.forget(tell)
        return self.access.greet(read_login(answer))

    def _write(self, commands: Iterable[Command], until: float) -> list[asyncio.Future[Any]]:
        if self._dead is not None:
            raise _copy(self._dead)
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        futures = []
        for command in commands:
            future: asyncio.Future[Any] = loop.create_future()
            futures.append(future)
            self._owed.append((future, until))
            self._transport.write(pack(command))
        if self._timer is None and futures:
            self._timer = loop.call_later(max(0.0, until - monotonic()), self._check_deadlines)
        return futures

    def _check_deadlines(self) -> None:
        """Fail if the oldest command was not answered in time. One timer serves all, and most never move it."""
        self._timer = None
        if self._owed:
            left = self._owed[0][1] - monotonic()
            if left <= 0:
                self._fail(silent(self.endpoint, self.timeout))
            else:
                self._timer = asyncio.get_running_loop().call_later(left, self._check_deadlines)

    def _fail(self, error: StoreError) -> None:
        if self._dead is None:
            self._dead = error
            if self._transport is not None:
                self._transport.abort()
            if self._timer is not None:
                self._timer.cancel()
            while self._owed:
                future, _ = self._owed.popleft()
                if not future.done():
                    future.set_exception(_copy(error))
                    future.exception()  # seen: nobody may be left to await it
            if self._heard is not None:
                self._heard(None)

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport, and log in: at once, for from now on any task may write."""
        transport = cast(asyncio.Transport, transport)  # that of uvloop is none by its class
        if self._dead is not None:  # closed while it connected: nobody else would close this
            transport.abort()
            return
        self._transport = transport
        self._closed = asyncio.get_running_loop().create_future()
        self._greets = len(self._write(self._greeting, self._greet_until))

    def data_received(self, data: bytes) -> None:
        """Give replies to those who asked, in order, and messages to the subscriber."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._heard is not None and isinstance(reply, list) and reply[0] == b"message":
                self._heard(reply)
                continue
            if not self._owed:
                return self._fail(unreachable(self.endpoint, ConnectionError("a reply that nobody asked for")))
            future, _ = self._owed.popleft()
            if self._greets:
                self._greets -= 1
                if isinstance(
                    reply, ReplyError
                ):  # at once: what comes next is refused for want of a login, and says so
                    return self._fail(self.access.explain(reply, self.endpoint))
            if future.done():
                continue  # its caller was cancelled
            if isinstance(reply, ReplyError):
                future.set_exception(reply)
                future.exception()
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way: whether it was executed is unknown."""
        self._fail(unreachable(self.endpoint, exc or ConnectionResetError("the server closed it")))
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _copy(error: StoreError) -> StoreError:
    """Return a copy for each caller: a traceback grows wherever an error is raised."""
    return type(error)(str(error))


class Node:
    """One server, for any number of tasks: one connection, replaced when it is dead."""

    def __init__(self, endpoint: Endpoint, access: Access, timeout: float) -> None:
        self.endpoint = endpoint
        self._access = access
        self._timeout = timeout
        self._connection = Connection(endpoint, access, timeout)
        self.doubtful = False  # a connection has ended: it may have started again, as another one

    async def call(self, command: Command, until: float) -> Any:
        """Send one command and return its reply.

        Raises: ReplyError; StoreUnavailable; StoreError.
        """
        connection = self._connection
        if connection._dead is not None:
            connection = self._live()
        return await connection.ask(command, until)

    async def calls(self, commands: Iterable[Command], until: float) -> list[Any]:
        """Send commands at once and return their replies; a refusal is a ReplyError among them."""
        return await self._live().calls(commands, until)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    def _live(self) -> Connection:
        if self._connection._dead is not None:
            self.doubtful = True
            self._connection = Connection(self.endpoint, self._access, self._timeout)
        return self._connection
