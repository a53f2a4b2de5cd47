"""The messages of ZooKeeper's protocol that holdfast uses: requests to bytes, and bytes to replies. No I/O.

A message is a length and that many bytes. A request begins with its number (xid) and kind, a reply with the number of
the request, the id of the last transaction that the server has seen (zxid) and an error code. A connection answers in
order. Numbers below zero are the server's: news of what is watched, and answers to a ping or a login.

Checked in tests against the serializers of kazoo.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct, error
from typing import NamedTuple

EVENT = -1  # the number of what is no answer: something that is watched has changed
PING = -2
AUTH = -4

EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4
ANY_VERSION = -1

_INT = Struct(">i")
_LONG = Struct(">q")
_REPLY = Struct(">iqi")
_CONNECT = Struct(">iqiqi")
_CONNECTED = Struct(">iiqi")
_STAT = Struct(">qqqqiiiqiiq")
_PART = Struct(">i?i")  # of a transaction: its kind, whether it is the end, its error
_END = _PART.pack(-1, True, -1)
_FAILED = -1


class Op(IntEnum):
    """The kinds of requests."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    CHECK = 13
    TOGETHER = 14  # "multi"
    CREATE2 = 15
    CREATE_CONTAINER = 19
    AUTH = 100
    GET_EPHEMERALS = 103
    CLOSE = -11


class Code(IntEnum):
    """The error codes that are told apart."""

    OK = 0
    UNIMPLEMENTED = -6
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119


NAMES = {
    -1: "SystemError",
    -4: "ConnectionLoss",
    -5: "MarshallingError",
    -7: "OperationTimeout",
    -8: "BadArguments",
    -108: "NoChildrenForEphemerals",
    -114: "InvalidACL",
    -122: "RequestTimeout",
    -124: "SessionClosedRequireSaslAuth",
    -125: "QuotaExceeded",
    -127: "ThrottledOp",
}


class WireError(Exception):
    """The bytes are not what the protocol says."""


class Kind(IntEnum):
    """What has happened to something that is watched."""

    SESSION = -1  # nothing: the server tells of the session
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


class Stat(NamedTuple):
    """What ZooKeeper knows of a node. Times are milliseconds since 1970, by the clock of the leader."""

    czxid: int  # the transaction that created it
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int  # the session that it ends with; 0 if it does not
    length: int
    children: int
    pzxid: int


class Connected(NamedTuple):
    """The answer to a connect: no timeout means that the session is over."""

    timeout: int
    session: int
    password: bytes


class Event(NamedTuple):
    """Something that was watched has changed."""

    kind: int
    path: str


class Reply(NamedTuple):
    """The answer to a request: an error code, or what `body` has from `at` on."""

    zxid: int
    code: int
    body: bytes
    at: int = 16


Request = tuple[int, bytes]  # its kind, and what follows its head

# Who may do what with a node: anybody, or whoever has the login of the one that made it.
_ALL = 31
OPEN_ACL = _INT.pack(1) + _INT.pack(_ALL)


def text(value: str) -> bytes:
    """Encode a text."""
    data = value.encode()
    return _INT.pack(len(data)) + data


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


OPEN_ACL += text("world") + text("anyone")
CREATOR_ACL = _INT.pack(1) + _INT.pack(_ALL) + text("auth") + text("")
_WATCHED = (b"\0", b"\1")


# -- requests


def frame(xid: int, request: Request) -> bytes:
    """Return the message of a request."""
    kind, body = request
    return b"%b%b%b%b" % (_INT.pack(8 + len(body)), _INT.pack(xid), _INT.pack(kind), body)


def connect(last_zxid: int, timeout_ms: int, session: int, password: bytes) -> bytes:
    """Return the message that begins a session, or goes on with one."""
    body = _CONNECT.pack(0, last_zxid, timeout_ms, session, len(password)) + password + b"\0"
    return _buffer(body)


def auth(scheme: str, secret: bytes) -> Request:
    """Log in; its number is AUTH."""
    return Op.AUTH, _INT.pack(0) + text(scheme) + _buffer(secret)


def create(path: str, data: bytes, acl: bytes) -> Request:
    """Make a lasting node."""
    return Op.CREATE, text(path) + _buffer(data) + acl + b"\0\0\0\0"


def create_sequential(path: str, data: bytes, acl: bytes) -> Request:
    """Make a node that ends with this session, and whose name goes on with a number. The answer has its Stat."""
    return Op.CREATE2, text(path) + _buffer(data) + acl + _INT.pack(EPHEMERAL_SEQUENTIAL)


def create_container(path: str, acl: bytes) -> Request:
    """Make a node that the server removes some time after its last child is gone."""
    return Op.CREATE_CONTAINER, text(path) + _buffer(b"") + acl + _INT.pack(CONTAINER)


def delete(path: str, version: int = ANY_VERSION) -> Request:
    """Delete a node."""
    return Op.DELETE, text(path) + _INT.pack(version)


