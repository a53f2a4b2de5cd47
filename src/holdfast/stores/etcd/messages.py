"""etcd's messages: requests are built as bytes, replies are read into plain tuples. Field numbers are etcd's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from . import wire
from .wire import Fields, WireError, inner, number, parse, signed, string, strings, text, unsigned

RANGE = "/etcdserverpb.KV/Range"
PUT = "/etcdserverpb.KV/Put"
DELETE = "/etcdserverpb.KV/DeleteRange"
TXN = "/etcdserverpb.KV/Txn"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
LEASE_TIME_TO_LIVE = "/etcdserverpb.Lease/LeaseTimeToLive"
WATCH = "/etcdserverpb.Watch/Watch"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"


class Is(IntEnum):
    """How a stored number has to compare."""

    EQUAL = 0
    GREATER = 1
    LESS = 2


class Of(IntEnum):
    """Which number of a key is compared."""

    CREATE = 1
    MOD = 2


_COMPARED = {Of.CREATE: wire.varint(5 << 3), Of.MOD: wire.varint(6 << 3)}  # tags
_OLDEST_FIRST, _NEWEST_FIRST = 1, 2
_BY_CREATE = 2


class Header(NamedTuple):
    """Where the store stood when it answered."""

    revision: int
    term: int


class KeyValue(NamedTuple):
    """A key as etcd keeps it."""

    key: bytes
    create: int
    mod: int
    value: bytes
    lease: int


class Ranged(NamedTuple):
    """What a range holds; `total` counts what a limit or `below` left out, too."""

    kvs: tuple[KeyValue, ...]
    total: int


class Put(NamedTuple):
    """A key was put."""


class Deleted(NamedTuple):
    """So many keys were deleted."""

    keys: int


class Txned(NamedTuple):
    """A transaction was executed, by its first branch if it succeeded."""

    header: Header
    succeeded: bool
    steps: tuple[bytes, ...]  # what each step replied; read on demand, for a grant needs none of it

    def reply(self, at: int) -> Ranged | Put | Deleted | Txned:
        """Return the reply of the step at this index.

        Raises: WireError if there is none, or it cannot be read.
        """
        if at >= len(self.steps):
            raise WireError(f"the transaction has {len(self.steps)} replies, and number {at} was expected")
        fields = parse(self.steps[at])
        kinds = [kind for kind in (1, 2, 3, 4) if strings(fields, kind)]
        if len(kinds) != 1:
            raise WireError(f"a reply of a transaction is of {len(kinds)} kinds")
        found = inner(fields, kinds[0])
        match kinds[0]:
            case 1:
                return _ranged(found)
            case 2:
                return Put()
            case 3:
                return Deleted(signed(found, 2))
            case _:
                return _txned(found)

    def ranged(self, at: int) -> Ranged:
        """Return the reply to a range request at this index.

        Raises: WireError if it is another kind of reply.
        """
        reply = self.reply(at)
        if not isinstance(reply, Ranged):
            raise WireError(f"reply {at} of the transaction is {reply!r}, not a range")
        return reply

    def txned(self, at: int) -> Txned:
        """Return the reply of the transaction inside this one at this index.

        Raises: WireError if it is another kind of reply.
        """
        reply = self.reply(at)
        if not isinstance(reply, Txned):
            raise WireError(f"reply {at} of the transaction is {reply!r}, not a transaction")
        return reply


class Granted(NamedTuple):
    """A lease as it was granted, kept alive or asked for; its ttl is not positive if etcd no longer has it."""

    header: Header
    lease: int
    ttl: int


class Watched(NamedTuple):
    """News from a watch."""

    watch: int
    created: bool
    canceled: bool
    compacted: int
    reason: str
    events: int


def range_(
    key: bytes, end: bytes = b"", *, limit: int = 0, newest: bool = False, below: int = 0, keys_only: bool = False
) -> bytes:
    """Ask for a key, or for a range in order of creation; `below` leaves out what was created at that or later."""
    order = (_NEWEST_FIRST if newest else _OLDEST_FIRST) if end else 0
    return (
        text(1, key)
        + text(2, end)
        + number(3, limit)
        + number(5, order)
        + number(6, _BY_CREATE if end else 0)
        + number(8, keys_only)
        + number(13, below - 1 if below else 0)
    )


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    """Put a key, under a lease if one is given."""
    return text(1, key) + text(2, value) + number(3, lease)


def delete(key: bytes, end: bytes = b"") -> bytes:
    """Delete a key or a range."""
    return text(1, key) + text(2, end)


def compare(how: Is, of: Of, value: int, key: bytes, end: bytes = b"") -> bytes:
    """Demand that a number of a key, or of every key in a range, compares like this; a missing key has 0."""
    # The compared number is one of a oneof, and so it is sent even if it is 0.
    target = _COMPARED[of] + wire.varint(value)
    return number(1, how) + number(2, of) + text(3, key) + target + text(64, end)


def op_range(request: bytes) -> bytes:
    """Make a range request a step of a transaction."""
    return wire.message(1, request)


def op_put(request: bytes) -> bytes:
    """Make a put request a step of a transaction."""
    return wire.message(2, request)


def op_delete(request: bytes) -> bytes:
    """Make a delete request a step of a transaction."""
    return wire.message(3, request)


def op_txn(request: bytes) -> bytes:
    """Make a transaction a step of another."""
    return wire.message(4, request)


def txn(when: Sequence[bytes], then: Sequence[bytes], otherwise: Sequence[bytes] = ()) -> bytes:
    """Do `then` if all comparisons hold, else `otherwise`."""
    return wire.messages(1, when) + wire.messages(2, then) + wire.messages(3, otherwise)


def lease_grant(ttl: int, lease: int) -> bytes:
    """Ask for a lease of this number."""
    return number(1, ttl) + number(2, lease)


def lease_id(lease: int) -> bytes:
    """Name a lease: to revoke it, to keep it alive, to ask what is left of it."""
    return number(1, lease)


def watch_create(watch: int, key: bytes, end: bytes, start: int, *, deletes_only: bool) -> bytes:
    """Watch a key or a range from a revision on."""
    no_put = wire.message(5, b"\0") if deletes_only else b""  # a packed list with the one filter 0
    return wire.message(1, text(1, key) + text(2, end) + number(3, start) + no_put + number(7, watch))


def watch_cancel(watch: int) -> bytes:
    """Stop watching it."""
    return wire.message(2, number(1, watch))


def authenticate(name: str, password: str) -> bytes:
    """Ask for a token."""
    return text(1, name.encode()) + text(2, password.encode())


def ranged(data: bytes) -> Ranged:
    """Read the reply to a range request."""
    return _ranged(parse(data))


def deleted(data: bytes) -> Deleted:
    """Read the reply to a delete request."""
    return Deleted(signed(parse(data), 2))


def txned(data: bytes) -> Txned:
    """Read the reply to a transaction."""
    return _txned(parse(data))


def header(data: bytes) -> Header:
    """Read the header of any reply."""
    return _header(parse(data))


def granted(data: bytes) -> Granted:
    """Read the reply to a grant, to a keep-alive or about the time left."""
    fields = parse(data)
    return Granted(_header(fields), signed(fields, 2), signed(fields, 3))


def watched(data: bytes) -> Watched:
    """Read news from a watch."""
    fields = parse(data)
    return Watched(
        signed(fields, 2),
        bool(unsigned(fields, 3)),
        bool(unsigned(fields, 4)),
        signed(fields, 5),
        string(fields, 6).decode("utf-8", "replace"),
        len(strings(fields, 11)),
    )


def auth_token(data: bytes) -> str:
    """Read the token."""
    return string(parse(data), 2).decode("utf-8", "replace")


def _header(fields: Fields) -> Header:
    found = inner(fields, 1)
    return Header(signed(found, 3), unsigned(found, 4))


def _key_value(data: bytes) -> KeyValue:
    fields = parse(data)
    return KeyValue(string(fields, 1), signed(fields, 2), signed(fields, 3), string(fields, 5), signed(fields, 6))


def _ranged(fields: Fields) -> Ranged:
    return Ranged(tuple([_key_value(kv) for kv in strings(fields, 2)]), signed(fields, 4))


def _txned(fields: Fields) -> Txned:
    return Txned(_header(fields), bool(unsigned(fields, 2)), tuple(strings(fields, 3)))
