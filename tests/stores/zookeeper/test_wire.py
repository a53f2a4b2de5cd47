"""Our codec of ZooKeeper's messages against kazoo's, both ways, and with damaged bytes.

kazoo has no containers and cannot list a session's own nodes: these two are compared with an encoding made by hand.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import Struct, error, pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id

from holdfast.stores.zookeeper import wire
from holdfast.stores.zookeeper.wire import Reply, Request, WireError

MANY = settings(deadline=None)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(min_size=1, max_size=40)  # kazoo writes an empty one as none at all
paths = texts.map("/".__add__)
data = st.binary(max_size=200)
acls = st.sampled_from([wire.OPEN_ACL, wire.CREATOR_ACL])
versions = st.one_of(st.just(wire.ANY_VERSION), int32)
stats = st.tuples(*(int64 if kind == "q" else int32 for kind in "qqqqiiiqiiq"))


def text(value: str) -> bytes:
    """Encode a text by hand."""
    return pack(">i", len(value.encode())) + value.encode()


# -- what we write is what kazoo writes


def theirs(acl: bytes) -> list[ACL]:
    """Return kazoo's object for one of our two lists of rights."""
    (found,) = OPEN_ACL_UNSAFE if acl == wire.OPEN_ACL else CREATOR_ALL_ACL
    return [found]


def as_java(written: bytes, acl: bytes) -> bytes:
    """Put an empty text where kazoo writes none, as the Java client does."""
    if acl == wire.OPEN_ACL:
        return written
    assert written.count(text("auth") + pack(">i", -1)) == 1
    return written.replace(text("auth") + pack(">i", -1), text("auth") + text(""))


def same(mine: Request, oracle: Any, acl: bytes = wire.OPEN_ACL) -> None:
    assert mine == (oracle.type, as_java(bytes(oracle.serialize()), acl))


@MANY
@given(zxid=int64, timeout=int32, session=int64, password=st.binary(max_size=40))
def test_connect(zxid: int, timeout: int, session: int, password: bytes) -> None:
    body = bytes(kazoo.Connect(0, zxid, timeout, session, password, False).serialize())
    assert wire.connect(zxid, timeout, session, password) == pack(">i", len(body)) + body


@MANY
@given(scheme=texts, secret=texts)
def test_auth(scheme: str, secret: str) -> None:
    same(wire.auth(scheme, secret.encode()), kazoo.Auth(0, scheme, secret))


@MANY
@given(path=paths, data=data, acl=acls)
def test_create(path: str, data: bytes, acl: bytes) -> None:
    same(wire.create(path, data, acl), kazoo.Create(path, data, theirs(acl), 0), acl)


@MANY
@given(path=paths, data=data, acl=acls)
def test_create_sequential(path: str, data: bytes, acl: bytes) -> None:
    same(wire.create_sequential(path, data, acl), kazoo.Create2(path, data, theirs(acl), 1 | 2), acl)


@MANY
@given(path=paths, version=versions)
def test_delete(path: str, version: int) -> None:
    same(wire.delete(path, version), kazoo.Delete(path, version))
    same(wire.delete(path), kazoo.Delete(path, -1))


@MANY
@given(path=paths)
def test_reads(path: str) -> None:
    for watch in (False, True):
        same(wire.exists(path, watch), kazoo.Exists(path, watch))
        same(wire.get_data(path, watch), kazoo.GetData(path, watch))
        same(wire.get_children(path, watch), kazoo.GetChildren(path, watch))
    same(wire.sync(path), kazoo.Sync(path))


@MANY
@given(path=paths, data=data, version=versions)
def test_set_data(path: str, data: bytes, version: int) -> None:
    same(wire.set_data(path, data, version), kazoo.SetData(path, data, version))
    same(wire.set_data(path, data), kazoo.SetData(path, data, -1))


@MANY
@given(path=paths, data=data, acl=acls, version=versions)
def test_together(path: str, data: bytes, acl: bytes, version: int) -> None:
    mine = [wire.check(path, version), wire.create(path, data, acl), wire.set_data(path, data), wire.delete(path)]
    oracle: list[Any] = [kazoo.CheckVersion(path, version), kazoo.Create(path, data, theirs(acl), 0)]
    oracle += [kazoo.SetData(path, data, -1), kazoo.Delete(path, -1)]
    same(wire.together(mine), kazoo.Transaction(oracle), acl)


