"""The subscription of a client in the blocking flavour: whoever waits is told here that it can go."""

from __future__ import annotations

import threading

from ...._clock import Clock
from ....errors import StoreUnavailable
from ....keeper.signals import Latch
from ..wire import Access, Endpoint
from .transport import Connection

_CLOSE_SECONDS = 0.1  # for whoever reads to notice that the connection was cut


class _Wakeup:
    """What wakes one waiter."""

    __slots__ = ("fired", "number", "said", "sleeper")

    def __init__(self, number: int) -> None:
        self.number = number  # of the subscription that listened when its claim was sent
        self.fired = False
        self.said = b""  # what came with the notice
        self.sleeper: Latch | None = None


class Subscriber:
    """The one connection of a client that is told who can go now.

    There is no thread behind it. One of those that wait reads for all. The others sleep until it wakes them, or until
    it leaves and one of them takes over.
    """

    def __init__(self, channel: str, clock: Clock, timeout: float) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout = timeout
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._reading = threading.Lock()  # held by the one that reads
        self._reader: _Wakeup | None = None  # whose that is
        self._wakeups: dict[str, _Wakeup] = {}
        self._numbers = 0
        self.number = 0  # of the subscription that listens now; 0: none does
        self._closed = False

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
        """Return True when the notice has come or the subscription has ended, False when `until` has come."""
        wakeup = self._wakeups.get(name)
        if wakeup is None:
            return True
        # Not threading.Event: Ctrl-C in the middle of its set(), in another thread, leaves this one asleep for ever.
        sleeper = wakeup.sleeper = Latch()
        try:
            while not wakeup.fired and self._clock.now() < until:
                if self._reading.acquire(blocking=False):
                    try:
                        self._read_for_all(wakeup, until)
                    finally:
                        self._reading.release()
                        if self._closed:
                            self._drop_unless_read()
                else:
                    sleeper.wait(self._clock, until)
        finally:
            wakeup.sleeper = None
            self._hand_over()
        return wakeup.fired

    def said(self, name: str) -> bytes:
        """Return what came with the notice, besides the name."""
        wakeup = self._wakeups.get(name)
        return b"" if wakeup is None else wakeup.said

    def wake(self, name: str) -> None:
        """Make one wait return. Safe in any thread."""
        if (wakeup := self._wakeups.get(name)) is None:
            return
        wakeup.fired = True
        if self._reader is wakeup:
            self.interrupt()  # it sits in the connection; whoever takes over subscribes anew
        elif (sleeper := wakeup.sleeper) is not None:
            sleeper.set()

    def interrupt(self) -> None:
        """Make every wait return, and be subscribed no more. Safe in any thread."""
        self.number = 0
        if (connection := self._connection) is not None:  # read once: a reader may drop it meanwhile
            connection.abort()
        self._wake_all()

    def close(self) -> None:
        """Close the connection. A reader that a signal handler has stopped does that itself, when it goes on."""
        self._closed = True  # before the look
        self.interrupt()
        self._drop_unless_read(_CLOSE_SECONDS)

    def _drop_unless_read(self, seconds: float = 0.0) -> None:
        if self._reading.acquire(timeout=seconds):
            try:
                self._drop()
            finally:
                self._reading.release()

    def _read_for_all(self, wakeup: _Wakeup, until: float) -> None:
        self._reader = wakeup  # before the look: either it is seen that it was woken, or the connection is cut
        while not wakeup.fired and (left := until - self._clock.now()) > 0:
            if self._connection is None:
                return self._wake_all()
            try:
                message = self._connection.listen(self._clock.patience(left))
            except StoreUnavailable:
                return self._drop()
            except BaseException:  # interrupted in the middle of a message
                self._drop()
                raise
            if message is not None:
                name, _, said = message[2].partition(b" ")
                if (told := self._wakeups.get(name.decode())) is not None:
                    told.said = said
                    if told is wakeup:
                        wakeup.fired = True  # its own: nobody sleeps there
                    else:
                        _wake(told)

    def _hand_over(self) -> None:
        """See to it that somebody reads."""
        if not self._reading.locked():
            for wakeup in list(self._wakeups.values()):
                if (sleeper := wakeup.sleeper) is not None:
                    return sleeper.set()

    def _drop(self) -> None:
        """End the subscription: whoever waits has to ask again, for it may have missed its notice."""
        self.number = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._wake_all()

    def _wake_all(self) -> None:
        for wakeup in list(self._wakeups.values()):
            _wake(wakeup)


def _wake(wakeup: _Wakeup) -> None:
    wakeup.fired = True
    if (sleeper := wakeup.sleeper) is not None:
        sleeper.set()
