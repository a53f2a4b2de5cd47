"""Exchanges with an ensemble: each ends with answers, or with an error, by its deadline."""

from __future__ import annotations

from collections.abc import Sequence

from ...._async import runtime
from ...._clock import Clock
from ....errors import StoreError, StoreUnavailable
from .. import wire
from ..refusals import refusal
from ..session import Call, NotConnectedError, Proof, Session
from ..shared import Shared
from ..wire import Code, Reply, Request
from .transport import Asked

_END_SECONDS = 2.0


class SessionOverError(StoreUnavailable):
    """The session has ended, and its claims with it."""


class Ensemble:
    """Asks ZooKeeper through the sessions of a client."""

    def __init__(self, shared: Shared, io_timeout: float, clock: Clock) -> None:
        self._shared = shared
        self._io_timeout = io_timeout
        self._clock = clock
        self.now = clock.now

    def until(self, limit: float | None = None) -> float:
        """Return when a verb that begins now has to be over."""
        return self.now() + (self._io_timeout if limit is None else min(limit, self._io_timeout))

    async def ask(self, session: Session, requests: Sequence[Request], until: float) -> list[Reply]:
        """Send requests together, and return their answers.

        Raises: StoreUnavailable if their fate is unknown, or nothing could be sent; StoreError.
        """
        if not requests:
            return []
        asked = Asked()
        call = Call(len(requests), asked.tell)
        while True:
            try:
                session.send(requests, call)
                break
            except NotConnectedError:
                try:
                    await self.connected(session, until)
                except SessionOverError as over:
                    raise StoreUnavailable(str(over)) from None
        return (await self.answer(session, call, asked, until)).replies

    async def prove(self, sessions: Sequence[Session], until: float) -> list[Proof | StoreError]:
        """Prove that sessions live: all are asked before the first is waited for."""
        under_way: list[tuple[Session, Proof, Asked] | StoreError] = []
        for session in sessions:
            asked = Asked()
            proof = Proof(asked.tell)
            try:
                session.prove(proof)
                under_way.append((session, proof, asked))
            except NotConnectedError as error:
                under_way.append(StoreUnavailable(str(error)))
            except StoreError as error:
                under_way.append(error)
        proofs: list[Proof | StoreError] = []
        for one in under_way:
            try:
                if isinstance(one, StoreError):
                    raise one
                session, proof, asked = one
                await self.answer(session, proof, asked, until)
                proofs.append(proof)
            except StoreError as error:
                proofs.append(error)
        return proofs

    async def answer(self, session: Session, call: Call, asked: Asked, until: float) -> Call:
        """Wait for the answers to a call.

        Raises: StoreUnavailable; StoreError.
        """
        if not await asked.wait(until - self.now()):
            session.poke()  # it may have been silent for too long
            raise StoreUnavailable(f"ZooKeeper gave no answer within {self._io_timeout:g} s")
        if call.error is not None:
            raise type(call.error)(str(call.error))
        return call

    async def connected(self, session: Session, until: float) -> None:
        """Return when a session has a connection.

        Raises: SessionOverError, which is not for users; StoreUnavailable if it has none by then; StoreError.
        """
        wakeup = runtime.Signal()
        session.on_open(wakeup)
        try:
            while not session.connected:
                if session.fault is not None:
                    raise type(session.fault)(str(session.fault))
                if session.over:
                    raise SessionOverError(session.over)
                if not await wakeup.wait(self._clock, until):
                    raise StoreUnavailable(
                        session.cause or f"ZooKeeper could not be reached within {self._io_timeout:g} s"
                    )
                wakeup.clear()
        finally:
            session.not_on_open(wakeup)

    async def any(self, until: float) -> Session:
        """Return a session that is connected, for what is no claim."""
        while True:
            session = self._shared.session()
            try:
                await self.connected(session, until)
                return session
            except SessionOverError as over:
                if self.now() >= until:
                    raise StoreUnavailable(str(over)) from None

    async def offset(self, session: Session, until: float) -> int:
        """Return what is added to a czxid to make a token. It was read before anything that was answered since."""
        while session.offset is None:
            path = self._shared.space.offset
            (reply,) = await self.ask(session, (wire.get_data(path),), until)
            if session.offset is None:
                session.read_offset(reply)
            if session.fault is not None:
                raise type(session.fault)(str(session.fault))
        return session.offset

    async def close(self, sessions: Sequence[Session], until: float) -> None:
        """Have ZooKeeper end the sessions that no claim is left in, all at once, and end their threads."""
        closing: list[tuple[Call, Asked]] = []
        for session in sessions:
            if session.load:
                continue
            asked = Asked()
            call = Call(1, asked.tell)
            try:
                session.send((wire.CLOSE,), call)
                closing.append((call, asked))
            except StoreError:
                pass  # it ends by itself
        for _, asked in closing:
            await asked.wait(until - self.now())
        for session in sessions:
            session.end("the client is closed")
        # Not longer than a thread may take to look up a name.
        give_up = self.now() + _END_SECONDS
        for session in sessions:
            while not session.activity.join(0.0) and self.now() < give_up:
                await runtime.sleep(self._clock, self.now() + 0.001)

    async def read(self, requests: Sequence[Request], until: float) -> list[Reply]:
        """Send requests that change nothing, once more if the connection is lost meanwhile."""
        while True:
            session = await self.any(until)
            try:
                return await self.ask(session, requests, until)
            except StoreUnavailable:
                if self.now() >= until or session.connected:
                    raise

    async def delete(self, session: Session, path: str, until: float) -> bool:
        """Delete a node; False if it is not there."""
        (reply,) = await self.ask(session, (wire.delete(path),), until)
        if reply.code not in (Code.OK, Code.NO_NODE):
            raise refusal(reply.code, path)
        return reply.code == Code.OK

    async def make_parents(self, session: Session, path: str, until: float) -> None:
        """Make the nodes above a path: those that stay, and containers, which go when they are empty."""
        space, acl = self._shared.space, self._shared.acl
        # With them the node that proofs write, so that the first one finds it.
        requests = [wire.create(parent, b"", acl) for parent in (*space.lasting(path), space.clock)]
        requests += [wire.create_container(parent, acl) for parent in space.passing(path)]
        replies = await self.ask(session, requests, until)
        for reply in replies:
            # One that exists may be refused all the same, to whoever has no rights on what is above it.
            last = reply is replies[-1]
            if reply.code not in (Code.OK, Code.NODE_EXISTS) and (last or reply.code != Code.NO_AUTH):
                raise refusal(reply.code, path)
