"""A session of ZooKeeper: one connection at a time, and one thread that reads it, for both flavours.

*Who does what.* Callers write their requests to the socket themselves, all requests of a call in one send, and wait for
the last reply. The thread reads, tells callers and waiters, reconnects, and proves that the session lives. Callers only
ever wait for the thread, never for each other: a send does not block, and what the socket does not take is left to the
thread.

*What can strike a sender.* Ctrl-C, or a signal handler that calls us, between noting a call and sending it, or between
sending half of it and noting the rest: the stream is then no longer in order. `_sending` is up meanwhile. Whoever finds
it up, having the mutex, knows that somebody was interrupted, and gives up the connection. The mutex can be taken again
by its own thread: a handler must not wait for what it has interrupted.

*No queue across connections.* What was sent and not answered when a connection ends is of unknown fate, and its caller
is told so. Nothing is ever sent again by this file. Who finds the session without a connection waits for one, and then
sends itself.

*Proof.* A write, and in the same send the list of our nodes and of marks on them. proof.py says what that proves. While
the session is open it sends one every third of its timeout, also if nobody holds anything: else a claim would find
nothing to count on. It closes itself after two timeouts in which nobody needed it.

*Turns.* A server answers in order, and so a proof stands behind everything that was sent before it. With a few hundred
calls under way the next caller waits for its turn, and sends nothing meanwhile: else a burst of thousands keeps the
proofs from being answered in time, and calls that were given up stand before those that take their place. Proofs, and
what the thread deletes, do not wait.

*A shorter timeout.* A server that goes on with the session may give it less time than before. What leases were told
cannot be taken back. So the session is doomed: it takes no more claims, its leases are told that they are lost, and it
lives on, renewed by its proofs, until the last of them has ended.
"""

from __future__ import annotations

import os
from _thread import RLock
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from select import POLLIN, POLLOUT, poll
from typing import Any, Protocol

from ..._clock import Clock
from ..._fork import Turn, at_fork
from ..._living import Living
from ...core.timing import backoff
from ...errors import StoreError, StoreUnavailable
from ...keeper.threads import Activity
from ...observe.log import logger
from . import wire
from .calls import Call, FollowUp, NotConnectedError, Proof
from .link import Blocked, Link
from .proof import THIRD, Proofs
from .refusals import explain
from .watches import Wakeup, Watches
from .wire import Code, Kind, Reply, Request

_CHUNK = 1 << 15  # bytes; much more would be mapped and unmapped by the system for every reply
_MOST_BYTES = 1 << 26  # of a reply: what is longer is no reply
_NUMBERS = (1 << 31) - 1
IDLE = 2  # timeouts
_QUIET = 1.0  # seconds without a word of the server
_STEADY = 1.0  # seconds after which a connection is none that was refused
_MOST_UNDER_WAY = 256  # calls; with more, callers wait for their turn
_TRIES = 3  # io_timeouts for which a session that nobody has seen yet is tried for


class _Offset(Call):
    """Reads what is added to every token; the data's format with it."""

    __slots__ = ()

    def complete(self, session: Session) -> None:
        """See Call."""
        session.read_offset(self.replies[-1])


class Owner(Protocol):
    """Whose session it is. Called in the session's thread."""

    def offset_of(self, reply: Reply) -> int:
        """Return the offset of all tokens.

        Raises: StoreError.
        """
        ...

    def tidy(self, session: Session, proof: Proof | None, now: float) -> tuple[Sequence[Request], float]:
        """Return what is to be deleted, and when to ask for that again at the latest."""
        ...

    def retire(self, session: Session, now: float) -> bool:
        """Forget a session if nobody needs it."""
        ...


