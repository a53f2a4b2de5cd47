"""The stream of events from the shell to observers, and what is logged without any.

Observers and log handlers are foreign code: they may take long, or take locks of their own. So events are put into a
queue, and the keeper's teller delivers them, one after the other, in a thread where they delay nothing. An observer
that declares `inline = True` promises not to block; it is called where things happen, and so it counts exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from .._living import Living
from ..core import events
from ..core.events import Event, Observer
from .log import LOGGED, load_logging, log, log_details, logger, wants_details

MOST = 10_000  # events that wait to be told; more are counted and dropped
_EVERY = 60.0  # seconds between two words about those


def check_observers(observers: object) -> Iterable[Observer]:
    """Return the observers if they are several, as in a list.

    Raises: ValueError.
    """
    if isinstance(observers, Iterable) and not isinstance(observers, str | bytes):
        return observers
    raise ValueError(f"observers must be a list of callables, like [{getattr(observers, '__name__', observers)}]")


_everywhere: tuple[Observer, ...] = ()  # observers of the whole process
_streams: Living[Stream] = Living()


def add(observer: Observer) -> Observer:
    """Have an observer told what happens in every client and guard of this process, of today and later.

    Returns the observer, so that it can be used as a decorator.

    observer: called with each event, as those of `connect` are. Each event costs every client a call.

    Raises: ValueError if it cannot be called.
    """
    global _everywhere
    _everywhere = (*_everywhere, check_observer(observer))
    for stream in _streams:
        stream.observe()
    return observer


def remove(observer: Observer) -> None:
    """Tell an observer no more.

    observer: the one that was added; another is ignored.
    """
    global _everywhere
    _everywhere = tuple(other for other in _everywhere if other is not observer)
    for stream in _streams:
        stream.observe()


def check_observer(observer: object) -> Observer:
    """Return the observer if it can be called with an event.

    Raises: ValueError.
    """
    if not callable(observer):
        raise ValueError(f"an observer is called with each event; {observer!r} cannot be called")
    return observer


class Stream:
    """Hands events to observers. Hot paths ask `if stream.observers` before they build an event."""

    __slots__ = (
        "__weakref__", "_inline", "_own", "_queue", "_queued", "_say_missed", "_store", "_wake", "missed", "observers",
    )  # fmt: skip

    def __init__(self, observers: Iterable[Observer] = (), store: str = "") -> None:
        load_logging()
        self._own = tuple(check_observer(observer) for observer in check_observers(observers))
        if wants_details():
            self._own += (log_details,)
        self._store = store
        self.observe()
        _streams.add(self)
        self._queue: deque[Event | Callable[[], None]] = deque()
        self.missed = 0  # events that were dropped and not told of yet
        self._say_missed = -inf
        self._wake: Callable[[], bool] = lambda: False  # has somebody deliver; False if there is nobody

    def observe(self) -> None:
        """Take note of who observes: those of its client, and those of the whole process."""
        observers = (*self._own, *_everywhere)
        self._inline = tuple(observer for observer in observers if getattr(observer, "inline", False))
        self._queued = tuple(observer for observer in observers if observer not in self._inline)
        self.observers = observers  # last: whoever sees it finds the others

    def attach(self, wake: Callable[[], bool]) -> None:
        """Say who sees to it that events are delivered."""
        self._wake = wake

    def emit(self, event: Event) -> None:
        """Tell observers, and log what must not go unseen: inline ones here and now, the others soon."""
        for observer in self._inline:
            _tell(observer, event)
        if self._queued or type(event) in LOGGED:
            if len(self._queue) < MOST:
                self._put(event)
            else:
                self.missed += 1

    def call(self, function: Callable[[], None]) -> None:
        """Have foreign code called where it delays nothing. Unlike events, none of it is ever dropped."""
        self._put(function)

    def pending(self) -> bool:
        """Return whether there is something to deliver."""
        return bool(self._queue)

    def deliver(self, now: float, last: bool = False) -> None:
        """Deliver the next event; an observer's error is logged and goes no further. `last`: there are no more."""
        if self._queue:
            self._next()
        if self.missed and (now >= self._say_missed or (last and not self._queue)):
            missed, self.missed, self._say_missed = self.missed, 0, now + _EVERY
            event: type[Event] = events.EventsMissed
            nothing = {"namespace": "", "resource": "", "kind": "", "owner": "", "ttl": 0.0}
            self._deliver(event(at=now, store=self._store, count=missed, **nothing))

    def _next(self) -> None:
        try:
            item = self._queue.popleft()
        except IndexError:  # another was faster
            return
        if isinstance(item, Event):
            self._deliver(item)
        else:
            item()

    def _deliver(self, event: Event) -> None:
        try:
            log(event)
        except Exception:  # a log handler may raise, and so does a warning that is made an error
            logger.exception("%r could not be logged", event)
        for observer in self._queued:
            _tell(observer, event)

    def _put(self, item: Event | Callable[[], None]) -> None:
        self._queue.append(item)
        if not self._wake():  # the client is closed, or there are no more threads: here and now, then
            self.deliver(-inf)


def _tell(observer: Observer, event: Event) -> None:
    try:
        observer(event)
    except KeyboardInterrupt:  # the user's, of whom this may be the thread
        raise
    except BaseException:  # neither sys.exit() nor a cancelled future of an observer may end what it observes
        logger.exception("the observer %r failed on %r", observer, event)
