"""The subscription of a client in the asyncio flavour: whoever waits is told here that it can go."""

from __future__ import annotations

import asyncio
from typing import Any

from ...._async import runtime
from ...._clock import Clock
from ..wire import Access, Endpoint
from .transport import Connection


class _Wakeup:
    """What wakes one waiter."""

    __slots__ = ("number", "said", "signal")

    def __init__(self, number: int) -> None:
        self.number = number  # of the subscription that listened when its claim was sent
        self.signal = runtime.Signal()
        self.said = b""  # what came with the notice


class Subscriber:
    """The one connection of a client that is told who can go now. The event loop reads it; nobody waits there."""

    def __init__(self, channel: str, clock: Clock, timeout: float) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout = timeout
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._wakeups: dict[str, _Wakeup] = {}
        self._numbers = 0
        self.number = 0  # of the subscription that listens now; 0: none does

    def expect(self, name: str) -> None:
        """Take notices for this name from now on, so that none is missed."""
        if self.number:
            self._wakeups[name] = _Wakeup(self.number)

    def forget(self, name: str) -> None:
        """Take no more notices for this name."""
        self._wakeups.pop(name, None)

    def heard_all(self, name: str, endpoint: Endpoint) -> bool:
        """Return whether this subscription has listened, and there, ever since the name was expected."""
        wakeup, connection = self._wakeups.get(name), self._connection
        return (
            wakeup is not None and wakeup.number == self.number and connection is not None
            and connection.endpoint == endpoint
        )  # fmt: skip

    async def open(self, endpoint: Endpoint, access: Access, until: float) -> None:
        """Subscribe, unless that is done at this server.

        Raises: ReplyError; StoreUnavailable; StoreError.
        """
        async with self._opening:
            if self.number and self._connection is not None and self._connection.endpoint == endpoint:
                return
            await self.close()
            self._numbers += 1
            number = self._numbers
            self._connection = Connection(endpoint, access, self._timeout, lambda message: self._heard(message, number))
            await self._connection.call("SUBSCRIBE", self._channel, until=until)
            self.number = number

    async def wait(self, name: str, until: float) -> bool:
        """Return True when the notice has come or the subscription has ended, False when `until` has come."""
        wakeup = self._wakeups.get(name)
        return wakeup is None or await wakeup.signal.wait(self._clock, until)

    def said(self, name: str) -> bytes:
        """Return what came with the notice, besides the name."""
        wakeup = self._wakeups.get(name)
        return b"" if wakeup is None else wakeup.said

    def wake(self, name: str) -> None:
        """Make one wait return. Safe in any thread."""
        if (wakeup := self._wakeups.get(name)) is not None:
            wakeup.signal.set()

    def interrupt(self) -> None:
        """Make every wait return, and be subscribed no more. Safe in any thread."""
        self.number = 0
        for wakeup in list(self._wakeups.values()):
            wakeup.signal.set()

    async def close(self) -> None:
        """Close the connection."""
        self.interrupt()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _heard(self, message: Any, number: int) -> None:
        if message is not None:
            name, _, said = message[2].partition(b" ")
            wakeup = self._wakeups.get(name.decode())
            if wakeup is not None:
                wakeup.said = said
                wakeup.signal.set()
        elif self.number == number:
            self.interrupt()  # it broke: whoever waits has to ask again, for it may have missed its notice
