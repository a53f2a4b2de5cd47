"""Our codec of etcd's messages against the code that grpcio-tools generates, both ways, and with damaged bytes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc_tools import protoc  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.claim import Claim
from holdfast.stores.etcd import messages, wire
from holdfast.stores.etcd.claim_txn import ClaimTxn, Memo, build, free, unchanged
from holdfast.stores.etcd.keys import Offset, Space
from holdfast.stores.etcd.leases import Lease
from holdfast.stores.etcd.messages import Is, Of
from holdfast.stores.etcd.wire import WireError

PROTO = Path(__file__).with_name("etcd.proto")
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

int64 = st.integers(-(2**63), 2**63 - 1)
positive = st.integers(1, 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=1, max_size=40)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("oracle")
    assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--python_out={folder}", str(PROTO)]) == 0
    spec = importlib.util.spec_from_file_location("etcd_pb2", folder / "etcd_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["etcd_pb2"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["etcd_pb2"]


# -- what we write, the oracle reads, and would have written the same bytes


def same(mine: bytes, theirs: Any) -> None:
    assert type(theirs).FromString(mine) == theirs
    assert mine == theirs.SerializeToString(deterministic=True)


@MANY
@given(key=keys, end=st.binary(max_size=9), limit=st.integers(0, 9), newest=st.booleans(), below=st.integers(0, 2**63))
def test_range_request(oracle, key, end, limit, newest, below):
    order, target = ((2 if newest else 1), 2) if end else (0, 0)
    theirs = oracle.RangeRequest(
        key=key, range_end=end, limit=limit, sort_order=order, sort_target=target, max_create_revision=max(0, below - 1)
    )
    same(messages.range_(key, end, limit=limit, newest=newest, below=below), theirs)


@MANY
@given(key=keys, value=st.binary(max_size=300), lease=int64)
def test_put_request(oracle, key, value, lease):
    same(messages.put(key, value, lease), oracle.PutRequest(key=key, value=value, lease=lease))


@MANY
@given(key=keys, end=st.binary(max_size=9))
def test_delete_request(oracle, key, end):
    same(messages.delete(key, end), oracle.DeleteRangeRequest(key=key, range_end=end))


@MANY
@given(how=st.sampled_from(Is), of=st.sampled_from(Of), value=int64, key=keys, end=st.binary(max_size=9))
def test_compare(oracle, how, of, value, key, end):
    field = {Of.CREATE: "create_revision", Of.MOD: "mod_revision"}[of]
    theirs = oracle.Compare(result=int(how), target=int(of), key=key, range_end=end, **{field: value})
    same(messages.compare(how, of, value, key, end), theirs)


@MANY
@given(key=keys, value=st.binary(max_size=30), lease=positive)
def test_transaction(oracle, key, value, lease):
    when = messages.compare(Is.EQUAL, Of.MOD, 0, key)
    put, get, drop = messages.put(key, value, lease), messages.range_(key), messages.delete(key)
    inner = messages.txn((when,), (messages.op_put(put),))
    mine = messages.txn(
        (when,), (messages.op_put(put), messages.op_delete(drop)), (messages.op_range(get), messages.op_txn(inner))
    )
    compare = oracle.Compare(target=2, key=key, mod_revision=0)
    their_put = oracle.RequestOp(put=oracle.PutRequest(key=key, value=value, lease=lease))
    theirs = oracle.TxnRequest(
        compare=[compare],
        success=[their_put, oracle.RequestOp(delete_range=oracle.DeleteRangeRequest(key=key))],
        failure=[
            oracle.RequestOp(range=oracle.RangeRequest(key=key)),
            oracle.RequestOp(txn=oracle.TxnRequest(compare=[compare], success=[their_put])),
        ],
    )
    same(mine, theirs)


@MANY
@given(lease=positive, ttl=st.integers(1, 2**40))
def test_lease_requests(oracle, lease, ttl):
    same(messages.lease_grant(ttl, lease), oracle.LeaseGrantRequest(ttl=ttl, id=lease))
    same(messages.lease_id(lease), oracle.LeaseIdRequest(id=lease))


@MANY
@given(watch=positive, key=keys, end=st.binary(max_size=9), start=positive, deletes_only=st.booleans())
def test_watch_requests(oracle, watch, key, end, start, deletes_only):
    create = oracle.WatchCreateRequest(
        key=key, range_end=end, start_revision=start, filters=[0] if deletes_only else [], watch_id=watch
    )
    mine = messages.watch_create(watch, key, end, start, deletes_only=deletes_only)
    same(mine, oracle.WatchRequest(create=create))
    same(messages.watch_cancel(watch), oracle.WatchRequest(cancel=oracle.WatchCancelRequest(watch_id=watch)))


@MANY
@given(name=st.text(max_size=20), password=st.text(max_size=20))
def test_login_request(oracle, name, password):
    same(messages.authenticate(name, password), oracle.AuthenticateRequest(name=name, password=password))


# -- what the oracle writes, we read; and whatever bytes come, we read what it reads, or say that they are damaged

headers: Any = st.builds(dict, revision=int64, raft_term=uint64, member_id=uint64, cluster_id=uint64)
key_values: Any = st.builds(
    dict, key=keys, create_revision=int64, mod_revision=int64, version=int64, value=st.binary(max_size=40), lease=int64
)


def their_kv(kv: Any) -> messages.KeyValue:
    return messages.KeyValue(kv.key, kv.create_revision, kv.mod_revision, kv.value, kv.lease)


def their_header(header: Any) -> messages.Header:
    return messages.Header(header.revision, header.raft_term)


def their_range(reply: Any) -> messages.Ranged:
    return messages.Ranged(tuple(their_kv(kv) for kv in reply.kvs), reply.count)


def my_txn(data: bytes) -> Any:
    return eager(messages.txned(data))


def eager(found: messages.Txned) -> Any:
    """Read all replies of a transaction."""
    replies = [found.reply(at) for at in range(len(found.steps))]
    return found.header, found.succeeded, [eager(one) if isinstance(one, messages.Txned) else one for one in replies]


def their_txn(reply: Any) -> Any:
    replies: list[Any] = []
    for op in reply.responses:
        match op.WhichOneof("response"):
            case "range":
                replies.append(their_range(op.range))
            case "put":
                replies.append(messages.Put())
            case "delete_range":
                replies.append(messages.Deleted(op.delete_range.deleted))
            case "txn":
                replies.append(their_txn(op.txn))
    return their_header(reply.header), reply.succeeded, replies


READ: list[tuple[str, Any, Any]] = [
    ("RangeResponse", messages.ranged, their_range),
    ("DeleteRangeResponse", messages.deleted, lambda reply: messages.Deleted(reply.deleted)),
    ("TxnResponse", my_txn, their_txn),
    ("PutResponse", messages.header, lambda reply: their_header(reply.header)),
    (
        "LeaseResponse",
        messages.granted,
        lambda reply: messages.Granted(their_header(reply.header), reply.id, reply.ttl),
    ),
    (
        "LeaseTimeToLiveResponse",
        messages.granted,
        lambda reply: messages.Granted(their_header(reply.header), reply.id, reply.ttl),
    ),
    (
        "WatchResponse",
        messages.watched,
        lambda reply: messages.Watched(
            reply.watch_id,
            reply.created,
            reply.canceled,
            reply.compact_revision,
            reply.cancel_reason,
            len(reply.events),
        ),
    ),
    ("AuthenticateResponse", messages.auth_token, lambda reply: reply.token),
]


@st.composite
def replies(draw: st.DrawFn, oracle: Any, name: str, depth: int = 1) -> Any:
    """Draw any reply of etcd."""
    reply = getattr(oracle, name)(header=oracle.Header(**draw(headers)))
    if name == "RangeResponse":
        reply.kvs.extend(oracle.KeyValue(**kv) for kv in draw(st.lists(key_values, max_size=3)))
        reply.count = draw(int64)
    elif name == "DeleteRangeResponse":
        reply.deleted = draw(int64)
    elif name == "TxnResponse":
        reply.succeeded = draw(st.booleans())
        kinds = {"range": "RangeResponse", "put": "PutResponse", "delete_range": "DeleteRangeResponse"}
        if depth:
            kinds["txn"] = "TxnResponse"
        for kind in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=4)):
            inner = draw(replies(oracle, kinds[kind], depth - 1))
            reply.responses.append(oracle.ResponseOp(**{kind: inner}))
    elif name == "LeaseResponse":
        reply.id, reply.ttl = draw(int64), draw(int64)
    elif name == "LeaseTimeToLiveResponse":
        reply.id, reply.ttl, reply.granted = draw(int64), draw(int64), draw(int64)
        reply.keys.extend(draw(st.lists(keys, max_size=3)))
    elif name == "WatchResponse":
        reply.watch_id, reply.compact_revision = draw(int64), draw(int64)
        reply.created, reply.canceled = draw(st.booleans()), draw(st.booleans())
        reply.cancel_reason = draw(st.text(max_size=9))
        for kv in draw(st.lists(key_values, max_size=2)):
            reply.events.append(oracle.Event(type=draw(st.sampled_from([0, 1])), kv=oracle.KeyValue(**kv)))
    elif name == "AuthenticateResponse":
        reply.token = draw(st.text(max_size=30))
    return reply


@pytest.mark.parametrize(("name", "mine", "theirs"), READ, ids=[name for name, _, _ in READ])
@MANY
@given(data=st.data())
def test_reply_is_read_as_the_oracle_reads_it(oracle, name, mine, theirs, data):
    reply = data.draw(replies(oracle, name))
    assert mine(reply.SerializeToString()) == theirs(reply)


def agree(oracle: Any, name: str, mine: Any, theirs: Any, damaged: bytes) -> bool:
    """Demand that we refuse these bytes, or read in them what the oracle reads; True if they were read."""
    try:
        found = mine(damaged)
    except WireError:
        return False
    assert found == theirs(getattr(oracle, name).FromString(damaged))
    return True


@pytest.mark.parametrize(("name", "mine", "theirs"), READ, ids=[name for name, _, _ in READ])
@MANY
@given(data=st.data())
def test_damaged_reply_is_refused_or_read_as_the_oracle_reads_it(oracle, name, mine, theirs, data):
    whole = bytearray(data.draw(replies(oracle, name)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(whole) - 1)))
        match data.draw(st.sampled_from(["cut", "flip", "insert"])):
            case "cut":
                del whole[at:]
            case "flip" if whole:
                whole[at] = data.draw(st.integers(0, 255))
            case _:
                whole.insert(at, data.draw(st.integers(0, 255)))
    try:
        agree(oracle, name, mine, theirs, bytes(whole))
    except DecodeError:
        pass  # it stands in a part that we do not look into, and so nothing is read from it


@MANY
@given(data=st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(oracle, data):
    for name, mine, theirs in READ:
        try:
            agree(oracle, name, mine, theirs, data)
        except DecodeError:
            pass


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x08", "in the middle of a number"),
        (b"\x80", "in the middle of a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than ten bytes"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (b"\x0a\x05abc", "5 bytes are announced"),
        (b"\x0a\xff\xff\xff\xff\x0f", "bytes are announced"),
        (b"\x00\x01", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x09\x01", "8 bytes are announced"),
        (b"\x0d\x01", "4 bytes are announced"),
    ],
)
def test_damage_is_named(data, said):
    with pytest.raises(WireError, match=said):
        wire.parse(data)


def test_unknown_fields_are_skipped():
    known = wire.number(3, 7)
    for extra in (wire.number(62, 5), wire.message(63, b"x"), b"\x09" + b"8" * 8, b"\x0d" + b"4" * 4):
        assert wire.signed(wire.parse(extra + known + extra), 3) == 7


@MANY
@given(number=int64)
def test_numbers_survive(number):
    assert wire.signed(wire.parse(b"\x08" + wire.varint(number)), 1) == number


def test_reply_of_another_kind_is_refused():
    put = messages.txned(wire.message(3, wire.message(2, b"")))
    with pytest.raises(WireError, match="not a range"):
        put.ranged(0)
    with pytest.raises(WireError, match="not a transaction"):
        put.txned(0)
    with pytest.raises(WireError, match="has 1 replies"):
        put.ranged(1)
    with pytest.raises(WireError, match="of 2 kinds"):
        messages.txned(wire.message(3, wire.message(1, b"") + wire.message(2, b""))).reply(0)


def test_a_transaction_made_of_the_last_one_is_what_would_be_built() -> None:
    """Another holder, a holder of another length, another owner, another guard: never a byte of an earlier one."""
    space, lease, memo = Space("n"), Lease(30), Memo()
    claim = Claim("r", "aaaa.1.bbbb", owner="web-1")
    claims = [
        *(claim, claim._replace(holder="cccc.1.dddd"), claim._replace(holder="cccc.10.dddd")),
        *(
            claim._replace(owner="web-2"),
            claim._replace(value="v"),
            claim._replace(resource="r2"),
            claim._replace(ttl=5.0),
        ),
        *(claim._replace(holder=short) for short in ("a", "r", "o", "1", "é", "ea", "/", "x")),
        *(claim._replace(holder=short, owner="o") for short in ("o", "x")),
        # A key in the owner's text, too.
        *(claim._replace(holder=short, owner="holdfast/claims/n/r/a") for short in ("a", "b", "c")),
        claim,
    ]
    for offset in (Offset(), Offset(5, 7)):
        for guard in (1, 2):
            lease.guard = guard
            for revision in (0, 9):
                for claim in claims:
                    prefix, key = space.queue(claim.resource), space.claim(claim.resource, claim.holder)
                    when = unchanged(prefix, revision) if revision else free(prefix)
                    txn = ClaimTxn(space, claim, key, lease, offset, 0, when, None)
                    assert memo.build(txn) == build(txn)
