"""One claim, one transaction: put it if it can be granted, else read what is ahead and stand in line."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..core.claim import Answer, Claim, Granted, Waiting
from ..core.queue import Entry, Queue
from .keys import OFFSET, Space, after, entry, kept, offset_of, read
from .leases import Lease
from .messages import Is, KeyValue, Of, Txned, compare, op_put, op_range, op_txn, put, range_, txn


class Offset(NamedTuple):
    """What is added to revisions to make tokens, and the revision of the key that says so."""

    value: int = 0
    mod: int = 0


class Question(NamedTuple):
    """Everything that one transaction of a claim is made of."""

    space: Space
    claim: Claim
    key: bytes
    lease: Lease  # that it comes under if it is granted
    offset: Offset
    own: int  # its create_revision if it stands in line, else 0
    when: tuple[bytes, ...]
    line: Lease | None  # that it stands in line under; None: it is turned away


class Reply(NamedTuple):
    """What the transaction has found."""

    revision: int
    token: int  # of the grant, or 0
    lease: int  # that the grant is under
    own: int  # the create_revision of its key, or 0
    guard: int
    line_guard: int
    offset: Offset
    ahead: tuple[KeyValue, ...]
    total: int  # of all claims, those behind included


_RESOURCES = 1024  # whose parts of a transaction are kept: to build them is half of the work
_LOOK_AT_OFFSET = op_range(range_(OFFSET))


@lru_cache(_RESOURCES)
def free(prefix: bytes) -> tuple[bytes, ...]:
    """Grant if nobody is there."""
    return (compare(Is.EQUAL, Of.CREATE, 0, prefix, after(prefix)),)


def first(prefix: bytes, key: bytes, own: int) -> tuple[bytes, ...]:
    """Grant if it is still in line and nobody is ahead."""
    return (*still(key, own), compare(Is.GREATER, Of.CREATE, own - 1, prefix, after(prefix)))


def still(key: bytes, own: int) -> tuple[bytes, ...]:
    """Grant if it is still in line: what is ahead of it only becomes less."""
    return (compare(Is.EQUAL, Of.CREATE, own, key),)


def unchanged(prefix: bytes, revision: int) -> tuple[bytes, ...]:
    """Grant if nobody has come since that revision."""
    return (compare(Is.LESS, Of.CREATE, revision + 1, prefix, after(prefix)),)


def ask(question: Question) -> bytes:
    """Build the transaction."""
    space, claim, key, lease, offset, own, when, line = question
    prefix = space.queue(claim.resource)
    guards = () if claim.detached else (_unmoved(lease.guard_key, lease.guard),)
    conditions = (*when, *guards, _unmoved(OFFSET, offset.mod))
    steps = [
        lease.look,
        _LOOK_AT_OFFSET,
        op_range(range_(key)),
        (line or lease).look,
        *_view(prefix, claim.shared, own),
    ]
    if line is not None and not own:
        absent = (
            compare(Is.EQUAL, Of.CREATE, 0, key),
            _unmoved(line.guard_key, line.guard),
            *guards,
        )
        # After the ranges: what they show is what is ahead of it.
        steps.append(op_txn(txn(absent, (op_put(_put(claim, key, None, line)),))))
    return txn(conditions, (op_put(_put(claim, key, offset.value, lease)),), steps)


class Memo:
    """The last transaction of a claim that comes for the first time: the next is often the same but for its holder.

    A holder is random, so it stands in its key and nowhere else; one of the same length leaves all lengths as they are.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], bytes, bytes] = ((), b"", b"")

    def ask(self, question: Question) -> bytes:
        """Build the transaction, or make it of the last one."""
        claim, lease = question.claim, question.lease
        if question.own or question.line is not None:
            return ask(question)
        facts = (claim[0], claim[2:], len(claim.holder), lease.id, lease.guard, question.offset, question.when)
        holder = claim.holder.encode()
        known, known_holder, data = self._last
        if known == facts:
            return data.replace(known_holder, holder)
        data = ask(question)
        self._last = facts, holder, data
        return data


def _put(claim: Claim, key: bytes, offset: int | None, lease: Lease) -> bytes:
    return put(key, kept(claim, offset), lease.id)


@lru_cache(_RESOURCES)
def _unmoved(key: bytes, mod: int) -> bytes:
    return compare(Is.EQUAL, Of.MOD, mod, key)


@lru_cache(_RESOURCES)
def _view(prefix: bytes, shared: bool, own: int) -> list[bytes]:
    end = after(prefix)
    if shared:
        return [op_range(range_(prefix, end))]
    # An exclusive claim need not know the whole line: the first holds, the last is the one to watch.
    return [op_range(range_(prefix, end, limit=1, below=own, newest=newest)) for newest in (False, True)]


def answered(question: Question, reply: Txned) -> Reply:
    """Read the reply of the transaction.

    Raises: WireError if it is not one to this question.
    """
    revision, own = reply.header.revision, question.own
    offset = question.offset
    if reply.succeeded:
        create = own or revision
        return Reply(revision, create + offset.value, question.lease.id, create, 0, 0, offset, (), 0)
    guard, offset_kv, mine, line_guard = (_one(reply, at) for at in range(4))
    found = Offset(offset_of(offset_kv), offset_kv.mod if offset_kv is not None else 0)
    views = [reply.ranged(at) for at in range(4, 5 if question.claim.shared else 6)]
    ahead = {kv.key: kv for view in views for kv in view.kvs if kv.key != question.key}
    token = lease = place = 0
    if mine is not None:
        place, lease, facts = mine.create, mine.lease, read(mine)
        token = 0 if facts.offset is None else mine.create + facts.offset
    elif question.line is not None and not own:
        place = revision if reply.txned(len(reply.steps) - 1).succeeded else 0
    return Reply(
        revision,
        token,
        lease,
        place,
        guard.mod if guard is not None else 0,
        line_guard.mod if line_guard is not None else 0,
        found,
        tuple(sorted(ahead.values(), key=lambda kv: kv.create)),
        views[0].total,
    )


def _one(reply: Txned, at: int) -> KeyValue | None:
    kvs = reply.ranged(at).kvs
    return kvs[0] if kvs else None


def judge(question: Question, reply: Reply, waiting_life: float) -> Answer:
    """Apply the one rule to what the transaction has found."""
    entries = [entry(question.space, kv, waiting_life) for kv in reply.ahead]
    if reply.own:
        entries.append(Entry(reply.own, question.claim, 0, waiting_life))
    entries.sort(key=lambda known: known.seq)
    answer = Queue(entries).claim(question.claim, 0.0, 0, waiting_life).answer
    assert isinstance(answer, Granted | Waiting)
    if isinstance(answer, Waiting) and not question.claim.shared:
        return answer._replace(ahead=reply.total)
    return answer


def to_watch(question: Question, reply: Reply) -> tuple[bytes, bytes, int]:
    """Return the key or range whose change makes asking again worthwhile, and from which revision on.

    Watching only who is directly ahead is enough for an exclusive claim; the others must notice any change ahead.
    """
    prefix = question.space.queue(question.claim.resource)
    if question.claim.shared:
        return prefix, after(prefix), reply.revision + 1
    return reply.ahead[-1].key, b"", reply.revision + 1
