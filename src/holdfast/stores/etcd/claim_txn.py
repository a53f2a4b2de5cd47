"""One claim, one transaction: put it if it can be granted, else read what is ahead and stand in line.

A claim is a key that is named after its holder. Its create_revision is its place in line and, plus the offset, its
token. The key is absent; or it waits, without an offset, under the lease that this client has for claims that wait; or
it holds, with the offset, under the lease of its ttl. (What becomes of it then, moves.py says.) To put a key again
keeps its create_revision: so a grant keeps the place. A transaction does all this at one revision:

    if    `when`, the guard of the lease is unmoved, the offset is unmoved
    then  put the key, to hold: the token is its create_revision + offset
    else  read the guards, the offset, the claim's own key and what is ahead; and if it is to wait and has no key,
          put the key, to wait, provided that the guards of both leases and the offset are unmoved

`when` is the condition of the grant, as far as other claims matter:

    free       there is no claim at all: the first try of a claim that has no key
    first      its key is there, and none is older: the first try of a claim that waits
    still      its key is there: the next try, when the rule has said that it fits beside those ahead
    unchanged  no claim has come since a revision: the same, of a claim that has no key

What can happen in between, and why it does no harm:

- *Another claim comes after the read, before the grant.* `free` and `unchanged` do not hold then. `first` and `still`
  need not care: nobody can come ahead of a create_revision, what is ahead only becomes less, and whoever was granted
  behind this claim has counted it as ahead.
- *The response is lost.* The next transaction finds the claim's own key, and with it the place or the token.
- *The request is executed late*, after the claim was withdrawn. It would make a ghost, which nobody knows of and which
  the shared lease keeps. So the client notes the leases of an unanswered transaction, and to withdraw it puts their
  guards anew, *then* deletes the key. What comes before the guard is deleted, what comes after it is refused; in the
  other order it could come between the two. A detached claim has a lease of its own, which is revoked instead.
- *A lease ends.* etcd deletes its keys, and the guard is one of them; and it refuses a put under a lease that is gone.
- *The offset is raised.* A token made with the old one could be too small, so the grant is refused and made again. What
  made the token is stored with the claim: whoever asks again finds the same one.
- *The format changes*, by an upgrade under way. A later one is told by the key of the offset. So all that is done here
  is refused, and so are the other verbs, which compare that key as well.
- *What is ahead goes before it is watched.* The reads and the put of a waiting key are of one revision, the reads come
  first, and the watch begins at the next revision.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...core.claim import Answer, Claim, Granted, Waiting, details_of
from ...core.queue import Entry, Queue
from . import messages
from .keys import OFFSET, Offset, Space, after, entry, read, read_offset, stored
from .leases import Lease
from .messages import Is, KeyValue, Of, Txned, compare, op_put, op_range, op_txn, put, range_


class ClaimTxn(NamedTuple):
    """Everything that one transaction of a claim is made of."""

    space: Space
    claim: Claim
    key: bytes
    lease: Lease  # under which it is put if it is granted
    offset: Offset
    own: int  # its create_revision if it stands in line, else 0
    when: tuple[bytes, ...]
    waiting_lease: Lease | None  # under which it is put in line; None: it is not


class ClaimResult(NamedTuple):
    """What the transaction has found or done."""

    revision: int
    token: int  # of the grant, or 0
    lease: int  # under which it was granted; 0 if it was broken since
    own: int  # the create_revision of its key, or 0
    guard: int
    waiting_guard: int
    offset: Offset
    ahead: tuple[KeyValue, ...]
    total: int  # of all claims, those behind included


_RESOURCES = 1024  # for which parts of a transaction are cached: building them is half of the work
READ_OFFSET = op_range(range_(OFFSET))


@lru_cache(_RESOURCES)
def free(prefix: bytes) -> tuple[bytes, ...]:
    """Grant if nobody is there."""
    return (compare(Is.EQUAL, Of.CREATE, 0, prefix, after(prefix)),)


def first(prefix: bytes, key: bytes, own: int) -> tuple[bytes, ...]:
    """Grant if it is still in line and nobody is ahead."""
    return (*still(key, own), compare(Is.GREATER, Of.CREATE, own - 1, prefix, after(prefix)))


def still(key: bytes, own: int) -> tuple[bytes, ...]:
    """Grant if it is still in line."""
    return (compare(Is.EQUAL, Of.CREATE, own, key),)


def unchanged(prefix: bytes, revision: int) -> tuple[bytes, ...]:
    """Grant if nobody has come since that revision."""
    return (compare(Is.LESS, Of.CREATE, revision + 1, prefix, after(prefix)),)


def build(txn: ClaimTxn) -> bytes:
    """Build the transaction."""
    space, claim, key, lease, offset, own, when, waiting_lease = txn
    prefix = space.queue(claim.resource)
    guards = () if claim.detached else (unmoved(lease.guard_key, lease.guard),)
    known = unmoved(OFFSET, offset.mod)
    conditions = (*when, *guards, known)
    steps = [
        lease.read_guard,
        READ_OFFSET,
        op_range(range_(key)),
        (waiting_lease or lease).read_guard,
        *_view(prefix, claim.shared, own),
    ]
    if waiting_lease is not None and not own:
        absent = (
            compare(Is.EQUAL, Of.CREATE, 0, key),
            unmoved(waiting_lease.guard_key, waiting_lease.guard),
            *guards,
            known,
        )
        # Last: the ranges before it show what is ahead of it.
        steps.append(op_txn(messages.txn(absent, (op_put(_put(claim, key, None, waiting_lease)),))))
    return messages.txn(conditions, (op_put(_put(claim, key, offset.value, lease)),), steps)


class Memo:
    """The last transaction of a claim that had no key: the next one often differs from it in the claim's key only.

    It is kept as what stands around that key, which is there twice. Another key of the same length keeps all lengths.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], list[bytes]] = ((), [])

    def build(self, txn: ClaimTxn) -> bytes:
        """Build the transaction, or derive it from the last one."""
        claim, lease = txn.claim, txn.lease
        if txn.own or txn.waiting_lease is not None:
            return build(txn)
        facts = (
            claim.resource,
            details_of(claim),
            len(txn.key),
            lease.id,
            lease.guard,
            txn.offset,
            txn.when,
        )
        known, around = self._last
        if known == facts:
            return txn.key.join(around)
        data = build(txn)
        around = data.split(txn.key)
        if len(around) == 3:  # else an owner or a value looks like the key
            self._last = facts, around
        return data


