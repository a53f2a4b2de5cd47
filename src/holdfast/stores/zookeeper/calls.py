"""What is sent to ZooKeeper together, and what becomes of the answers. session.py sends it and takes them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from ...errors import StoreError, StoreUnavailable
from . import wire
from .refusals import explain
from .wire import Code, Reply, Request

if TYPE_CHECKING:
    from .session import Session
    from .watches import Wakeup


class NotConnectedError(StoreUnavailable):
    """There is no connection, and nothing was sent."""


class Call:
    """Requests that were sent together. `tell` is called once, in any thread, when all are answered or none will be."""

    __slots__ = ("error", "number", "replies", "sent", "tell", "wanted")

    def __init__(self, wanted: int, tell: Callable[[], object]) -> None:
        self.wanted = wanted
        self.tell = tell
        self.replies: list[Reply] = []
        self.error: StoreError | None = None  # why it has no answer
        self.number = 0  # of the next reply
        self.sent = inf

    def complete(self, session: Session) -> None:
        """Do what its replies ask for, in the thread of the session, before anybody is told."""


class Proof(Call):
    """What shows that the session lives: it has caught up with its leader, has these nodes, and these were broken."""

    __slots__ = ("broken", "paths")

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__(3, tell)
        self.paths: frozenset[str] = frozenset()
        self.broken: frozenset[str] = frozenset()  # names of marks

    def complete(self, session: Session) -> None:
        """See Call."""
        wrote, listed, marks = self.replies
        if listed.code == Code.UNIMPLEMENTED:
            self.error = StoreError("this ZooKeeper is older than 3.6, and cannot list the nodes of a session")
        elif wrote.code or listed.code or marks.code not in (Code.OK, Code.NO_NODE):
            code = wrote.code or listed.code or marks.code
            self.error = StoreUnavailable(f"ZooKeeper has not proved the session: {explain(code)}")
            if wrote.code == Code.NO_NODE:
                session.make_clock()
        else:
            self.paths = frozenset(wire.read_texts(listed))
            self.broken = frozenset(wire.read_texts(marks)) if not marks.code else frozenset()
            session.proved(self)


class FollowUp:
    """A wake-up that first asks what its waiter would ask: in the thread of the session, as soon as the news comes.
    That spares the waiter a way to and fro between the threads. It asks once; without a connection it only wakes.
    """

    __slots__ = ("_request", "_session", "_wakeup", "call")

    def __init__(self, session: Session, request: Request, wakeup: Wakeup) -> None:
        self._session = session
        self._request = request
        self._wakeup = wakeup
        self.call: Call | None = None

    def set(self) -> None:
        """See Wakeup."""
        if self.call is None:
            self.call = Call(1, self._wakeup.set)
            try:
                self._session.send((self._request,), self.call)
                return
            except StoreError:
                pass
        self._wakeup.set()

    @property
    def raised(self) -> bool:
        """Whether the news has come: its waiter may ask before the answer does."""
        return self.call is not None

    def answer(self) -> Reply | None:
        """Return the answer, if it has come, once."""
        call, self.call = self.call, None
        return call.replies[0] if call is not None and call.replies else None