def test_close_and_ping() -> None:
    same(wire.CLOSE, kazoo.CloseInstance)
    same((wire.Op.PING, b""), kazoo.PingInstance)
    assert pack(">iii", 8, -2, kazoo.Ping.type) == wire.PING_FRAME  # as kazoo's connection does, with its PING_XID


@MANY
@given(path=paths, acl=acls)
def test_create_container(path: str, acl: bytes) -> None:
    rights = {wire.OPEN_ACL: ("world", "anyone"), wire.CREATOR_ACL: ("auth", "")}[acl]
    encoded = text(path) + pack(">i", 0) + pack(">ii", 1, 31) + text(rights[0]) + text(rights[1]) + pack(">i", 4)
    assert wire.create_container(path, acl) == (19, encoded)


@MANY
@given(prefix=paths)
def test_get_ephemerals(prefix: str) -> None:
    assert wire.get_ephemerals(prefix) == (103, text(prefix))


@MANY
@given(number=int32, kind=int32, body=data)
def test_frame(number: int, kind: int, body: bytes) -> None:
    assert wire.frame(number, (kind, body)) == pack(">iii", 8 + len(body), number, kind) + body


def test_kazoo_knows_our_rights() -> None:
    """It reads what we write, too."""
    for written in (wire.OPEN_ACL, wire.CREATOR_ACL):
        found, end = kazoo.read_acl(written, 4)
        assert [found._replace(id=Id(found.id.scheme, found.id.id or ""))] == theirs(written)
        assert end == len(written)


# -- what the server writes, we read as kazoo does


def head(number: int = 1, zxid: int = 2, code: int = 0) -> bytes:
    return pack(">iqi", number, zxid, code)


def stat(values: tuple[int, ...]) -> bytes:
    return pack(">qqqqiiiqiiq", *values)


def listed(names: list[str]) -> bytes:
    return pack(">i", len(names)) + b"".join(map(text, names))


def answered(body: bytes) -> Reply:
    return Reply(2, 0, body)


# A valid message of each kind; how we read it; how kazoo does.
Oracle = Callable[[bytes], Any]
created = st.builds(lambda path, values: head() + text(path) + stat(values), texts, stats)
stat_alone = st.builds(lambda values: head() + stat(values), stats)
read = st.builds(lambda held, values: head() + pack(">i", len(held)) + held + stat(values), data, stats)
names = st.builds(lambda found: head() + listed(found), st.lists(texts, max_size=6))
events = st.builds(lambda kind, state, path: head(-1, -1) + pack(">ii", kind, state) + text(path), int32, int32, texts)
heads = st.builds(head, int32, int64, int32)
connected = st.builds(
    lambda timeout, session, password, end: pack(">iiqi", 0, timeout, session, len(password)) + password + end,
    int32,
    int64,
    st.binary(max_size=20),
    st.just(b"\0"),
)


def their_connected(body: bytes) -> tuple[int, int, bytes]:
    found = kazoo.Connect.deserialize(body, 0)[0]
    return found.time_out, found.session_id, found.passwd or b""


def their_event(body: bytes) -> tuple[int, str]:
    found = kazoo.Watch.deserialize(body, 16)[0]
    return found.type, found.path or ""


def their_data(body: bytes) -> tuple[bytes, Any]:
    found = kazoo.GetData.deserialize(body, 16)
    return found[0] or b"", found[1]


def their_created(body: bytes) -> tuple[str, Any]:
    found = kazoo.Create2.deserialize(body, 16)
    return found[0] or "", found[1]


