"""The watches of a client: one stream for all of them, read by one thread, in both flavours."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue

import grpc

from .leases import Wakeup
from .link import Stream
from .messages import watch_cancel, watch_create, watched
from .wire import WireError

_JOIN_SECONDS = 2.0


class Watch:
    """Something that is watched. The waiter is woken once: when it has changed, or when nobody can tell any more."""

    __slots__ = ("broken", "wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.broken = ""  # why nobody watches any more


class _Session:
    """One stream and the watches on it. The thread knows this alone, so that a forgotten client can be collected."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.requests: SimpleQueue[bytes | None] = SimpleQueue()
        self.watches: dict[int, Watch] = {}
        self.ended = False
        self.stream: Stream | None = None

    def end(self, cause: str) -> None:
        """Tell everybody that nobody watches any more."""
        if self._pid != os.getpid():
            return  # a forked child forgets its parent's client, whose stream it must not touch
        self.ended = True
        self.requests.put(None)
        if self.stream is not None:
            self.stream.cancel()
        for watch in list(self.watches.values()):
            watch.broken = cause
            watch.wakeup.set()


class Watcher:
    """Opens the stream when something is to be watched."""

    def __init__(self, open_stream: Callable[[Iterator[bytes]], Stream]) -> None:
        self._open = open_stream
        self._mutex = threading.Lock()
        self._numbers = count(1)
        self._session: _Session | None = None
        self._thread: threading.Thread | None = None
        self._forgotten: weakref.finalize[[str], Watcher] | None = None

    def add(self, key: bytes, end: bytes, start: int, wakeup: Wakeup, *, deletes_only: bool) -> tuple[int, Watch]:
        """Wake the waiter when something in the range changes at `start` or later."""
        watch, number = Watch(wakeup), next(self._numbers)
        with self._mutex:
            session = self._session
            if session is None or session.ended:
                session = self._begin()
            session.watches[number] = watch
        session.requests.put(watch_create(number, key, end, start, deletes_only=deletes_only))
        if session.ended and not watch.broken:  # it ended before it could know of this one
            watch.broken = "the watch ended"
            wakeup.set()
        return number, watch

    def remove(self, number: int) -> None:
        """Stop watching it."""
        session = self._session
        if session is not None and session.watches.pop(number, None) is not None:
            session.requests.put(watch_cancel(number))

    def reset(self, cause: str) -> None:
        """End the stream; what is watched next opens another."""
        with self._mutex:
            session, self._session = self._session, None
        if session is not None:
            session.end(cause)

    def close(self) -> None:
        """End the stream and its thread."""
        self.reset("the client is closed")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _begin(self) -> _Session:
        session = _Session()
        session.stream = self._open(iter(session.requests.get, None))
        self._thread = threading.Thread(target=_read, args=(session,), name="holdfast-etcd-watch", daemon=True)
        self._thread.start()
        if self._forgotten is not None:
            self._forgotten.detach()
        self._forgotten = weakref.finalize(self, session.end, "the client was forgotten")
        self._forgotten.atexit = False
        self._session = session
        return session


def _read(session: _Session) -> None:
    cause = "etcd ended the watch"
    assert session.stream is not None
    try:
        for data in session.stream:
            news = watched(data)
            if not (news.canceled or news.events):
                continue
            # Whatever it is, asking again settles it: also a revision that was compacted away.
            watch = session.watches.pop(news.watch, None)
            if watch is None:
                continue
            watch.wakeup.set()
            if not news.canceled:
                session.requests.put(watch_cancel(news.watch))
            elif not news.compacted:
                cause = watch.broken = news.reason or cause
                break  # the next stream has a new login token, if that was the reason
    except grpc.RpcError as error:
        cause = f"{cause}: {getattr(error, 'details', str)()}"
    except WireError as error:
        cause = f"etcd sent a watch that cannot be read: {error}"
    finally:
        session.end(cause)
