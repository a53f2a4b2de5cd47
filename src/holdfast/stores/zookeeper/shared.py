"""What a client has at a ZooKeeper ensemble; both sides of an asyncio client share it, and any thread may use it.

A claim is noted here *before* its node is made, and stays noted until its node is known to be gone. So a node of one of
our sessions whose holder is not noted belongs to nobody, and is deleted when a proof shows it: one that was made by a
create whose answer was lost, or that was not deleted because an answer was lost.

A session is shared, so it does not end with one claim. Each claim has a time until which it must be asked for or
renewed (`until`). Who has passed it is forgotten, and its node deleted: leases that were dropped or are past their
max_hold, broken ones, waiters that nobody withdrew.
"""

from __future__ import annotations

import os
from _thread import RLock
from collections.abc import Sequence
from math import ceil, inf
from typing import Any

from ..._clock import Clock
from ...core.claim import Claim, Waiting
from ...core.urls import StoreURL
from ...errors import StoreError
from . import wire
from .calls import FollowUp, Proof
from .link import Link
from .nodes import Space, escape_holder, read_offset
from .refusals import explain
from .session import Session
from .wire import Code, Reply, Request

BASE_TTL = 30.0  # of a session that is opened for what is no claim: that of most locks, which can then use it, too
MOST_BYTES = 512 * 1024  # of paths in a session: the servers cannot log the end of one with 2 MB
_NUMBER = 12  # bytes that ZooKeeper adds to a name


class LocalClaim:
    """What this client knows of a claim of its own."""

    __slots__ = (
        *("answer", "broken", "claim", "connection", "czxid", "doubtful", "follow_up", "granted", "name"),
        *("queue", "session", "size", "stem", "until", "wakeup", "watched"),
    )

    def __init__(self, claim: Claim, queue: str, kind: str, session: Session) -> None:
        self.claim = claim
        self.queue = queue  # the path of the resource
        self.stem = f"{escape_holder(claim.holder)}-{kind}-"
        self.size = len(queue) + len(self.stem) + _NUMBER
        self.session = session
        self.name = ""  # of its node; empty while it has none
        self.czxid = 0
        self.doubtful = False  # a create went unanswered
        self.granted = False
        self.broken = False
        self.until = inf  # when it lapses, unless it is asked for or renewed
        self.answer: Waiting | None = None  # the last one, while what it rests on is watched
        self.wakeup: Any = None  # raised when that may have changed
        self.follow_up: FollowUp | None = None  # what raises it, with the line as it is then
        self.watched: tuple[str, bool] | None = None  # a path, and whether its children are watched
        self.connection = 0  # by which it is

    @property
    def path(self) -> str:
        """Its node."""
        return f"{self.queue}/{self.name}"


class Shared:
    """The claims and sessions of a client."""

    def __init__(self, url: StoreURL, namespace: str, io_timeout: float, clock: Clock) -> None:
        self.link = Link(url)
        self.space = Space(url.path.rstrip("/"), namespace)
        self.acl = wire.CREATOR_ACL if self.link.login is not None else wire.OPEN_ACL
        self.claims: dict[str, LocalClaim] = {}  # by escaped holder
        self.sessions: list[Session] = []
        self.clock: tuple[float, float, float] | None = None  # ZooKeeper's, and ours before and after
        self.closed = False
        self._io_timeout = io_timeout
        self._clock = clock
        self._mutex = RLock()
        self._pid = os.getpid()

    def get(self, holder: str) -> LocalClaim | None:
        """Return what is known of a claim."""
        return self.claims.get(escape_holder(holder))

    def ask_for(self, holder: str) -> tuple[LocalClaim | None, float]:
        """Return what is known of a claim, which does not lapse from here on, and when it would have.

        In one step with `_lapsed`: else the node of a claim could be deleted while its caller finds, by what was read
        before, that it holds.
        """
        with self._mutex:
            local = self.get(holder)
            if local is None:
                return None, inf
            before, local.until = local.until, inf
            return local, before

    def _lapsed(self, local: LocalClaim, now: float) -> bool:
        """Forget a claim that was neither asked for nor renewed in time."""
        with self._mutex:
            if local.until > now:
                return False
            self.drop(local)
            return True

    def add(self, local: LocalClaim) -> None:
        """Note a claim, before anything of it is sent."""
        with self._mutex:
            local.session.load += local.size
            self.claims[escape_holder(local.claim.holder)] = local

    def drop(self, local: LocalClaim) -> None:
        """Forget a claim whose node is gone, or will be deleted as nobody's."""
        with self._mutex:
            if self.claims.pop(escape_holder(local.claim.holder), None) is local:
                local.session.load -= local.size

    def session(self, ttl: float | None = None, size: int = 0) -> Session:
        """Return the session for claims of this ttl, with room for one more node; or any, if none is given.

        Raises: StoreError if the client is closed.
        """
        with self._mutex:
            if self.closed:
                raise StoreError("the client of ZooKeeper is closed")
            self.sessions = [session for session in self.sessions if not session.over]
            wanted = _milliseconds(BASE_TTL if ttl is None else ttl)
            for session in self.sessions:
                if session.doomed:
                    continue
                if ttl is None or (session.asked_ms == wanted and session.load + size <= MOST_BYTES):
                    session.used = self._clock.now()
                    break
            else:
                session = Session(self.link, wanted, self._io_timeout, self._clock, self, self.space.root, self.acl)
                self.sessions.append(session)
        session.start()
        return session

    def close(self) -> list[Session]:
        """Take no more work, and return what is to be closed."""
        with self._mutex:
            self.closed = True
            sessions, self.sessions = self.sessions, []
            return sessions

    # -- called by the threads of sessions

    def offset_of(self, reply: Reply) -> int:
        """See Owner."""
        if reply.code == Code.NO_NODE:
            return 0
        if reply.code:
            raise StoreError(
                f"ZooKeeper does not show {self.space.offset}: {explain(reply.code)}; "
                "the login of this client needs all rights below /holdfast"
            )
        return read_offset(wire.read_data(reply)[0], self.space.offset)

    def tidy(self, session: Session, proof: Proof | None, now: float) -> tuple[Sequence[Request], float]:
        """See Owner."""
        requests: list[Request] = []
        soonest = inf
        for local in list(self.claims.values()):
            if local.session is not session:
                continue
            if not self._lapsed(local, now):
                soonest = min(soonest, local.until)
                continue
            if local.name:
                requests.append(wire.delete(local.path))
            if local.broken:
                requests.append(wire.delete(self.space.mark(session.id, local.claim.holder)))
        if proof is not None:
            for path in proof.paths:
                queue, _, name = path.rpartition("/")
                if queue.startswith(self.space.claims) and name.partition("-")[0] not in self.claims:
                    requests.append(wire.delete(path))
            # A claim that has ended before its client has seen the mark.
            marks = (f"{session.marks}/{name}" for name in proof.broken if name not in self.claims)
            requests += [wire.delete(mark) for mark in marks]
        return requests, soonest

    def retire(self, session: Session, now: float) -> bool:
        """See Owner."""
        with self._mutex:
            if session.load or any(local.session is session for local in list(self.claims.values())):
                return False
            if session in self.sessions:
                self.sessions.remove(session)
            return True

    def abandon(self) -> None:
        """End everything without waiting: the client was forgotten."""
        if os.getpid() == self._pid:  # in a forked child the mutex may be held by a thread that is not there
            for session in self.close():
                session.end("the client was forgotten")


def _milliseconds(seconds: float) -> int:
    return min(ceil(seconds * 1000), (1 << 31) - 1)
