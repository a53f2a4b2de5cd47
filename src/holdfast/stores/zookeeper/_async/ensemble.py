"""Exchanges with an ensemble: each ends with answers, or with an error, by its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...._async import runtime
from ...._clock import Clock
from ....errors import StoreError, StoreUnavailable
from .. import wire
from ..calls import Call, NotConnectedError, Proof
from ..refusals import refusal
from ..session import Session
from ..shared import Shared
from ..wire import Code, Reply, Request
from .transport import Asked

_END_SECONDS = 2.0


class SessionOverError(StoreUnavailable):
    """The session has ended, and its claims with it."""


def hopeless(session: Session) -> bool:
    """Return whether a session has ended before it was ever connected: then the next one would, too, and at once."""
    return not session.connections


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
            await self.turn(session, until)
            try:
                session.send(requests, call)
                break
            except NotConnectedError:
                pass
        return (await self.answer(session, call, asked, until)).replies

    async def turn(self, session: Session, until: float) -> None:
        """Return when a session can take a call: it is connected, and not too much is under way.

        Raises: StoreUnavailable if that takes too long, and then nothing was sent; StoreError.
        """
        while True:
            if session.connected:
                if not session.full:
                    return
                await self._wait_for_turn(session, until)
            else:
                try:
                    await self.connected(session, until)
                except SessionOverError as over:
                    raise StoreUnavailable(str(over)) from None

    async def _wait_for_turn(self, session: Session, until: float) -> None:
        wakeup = runtime.Signal()
        session.on_turn(wakeup)
        try:
            if not await wakeup.wait(self._clock, until):
                raise StoreUnavailable(f"so much is asked of ZooKeeper that no turn came within {self._io_timeout:g} s")
        finally:
            session.not_on_turn(wakeup)

    async def prove(self, sessions: Sequence[Session], until: float) -> list[Proof | StoreError]:
        """Prove that sessions live: all that are connected are asked before anybody is waited for."""
        under_way: list[tuple[Proof, Asked] | StoreError] = []
        for session in sessions:
            asked = Asked()
            proof = Proof(asked.tell)
            try:
                session.prove(proof)
                under_way.append((proof, asked))
            except StoreError as error:
                under_way.append(error)
        return [await self._proof(session, one, until) for session, one in zip(sessions, under_way, strict=True)]

    async def _proof(self, session: Session, one: tuple[Proof, Asked] | StoreError, until: float) -> Proof | StoreError:
        try:
            if isinstance(one, NotConnectedError):
                await self.connected(session, until)
                asked = Asked()
                proof = Proof(asked.tell)
                session.prove(proof)
            elif isinstance(one, StoreError):
                return one
            else:
                proof, asked = one
            await self.answer(session, proof, asked, until)
            return proof
        except (SessionOverError, NotConnectedError) as error:
            return StoreUnavailable(str(error))
        except StoreError as error:
            return error

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
                if hopeless(session) or self.now() >= until:
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
        closing: list[Asked] = []
        for session in sessions:
            if session.load:
                continue
            asked = Asked()
            try:
                session.send((wire.CLOSE,), Call(1, partial(_closed, session, asked)))
                closing.append(asked)
            except StoreError:
                pass  # it ends by itself
        for asked in closing:
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
            connection = session.connections
            try:
                return await self.ask(session, requests, until)
            except StoreUnavailable:
                if self.now() >= until or (session.connected and session.connections == connection):
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
        lasting, passing = (*space.lasting(path), space.clock), space.passing(path)
        requests = [wire.create(parent, b"", acl) for parent in lasting]
        requests += [wire.create_container(parent, acl) for parent in passing]
        replies = await self.ask(session, requests, until)
        forbidden = ""
        for parent, reply in zip((*lasting, *passing), replies, strict=True):
            # One that exists may be refused all the same, to whoever has no rights on what is above it. What is missing
            # below one that was refused tells that this one is not there.
            if reply.code == Code.NO_AUTH:
                forbidden = forbidden or parent
            elif reply.code == Code.NO_NODE and forbidden:
                raise refusal(Code.NO_AUTH, forbidden)
            elif reply.code not in (Code.OK, Code.NODE_EXISTS):
                raise refusal(reply.code, parent)
        if replies[-1].code == Code.NO_AUTH:
            raise refusal(Code.NO_AUTH, path)


def _closed(session: Session, asked: Asked) -> None:
    session.end("the client is closed")  # at once: the server ends the connection now, and nobody needs another
    asked.tell()