def exists(path: str, watch: bool = False) -> Request:
    """Ask for the Stat of a node; watched, also one that is not there."""
    return Op.EXISTS, text(path) + _WATCHED[watch]


def get_data(path: str, watch: bool = False) -> Request:
    """Read a node; one that is not there is not watched."""
    return Op.GET_DATA, text(path) + _WATCHED[watch]


def set_data(path: str, data: bytes, version: int = ANY_VERSION) -> Request:
    """Write a node."""
    return Op.SET_DATA, text(path) + _buffer(data) + _INT.pack(version)


def get_children(path: str, watch: bool = False) -> Request:
    """List the names of a node's children, in no order."""
    return Op.GET_CHILDREN, text(path) + _WATCHED[watch]


def sync(path: str) -> Request:
    """Have the server catch up with its leader before it answers what follows."""
    return Op.SYNC, text(path)


def get_ephemerals(prefix: str) -> Request:
    """List the paths of this session's own nodes that begin like this."""
    return Op.GET_EPHEMERALS, text(prefix)


def check(path: str, version: int) -> Request:
    """Have a transaction fail if a node has not this version; only for `together`."""
    return Op.CHECK, text(path) + _INT.pack(version)


def together(requests: Sequence[Request]) -> Request:
    """Do all of these in one transaction, or none. The nodes that they make are lasting ones."""
    return Op.TOGETHER, b"".join([_PART.pack(kind, False, -1) + body for kind, body in requests]) + _END


CLOSE: Request = (Op.CLOSE, b"")
PING_FRAME = frame(PING, (Op.PING, b""))


# -- replies


def read_connected(body: bytes) -> Connected:
    """Read the answer to a connect."""
    try:
        _, timeout, session, length = _CONNECTED.unpack_from(body)
    except error as cause:
        raise WireError("the answer to the connect is too short") from cause
    end = _CONNECTED.size + max(0, length)
    if end > len(body):  # with a part of its password the session could not be taken up again
        raise WireError("the answer to the connect ends in the middle of the password")
    return Connected(timeout, session, body[_CONNECTED.size : end])


def read_head(body: bytes) -> tuple[int, int, int]:
    """Return the number, the zxid and the error code of a reply."""
    try:
        return _REPLY.unpack_from(body)
    except error as cause:
        raise WireError("a reply is too short") from cause


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    (length,) = _INT.unpack_from(body, at)
    start = at + 4
    end = start + max(0, length)  # no text at all has a length of -1
    if end > len(body):
        raise WireError("a reply ends in the middle of a text")
    return body[start:end].decode(), end


def read_event(body: bytes) -> Event:
    """Read what has changed."""
    try:
        (kind,) = _INT.unpack_from(body, 16)
        return Event(kind, _read_text(body, 24)[0])
    except (error, UnicodeDecodeError) as cause:
        raise WireError("news of a watch cannot be read") from cause


def read_created(reply: Reply) -> tuple[str, Stat]:
    """Read the path and the Stat of a node that was made."""
    try:
        path, at = _read_text(reply.body, reply.at)
        return path, Stat._make(_STAT.unpack_from(reply.body, at))
    except (error, UnicodeDecodeError) as cause:
        raise WireError("the answer to a create cannot be read") from cause


def read_stat(reply: Reply) -> Stat:
    """Read a Stat."""
    try:
        return Stat._make(_STAT.unpack_from(reply.body, reply.at))
    except error as cause:
        raise WireError("a Stat cannot be read") from cause


def read_data(reply: Reply) -> tuple[bytes, Stat]:
    """Read what a node holds, and its Stat."""
    try:
        (length,) = _INT.unpack_from(reply.body, reply.at)
        end = reply.at + 4 + max(0, length)
        return reply.body[reply.at + 4 : end], Stat._make(_STAT.unpack_from(reply.body, end))
    except error as cause:
        raise WireError("the data of a node cannot be read") from cause


def read_failure(reply: Reply) -> tuple[int, int] | None:
    """Return which request of a transaction has failed, and why; None if all are done."""
    body, at, number = reply.body, reply.at, 0
    try:
        while True:
            kind, ended, _ = _PART.unpack_from(body, at)
            if ended or kind != _FAILED:
                return None
            (code,) = _INT.unpack_from(body, at + _PART.size)
            if code:  # those before it have 0, and those after it a code that says nothing
                return number, code
            at += _PART.size + _INT.size
            number += 1
    except error as cause:
        raise WireError("the answer to a transaction cannot be read") from cause


def read_texts(reply: Reply) -> list[str]:
    """Read a list of names or paths."""
    body, at = reply.body, reply.at
    try:
        (count,) = _INT.unpack_from(body, at)
        at += 4
        found: list[str] = []
        for _ in range(count):
            name, at = _read_text(body, at)
            found.append(name)
        return found
    except (error, UnicodeDecodeError) as cause:
        raise WireError("a list cannot be read") from cause
