"""Data of a later format: every verb compares the number, also of a client that was connected before."""

from __future__ import annotations

import pytest

from holdfast._async.client import connect
from holdfast.core.claim import Claim
from holdfast.stores.etcd import messages
from holdfast.stores.etcd.keys import OFFSET, ROOT, after
from tests.stores._async.formats import HELD, WAITING, check_all_refused, check_goes_on, said_by, use
from tests.stores.etcd.kit import Rig

pytestmark = pytest.mark.server


def all_keys(rig: Rig) -> object:
    return messages.ranged(rig.call(messages.RANGE, messages.range_(ROOT, after(ROOT)))).kvs


def mark(rig: Rig, text: bytes) -> None:
    rig.call(messages.PUT, messages.put(OFFSET, text))


@pytest.mark.parametrize("before", [None, b"1000"], ids=["no offset", "an offset"])
async def test_every_verb_refuses_a_later_format_and_names_both(rig: Rig, before: bytes | None):
    if before is not None:
        mark(rig, before)
    async with connect(rig.one_way, io_timeout=10) as client:
        used = await use(client._engine.store)
        mark(rig, b"f2 1000")
        await check_all_refused(used, lambda: all_keys(rig), ends=False)
        mark(rig, b"1000")  # the control: it was the number alone
        await check_goes_on(used)


async def test_a_release_is_refused_where_a_later_format_has_taken_the_claims_over(rig: Rig):
    async with connect(rig.one_way, io_timeout=10) as client:
        used = await use(client._engine.store)
        mark(rig, b"f2 0")
        for kv in rig.stored():
            rig.call(messages.PUT, messages.put(kv.key.replace(b"/claims/", b"/claims2/"), b"later"))
            rig.call(messages.DELETE, messages.delete(kv.key))
        await check_all_refused(used, lambda: all_keys(rig))


async def test_a_release_of_a_claim_that_is_still_there_ends_it(rig: Rig):
    """A delete of the client's own key. It costs no more than before, and nobody else's data is touched."""
    async with connect(rig.one_way, io_timeout=10) as client:
        used = await use(client._engine.store)
        mark(rig, b"f2 0")
        assert await used.store.release("r", HELD.holder)
        assert [kv.key.rpartition(b"/")[2].decode() for kv in rig.stored()] == [WAITING.holder]


async def test_a_client_that_comes_later_is_refused_as_well(rig: Rig):
    mark(rig, b"f3 0")
    async with connect(rig.one_way, io_timeout=10) as client:
        store = client._engine.store
        for call in (lambda: store.ready(), lambda: store.claim(Claim("r", "client.1")), lambda: store.inspect()):
            assert "has format 3, and this version of holdfast reads format 1" in await said_by(call)
    assert rig.stored() == []


@pytest.mark.parametrize("written", [b"f" + b"9" * 5000 + b" 0", b"9" * 5000, b"\xff" * 5000])
async def test_what_is_no_offset_is_refused_in_few_words_whatever_its_size(rig: Rig, written: bytes):
    async with connect(rig.one_way, io_timeout=10) as client:
        used = await use(client._engine.store)
        mark(rig, written)
        for call in (
            lambda: used.store.claim(WAITING),
            lambda: used.store.renew([HELD]),
            lambda: used.store.inspect(),
        ):
            said = await said_by(call)
            assert "holdfast/offset" in said
            assert len(said) < 300
