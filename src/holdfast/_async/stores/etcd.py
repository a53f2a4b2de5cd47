"""etcd://HOST,HOST,HOST: claims as keys of an etcd cluster, in order of their create_revision."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from ..._clock import Clock
from ..._etcd import asking, messages
from ..._etcd.asking import Offset, Question, Reply
from ..._etcd.keys import Space, after, decode, encode, read, states
from ..._etcd.leases import Lease, Place
from ..._etcd.link import LeaseGoneError
from ..._etcd.messages import Is, KeyValue, Of, Txned, compare, op_put, op_range, put, range_, txn
from ...core.claim import (
    LOST,
    Answer,
    Claim,
    Granted,
    Record,
    Renewal,
    Renewed,
    ResourceState,
    Unknown,
    Waiting,
    changed,
    find,
)
from ...core.fence import Fence, Seen, enter
from ...core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ...core.queue import TOKEN_LIMIT
from ...core.urls import StoreURL
from ...errors import StoreError, StoreUnavailable
from .. import runtime
from .etcd_cluster import Cluster, Exchange

_CAPABILITIES = Capabilities(
    store="etcd",
    scope=Scope.CLUSTER,
    faults={
        **dict.fromkeys(Fault, KEEPS_ALL),
        # A leader that was stopped for longer than a ttl may, when it goes on, end leases that its successor keeps. The
        # holder learns of it at its next renewal, and another may be inside before.
        Fault.SERVER_FAILOVER: frozenset({1, 9}),
    },
    unfair=False,  # a token is fixed when a claim comes, so nobody may overtake
    herd=True,  # of shared claims: they notice any change ahead
    session=True,
    min_ttl=2.0,  # of a cluster with the usual election timeout
    lag=1.0,  # etcd looks for leases that have run out every half second
)
_RECENT = 11 / 12  # of the ttl that must be left of a lease that need not be renewed once more
_MOST_STEPS = 100  # of one transaction; etcd refuses more than 128


class EtcdStore:
    """Claims in an etcd cluster."""

    capabilities = _CAPABILITIES

    def __init__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> None:
        url.allow(*(("ca", "cert", "key") if url.scheme == "etcds" else ()))
        if not url.hosts or url.path not in ("", "/"):
            raise ValueError(f"write {url.scheme}://HOST:PORT,HOST:PORT, not {url}")
        self._space = Space(namespace)
        self._clock = clock
        self._now = clock.now
        self._places: dict[str, Place] = {}  # the claims of this client, by holder
        self._cluster = Cluster(url, io_timeout, clock, self._places)
        self._offset = Offset()
        self._memo = asking.Memo()
        self._line = ceil(self.capabilities.waiting_life)  # the ttl of the lease that waiting claims are under
        self._bells: set[runtime.Signal] = set()

    async def ready(self) -> None:
        """See Store."""
        await self._get(self._cluster.exchange(), self._space.claims)

    # -- claiming

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        asked = self._now()  # before asking: what is left of a lease is counted from here
        exchange = self._cluster.exchange()
        place = self._places.get(claim.holder)
        if place is None:
            place = self._places[claim.holder] = Place(claim, self._space.claim(claim.resource, claim.holder))
        elif place.granted:
            if place.under is not None and await self._get(exchange, place.key) is not None:
                return Granted(place.token, place.under.left(asked))
            before = place.doubts
            place = self._places[claim.holder] = Place(claim, place.key)
            place.doubts = before
        place.until = inf  # nobody may take it for forgotten while it is being asked for
        try:
            if queue and place.answer is not None and not place.rung and await self._still_waits(exchange, place):
                return place.answer
            return await self._ask_until_answered(exchange, place, queue, asked)
        finally:
            if not place.granted:
                place.until = self._now() + self.capabilities.waiting_life

    async def _ask_until_answered(self, exchange: Exchange, place: Place, queue: bool, asked: float) -> Answer:
        while True:
            try:
                return await self._ask(exchange, place, queue, asked)
            except LeaseGoneError:
                await self._find_dead(exchange, place)

    async def _ask(self, exchange: Exchange, place: Place, queue: bool, asked: float) -> Answer:
        claim, cluster = place.claim, self._cluster
        prefix = self._space.queue(claim.resource)
        when: tuple[bytes, ...] = ()
        in_line = bool(place.own)
        while True:
            lease = await self._lease_for(exchange, place)
            line = await cluster.shared(exchange, self._line) if queue and in_line else None
            if not when:
                when = asking.first(prefix, place.key, place.own) if place.own else asking.free(prefix)
            question = Question(self._space, claim, place.key, lease, self._offset, place.own, when, line)
            reply = await self._exchange(exchange, question, place)
            when, place.own = (), reply.own
            if reply.token:
                return self._granted(place, reply, lease, asked)
            if line is not None and reply.own:
                place.under = line
            if self._learn(question, reply):
                continue
            answer = asking.judge(question, reply, self.capabilities.waiting_life)
            if isinstance(answer, Granted):
                # It fits beside the others. What is ahead of it only becomes less, but others may come before it has a
                # place.
                when = asking.still(place.key, reply.own) if reply.own else asking.unchanged(prefix, reply.revision)
            elif not queue:
                await self._turned_away(exchange, place)
                return await self._timed(exchange, answer, reply) if claim.detached else answer
            elif reply.own:
                return self._waits(place, question, reply, answer)
            else:
                in_line = True

    async def _exchange(self, exchange: Exchange, question: Question, place: Place) -> Reply:
        before = place.doubts
        # Noted beforehand: wherever this is interrupted, the transaction may be on its way.
        place.doubts |= {question.lease, *filter(None, (question.line,))}
        try:
            data = await self._cluster.call(exchange, messages.TXN, self._memo.ask(question))
        except LeaseGoneError:
            if not exchange.doubtful:
                place.doubts = before
            raise
        if not exchange.doubtful:
            place.doubts = before
        return asking.answered(question, messages.txned(data))

    def _learn(self, question: Question, reply: Reply) -> bool:
        """Take note of guards and an offset that others have moved; True if the question has to be put again.

        Raises: LeaseGoneError if a guard is gone, and its lease with it.
        """
        again = False
        lease, line = question.lease, question.line
        pairs = [] if question.claim.detached else [(lease, reply.guard)]
        if line is not None and not reply.own:
            pairs.append((line, reply.line_guard))
        for known, guard in pairs:
            if not guard:
                raise LeaseGoneError
            if guard != known.guard:
                known.guard, again = max(guard, known.guard), True
        if reply.offset != question.offset:
            self._offset, again = reply.offset, True
        return again

    def _granted(self, place: Place, reply: Reply, lease: Lease, asked: float) -> Granted:
        if reply.token >= TOKEN_LIMIT:
            raise StoreError(f"the fencing token would be {reply.token}, past the limit of 2^53; the offset is wrong")
        place.granted, place.answer, place.watched = True, None, None
        place.token, place.under = reply.token, lease
        place.until = asked + place.claim.ttl
        # Under a lease that this client has given up it is as good as over.
        return Granted(reply.token, lease.left(asked) if reply.lease == lease.id else 0.0)

    def _waits(self, place: Place, question: Question, reply: Reply, answer: Waiting) -> Waiting:
        if place.answer is not None:  # etcd's count has those behind, too
            answer = answer._replace(ahead=min(answer.ahead, place.answer.ahead))
        place.answer, place.rung = answer, False
        place.watched = asking.to_watch(question, reply)
        return answer

    async def _still_waits(self, exchange: Exchange, place: Place) -> bool:
        """Refresh the place in line of an exclusive claim: it and the one ahead are there. Reads two keys."""
        if place.claim.shared or place.watched is None:
            return False
        line = await self._cluster.shared(exchange, self._line)
        keys = (place.key, place.watched[0])
        reply = await self._txn(exchange, txn((), [op_range(range_(key, keys_only=True)) for key in keys]))
        mine, ahead = (reply.ranged(at).kvs for at in range(2))
        return place.under is line and bool(mine) and mine[0].create == place.own and bool(ahead)

    async def _turned_away(self, exchange: Exchange, place: Place) -> None:
        if place.own or place.doubts:
            await self._cluster.withdraw(exchange, place.key, place)
        else:
            await self._cluster.forget(exchange, place)

    async def _timed(self, exchange: Exchange, answer: Waiting, reply: Reply) -> Waiting:
        """Say when the oldest claim ends, for a rate limit: that is when the next hit is possible."""
        request = messages.lease_id(reply.ahead[0].lease)
        left = messages.granted(await self._cluster.call(exchange, messages.LEASE_TIME_TO_LIVE, request)).ttl
        return answer._replace(retry_after=min(answer.retry_after, left + 1.0))  # etcd tells whole seconds, cut off

    async def _lease_for(self, exchange: Exchange, place: Place) -> Lease:
        """Return the lease that the claim comes under if it is granted."""
        if not place.claim.detached:
            return await self._cluster.shared(exchange, ceil(place.claim.ttl))
        lease = place.lease
        if lease is None or not (lease.fresh(self._now()) or await self._cluster.keep(exchange, lease)):
            lease = place.lease = await self._cluster.grant(exchange, place.claim.ttl)
        return lease

    async def _find_dead(self, exchange: Exchange, place: Place) -> None:
        """Bury the leases that etcd no longer has: it does not say which one it missed."""
        for lease in (*self._cluster.leases, place.lease):
            if lease is not None:
                await self._cluster.keep(exchange, lease)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        place = self._places.get(claim.holder)
        if place is None or place.watched is None:
            return
        key, end, start = place.watched
        if await self._watch(key, end, start, until, deletes_only=True):
            place.rung = True

    async def _watch(self, key: bytes, end: bytes, start: int, until: float, *, deletes_only: bool) -> bool:
        """Wait for a change; False if none came.

        Raises: StoreUnavailable if nobody can tell any more.
        """
        bell = runtime.Signal()
        number, watch = self._cluster.watcher.add(key, end, start, bell, deletes_only=deletes_only)
        self._bells.add(bell)
        try:
            rung = await bell.wait(self._clock, until)
        finally:
            self._cluster.watcher.remove(number)
            self._bells.discard(bell)
        if watch.broken:
            raise StoreUnavailable(watch.broken)
        return rung

    # -- keeping

    async def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See Store."""
        asked = self._now()
        exchange = self._cluster.exchange()
        answers: dict[str, Renewal] = {}
        groups: dict[Lease, list[Place]] = {}
        for claim in claims:
            place = self._places.get(claim.holder)
            if place is not None and place.granted and place.under is not None:
                groups.setdefault(place.under, []).append(place)
        for lease, places in groups.items():
            try:
                await self._renew(exchange, lease, places, asked, answers)
            except StoreUnavailable as error:
                answers.update((place.claim.holder, Unknown(str(error))) for place in places)
        return [answers.get(claim.holder, LOST) for claim in claims]

    async def _renew(
        self, exchange: Exchange, lease: Lease, places: list[Place], asked: float, answers: dict[str, Renewal]
    ) -> None:
        # One keep-alive for all of them, and not again for those that are due a little later.
        recent = lease.left(asked) >= lease.ttl * _RECENT
        if not recent and not await self._cluster.keep(exchange, lease):
            return
        for start in range(0, len(places), _MOST_STEPS):
            batch = places[start : start + _MOST_STEPS]
            steps = [op_range(range_(place.key, keys_only=True)) for place in batch]
            reply = await self._txn(exchange, txn((), steps))
            for at, place in enumerate(batch):
                if reply.ranged(at).kvs:
                    place.until = asked + place.claim.ttl
                    answers[place.claim.holder] = Renewed(lease.left(asked))
                else:  # somebody has ended it
                    await self._cluster.forget(exchange, place)

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        exchange = self._cluster.exchange()
        key, place = self._space.claim(resource, holder), self._places.get(holder)
        if keep > 0 and await self._keep_taken(exchange, key, keep):
            if place is not None:
                await self._cluster.forget(exchange, place)
            return True
        return await self._cluster.withdraw(exchange, key, place)

    async def _keep_taken(self, exchange: Exchange, key: bytes, keep: float) -> bool:
        """Put a granted claim under a lease that ends when it may be free; False if there is none."""
        lease: Lease | None = None
        while True:
            kv = await self._get(exchange, key)
            facts = read(kv) if kv is not None else None
            if kv is None or facts is None or facts.offset is None:
                return False
            if facts.released:  # the first answer was lost
                return True
            lease = lease or await self._cluster.grant(exchange, keep, exact=False)
            value = encode(facts._replace(ttl=keep, released=True))
            same = compare(Is.EQUAL, Of.MOD, kv.mod, key)
            if (await self._txn(exchange, txn((same,), (op_put(put(key, value, lease.id)),)))).succeeded:
                return True

    # -- looking

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        return (await self._look(self._space.named(prefix)))[0]

    async def _look(self, start: bytes) -> tuple[list[ResourceState], int]:
        data = await self._cluster.call(self._cluster.exchange(), messages.RANGE, range_(start, after(start)))
        found = states(self._space, messages.ranged(data).kvs, self.capabilities.waiting_life)
        return found, messages.header(data).revision

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        prefix = self._space.queue(resource)
        found, revision = await self._look(prefix)
        if not changed(seen, find(found, resource)):
            await self._watch(prefix, after(prefix), revision + 1, until, deletes_only=False)

    # -- registers

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        exchange, place = self._cluster.exchange(), self._space.value(key)
        if fence is None:
            kv = await self._get(exchange, place)
        else:
            kvs = (await self._enter(exchange, key, fence, op_range(range_(place)))).ranged(1).kvs
            kv = kvs[0] if kvs else None
        if kv is None:
            return None
        token, value = decode(kv, 2)
        return Record(value, token)

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        exchange = self._cluster.exchange()
        lease = 0 if keep is None else (await self._cluster.grant(exchange, keep, exact=False)).id
        await self._enter(
            exchange, key, fence, op_put(put(self._space.value(key), encode((fence.token, value)), lease))
        )

    async def _enter(self, exchange: Exchange, key: str, fence: Fence, step: bytes) -> Txned:
        """Enter a register's fence and take one more step, in one transaction.

        Raises: StaleToken if it has seen a newer token.
        """
        numbers = self._space.fence(key)
        while True:
            kv = await self._get(exchange, numbers)
            seen = enter(Seen(*decode(kv, 2)) if kv is not None else Seen(), fence)
            same = compare(Is.EQUAL, Of.MOD, kv.mod if kv is not None else 0, numbers)
            reply = await self._txn(exchange, txn((same,), (op_put(put(numbers, encode(seen))), step)))
            if reply.succeeded:
                return reply

    # -- the end

    def interrupt(self) -> None:
        """See Store."""
        for bell in list(self._bells):
            bell.set()

    async def close(self) -> None:
        """See Store."""
        await self._cluster.close()

    async def _get(self, exchange: Exchange, key: bytes) -> KeyValue | None:
        kvs = messages.ranged(await self._cluster.call(exchange, messages.RANGE, range_(key))).kvs
        return kvs[0] if kvs else None

    async def _txn(self, exchange: Exchange, request: bytes) -> Txned:
        return messages.txned(await self._cluster.call(exchange, messages.TXN, request))
