"""zookeeper://HOST,HOST,HOST/CHROOT: claims as ephemeral sequential nodes of a ZooKeeper ensemble.

session.py says how a session lives and what proves it; core/line.py who may hold. This is the order of steps around
them.

*Claim.* Read the clock. Take the session of the ttl. Note the claim, then send the create of its node and the list of
all claims on the resource in one go. The list says whether it holds. If it does not, watch what is ahead of it.

*A create whose answer was lost* may have made a node, or may make it as long as its connection is not known to be gone.
The session is the same on every connection, and requests of an older one are refused once it has moved. So: sync, list,
keep the first node of this holder, delete others. The holder is new for every acquire: nobody else has nodes of that
name.

*A grant* counts on what the session has proved, and never prolongs it. If less than a third is left the session proves
itself once more; if that does not help, it gets a new connection, which does.

*Wait.* News of what is watched comes by the connection that it was asked on, in order with the answers. With the
connection the watches are gone: everybody is woken, and asks.

*Ask again.* Nothing is sent if the connection is the same and nobody was woken: what is ahead has not changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from ...._async import runtime
from ...._clock import Clock
from ....core.claim import (
    LOST,
    MAX,
    Answer,
    Blocker,
    Claim,
    Evicted,
    Granted,
    Record,
    Renewal,
    Renewed,
    ResourceState,
    Unknown,
    Waiting,
    changed,
)
from ....core.fence import Fence
from ....core.line import may_hold, must_tell, to_watch
from ....core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ....core.queue import TOKEN_LIMIT
from ....core.urls import StoreURL
from ....errors import StoreError, StoreUnavailable, Unsupported
from ....keeper.side import Blocking, Release, Side
from .. import nodes, wire
from ..calls import Call
from ..nodes import Line, line_of, read_claim
from ..proof import THIRD
from ..refusals import refusal
from ..session import Session
from ..shared import LocalClaim, Shared
from ..wire import Code, Reply, Request
from .breaks import Breaks
from .ensemble import Ensemble, SessionOverError, hopeless
from .registers import Registers
from .views import Views

# The place of a waiter that has died is that of a node of its session, which lives as long as its ttl.
_WAITERS_STAY = frozenset({5, 6})
_CAPABILITIES = Capabilities(
    store="zookeeper",
    scope=Scope.CLUSTER,
    faults={**dict.fromkeys(Fault, KEEPS_ALL), Fault.CLIENT_CRASH: _WAITERS_STAY},
    unfair=False,  # a token is fixed when a claim comes, so nobody may overtake
    detached=False,  # a node ends with its session, and not at a time of its own
    evict=True,
    session=True,
    max_ttl=(1 << 31) / 1000,
    lag=2.0,  # a tick, by which ZooKeeper rounds up the end of a session
)
_MOST_TRIES = 8  # of a create whose parent goes at the same time


class ZooKeeperStore:
    """Claims in a ZooKeeper ensemble."""

    capabilities = _CAPABILITIES

    def __init__(
        self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock, shared: Shared | None = None
    ) -> None:
        self._shared = shared or Shared(url, namespace, io_timeout, clock)
        if shared is None:
            weakref.finalize(self, self._shared.abandon).atexit = False
        self._url = url
        self._namespace = namespace
        self._io_timeout = io_timeout
        self._clock = clock
        self._now = clock.now
        self._space = self._shared.space
        self._ensemble = Ensemble(self._shared, io_timeout, clock)
        self._registers = Registers(self._ensemble, self._shared)
        self._views = Views(self._ensemble, self._shared, self.capabilities.waiting_life)
        self._breaks = Breaks(self._ensemble, self._shared)
        self._wakeups: set[runtime.Signal] = set()

    async def ready(self) -> None:
        """See Store."""
        until = self._ensemble.until()
        session = await self._ensemble.any(until)
        (reply,) = await self._ensemble.ask(session, (wire.get_children(self._space.root),), until)
        if reply.code not in (Code.OK, Code.NO_NODE):
            raise refusal(reply.code, self._space.root)
        await self._ensemble.offset(session, until)

    # -- claiming

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store.

        Raises: Unsupported if the ensemble does not give sessions of this length.
        """
        asked = self._now()  # before asking: what is left of a lease is counted from here
        until = self._ensemble.until()
        local, before = self._shared.ask_for(claim.holder)
        if local is not None and local.session.over:
            self._shared.drop(local)
            if local.granted:
                return Granted(local.czxid, 0.0)  # it ended with its session
            local = None
        if local is None:
            local = await self._note(claim, until)
        try:
            return await self._ask(local, queue, asked, until)
        finally:
            if local.granted:
                local.until = local.session.deadline if not local.broken else before
            else:
                local.until = self._now() + self.capabilities.waiting_life
            local.session.look_again(local.until)

    async def _note(self, claim: Claim, until: float) -> LocalClaim:
        kind = nodes.kind(claim.weight, claim.capacity)
        queue = self._space.queue(claim.resource)
        while True:
            session = self._shared.session(claim.ttl, len(queue) + len(claim.holder) * 3)
            if not session.timeout:
                try:
                    await self._ensemble.connected(session, until)
                except SessionOverError as over:
                    if hopeless(session) or self._now() >= until:
                        raise StoreUnavailable(str(over)) from None
                    continue
            if session.timeout * 1000 < session.asked_ms:
                raise Unsupported(
                    f"this ZooKeeper ensemble gives sessions of {session.timeout:g} s at most, so no lease of "
                    f"ttl={claim.ttl:g}; take a shorter one, or raise maxSessionTimeout (20 ticks, unless it is set; "
                    "minSessionTimeout: 2)"
                )
            local = LocalClaim(claim, queue, kind, session)
            self._shared.add(local)
            return local

    async def _ask(self, local: LocalClaim, queue: bool, asked: float, until: float) -> Answer:
        for _ in range(_MOST_TRIES):
            if local.granted:
                return await self._granted_before(local, asked, until)
            if self._nothing_new(local, queue):
                assert local.answer is not None
                local.session.nudge()
                return local.answer
            line = await self._look(local, until)
            while line is not None:
                at = line.find(local.name) if local.name else -1
                if at < 0:
                    local.name = ""
                    break
                if may_hold(line.places, at):
                    return await self._granted(local, line, at, asked, until)
                if not queue:
                    return await self._turned_away(local, line, at, until)
                found = await self._watch_ahead(local, line, at, until)
                if isinstance(found, Waiting):
                    return found
                line = found
        raise StoreUnavailable(f"the nodes of {local.claim.resource!r} in ZooKeeper change too fast")

    def _nothing_new(self, local: LocalClaim, queue: bool) -> bool:
        """Return whether what is ahead of a waiting claim is as it was."""
        session = local.session
        return (
            queue
            and local.answer is not None
            and not local.doubtful
            and local.claim.capacity == MAX  # among permits a mark may have been lost
            and not local.wakeup.is_set()
            and not (local.follow_up is not None and local.follow_up.raised)
            and local.connection == session.connections
            and session.connected
            and session.fault is None
            and session.deadline > self._now()
        )

    async def _look(self, local: LocalClaim, until: float) -> Line | None:
        """Return the line that the claim stands in, or None to look again. Makes its node if it has none."""
        session = local.session
        if local.doubtful:
            line = await self._list(local, until)
            mine = line.of(local.stem.partition("-")[0])
            for name in mine[1:]:
                await self._ensemble.delete(session, f"{local.queue}/{name}", until)
            local.name = mine[0] if mine else ""
            if mine:
                (reply,) = await self._ensemble.ask(session, (wire.exists(local.path),), until)
                if reply.code:
                    return None
                local.czxid = wire.read_stat(reply).czxid
            local.doubtful = False
            return line if len(mine) == 1 else None
        if local.name:
            listed = local.follow_up.answer() if local.follow_up is not None else None
            if listed is None:
                (listed,) = await self._ensemble.ask(session, (wire.get_children(local.queue),), until)
            if listed.code == Code.NO_NODE:
                local.name = ""
                return None
            return line_of(listed, local.queue)
        return await self._create(local, until)

    async def _create(self, local: LocalClaim, until: float) -> Line | None:
        session = local.session
        path = f"{local.queue}/{local.stem}"
        data = nodes.stored(local.claim, session.timeout)
        requests: list[Request] = [
            wire.create_sequential(path, data, self._shared.acl),
            wire.get_children(local.queue),
        ]
        if local.watched is not None:  # it has found no parent before: not made blindly, for that is a write of its own
            requests.insert(0, wire.create_container(local.queue, self._shared.acl))
        await self._ensemble.turn(session, until)  # here, for if that fails nothing is in doubt
        local.doubtful = True  # beforehand: wherever this is interrupted, it may be on its way
        *_, created, listed = await self._ensemble.ask(session, requests, until)
        local.doubtful = False
        if created.code == Code.NO_NODE:
            if local.watched is not None:
                await self._ensemble.make_parents(session, local.queue, until)
            local.watched = ("", False)
            return None
        if created.code:
            self._shared.drop(local)
            raise refusal(created.code, path)
        made, stat = wire.read_created(created)
        local.name, local.czxid, local.watched = made.rpartition("/")[2], stat.czxid, None
        if listed.code == Code.NO_NODE:
            local.name = ""
            return None
        return line_of(listed, local.queue)

    async def _list(self, local: LocalClaim, until: float) -> Line:
        """List the line as it is now, not as this server has last heard of it."""
        _, reply = await self._ensemble.ask(
            local.session, (wire.sync(local.queue), wire.get_children(local.queue)), until
        )
        return Line([], []) if reply.code == Code.NO_NODE else line_of(reply, local.queue)

    async def _token(self, session: Session, czxid: int, until: float) -> int:
        token = czxid + (session.offset if session.offset is not None else await self._ensemble.offset(session, until))
        if token >= TOKEN_LIMIT:
            raise StoreError(f"the fencing token would be {token}, past the limit of 2^53; the offset is wrong")
        return token

    async def _granted(self, local: LocalClaim, line: Line, at: int, asked: float, until: float) -> Granted:
        session = local.session
        token = await self._token(session, local.czxid, until)
        if self._has_little_time(session):
            await self._prove_anew(local, until)
        if must_tell(line.places, at):
            # Those behind it watch it, and have to know that it waits no more. Nobody waits for the answer.
            try:
                session.send((wire.set_data(local.path, nodes.stored(local.claim, session.timeout)),), _unheard())
            except StoreError:
                pass  # they look again
        local.czxid = token
        local.granted, local.answer, local.watched = True, None, None
        return Granted(token, session.deadline - asked)

    def _has_little_time(self, session: Session) -> bool:
        return session.deadline - self._now() < session.timeout * THIRD

    async def _prove_anew(self, local: LocalClaim, until: float) -> None:
        """Have the session prove that it lives for a third of its timeout at least. Just before the next proof is due
        there is a little less: then the proof waits a moment, for it would prove nothing new. If that does not help, a
        new connection does, which costs all calls that are under way.

        Raises: StoreUnavailable.
        """
        session = local.session
        for again in (True, False):
            ripe = session.ripe_at
            if self._now() < ripe <= min(until, self._now() + session.timeout * THIRD / 4):
                await runtime.sleep(self._clock, ripe)
            (proof,) = await self._ensemble.prove((session,), until)
            if isinstance(proof, StoreError):
                raise proof
            if local.path not in proof.paths:
                raise StoreUnavailable("the claim has gone while it was granted")
            if not self._has_little_time(session):
                return
            if again:
                session.reconnect("it has proved too little")
                try:
                    await self._ensemble.connected(session, until)
                except SessionOverError as over:
                    raise StoreUnavailable(str(over)) from None
        raise StoreUnavailable("ZooKeeper answers too slowly for sessions of this length")

    async def _granted_before(self, local: LocalClaim, asked: float, until: float) -> Granted:
        """Answer one that has the grant, and does not know."""
        (reply,) = await self._ensemble.ask(local.session, (wire.exists(local.path),), until)
        left = local.session.deadline - asked if not reply.code and not local.broken else 0.0
        return Granted(local.czxid, left)

    async def _turned_away(self, local: LocalClaim, line: Line, at: int, until: float) -> Waiting:
        first = f"{local.queue}/{line.nodes[0].name}"
        deleted, read = await self._ensemble.ask(local.session, (wire.delete(local.path), wire.get_data(first)), until)
        if deleted.code not in (Code.OK, Code.NO_NODE):
            raise refusal(deleted.code, local.path)
        self._shared.drop(local)
        return await self._waiting(local, read, first, at, until)

    async def _watch_ahead(self, local: LocalClaim, line: Line, at: int, until: float) -> Waiting | Line | None:
        """Watch what keeps a claim from holding. Returns the line as it is by now if that has changed already, or None
        to look again.
        """
        session = local.session
        watched = to_watch(line.places, at).at
        first = f"{local.queue}/{line.nodes[0].name}"
        wakeup = runtime.Signal()
        requests = [wire.get_data(first)]
        children = watched is None
        path = local.queue if watched is None else f"{local.queue}/{line.nodes[watched].name}"
        if children:
            requests.append(wire.get_children(path, True))
        elif path == first:
            requests[0] = wire.get_data(first, True)
        else:
            requests.append(wire.get_data(path, True))
        self._unwatch(local)
        local.wakeup, local.watched = wakeup, (path, children)
        local.follow_up = session.follow_up(wire.get_children(local.queue), wakeup)
        local.answer = None  # until it is known that something is watched
        local.connection = session.connections
        session.watches.add(path, local.follow_up, children=children)
        replies = await self._ensemble.ask(session, requests, until)
        if replies[-1].code:
            if replies[-1].code != Code.NO_NODE:
                raise refusal(replies[-1].code, path)
            return None
        if children:
            seen = line_of(replies[-1], path)
            if seen.nodes != line.nodes:
                now_at = seen.find(local.name)
                if now_at < 0 or may_hold(seen.places, now_at) or to_watch(seen.places, now_at).at is not None:
                    return seen
        elif local.claim.capacity < MAX and wire.read_data(replies[-1])[1].version:
            return None  # it was granted, and has said so, before it was watched
        local.answer = await self._waiting(local, replies[0], first, at, until)
        return local.answer

    def _unwatch(self, local: LocalClaim) -> None:
        if local.watched is not None and local.follow_up is not None:
            path, children = local.watched
            local.session.watches.remove(path, local.follow_up, children=children)

    async def _waiting(self, local: LocalClaim, read: Reply, first: str, ahead: int, until: float) -> Waiting:
        if read.code:
            return Waiting(ahead, local.session.timeout)
        data, stat = wire.read_data(read)
        facts = read_claim(data, first)
        place = nodes.place(first.rpartition("/")[2].split("-", 2)[1])
        token = await self._token(local.session, stat.czxid, until)
        return Waiting(ahead, facts.timeout, Blocker(facts.owner, token, facts.timeout, place.capacity))

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        local = self._shared.get(claim.holder)
        if local is not None and local.wakeup is not None and not local.granted:
            await self._wait(local.wakeup, until)

    async def _wait(self, wakeup: runtime.Signal, until: float) -> None:
        self._wakeups.add(wakeup)
        try:
            await wakeup.wait(self._clock, until)
        finally:
            self._wakeups.discard(wakeup)

    # -- keeping

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        asked = self._now()
        until = self._ensemble.until(limit)
        answers: dict[str, Renewal] = {}
        groups: dict[Session, list[LocalClaim]] = {}
        for claim in claims:
            local = self._shared.get(claim.holder)
            if local is not None and local.granted and not local.broken and not local.session.over:
                groups.setdefault(local.session, []).append(local)
        sessions = list(groups)
        for session, proof in zip(sessions, await self._ensemble.prove(sessions, until), strict=True):
            for local in groups[session]:
                if session.doomed:
                    continue  # lost, and the node stays as long as its holder may believe in it
                if isinstance(proof, StoreError):
                    answers[local.claim.holder] = LOST if session.over else Unknown(str(proof))
                elif local.path not in proof.paths:
                    self._shared.drop(local)
                elif local.stem.partition("-")[0] in proof.broken:
                    # Its end stays where the last renewal has put it: `until` is not touched, and it is deleted then.
                    local.broken = True
                else:
                    local.until = session.deadline
                    answers[local.claim.holder] = Renewed(session.deadline - asked)
        return [answers.get(claim.holder, LOST) for claim in claims]

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        until = self._ensemble.until()
        local = self._shared.get(holder)
        if local is None:
            return await self._release_unknown(resource, holder, until)
        if keep > 0:
            raise Unsupported("ZooKeeper cannot keep a resource taken after its release; use redis:// or etcd://")
        session = local.session
        self._unwatch(local)
        if session.over:
            self._shared.drop(local)
            return False
        self._let_lapse(local)
        if local.doubtful:
            names = (await self._list(local, until)).of(local.stem.partition("-")[0])
        else:
            names = [local.name] if local.name else []
        had = False
        for name in names:
            had = await self._ensemble.delete(session, f"{local.queue}/{name}", until) or had
        if local.broken:
            await self._ensemble.delete(session, self._space.mark(session.id, holder), until)
        self._shared.drop(local)
        return had

    def _let_lapse(self, local: LocalClaim) -> None:
        """Have its session delete a claim, whatever becomes of its release. Not at once: a release that waits for a
        connection would find nothing to delete, and be told as a loss.
        """
        local.until = self._now() + self.capabilities.waiting_life / 2
        local.session.look_again(local.until)

    async def _release_unknown(self, resource: str, holder: str, until: float) -> bool:
        queue = self._space.queue(resource)
        _, reply = await self._ensemble.read((wire.sync(queue), wire.get_children(queue)), until)
        if reply.code == Code.NO_NODE:
            return False
        had = False
        for name in line_of(reply, queue).of(nodes.escape_holder(holder)):
            session = await self._ensemble.any(until)
            had = await self._ensemble.delete(session, f"{queue}/{name}", until) or had
        return had

    async def release_many(self, claims: Sequence[Release]) -> list[bool | StoreError]:
        """Release claims of this client, all at once: one send for each session."""
        until = self._ensemble.until()
        answers: dict[str, bool | StoreError] = {}
        plain: dict[Session, list[LocalClaim]] = {}
        for resource, holder, keep in claims:
            local = self._shared.get(holder)
            if local is None or keep > 0 or local.doubtful or local.broken or not local.name or local.session.over:
                try:
                    answers[holder] = await self.release(resource, holder, keep)
                except StoreError as error:
                    answers[holder] = error
            else:
                self._unwatch(local)
                self._let_lapse(local)
                plain.setdefault(local.session, []).append(local)
        for session, locals_ in plain.items():
            try:
                replies = await self._ensemble.ask(session, [wire.delete(local.path) for local in locals_], until)
            except StoreError as error:
                answers |= dict.fromkeys((local.claim.holder for local in locals_), error)
                continue
            for local, reply in zip(locals_, replies, strict=True):
                if reply.code in (Code.OK, Code.NO_NODE):
                    self._shared.drop(local)
                    answers[local.claim.holder] = reply.code == Code.OK
                else:
                    answers[local.claim.holder] = refusal(reply.code, local.path)
        return [answers[holder] for _, holder, _ in claims]

    # -- by hand, and for people

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store."""
        return await self._breaks.evict(resource, holder, at_once)

    async def state(self, resource: str) -> ResourceState | None:
        """See Store."""
        return await self._views.state(resource, self._ensemble.until())

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        return await self._views.inspect(prefix)

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        limit = self._ensemble.until()
        session = await self._ensemble.any(limit)
        path, wakeup = self._space.queue(resource), runtime.Signal()
        session.watches.add(path, wakeup, children=True)
        session.watches.add(path, wakeup)
        try:
            await self._ensemble.ask(session, (wire.get_children(path, True), wire.exists(path, True)), limit)
            if not changed(seen, await self._views.state(resource, limit)):
                await self._wait(wakeup, until)
        finally:
            session.watches.remove(path, wakeup, children=True)
            session.watches.remove(path, wakeup)

    # -- registers and time

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        return await self._registers.read(key, fence)

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        await self._registers.write(key, value, fence, keep)

    async def time(self) -> tuple[float, float]:
        """See Store."""
        return await self._registers.time()

    # -- the end

    def blocking(self) -> Blocking:
        """See Store. It asks through the same sessions: another could not renew what belongs to these."""
        return runtime.blocking(self, self._twin)

    def _twin(self) -> Blocking:
        from .._sync.store import ZooKeeperStore as Twin

        twin = Twin(
            self._url,
            namespace=self._namespace,
            io_timeout=self._io_timeout,
            clock=self._clock,
            shared=self._shared,
        )
        return Side(twin.renew, twin.release, twin.close, twin.ready, twin.release_many)

    def wake(self, holder: str) -> None:
        """See Store."""
        if (local := self._shared.get(holder)) is not None and local.wakeup is not None:
            local.wakeup.set()

    def interrupt(self) -> None:
        """See Store."""
        for wakeup in list(self._wakeups):
            wakeup.set()

    async def close(self) -> None:
        """See Store."""
        until = self._ensemble.until()
        await self._ensemble.close(self._shared.close(), until)


def _unheard() -> Call:
    return Call(1, bool)