READ: dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], Any], Oracle]] = {
    "connected": (connected, wire.read_connected, their_connected),
    "head": (heads, wire.read_head, lambda body: kazoo.ReplyHeader.deserialize(body, 0)[0]),
    "event": (events, wire.read_event, their_event),
    "created": (created, lambda body: wire.read_created(answered(body)), their_created),
    "stat": (stat_alone, lambda body: wire.read_stat(answered(body)), lambda body: kazoo.SetData.deserialize(body, 16)),
    "data": (read, lambda body: wire.read_data(answered(body)), their_data),
    "names": (
        names,
        lambda body: wire.read_texts(answered(body)),
        lambda body: [name or "" for name in kazoo.GetChildren.deserialize(body, 16)],
    ),
}
# What may be left out at the end: a server before 3.4 does not say whether it is read-only.
OPTIONAL = {"connected": 1}
kinds = pytest.mark.parametrize("kind", READ)


@kinds
@MANY
@given(drawn=st.data())
def test_a_reply_is_read_as_kazoo_reads_it(kind: str, drawn: st.DataObject) -> None:
    whole, mine, oracle = READ[kind]
    body = drawn.draw(whole)
    assert mine(body) == oracle(body)


@MANY
@given(values=stats)
def test_the_fields_of_a_stat_are_those_of_kazoo(values: tuple[int, ...]) -> None:
    mine = wire.read_stat(answered(head() + stat(values)))
    oracle = kazoo.Exists.deserialize(stat(values), 0) or kazoo.SetData.deserialize(stat(values), 0)
    assert (mine.czxid, mine.mzxid, mine.ctime, mine.mtime) == (oracle.czxid, oracle.mzxid, oracle.ctime, oracle.mtime)
    assert (mine.version, mine.cversion, mine.aversion) == (oracle.version, oracle.cversion, oracle.aversion)
    assert (mine.owner, mine.length) == (oracle.ephemeralOwner, oracle.dataLength)
    assert (mine.children, mine.pzxid) == (oracle.numChildren, oracle.pzxid)


def test_a_list_and_a_password_that_are_none_are_empty() -> None:
    assert wire.read_texts(answered(head() + pack(">i", -1))) == []
    assert wire.read_data(answered(head() + pack(">i", -1) + stat((0,) * 11)))[0] == b""
    assert wire.read_connected(pack(">iiqi", 0, 5, 7, -1)) == (5, 7, b"")
    assert wire.read_event(head(-1, -1) + pack(">iii", -1, 3, -1)) == (wire.Kind.SESSION, "")


def failed(codes: list[int]) -> bytes:
    parts = [pack(">i?ii", -1, False, code, code) for code in codes]
    return head() + b"".join(parts) + pack(">i?i", -1, True, -1)


@MANY
@given(before=st.integers(0, 4), code=st.sampled_from([-101, -102, -103, -110, -111, -112]), after=st.integers(0, 4))
def test_the_first_failure_of_a_transaction_is_the_one(before: int, code: int, after: int) -> None:
    body = failed([*[0] * before, code, *[-2] * after])
    number, found = wire.read_failure(answered(body)) or (-1, 0)
    oracle = kazoo.Transaction.deserialize(body, 16)
    assert (number, found) == (before, code)
    assert [one.code for one in oracle].index(code) == number
    for end in range(16, 16 + 13 * (before + 1)):
        with pytest.raises(WireError, match="transaction"):
            wire.read_failure(answered(body[:end]))


@MANY
@given(path=paths, values=stats)
def test_a_transaction_that_is_done_has_no_failure(path: str, values: tuple[int, ...]) -> None:
    part = Struct(">i?i")
    done = [part.pack(13, False, 0), part.pack(1, False, 0) + text(path), part.pack(5, False, 0) + stat(values)]
    for first in range(len(done)):
        assert wire.read_failure(answered(head() + b"".join(done[first:]) + part.pack(-1, True, -1))) is None


# -- damage


@kinds
@settings(max_examples=30, deadline=None)
@given(drawn=st.data())
def test_every_part_of_a_reply_is_refused(kind: str, drawn: st.DataObject) -> None:
    whole, mine, _ = READ[kind]
    body = drawn.draw(whole)
    for end in range(len(body) - OPTIONAL.get(kind, 0)):
        with pytest.raises(WireError):
            mine(body[:end])