def _put(claim: Claim, key: bytes, offset: int | None, lease: Lease) -> bytes:
    return put(key, stored(claim, offset), lease.id)


@lru_cache(_RESOURCES)
def unmoved(key: bytes, mod: int) -> bytes:
    """Demand that nobody has put this key since that revision."""
    return compare(Is.EQUAL, Of.MOD, mod, key)


@lru_cache(_RESOURCES)
def _view(prefix: bytes, shared: bool, own: int) -> list[bytes]:
    end = after(prefix)
    if shared:
        return [op_range(range_(prefix, end))]
    # An exclusive claim need not know the whole line: the first holds, the last is the one to watch.
    return [op_range(range_(prefix, end, limit=1, below=own, newest=newest)) for newest in (False, True)]


def read_result(txn: ClaimTxn, response: Txned) -> ClaimResult:
    """Read the response to the transaction.

    Raises: WireError if it is not a response to this transaction.
    """
    revision, own = response.header.revision, txn.own
    offset = txn.offset
    if response.succeeded:
        create = own or revision
        return ClaimResult(revision, create + offset.value, txn.lease.id, create, 0, 0, offset, (), 0)
    guard, offset_kv, mine, waiting_guard = (_one(response, at) for at in range(4))
    found = read_offset(offset_kv)
    views = [response.ranged(at) for at in range(4, 5 if txn.claim.shared else 6)]
    ahead = {kv.key: kv for view in views for kv in view.kvs if kv.key != txn.key}
    token = lease = place = 0
    if mine is not None:
        place, facts = mine.create, read(mine)
        token = 0 if facts.offset is None else mine.create + facts.offset
        lease = 0 if facts.ending else mine.lease  # somebody has broken it before its client knew of the grant
    elif txn.waiting_lease is not None and not own:
        place = revision if response.txned(len(response.steps) - 1).succeeded else 0
    return ClaimResult(
        revision,
        token,
        lease,
        place,
        guard.mod if guard is not None else 0,
        waiting_guard.mod if waiting_guard is not None else 0,
        found,
        tuple(sorted(ahead.values(), key=lambda kv: kv.create)),
        views[0].total,
    )


def _one(response: Txned, at: int) -> KeyValue | None:
    kvs = response.ranged(at).kvs
    return kvs[0] if kvs else None


def decide(txn: ClaimTxn, result: ClaimResult, waiting_life: float) -> Answer:
    """Apply the one rule to what the transaction has found."""
    entries = [entry(txn.space, kv, waiting_life) for kv in result.ahead]
    if result.own:
        entries.append(Entry(result.own, txn.claim, 0, waiting_life))
    entries.sort(key=lambda known: known.seq)
    answer = Queue(entries).claim(txn.claim, 0.0, 0, waiting_life).answer
    assert isinstance(answer, Granted | Waiting)
    if isinstance(answer, Waiting) and not txn.claim.shared:
        return answer._replace(ahead=result.total)
    return answer


def to_watch(txn: ClaimTxn, result: ClaimResult) -> tuple[bytes, bytes, int]:
    """Return the key or range whose change makes asking again worthwhile, and from which revision on.

    Watching only the claim directly ahead is enough for an exclusive claim; the others must notice any change ahead.
    """
    prefix = txn.space.queue(txn.claim.resource)
    if txn.claim.shared:
        return prefix, after(prefix), result.revision + 1
    return result.ahead[-1].key, b"", result.revision + 1
