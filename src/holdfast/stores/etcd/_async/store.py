"""etcd://HOST,HOST,HOST: claims as keys of an etcd cluster, in order of their create_revision.

claim_txn.py says what one transaction of a claim does, and why it is safe. This is the order of steps around it.

*Claim.* Read the clock: what is left of the lease counts from here. Get the lease of the ttl, which all claims of this
client with that ttl share; if less than two thirds are left, keep it alive first, for a claim does not prolong it. Send
the transaction. If it grants, that is all. Otherwise, in this order: if a guard or the offset has moved, take over the
new revision and send again; else the one rule decides on what was read. It fits: send again, on the condition that this
is still so. It is turned away: delete what may be there. It has to wait: send again, and put the key in line.

*Wait.* Watch the key directly ahead, or for a shared claim the whole queue. If nothing has changed, an exclusive claim
that asks again only keeps the lease of waiting claims alive and reads two keys: its own, and the one ahead.

*Doubts.* The leases of a transaction are noted before it is sent, and struck off when it was answered, unless an
earlier try was not. Whatever strikes in between (silence, cancellation, Ctrl-C) leaves them noted, and `withdraw`
raises their guards before it deletes. If one of these steps goes unanswered, the claim is not forgotten, and is
withdrawn again.

*Leases end.* etcd does not say which lease it missed. So all are kept alive once, those that are gone are buried with
the claims held under them, and the claim is sent again under new ones.

*Claims end, but their lease does not*, for others share it. Each has a time until which it must be asked for or renewed
(`until`); those that have passed it are withdrawn whenever the lease is kept alive.

*Claims are kept, broken or made longer*: their keys are moved to other leases, see moves.py. That holders learn of it
rests on this: what is left of a lease is read *before* the claim's key is. So an answer that prolongs a claim counts on
keep-alives only that came before a look at a key that nobody had broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from ...._async import runtime
from ...._clock import Clock
from ....core.claim import (
    LOST,
    Answer,
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
    find,
)
from ....core.fence import Fence, Seen, enter
from ....core.promises import KEEPS_ALL, Capabilities, Fault, Scope
from ....core.queue import TOKEN_LIMIT
from ....core.urls import StoreURL
from ....errors import StoreError, StoreUnavailable
from ....keeper.side import Blocking, Side
from .. import claim_txn, messages
from ..claim_txn import ClaimResult, ClaimTxn
from ..keys import OFFSET, Space, after, decode, encode, is_held, states
from ..leases import Lease, LocalClaim
from ..link import LeaseGoneError
from ..messages import Is, Of, Txned, compare, op_put, op_range, put, range_
from ..shared import Shared
from . import moves
from .cluster import Cluster, Exchange

_CAPABILITIES = Capabilities(
    store="etcd",
    scope=Scope.CLUSTER,
    faults={
        **dict.fromkeys(Fault, KEEPS_ALL),
        # A leader that was stopped for longer than a ttl may, when it goes on, end leases that its successor keeps. The
        # holder learns of it at its next renewal, and another may be inside before.
        Fault.SERVER_FAILOVER: frozenset({1, 9}),
    },
    evict=True,
    extend=True,
    unfair=False,  # a token is fixed when a claim comes, so nobody may overtake
    herd=True,  # of shared claims: they notice any change ahead
    session=True,
    max_ttl=1e9,  # etcd refuses more than nine times that, and what does not fit its numbers is cut off
    min_ttl=2.0,  # of a cluster with the usual election timeout
    lag=1.0,  # etcd looks for leases that have run out every half second
)
_MOST_STEPS = 100  # of one transaction; etcd refuses more than 128


class EtcdStore:
    """Claims in an etcd cluster."""

    capabilities = _CAPABILITIES

    def __init__(
        self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock, shared: Shared | None = None
    ) -> None:
        url.allow(*(("ca", "cert", "key") if url.scheme == "etcds" else ()))
        if not url.hosts or url.path not in ("", "/"):
            raise ValueError(f"write {url.scheme}://HOST:PORT,HOST:PORT, not {url}")
        self._space = Space(namespace)
        self._clock = clock
        self._now = clock.now
        self._url = url
        self._namespace = namespace
        self._io_timeout = io_timeout
        self._shared = shared or Shared(url)
        self._claims = self._shared.claims
        self._cluster = Cluster(url, io_timeout, clock, self._shared)
        self._memo = claim_txn.Memo()
        self._waiting_ttl = ceil(self.capabilities.waiting_life)  # the ttl of the lease that waiting claims are under
        self._wakeups: set[runtime.Signal] = set()

    async def ready(self) -> None:
        """See Store."""
        await self._cluster.get(self._cluster.exchange(), OFFSET)

    # -- claiming

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        asked = self._now()  # before asking: what is left of a lease is counted from here
        exchange = self._cluster.exchange()
        local = self._claims.get(claim.holder)
        if local is None:
            self._shared.forget_lapsed(asked - self.capabilities.lag)
            local = self._claims[claim.holder] = LocalClaim(claim, self._space.claim(claim.resource, claim.holder))
        elif local.granted:
            left = local.under.left(asked) if local.under is not None else 0.0
            if local.under is not None and (kv := await self._cluster.get(exchange, local.key)) is not None:
                still = is_held(kv, local.own) and kv.lease == local.under.id
                return Granted(local.token, left if still else 0.0)  # broken, it is as good as lost
            before = local.doubts
            local = self._claims[claim.holder] = LocalClaim(claim, local.key)
            local.doubts = before
        local.until = inf  # it must not lapse while it is being asked for
        try:
            if queue and local.answer is not None and not local.woken and await self._still_waits(exchange, local):
                return local.answer
            return await self._ask_until_answered(exchange, local, queue, asked)
        finally:
            if not local.granted:
                local.until = self._now() + self.capabilities.waiting_life

    async def _ask_until_answered(self, exchange: Exchange, local: LocalClaim, queue: bool, asked: float) -> Answer:
        while True:
            try:
                return await self._ask(exchange, local, queue, asked)
            except LeaseGoneError:
                await self._find_dead(exchange, local)

    async def _ask(self, exchange: Exchange, local: LocalClaim, queue: bool, asked: float) -> Answer:
        claim, cluster = local.claim, self._cluster
        prefix = self._space.queue(claim.resource)
        when: tuple[bytes, ...] = ()
        in_line = bool(local.own)
        while True:
            lease = await self._lease_for(exchange, local)
            waiting_lease = await cluster.shared(exchange, self._waiting_ttl) if queue and in_line else None
            if not when:
                when = claim_txn.first(prefix, local.key, local.own) if local.own else claim_txn.free(prefix)
            txn = ClaimTxn(self._space, claim, local.key, lease, self._shared.offset, local.own, when, waiting_lease)
            left = lease.left(asked)
            result = await self._exchange(exchange, txn, local)
            when, local.own = (), result.own
            if result.token:
                return self._granted(local, result, lease, asked, left)
            if waiting_lease is not None and result.own:
                local.under = waiting_lease
            if self._catch_up(txn, result):
                continue
            answer = claim_txn.decide(txn, result, self.capabilities.waiting_life)
            if isinstance(answer, Granted):
                # It fits beside the others. If it has no place yet, others may still come ahead of it.
                when = (
                    claim_txn.still(local.key, result.own)
                    if result.own
                    else claim_txn.unchanged(prefix, result.revision)
                )
            elif not queue:
                await self._turned_away(exchange, local)
                return await self._timed(exchange, answer, result) if claim.detached else answer
            elif result.own:
                return self._waits(local, txn, result, answer)
            else:
                in_line = True

    async def _exchange(self, exchange: Exchange, txn: ClaimTxn, local: LocalClaim) -> ClaimResult:
        before = local.doubts
        # Noted beforehand: wherever this is interrupted, the transaction may be on its way.
        local.doubts |= {txn.lease, *filter(None, (txn.waiting_lease,))}
        try:
            data = await self._cluster.call(exchange, messages.TXN, self._memo.build(txn))
        except LeaseGoneError:
            if not exchange.doubtful:
                local.doubts = before
            raise
        if not exchange.doubtful:
            local.doubts = before
        return claim_txn.read_result(txn, messages.txned(data))

    def _catch_up(self, txn: ClaimTxn, result: ClaimResult) -> bool:
        """Take over guards and an offset that others have moved; True if the transaction has to be sent again.

        Raises: LeaseGoneError if a guard is gone, and its lease with it.
        """
        again = False
        lease, waiting_lease = txn.lease, txn.waiting_lease
        pairs = [] if txn.claim.detached else [(lease, result.guard)]
        if waiting_lease is not None and not result.own:
            pairs.append((waiting_lease, result.waiting_guard))
        for known, guard in pairs:
            if not guard:
                raise LeaseGoneError
            if guard != known.guard:
                known.guard, again = max(guard, known.guard), True
        if result.offset != txn.offset:
            self._shared.offset, again = result.offset, True
        return again

    def _granted(self, local: LocalClaim, result: ClaimResult, lease: Lease, asked: float, left: float) -> Granted:
        if result.token >= TOKEN_LIMIT:
            raise StoreError(f"the fencing token would be {result.token}, past the limit of 2^53; the offset is wrong")
        local.granted, local.answer, local.watched = True, None, None
        local.token, local.under = result.token, lease
        local.until = asked + local.claim.ttl
        # Under a lease that this client has given up, or broken, it is as good as lost.
        return Granted(result.token, left if result.lease == lease.id else 0.0)

    def _waits(self, local: LocalClaim, txn: ClaimTxn, result: ClaimResult, answer: Waiting) -> Waiting:
        if local.answer is not None:  # etcd's count has those behind, too
            answer = answer._replace(ahead=min(answer.ahead, local.answer.ahead))
        local.answer, local.woken, local.wakeup = answer, False, runtime.Signal()
        local.watched = claim_txn.to_watch(txn, result)
        return answer

    async def _still_waits(self, exchange: Exchange, local: LocalClaim) -> bool:
        """Refresh the place in line of an exclusive claim: it and the one ahead are there. Reads two keys."""
        if local.claim.shared or local.watched is None:
            return False
        waiting_lease = await self._cluster.shared(exchange, self._waiting_ttl)
        keys = (local.key, local.watched[0])
        response = await self._cluster.transact(exchange, [op_range(range_(key, keys_only=True)) for key in keys])
        mine, ahead = (response.ranged(at).kvs for at in range(2))
        return local.under is waiting_lease and bool(mine) and mine[0].create == local.own and bool(ahead)

    async def _turned_away(self, exchange: Exchange, local: LocalClaim) -> None:
        if local.own or local.doubts:
            await self._cluster.withdraw(exchange, local.key, local)
        else:
            await self._cluster.forget(exchange, local)

    async def _timed(self, exchange: Exchange, answer: Waiting, result: ClaimResult) -> Waiting:
        """Say when the oldest claim ends, for a rate limit: that is when the next hit is possible."""
        request = messages.lease_id(result.ahead[0].lease)
        left = messages.granted(await self._cluster.call(exchange, messages.LEASE_TIME_TO_LIVE, request)).ttl
        return answer._replace(retry_after=min(answer.retry_after, left + 1.0))  # etcd tells whole seconds, cut off

    async def _lease_for(self, exchange: Exchange, local: LocalClaim) -> Lease:
        """Return the lease under which the claim is put if it is granted."""
        if not local.claim.detached:
            return await self._cluster.shared(exchange, ceil(local.claim.ttl))
        lease = local.lease
        if lease is None or not (lease.fresh(self._now()) or await self._cluster.keep(exchange, lease)):
            lease = local.lease = await self._cluster.grant(exchange, local.claim.ttl)
        return lease

    async def _find_dead(self, exchange: Exchange, local: LocalClaim) -> None:
        """Bury the leases that etcd no longer has: it does not say which one it missed."""
        for lease in (*self._cluster.leases, local.lease):
            if lease is not None:
                await self._cluster.keep(exchange, lease)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        local = self._claims.get(claim.holder)
        if local is None or local.watched is None:
            return
        key, end, start = local.watched
        if await self._watch(key, end, start, until, deletes_only=True, wakeup=local.wakeup):
            local.woken = True

    async def _watch(
        self, key: bytes, end: bytes, start: int, until: float, *, deletes_only: bool, wakeup: runtime.Signal
    ) -> bool:
        """Wait for a change; False if none came.

        Raises: StoreUnavailable if nobody can tell any more.
        """
        number, watch = self._cluster.watcher.add(key, end, start, wakeup, deletes_only=deletes_only)
        self._wakeups.add(wakeup)
        try:
            woken = await wakeup.wait(self._clock, until)
        finally:
            self._cluster.watcher.remove(number)
            self._wakeups.discard(wakeup)
        if watch.broken:
            raise StoreUnavailable(watch.broken)
        return woken

    # -- keeping

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        asked = self._now()
        exchange = self._cluster.exchange(limit)
        answers: dict[str, Renewal] = {}
        groups: dict[Lease, list[LocalClaim]] = {}
        for claim in claims:
            local = self._claims.get(claim.holder)
            if local is None or not local.granted or local.under is None:
                continue
            try:
                if claim.ttl > local.claim.ttl:
                    local.claim = local.claim._replace(ttl=claim.ttl)
                if local.claim.ttl > local.under.ttl:
                    await moves.lengthen(self._cluster, exchange, local, local.under)
            except StoreError as error:
                answers[claim.holder] = Unknown(str(error))
            else:
                groups.setdefault(local.under, []).append(local)
        for lease, held in groups.items():
            try:
                await self._renew(exchange, lease, held, asked, answers)
            except StoreError as error:
                answers.update((local.claim.holder, Unknown(str(error))) for local in held)
        return [answers.get(claim.holder, LOST) for claim in claims]

    async def _renew(
        self, exchange: Exchange, lease: Lease, held: list[LocalClaim], asked: float, answers: dict[str, Renewal]
    ) -> None:
        # One keep-alive for all of them, and not again for those that are due a little later.
        if not lease.recent(asked) and not await self._cluster.keep(exchange, lease):
            return
        for start in range(0, len(held), _MOST_STEPS):
            batch = held[start : start + _MOST_STEPS]
            left = lease.left(asked)
            response = await self._cluster.transact(exchange, [op_range(range_(local.key)) for local in batch])
            for at, local in enumerate(batch):
                kvs = response.ranged(at).kvs
                if not kvs or kvs[0].create != local.own:
                    if kvs or local.doubts:  # somebody has ended it, and it may be put there again, or was
                        await self._cluster.withdraw(exchange, local.key, local)
                    else:
                        await self._cluster.forget(exchange, local)
                elif is_held(kvs[0], local.own) and kvs[0].lease == lease.id:
                    local.until = asked + local.claim.ttl
                    answers[local.claim.holder] = Renewed(left)
                elif is_held(kvs[0], local.own) and moves.find(local, kvs[0].lease) is not None:
                    answers[local.claim.holder] = Unknown("another call is extending it")
                # Else it was broken. It is not forgotten, but withdrawn when its time is over: as long as it was not
                # moved, the lease that others use keeps it.

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        exchange = self._cluster.exchange()
        key, local = self._space.claim(resource, holder), self._claims.get(holder)
        if keep > 0:
            # First: a transaction on its way would put the claim back under the lease that others keep alive.
            await self._cluster.shut_out(exchange, local)
            if await moves.keep_taken(self._cluster, exchange, key, keep):
                if local is not None:
                    await self._cluster.forget(exchange, local)
                return True
        return await self._cluster.withdraw(exchange, key, local)

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store.

        Raises: Unsupported for a claim of an earlier version, whose client would not notice, unless it is `at_once`.
        """
        return await moves.evict(self._cluster, self._cluster.exchange(), self._space.claim(resource, holder), at_once)

    # -- inspecting

    async def state(self, resource: str) -> ResourceState | None:
        """See Store."""
        return find((await self._read_states(self._space.queue(resource)))[0], resource)

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        return (await self._read_states(self._space.named(prefix)))[0]

    async def _read_states(self, start: bytes) -> tuple[list[ResourceState], int]:
        response = await self._cluster.transact(self._cluster.exchange(), (op_range(range_(start, after(start))),))
        found = states(self._space, response.ranged(0).kvs, self.capabilities.waiting_life)
        return found, response.header.revision

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        prefix = self._space.queue(resource)
        found, revision = await self._read_states(prefix)
        if not changed(seen, find(found, resource)):
            wakeup = runtime.Signal()
            await self._watch(prefix, after(prefix), revision + 1, until, deletes_only=False, wakeup=wakeup)

    # -- registers

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        exchange, name = self._cluster.exchange(), self._space.value(key)
        if fence is None:
            kv = await self._cluster.get(exchange, name)
        else:
            kvs = (await self._enter(exchange, key, fence, op_range(range_(name)))).ranged(1).kvs
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
            kv = await self._cluster.get(exchange, numbers)
            seen = enter(Seen(*decode(kv, 2)) if kv is not None else Seen(), fence)
            same = compare(Is.EQUAL, Of.MOD, kv.mod if kv is not None else 0, numbers)
            response = await self._cluster.transact(exchange, (op_put(put(numbers, encode(seen))), step), (same,))
            if response.succeeded:
                return response

    # -- the end

    def blocking(self) -> Blocking:
        """See Store. It calls through the same channel, as any thread may, and knows the same claims and leases."""
        return runtime.blocking(self, self._twin)

    def _twin(self) -> Blocking:
        from .._sync.store import EtcdStore as Twin

        twin = Twin(
            self._url,
            namespace=self._namespace,
            io_timeout=self._io_timeout,
            clock=self._clock,
            shared=self._shared,
        )
        return Side(twin.renew, twin.release, twin.close, twin.ready)

    def wake(self, holder: str) -> None:
        """See Store."""
        if (local := self._claims.get(holder)) is not None and local.wakeup is not None:
            local.wakeup.set()

    def interrupt(self) -> None:
        """See Store."""
        for wakeup in list(self._wakeups):
            wakeup.set()

    async def close(self) -> None:
        """See Store."""
        await self._cluster.close()
