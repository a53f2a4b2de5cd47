"""What becomes of the key of a granted claim: it is kept after its release, broken by hand, or moved to a longer lease.

Each of these reads the key and puts it anew with another value, another lease or both, in a transaction that demands
the revision that was read. The create_revision stays, and with it the token. Two at once: one of them succeeds, the
other reads again. Executed late, after somebody else's or after a delete, it does nothing: so it makes no ghosts.

*A transaction of the claim itself* that went unanswered may still arrive, and would put the key back as it was, under
the lease of its ttl. It demands the guard of that lease, so the guard is put anew: by the client of the claim before it
moves the key, by whoever breaks it in the same transaction. Detached claims have no guard. One that was broken may so
be as before, and ends with its own lease; one with such a doubt is not made longer.

*Breaking.* The holder must find its lease lost before the key ends. It believes in what its last renewal gave: that is
at most what the lease of the key has left in etcd, if no keep-alive comes later. But keep-alives do come at any time,
for the lease is shared. What does not work: to read what is left, then to put the key under a lease of that length. A
renewal in between prolongs what the holder believes in, and not the key. So, in this order:

1. Mark the key, where it is. From here on the holder's client answers Lost to every renewal, for it reads the mark with
   the key. All that it believes in comes from keep-alives before this. No harm is done however late this is executed,
   and whatever happens to whoever breaks: the key is still under the lease of its holder. If nobody goes on with step
   2, the client withdraws the key itself when the time of the claim is over, or it ends with its lease.
2. Ask what is left of the lease. A keep-alive for others since step 1 can only make that more. The answer has to come
   from the leader: one that has a successor does not know of the latest keep-alives. Thus a read is sent after it, and
   both must be of one term (as in Cluster.keep).
3. Get a lease of this length, rounded up to whole seconds, for etcd cuts them off; at most the ttl. It begins after the
   answer, so it ends after what was left.
4. Move the key there. Executed late, it finds that lease still alive, or is refused.

So the key ends where the last renewal has put its end, or up to a second later, plus a second of etcd's own; never
earlier. A client of an earlier version does not look for a mark: it would believe in its claim as long as the key is
there, and one renewal longer. Such a claim can only be ended at once.

*Longer.* If the answer is lost, the key may be under either lease, or be moved any moment. The holder still believes in
the shorter one. So the longer must last at least as long by then, and is kept alive *before* the key goes there. Every
later renewal comes through here again and finds out, before anything else is prolonged. It is noted as a doubt: should
the shorter lease end meanwhile, what may be under the longer one is withdrawn.
"""

from __future__ import annotations

from math import ceil

from ....core.claim import Evicted
from ....core.queue import BROKEN, KEPT
from ....errors import StoreUnavailable, Unsupported
from .. import messages
from ..keys import ENDING, StoredClaim, encode, guard_key, is_held, read
from ..leases import Lease, LocalClaim
from ..link import LeaseGoneError
from ..messages import Granted as Told
from ..messages import Is, KeyValue, Of, compare, delete, op_delete, op_put, op_range, op_txn, put, range_
from .cluster import Cluster, Exchange


async def keep_taken(cluster: Cluster, exchange: Exchange, key: bytes, keep: float) -> bool:
    """Put a granted claim under a lease that ends when it may be free; False if there is none, or it was broken."""
    lease: Lease | None = None
    while True:
        kv, facts = await _granted(cluster, exchange, key)
        if kv is None or facts is None or facts.ending in (BROKEN, ENDING):
            return False
        if facts.ending:  # the first answer was lost
            return True
        lease = lease or await cluster.grant(exchange, keep, exact=False)
        value = encode(facts._replace(ttl=keep, ending=KEPT))
        if (await cluster.transact(exchange, (op_put(put(key, value, lease.id)),), (_same(kv),))).succeeded:
            return True