def refused_or_read_as_kazoo_does(kind: str, body: bytes) -> None:
    _, mine, oracle = READ[kind]
    try:
        found = mine(body)
    except WireError:
        return  # and nothing else
    try:
        assert found == oracle(body)
    except (error, UnicodeDecodeError):
        raise AssertionError(f"read {found!r}, where kazoo finds damage") from None


@kinds
@MANY
@given(drawn=st.data())
def test_a_damaged_reply_is_refused_or_read_as_kazoo_reads_it(kind: str, drawn: st.DataObject) -> None:
    body = bytearray(drawn.draw(READ[kind][0]))
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(0, max(0, len(body) - 1)))
        match drawn.draw(st.sampled_from(["cut", "flip", "insert"])):
            case "cut":
                del body[at:]
            case "flip" if body:
                body[at] = drawn.draw(st.integers(0, 255))
            case _:
                body.insert(at, drawn.draw(st.integers(0, 255)))
    refused_or_read_as_kazoo_does(kind, bytes(body))


@MANY
@given(body=st.binary(max_size=120))
def test_any_bytes_are_refused_or_read_as_kazoo_reads_them(body: bytes) -> None:
    for kind in READ:
        refused_or_read_as_kazoo_does(kind, body)


@pytest.mark.parametrize("length", [2**31 - 1, 2**24, 9])
@kinds
def test_a_length_that_is_not_there_is_refused_and_nothing_is_set_aside_for_it(kind: str, length: int) -> None:
    begin = {"connected": pack(">iiq", 0, 0, 0), "head": b"", "event": head() + pack(">ii", 1, 3)}.get(kind, head())
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            READ[kind][1](begin + pack(">i", length))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_list_of_two_milliards_ends_where_its_bytes_do() -> None:
    body = head() + pack(">i", 2**31 - 1) + text("a") * 1000
    with pytest.raises(WireError, match="a list cannot be read"):
        wire.read_texts(answered(body))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: wire.read_connected(b"\0" * 8), "the answer to the connect is too short"),
        (lambda: wire.read_connected(pack(">iiqi", 0, 5, 7, 16) + b"123"), "in the middle of the password"),
        (lambda: wire.read_head(b"\0" * 15), "a reply is too short"),
        (lambda: wire.read_event(head()), "news of a watch"),
        (lambda: wire.read_created(answered(head() + text("/a"))), "the answer to a create"),
        (lambda: wire.read_created(answered(head() + pack(">i", 5) + b"/a")), "in the middle of a text"),
        (lambda: wire.read_stat(answered(head())), "a Stat cannot be read"),
        (lambda: wire.read_data(answered(head() + pack(">i", 1) + b"x")), "the data of a node"),
        (lambda: wire.read_texts(answered(head() + pack(">ii", 1, 2) + b"\xff\xff")), "a list cannot be read"),
    ],
)
def test_damage_is_named(act: Callable[[], object], said: str) -> None:
    with pytest.raises(WireError, match=said):
        act()


# -- controls: one mistake each in a request


MISTAKES: dict[str, tuple[Request, Any]] = {
    "another kind of create": ((wire.Op.CREATE, wire.create_sequential("/a", b"", wire.OPEN_ACL)[1]), kazoo.Create2),
    "not ephemeral": (
        (wire.Op.CREATE2, wire.create_sequential("/a", b"", wire.OPEN_ACL)[1][:-1] + b"\2"),
        kazoo.Create2,
    ),
}


@pytest.mark.control
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_request_with_a_mistake_is_caught(mistake: str) -> None:
    mine, oracle = MISTAKES[mistake]
    with pytest.raises(AssertionError):
        same(mine, oracle("/a", b"", OPEN_ACL_UNSAFE, 3))


@pytest.mark.control
def test_a_codec_that_cuts_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password of which a part is missing was once taken for a whole one."""
    whole, mine, oracle = READ["connected"]

    def lenient(body: bytes) -> Any:
        try:
            return mine(body)
        except WireError:
            return mine(body + b"\0" * 40)

    monkeypatch.setitem(READ, "connected", (whole, lenient, oracle))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_every_part_of_a_reply_is_refused("connected")