class Session:
    """One session. Made without I/O; `start` opens it."""

    def __init__(
        self, link: Link, asked_ms: int, io_timeout: float, clock: Clock, owner: Owner, root: str, acl: bytes
    ) -> None:
        self._link = link
        self._io_timeout = io_timeout
        self._now = clock.now
        self._owner = owner
        self._root = root
        self._acl = acl
        self.asked_ms = asked_ms  # the timeout that is asked for
        self._proofs = Proofs()
        self.id = 0
        self.used = clock.now()  # when somebody last needed it
        self.load = 0  # bytes of the paths of its nodes
        self.over = ""  # why it is
        self.doomed = ""  # why it takes no more claims
        self.cause = ""  # why there is no connection
        self.fault: StoreError | None = None  # why nothing may be asked
        self.offset: int | None = None  # added to every token; None while it has to be read again
        self.connections = 0  # how many there were
        self._password = bytes(16)
        self._zxid = 0
        self._number = 0
        self._at = link.first()
        self._mutex = RLock()
        self._socket: Any = None
        self._sending = False
        self._unsent = bytearray()
        self._pending: deque[Call] = deque()
        self._heard = -inf
        self._nudged = -inf
        self._prove_at = inf
        self._tidy_at = inf
        self.watches = Watches()
        self._openers: set[Wakeup] = set()
        self._turns: dict[Wakeup, None] = {}  # who waits for a turn, in order
        self._stop, self._poke = os.pipe()
        os.set_blocking(self._stop, False)
        os.set_blocking(self._poke, False)
        self._files = True
        self._pid = os.getpid()
        self.activity = Activity(self._run, "holdfast-zookeeper")
        _living.add(self)

    # -- for callers, in any thread

    @property
    def timeout(self) -> float:
        """As negotiated; 0 before."""
        return self._proofs.timeout

    @property
    def deadline(self) -> float:
        """Until then it lives for certain, if a margin is taken off."""
        return self._proofs.deadline

    @property
    def ripe_at(self) -> float:
        """When a proof can be sent that proves more than the last one."""
        return self._proofs.ripe_at

    @property
    def connected(self) -> bool:
        """Whether requests can be sent."""
        return self._socket is not None

    def start(self) -> None:
        """Run its thread, unless it runs."""
        self.activity.start()

    def send(self, requests: Sequence[Request], call: Call) -> None:
        """Send requests; `call` is told of the answers.

        Raises: NotConnectedError if nothing was sent; StoreError if nothing may be.
        """
        if self.fault is not None:
            raise type(self.fault)(str(self.fault))
        self._send(requests, call)
        if self._unsent:
            self.poke()

    def _send(self, requests: Sequence[Request], call: Call) -> None:
        with self._mutex:
            if self._socket is not None and self._sending:
                self._give_up("a call was interrupted while it was sent")
            opened = self._socket  # a signal handler that calls us from here on may close it
            if opened is None:
                raise NotConnectedError(self.over or self.cause or "ZooKeeper is not connected")
            number = self._number + 1
            if number + len(requests) > _NUMBERS:
                number = 1
            self._sending = True
            self._number = number + len(requests) - 1
            call.number = number
            data = b"".join([wire.frame(number + at, request) for at, request in enumerate(requests)])
            self.used = call.sent = self._now()  # before it is sent
            self._pending.append(call)
            if self._unsent:
                self._unsent += data
            else:
                try:
                    sent = opened.send(data)
                    if sent < len(data):
                        self._unsent += data[sent:]
                except Blocked:
                    self._unsent += data
                except OSError as error:
                    self._sending = False
                    self._give_up(str(error.strerror or error))
                    return
            self._sending = False

    def follow_up(self, request: Request, wakeup: Wakeup) -> FollowUp:
        """Return what wakes somebody with the answer to a request, which is sent when it would be woken."""
        return FollowUp(self, request, wakeup)

    def prove(self, proof: Proof) -> None:
        """Send a proof; see `send`."""
        self.send(
            (wire.set_data(self.clock, b""), wire.get_ephemerals(self._root), wire.get_children(self.marks)),
            proof,
        )
        self._prove_at = proof.sent + self.timeout * THIRD

    @property
    def clock(self) -> str:
        """The node that is written to prove something, or to learn the time."""
        return f"{self._root}/clock"

    def make_clock(self) -> None:
        """Make that node, for the next proof. Nobody waits for the answer; whoever needs more rights will be told."""
        parts = self.clock.split("/")[1:]
        paths = ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
        with suppress(StoreError):
            self._send([wire.create(path, b"", self._acl) for path in paths], Call(len(paths), _nobody))
        self._prove_at = self._now() + self.timeout * THIRD / 4  # not at once: it may not be allowed to

    @property
    def marks(self) -> str:
        """Where those who break its claims leave their marks."""
        return f"{self._root}/broken/{self.id:x}"

    @property
    def full(self) -> bool:
        """Whether so much is under way that callers have to wait for their turn."""
        return len(self._pending) >= _MOST_UNDER_WAY

    def on_turn(self, wakeup: Wakeup) -> None:
        """Wake somebody when it is its turn, or when there is no connection any more."""
        self.used = self._now()
        self._turns[wakeup] = None
        if not self.full:
            wakeup.set()

    def not_on_turn(self, wakeup: Wakeup) -> None:
        """Wake it no more. If it was woken, and does not take its turn, the next one does."""
        if self._turns.pop(wakeup, 0) == 0:
            self._next_turns()

    def _next_turns(self) -> None:
        """Wake as many as can go. Not one for one: who was woken may have gone."""
        for _ in range(min(len(self._turns), _MOST_UNDER_WAY - len(self._pending))):
            try:
                wakeup = next(iter(self._turns))
                del self._turns[wakeup]
            except (StopIteration, KeyError, RuntimeError):  # another thread was faster
                return
            wakeup.set()

    def nudge(self) -> None:
        """Send something, if nothing was heard for a while. A server may forget to send what it has, until it gets the
        next request: 3.8.0 does, now and then (ZOOKEEPER-4537).
        """
        now = self._now()
        if now > max(self._heard, self._nudged) + _QUIET:
            self._nudged = now
            with self._mutex:
                if self._socket is not None and not self._sending:
                    self._unsent += wire.PING_FRAME
            self.poke()

    def on_open(self, wakeup: Wakeup) -> None:
        """Wake somebody when there is a connection, or when it is over."""
        self.used = self._now()
        self._openers.add(wakeup)
        if self.connected or self.over:
            wakeup.set()

    def not_on_open(self, wakeup: Wakeup) -> None:
        """Wake it no more."""
        self._openers.discard(wakeup)

    def poke(self) -> None:
        """Have the thread look around. Safe in a signal handler."""
        with self._mutex:
            if self._files:  # else its number may be another's by now
                with suppress(OSError):  # full: it will look around
                    os.write(self._poke, b"\0")

    def reconnect(self, cause: str) -> None:
        """Drop the connection, for another."""
        with self._mutex:
            if self._socket is not None:
                self._give_up(cause)

    def look_again(self, at: float) -> None:
        """Have what has lapsed by then deleted."""
        self._tidy_at = min(self._tidy_at, at)

    def end(self, cause: str) -> None:
        """End it here; ZooKeeper ends it when its timeout has passed, unless it was told."""
        if self._pid == os.getpid():
            self.over = self.over or cause
            self.poke()

    def forsake(self) -> None:
        """Let go of what belongs to the parent, in a forked child: nothing is sent."""
        self.over = "it belongs to the process before the fork"
        self._mutex, self.watches = RLock(), Watches()  # the old ones may be held by a thread that is not here
        opened, self._socket = self._socket, None
        if opened is not None:
            with suppress(OSError):
                opened.close()
        self._close_files()

    # -- in its thread

    def proved(self, proof: Proof) -> None:
        """Count on a proof that was answered."""
        self._proofs.wrote(proof.sent, self._now())
        self._tidy(proof)

    def read_offset(self, reply: Reply) -> None:
        """Take over the offset."""
        try:
            self.offset = self._owner.offset_of(reply)
            self.fault = None
        except StoreError as error:
            self.fault = error

    def _run(self) -> None:
        try:
            tries = 0
            while not self.over:
                since = self._now()
                try:
                    if self._connect():
                        self._serve()
                        self._at = (self._at + 1) % len(self._link.hosts)  # the one that has failed comes last
                        if self._now() > since + _STEADY:
                            tries = -1
                except Exception:  # a bug must not end it: every lease of the session hangs on it
                    logger.exception("a session of ZooKeeper failed; it goes on with another connection")
                    self.reconnect("it has failed")
                tries += 1
                if tries and not self.over:  # one that has lasted is replaced at once
                    self._rest(backoff(tries - 1, 0.05))
        finally:
            self.over = self.over or "its thread has ended"
            with self._mutex:
                self._give_up(self.over)
            self._close_files()

    def _connect(self) -> bool:
        """Try every server once; True if one has taken us."""
        cause = ""
        for _ in self._link.hosts:
            if self.over or self._too_late():
                return False
            at = self._at
            limit = min(self._io_timeout, self.timeout) if self.id else self._io_timeout
            hello = wire.connect(self._zxid, self.asked_ms, self.id, self._password)
            asked = self._now()
            self._drain()
            try:
                opened, answer = self._link.open(at, hello, limit, self._stop)
            except StoreUnavailable as error:
                cause = str(error)
            except StoreError as error:
                self.fault, self.cause = error, str(error)
                self._tell_openers()
                return False
            else:
                if not self._is_ours(answer):
                    opened.close()
                    self.cause = f"ZooKeeper at {self._link.name(at)}: what answers there is no ZooKeeper"
                    self._at = (at + 1) % len(self._link.hosts)
                    continue
                if answer.timeout <= 0:
                    self.over = "the session has expired"
                if self._is_over():  # `end` may have been called meanwhile
                    opened.close()
                    return False
                self._welcome(opened, answer, asked)
                return True
            self._at = (at + 1) % len(self._link.hosts)
            if not self.connected:
                self.cause = cause
        return False

    def _is_ours(self, answer: wire.Connected) -> bool:
        """Return whether this answers what was asked; something that only sends back what it gets does not."""
        if not self.id:
            return answer.timeout > 0
        return answer.timeout <= 0 or answer.session == self.id

    def _is_over(self) -> bool:
        return bool(self.over)

    def _too_late(self) -> bool:
        """End a session that ZooKeeper must have ended, or that nobody waits for any more."""
        now = self._now()
        if self.id:
            if now > self.deadline + self.timeout:
                self.over = f"the session was cut off for longer than its timeout ({self.cause})"
        elif now > self.used + _TRIES * self._io_timeout:
            self.over = self.cause or "nobody answered"
        return self._is_over()

    def _welcome(self, opened: Any, answer: wire.Connected, asked: float) -> None:
        timeout = answer.timeout / 1000
        if timeout < self.timeout:
            self.doomed = f"the servers give the session {timeout:g} s, and gave it {self.timeout:g} s before"
            logger.warning("leases of ZooKeeper are given up: %s", self.doomed)
        self._proofs.connected(asked, self._now(), timeout, new=not self.id)
        self.id, self._password = answer.session, answer.password
        self._prove_at = asked + self.timeout * THIRD if self.connections == 0 else asked
        self._tidy_at = self._now()
        login = self._link.login
        hello = wire.frame(wire.AUTH, wire.auth("digest", login)) if login is not None else b""
        with self._mutex:
            self._heard = self._now()
            self._sending, self._unsent = False, bytearray(hello)
            self.offset, self.cause = None, ""
            self.connections += 1
            self._socket = opened
            self._ask_offset()
        self._tell_openers()

    def _ask_offset(self) -> None:
        path = f"{self._root}/offset"
        with suppress(StoreError):  # then there is no connection any more, and the next one asks again
            self._send((wire.exists(path, True), wire.get_data(path, True)), _Offset(2, _nobody))

    def _tell_openers(self) -> None:
        for wakeup in list(self._openers):
            wakeup.set()

    def _rest(self, seconds: float) -> None:
        """Wait a moment, unless somebody pokes."""
        polled = poll()
        polled.register(self._stop, POLLIN)
        polled.poll(int(seconds * 1000) + 1)
        self._drain()

    def _drain(self) -> None:
        with suppress(OSError):
            while os.read(self._stop, 4096):
                pass

    def _serve(self) -> None:
        """Read until the connection ends."""
        opened = self._socket
        if opened is None:  # given up already
            return
        fd = opened.fileno()
        polled = poll()
        polled.register(self._stop, POLLIN)
        polled.register(fd, POLLIN)
        wants, received = POLLIN, bytearray()
        try:
            while self._socket is opened and not self.over:
                if (need := POLLIN | POLLOUT if self._unsent else POLLIN) != wants:
                    polled.modify(fd, need)
                    wants = need
                due = self._due()
                left = due - self._now()
                ready = polled.poll(min(int(left * 1000) + 1, 1 << 30) if left > 0 else 0)
                for number, happened in ready:
                    if number != fd:
                        self._drain()
                        continue
                    if happened & POLLOUT:
                        self._flush(opened)
                    if happened & ~POLLOUT:
                        self._receive(opened, received)
                # Whoever was answered runs only when this thread waits again: nothing here that need not be.
                if self._sending or self._now() >= due:
                    self._check()
        except (OSError, wire.WireError, StoreUnavailable) as error:
            with self._mutex:
                if self._socket is opened:
                    self._give_up(f"ZooKeeper at {self._link.name(self._at)}: {error}")

    def _due(self) -> float:
        """Return when there is something to do."""
        due = min(self._prove_at, self._tidy_at, self.used + self.timeout * IDLE)
        return min(due, self._silent_at()) if self._pending else due

    def _silent_at(self) -> float:
        """Return when a server that owes answers is taken for dead."""
        try:
            asked = self._pending[0].sent
        except IndexError:  # the connection was given up just now
            return inf
        return max(self._heard, asked) + min(self._io_timeout, max(0.1, self.timeout / 2))

    def _check(self) -> None:
        """Do what is due."""
        now = self._now()
        with self._mutex:
            if self._sending:
                raise StoreUnavailable("a call was interrupted while it was sent")
        if self._pending and now >= self._silent_at():
            raise StoreUnavailable(f"no answer since {now - self._heard:.3g} s")
        if now >= self._prove_at:
            self._prove_at = now + self.timeout * THIRD
            used = self.used
            if self.fault is None:  # else nothing may count on it any more
                self.prove(Proof(_nobody))
            self.used = used
        if now >= self._tidy_at:
            self._tidy(None)
        if now >= self.used + self.timeout * IDLE:
            if self._owner.retire(self, now):
                self._send((wire.CLOSE,), Call(1, lambda: self.end("nobody needed it")))
            self.used = now

    def _tidy(self, proof: Proof | None) -> None:
        requests, self._tidy_at = self._owner.tidy(self, proof, self._now())
        if requests:
            used = self.used
            with suppress(StoreUnavailable):  # the next proof shows what is left
                self._send(requests, Call(len(requests), _nobody))
            self.used = used

    def _flush(self, opened: Any) -> None:
        with self._mutex:
            with suppress(*Blocked):
                sent = opened.send(self._unsent[:_CHUNK])
                del self._unsent[:sent]

    def _receive(self, opened: Any, received: bytearray) -> None:
        """Take what has come; the beginning of a message that has not come whole is kept in `received`."""
        try:
            if self._link.tls:
                with self._mutex:  # it must not read and write at once
                    data = opened.recv(_CHUNK)
                    if left := opened.pending():  # decrypted already, and a poll does not see it
                        data += opened.recv(left)
            else:
                data = opened.recv(_CHUNK)  # what is left makes the next poll return at once
        except Blocked:
            return
        if not data:
            raise StoreUnavailable("it closed the connection")
        self._heard = self._now()
        if received:
            received += data
            if len(received) >= 4 and len(received) < 4 + self._size(received):
                return
            data = bytes(received)
            received.clear()
        at, end = 0, len(data)
        while end - at >= 4:
            size = self._size(data, at)
            if end - at < 4 + size:
                break
            self._take(data[at + 4 : at + 4 + size])
            at += 4 + size
        received += data[at:]

    @staticmethod
    def _size(data: bytes | bytearray, at: int = 0) -> int:
        size = int.from_bytes(data[at : at + 4])
        if size > _MOST_BYTES:
            raise wire.WireError(f"a reply of {size} bytes")
        return size

    def _take(self, body: bytes) -> None:
        """Take one message of the server."""
        number, zxid, code = wire.read_head(body)
        if zxid > self._zxid:
            self._zxid = zxid
        if number == wire.EVENT:
            return self._news(wire.read_event(body))
        if number == wire.AUTH:
            if code:
                self.fault = StoreError("ZooKeeper refuses the login of this URL")
            return
        if number < 0:
            return
        call = self._pending[0] if self._pending else None
        if call is None or call.number != number:
            raise wire.WireError(f"the answer {number} is not the one that was due")
        if code in (Code.SESSION_EXPIRED, Code.SESSION_MOVED):
            raise StoreUnavailable(explain(code))
        call.number += 1
        call.replies.append(Reply(zxid, code, body))
        if len(call.replies) == call.wanted:
            self._pending.popleft()
            try:
                call.complete(self)
            finally:
                call.tell()
                if self._turns:
                    self._next_turns()

    def _news(self, event: wire.Event) -> None:
        if event.kind == Kind.SESSION:
            return
        if event.path == f"{self._root}/offset":
            self.offset = None
            self._ask_offset()
            return
        for wakeup in self.watches.happened(event):
            wakeup.set()

    def _give_up(self, cause: str) -> None:
        """Drop the connection: what was not answered is of unknown fate, and nothing is watched. Has the mutex."""
        opened, self._socket = self._socket, None
        self._sending, self._unsent = False, bytearray()
        self.cause = cause
        self.offset = None
        calls = list(self._pending)
        self._pending.clear()
        wakeups = self.watches.end()
        if opened is not None:
            with suppress(OSError):
                opened.close()
            if not self.over:
                logger.debug("the connection of a ZooKeeper session was lost: %s", cause)
        error = StoreUnavailable(cause)
        for call in calls:
            call.error = error
            call.tell()
        for wakeup in wakeups:
            wakeup.set()
        self._next_turns()
        if self.over:
            self._tell_openers()
        self.poke()

    def _close_files(self) -> None:
        with self._mutex:
            if self._files:
                self._files = False
                os.close(self._stop)
                os.close(self._poke)


def _nobody() -> None:
    """Nobody waits for this."""


_living: Living[Session] = Living()


def _after_fork() -> None:
    for session in _living:
        session.forsake()


at_fork(Turn.CONNECTIONS, in_child=_after_fork)
