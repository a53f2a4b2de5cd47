"""The subscription of a client in the blocking flavour: who waits is told here that it can go."""

from __future__ import annotations

import threading

from ..._clock import Clock
from ..._redis.wire import Access, Endpoint
from ...errors import StoreUnavailable
from .transport_redis import Connection


class _Bell:
    """What wakes one waiter."""

    __slots__ = ("number", "rung", "said", "sleeper")

    def __init__(self, number: int) -> None:
        self.number = number  # of the subscription that listened when its claim was sent
        self.rung = False
        self.said = b""  # what came with the ring
        self.sleeper: threading.Event | None = None


class Subscriber:
    """The one connection of a client that is told who can go now.

    There is no thread behind it. Of those that wait one reads for all; the others sleep until it rings their bell, or
    until it leaves and one of them takes over.
    """

    def __init__(self, channel: str, clock: Clock, timeout: float) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout = timeout
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._reading = threading.Lock()  # held by the one that reads
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

    def open(self, endpoint: Endpoint, access: Access, until: float) -> None:
        """Subscribe, unless that is done at this server.

        Raises: ReplyError; StoreUnavailable; StoreError.
        """
        with self._opening:
            if self.number and self._connection is not None and self._connection.endpoint == endpoint:
                return
            self.interrupt()
            connection = Connection(endpoint, access, self._timeout)
            try:
                connection.call("SUBSCRIBE", self._channel, until=until)
            except BaseException:
                connection.close()
                raise
            with self._reading:
                self._drop()
                self._connection = connection
                self._numbers += 1
                self.number = self._numbers

    def wait(self, name: str, until: float) -> bool:
        """Return True when the bell has rung or the subscription has ended, False when `until` has come."""
        bell = self._bells.get(name)
        if bell is None:
            return True
        sleeper = bell.sleeper = threading.Event()
        try:
            while not bell.rung and (left := until - self._clock.now()) > 0:
                if self._reading.acquire(blocking=False):
                    try:
                        self._read_for_all(bell, until)
                    finally:
                        self._reading.release()
                else:
                    sleeper.wait(self._clock.patience(left))
                    sleeper.clear()
        finally:
            bell.sleeper = None
            self._hand_over()
        return bell.rung

    def said(self, name: str) -> bytes:
        """Return what came with the ring, besides the name."""
        bell = self._bells.get(name)
        return b"" if bell is None else bell.said

    def interrupt(self) -> None:
        """Make every wait return, and be subscribed no more. Safe in any thread."""
        self.number = 0
        if (connection := self._connection) is not None:  # read once: a reader may drop it meanwhile
            connection.abort()
        self._ring_all()

    def close(self) -> None:
        """Close the connection."""
        self.interrupt()
        with self._reading:
            self._drop()

    def _read_for_all(self, bell: _Bell, until: float) -> None:
        while not bell.rung and (left := until - self._clock.now()) > 0:
            if self._connection is None:
                return self._ring_all()
            try:
                message = self._connection.listen(self._clock.patience(left))
            except StoreUnavailable:
                return self._drop()
            except BaseException:  # interrupted in the middle of a message
                self._drop()
                raise
            if message is not None:
                name, _, said = message[2].partition(b" ")
                if (told := self._bells.get(name.decode())) is not None:
                    told.said = said
                    if told is bell:
                        bell.rung = True  # its own: nobody sleeps there
                    else:
                        _ring(told)

    def _hand_over(self) -> None:
        """See to it that somebody reads."""
        if not self._reading.locked():
            for bell in list(self._bells.values()):
                if (sleeper := bell.sleeper) is not None:
                    return sleeper.set()

    def _drop(self) -> None:
        """End the subscription: whoever waits has to ask again, for it may have missed its notice."""
        self.number = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._ring_all()

    def _ring_all(self) -> None:
        for bell in list(self._bells.values()):
            _ring(bell)


def _ring(bell: _Bell) -> None:
    bell.rung = True
    if (sleeper := bell.sleeper) is not None:
        sleeper.set()