async def evict(cluster: Cluster, exchange: Exchange, key: bytes, at_once: bool) -> Evicted | None:
    """Break a granted claim; None if there is none.

    Raises: Unsupported if its client would not notice, unless it is to end at once.
    """
    broken = False  # by this call, or perhaps
    while True:
        kv, facts = await _granted(cluster, exchange, key)
        if kv is None or facts is None:
            return Evicted(0.0) if broken else None
        answer: Evicted | None = None  # if this step is the last one
        if at_once or facts.ending == KEPT:
            step, answer = op_delete(delete(key)), Evicted(0.0)
        elif not facts.notices:
            raise Unsupported(
                f"the claim of {facts.owner} was made by an earlier version of holdfast, which would not notice that "
                "it is broken; end its process, or break it with now=True"
            )
        elif facts.ending == ENDING:
            return Evicted(min(facts.ttl, _rounded(await _time_left(cluster, exchange, kv.lease))))
        elif facts.ending == BROKEN:
            lease = await _last_lease(cluster, exchange, kv, facts)
            if lease is None:
                continue
            answer = Evicted(float(lease.ttl))
            step = op_put(put(key, encode(facts._replace(ttl=answer.left, ending=ENDING)), lease.id))
        else:
            step = op_put(put(key, encode(facts._replace(ending=BROKEN)), kv.lease))
        exchange.doubtful = False
        try:
            done = (await cluster.transact(exchange, (step, _shut_out(kv.lease)), (_same(kv),))).succeeded
        except LeaseGoneError:
            continue  # it took longer to get here than the key had left
        broken = broken or done or exchange.doubtful
        if done and answer is not None:
            return answer


async def lengthen(cluster: Cluster, exchange: Exchange, local: LocalClaim, under: Lease) -> None:
    """Move a claim to the lease of its ttl, which has become longer. A renewal then tells what it has, if anything."""
    detached, ttl = local.claim.detached, local.claim.ttl
    if detached and local.lease in local.doubts:
        raise StoreUnavailable("a request of this claim went unanswered and may still arrive: it cannot be made longer")
    if not detached and local.doubts:
        await cluster.shut_out(exchange, local)
    longer: Lease | None = None
    while True:
        kv = await cluster.get(exchange, local.key)
        if kv is None or not is_held(kv, local.own):
            return
        found = find(local, kv.lease) or longer
        if found is None or found.id != kv.lease:
            return  # not ours: the renewal says so
        if found.ttl >= ttl:
            local.under = found  # first: another thread looks for it here or among the doubts
            local.lease, local.doubts = found if detached else None, frozenset()
            return
        if not detached:
            longer = await cluster.shared(exchange, ceil(ttl))
        elif longer is None:
            longer = await cluster.grant(exchange, ttl)
        now = cluster.now()
        if (longer.left(now) < under.left(now) or not longer.recent(now)) and not await cluster.keep(exchange, longer):
            longer = None
            continue
        value = encode(read(kv)._replace(ttl=ttl))
        local.doubts |= {longer}  # beforehand: wherever this is interrupted, it may be on its way
        try:
            await cluster.transact(exchange, (op_put(put(kv.key, value, longer.id)),), (_same(kv),))
        except LeaseGoneError:
            await cluster.keep(exchange, longer)  # it is buried
            longer = None


def find(local: LocalClaim, lease: int) -> Lease | None:
    """Return the lease of this number if the key of a claim may be under it."""
    return next((one for one in (local.under, *local.doubts) if one is not None and one.id == lease), None)


async def _granted(
    cluster: Cluster, exchange: Exchange, key: bytes
) -> tuple[KeyValue, StoredClaim] | tuple[None, None]:
    kv = await cluster.get(exchange, key)
    if kv is None or (facts := read(kv)).offset is None:
        return None, None
    return kv, facts


async def _time_left(cluster: Cluster, exchange: Exchange, lease: int) -> Told:
    return messages.granted(await cluster.call(exchange, messages.LEASE_TIME_TO_LIVE, messages.lease_id(lease)))


def _rounded(told: Told) -> float:
    return max(told.ttl, 0) + 1.0  # etcd cuts off what is not a whole second


async def _last_lease(cluster: Cluster, exchange: Exchange, kv: KeyValue, facts: StoredClaim) -> Lease | None:
    """Get the lease under which a marked claim ends; None if a new leader came meanwhile."""
    told = await _time_left(cluster, exchange, kv.lease)
    seen = await cluster.transact(exchange, (op_range(range_(kv.key, keys_only=True)),))
    if seen.header.term != told.header.term:
        return None
    return await cluster.grant(exchange, min(_rounded(told), facts.ttl), exact=False)


def _same(kv: KeyValue) -> bytes:
    return compare(Is.EQUAL, Of.MOD, kv.mod, kv.key)


def _shut_out(lease: int) -> bytes:
    """Make transactions of claims under this lease fail that are on their way; their clients send them again."""
    guard = guard_key(lease)
    exists = compare(Is.GREATER, Of.CREATE, 0, guard)  # else it is not a shared lease, or is about to end
    return op_txn(messages.txn((exists,), (op_put(put(guard, b"", lease)),)))
