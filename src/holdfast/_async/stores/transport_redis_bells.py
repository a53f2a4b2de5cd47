"""The subscription of a client in the asyncio flavour: who waits is told here that it can go."""

from __future__ import annotations

import asyncio
from typing import Any

from ..._clock import Clock
from ..._redis.wire import Access, Endpoint
from .. import runtime
from .transport_redis import Connection


class _Bell:
    """What wakes one waiter."""

    __slots__ = ("number", "said", "signal")

    def __init__(self, number: int) -> None:
        self.number = number  # of the subscription that listened when its claim was sent
        self.signal = runtime.Signal()
        self.said = b""  # what came with the ring


class Subscriber:
    """The one connection of a client that is told who can go now. The event loop reads it; nobody waits there."""

    def __init__(self, channel: str, clock: Clock, timeout: float) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout = timeout
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._bells: dict[str, _Bell] = {}
        self._numbers = 0
        self.number = 0  # of the subscription that listens now; 0: none does

    def expect(self, name: str) -> None:
        """Have a bell of this name from now on, so that no notice is missed."""
        if self.number:
            self._bells[name] = _Bell(self.number)

    def forget(self, name: str) -> None:
        """Take the bell away."""
        self._bells.pop(name, None)

    def heard_all(self, name: str, endpoint: Endpoint) -> bool:
        """Tell whether this subscription has listened, and there, ever since the bell was hung up."""
        bell, connection = self._bells.get(name), self._connection
        return (
            bell is not None and bell.number == self.number and connection is not None
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
        """Return True when the bell has rung or the subscription has ended, False when `until` has come."""
        bell = self._bells.get(name)
        return bell is None or await bell.signal.wait(self._clock, until)

    def said(self, name: str) -> bytes:
        """Return what came with the ring, besides the name."""
        bell = self._bells.get(name)
        return b"" if bell is None else bell.said

    def interrupt(self) -> None:
        """Make every wait return, and be subscribed no more. Safe in any thread."""
        self.number = 0
        for bell in list(self._bells.values()):
            bell.signal.set()

    async def close(self) -> None:
        """Close the connection."""
        self.interrupt()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _heard(self, message: Any, number: int) -> None:
        if message is not None:
            name, _, said = message[2].partition(b" ")
            bell = self._bells.get(name.decode())
            if bell is not None:
                bell.said = said
                bell.signal.set()
        elif self.number == number:
            self.interrupt()  # it broke: whoever waits has to ask again, for it may have missed its notice
