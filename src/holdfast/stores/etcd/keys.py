"""The keys that holdfast has in etcd, and what a claim's key holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...core.claim import Claim, ResourceState
from ...core.queue import BROKEN, Entry, Queue
from ...errors import StoreError
from ..format import other_format, shown
from .messages import KeyValue

ROOT = b"holdfast/"
# Added to every create_revision. For the whole store, not for a namespace: revisions belong to the store as well. Every
# verb compares its revision, so it also tells the format of the data: a bare number, or no key, is format 1. A later
# format must write "fN OFFSET" here before anything else, N being its number, and have other keys for its claims.
# Clients that knew of no formats refuse that as well, for it is not a number.
OFFSET = ROOT + b"offset"
FORMAT = 1
# `ending` of a stored claim: 0, KEPT, BROKEN and still under the lease of its holder; or this: broken, and under a
# lease of its own. Versions before claims could be broken wrote false and true for 0 and KEPT, and take what is not 0
# for KEPT: all that they do with claims of others is the same then.
ENDING = 3
_HELD = b",0]"  # how the value of a claim ends that is neither released nor broken; cheaper than reading all of it


def escape(name: str) -> bytes:
    """Make a name safe between slashes; a prefix of a name stays a prefix."""
    return name.replace("%", "%25").replace("/", "%2F").encode()


def unescape(name: bytes) -> str:
    """Undo `escape`."""
    return name.decode().replace("%2F", "/").replace("%25", "%")


def after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with this prefix, whose last byte is not 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def guard_key(lease: int) -> bytes:
    """Return the key by which late claims under a lease are kept out."""
    return ROOT + b"guards/%x" % lease


class Space:
    """The keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        name = escape(namespace)
        self.claims = ROOT + b"claims/" + name + b"/"
        self._values = ROOT + b"values/" + name + b"/"
        self._fences = ROOT + b"fences/" + name + b"/"

    def queue(self, resource: str) -> bytes:
        """Return the prefix of all claims on a resource."""
        return self.claims + escape(resource) + b"/"

    def claim(self, resource: str, holder: str) -> bytes:
        """Return the key of one claim: a holder is new for every acquire, so no late delete can hit another's."""
        return self.queue(resource) + holder.encode()

    def named(self, prefix: str) -> bytes:
        """Return the prefix of all claims on resources whose names begin like this."""
        return self.claims + escape(prefix)

    def value(self, key: str) -> bytes:
        """Return the key of a register's value."""
        return self._values + escape(key)

    def fence(self, key: str) -> bytes:
        """Return the key of a register's fence, which outlives its value."""
        return self._fences + escape(key)

    def resource(self, key: bytes) -> str:
        """Return the resource of a claim's key."""
        return unescape(key[len(self.claims) :].partition(b"/")[0])


class StoredClaim(NamedTuple):
    """What a claim's key holds. `offset` is None while it waits, else what made a token of its create_revision."""

    weight: int
    capacity: int
    ttl: float
    owner: str
    value: str | None
    detached: bool
    offset: int | None
    ending: int = 0  # why it is renewed no more

    @property
    def notices(self) -> bool:
        """Return whether its client looks for the mark of a broken claim when it renews: earlier versions do not."""
        return self.ending is not False


def stored(claim: Claim, offset: int | None) -> bytes:
    """Return what the key of a claim holds while it waits (no offset), or once it is granted."""
    return encode(
        StoredClaim(claim.weight, claim.capacity, claim.ttl, claim.owner, claim.value, claim.detached, offset)
    )


def encode(facts: tuple[Any, ...]) -> bytes:
    """Encode facts for a value."""
    return json.dumps(facts, separators=(",", ":")).encode()


def decode(kv: KeyValue, length: int) -> list[Any]:
    """Decode the facts of a value.

    Raises: StoreError if this is not what we wrote.
    """
    try:
        facts = json.loads(kv.value)
        if isinstance(facts, list) and len(facts) == length:
            return facts
    except ValueError:
        pass
    raise StoreError(
        f"the key {kv.key.decode('utf-8', 'replace')!r} in etcd holds something that holdfast did not write; delete it"
    )


def read(kv: KeyValue) -> StoredClaim:
    """Read what a claim's key holds."""
    return StoredClaim(*decode(kv, len(StoredClaim._fields)))


def is_held(kv: KeyValue, create: int) -> bool:
    """Return whether a granted claim of this client, with this place in line, may still be renewed."""
    return kv.create == create and kv.value.endswith(_HELD)


def entry(space: Space, kv: KeyValue, waiting_life: float) -> Entry:
    """Return the claim as the queue knows it: its place is its create_revision, its token too, plus the offset.

    etcd does not say how much time a key has left. So `expires` is the whole length, counted from zero.
    """
    facts = read(kv)
    resource, holder = space.resource(kv.key), kv.key.rpartition(b"/")[2].decode()
    claim = Claim(
        resource, holder, facts.weight, facts.capacity, facts.ttl, facts.owner, facts.value, True, facts.detached
    )
    token = 0 if facts.offset is None else kv.create + facts.offset
    kept = BROKEN if facts.ending == ENDING else int(facts.ending)
    return Entry(kv.create, claim, token, facts.ttl if token else waiting_life, kept)


class Offset(NamedTuple):
    """What is added to revisions to make tokens, and the revision of the key that says so."""

    value: int = 0
    mod: int = 0


def read_offset(kv: KeyValue | None) -> Offset:
    """Read the offset of all tokens.

    Raises: StoreError if it is not a number, or of another format.
    """
    if kv is None:
        return Offset()
    mark = kv.value.partition(b" ")[0]
    if mark[:1] == b"f" and mark[1:].isdigit():
        raise other_format(f"etcd, by its key {OFFSET.decode()!r},", mark[1:].decode(), FORMAT)
    try:
        offset = int(kv.value)
    except ValueError:
        offset = -1
    if offset < 0:
        raise StoreError(
            f"the key {OFFSET.decode()!r} in etcd must hold a number of at least 0, not {shown(repr(kv.value))}"
        )
    return Offset(offset, kv.mod)


def states(space: Space, kvs: Iterable[KeyValue], waiting_life: float) -> list[ResourceState]:
    """Show claims to people, by resource."""
    queues: dict[str, Queue] = {}
    for kv in sorted(kvs, key=lambda kv: kv.create):
        known = entry(space, kv, waiting_life)
        queue = queues.setdefault(known.claim.resource, Queue())
        queue.entries.append(known)
        queue.counter = max(queue.counter, known.token)
    return [queue.state(resource, 0.0) for resource, queue in sorted(queues.items())]
