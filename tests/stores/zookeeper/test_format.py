"""Tokens, their offset, and the format of the data: what clients see of a change there, also those that were connected
before; nodes that are none of ours; a look that changes nothing; and the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from holdfast._clock import SystemClock
from holdfast._sync.client import connect
from holdfast.core.claim import Claim, Granted, Waiting
from holdfast.core.queue import TOKEN_LIMIT
from holdfast.core.urls import parse_url
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.zookeeper._sync.store import ZooKeeperStore
from holdfast.testing._sync.runtime import eventually
from tests.stores._sync.formats import HELD, WAITING, InUse, check_all_refused, check_goes_on, said_by, use
from tests.stores.zookeeper.chroots import Chroot
from tests.stores.zookeeper.rig import Rig, lossy_network

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

LIMIT = 30.0  # a busy machine


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with lossy_network(container_check=600_000) as rig:
        yield rig


@pytest.fixture
def chroot(module_rig: Rig) -> Iterator[Chroot]:
    module_rig.way.heal()
    yield Chroot(module_rig)
    module_rig.way.heal()


@pytest.fixture
def stores(chroot: Chroot) -> Iterator[Callable[[], ZooKeeperStore]]:
    made: list[ZooKeeperStore] = []

    def make() -> ZooKeeperStore:
        made.append(ZooKeeperStore(parse_url(chroot.url), namespace="default", io_timeout=LIMIT, clock=SystemClock()))
        return made[-1]

    yield make
    for store in made:
        store.close()


Make = Callable[[], ZooKeeperStore]


def claim(number: int, resource: str = "r") -> Claim:
    return Claim(resource, f"client.{number}")


def token(store: ZooKeeperStore, one: Claim) -> int:
    answer = store.claim(one)
    assert isinstance(answer, Granted)
    return answer.token


def nodes(chroot: Chroot) -> dict[str, int]:
    """Return everything that is there, but for the node that is written to prove something."""
    return {path: touched for path, touched in chroot.tree().items() if path not in ("", "/clock")}


# -- the offset


def test_without_an_offset_a_token_is_the_number_of_the_transaction(chroot: Chroot, stores: Make) -> None:
    found = token(stores(), claim(1))
    (name,) = chroot.children("claims/default/r")
    node = chroot.get(f"claims/default/r/{name}")
    assert node is not None
    assert node.stat.czxid == found


def test_a_raised_offset_is_in_every_later_token_of_all_clients_and_no_token_falls(
    chroot: Chroot, stores: Make
) -> None:
    clients = [stores() for _ in range(3)]
    seen: list[int] = []
    for offset in (0, 1, 1_000_000, 1_000_001, 1 << 50):
        if offset:
            chroot.put("offset", str(offset).encode())
        for store in (*clients, stores()):
            # No wait: whoever was told of the offset before it asks must count on it.
            seen.append(token(store, claim(len(seen))))
            assert store.release("r", f"client.{len(seen) - 1}")
            assert offset < seen[-1] < offset + 1_000_000
    assert seen == sorted(set(seen))


def test_a_token_that_was_given_out_stays_and_whoever_waits_gets_one_with_the_offset(
    chroot: Chroot, stores: Make
) -> None:
    store, other = stores(), stores()
    first = token(store, claim(1))
    waiting = store.claim(claim(2))
    assert isinstance(waiting, Waiting)
    chroot.put("offset", b"1000000")
    assert token(store, claim(1)) == first, "a token does not change"
    store.release("r", "client.1")

    def granted() -> bool:
        return isinstance(store.claim(claim(2)), Granted)

    eventually(granted, limit=LIMIT)
    second = token(store, claim(2))
    assert 1_000_000 < second < 2_000_000
    for one in (store, other):
        (state,) = one.inspect()
        assert state.holders[0].token == second


def test_an_offset_that_was_raised_while_a_client_was_cut_off_is_seen(chroot: Chroot, stores: Make) -> None:
    """A connection that is lost takes its watches with it."""
    store = stores()
    first = token(store, claim(1))
    store.release("r", "client.1")
    chroot.rig.way.refuse = True
    chroot.rig.way.reset()
    chroot.put("offset", b"1000000")
    chroot.rig.way.heal()

    def again() -> bool:
        try:
            return token(store, claim(2)) > 1_000_000 > first
        except StoreUnavailable:
            return False

    eventually(again, limit=LIMIT)


@pytest.mark.parametrize("data", [b"", b"many", b"-1", b"1.5", b"\xff" * 5000, b"9" * 5000, b"f", b"f 1", b"fx 1"])
@pytest.mark.parametrize("before", [False, True], ids=["a new client", "a client from before"])
def test_what_is_no_offset_is_refused_in_few_words(chroot: Chroot, stores: Make, data: bytes, before: bool) -> None:
    store = stores()
    if before:
        store.release("r", claim(token(store, claim(1))).holder)
    chroot.put("offset", data)
    for call in (
        lambda: store.claim(claim(2)),
        lambda: store.inspect(),
        lambda: store.ready(),
    ):
        said = said_by(call)
        assert "holdfast/offset" in said
        assert "must hold a number" in said or "2^53" in said or "format" in said, said
        assert not said.startswith(("not refused", "asked again"))
        assert len(said) < 300
    chroot.put("offset", b"7")  # the control: it was this alone
    eventually(lambda: said_by(lambda: store.claim(claim(3, "r3"))).startswith("not refused: Granted"), limit=LIMIT)


def test_a_token_past_the_limit_is_refused_and_leaves_nothing(chroot: Chroot, stores: Make) -> None:
    chroot.put("offset", str(TOKEN_LIMIT - 1).encode())
    store = stores()
    with pytest.raises(StoreError, match=r"2\^53") as caught:
        store.claim(claim(1))
    assert not isinstance(caught.value, StoreUnavailable)
    with connect(chroot.url, io_timeout=LIMIT) as locks:
        with pytest.raises(StoreError, match=r"2\^53"):
            locks.lock("r").acquire(1)
    eventually(lambda: len(chroot.children("claims/default/r")) <= 1, limit=LIMIT)
    store.release("r", "client.1")
    eventually(lambda: chroot.children("claims/default/r") == [], limit=LIMIT)


# -- formats


def in_use_and_marked(chroot: Chroot, store: ZooKeeperStore) -> InUse:
    """Have a store in the middle of its life, and then data of a later format."""
    used = use(store)
    chroot.put("offset", b"f2 1000")
    # News of it comes with the next answer at the latest. Then it would be too late to send nothing.
    eventually(lambda: all(session.fault is not None for session in store._shared.sessions), limit=LIMIT)
    return used


@pytest.mark.parametrize("before", [None, b"1000"], ids=["no offset", "an offset"])
def test_every_verb_refuses_a_later_format_and_names_both(chroot: Chroot, stores: Make, before: bytes | None) -> None:
    if before is not None:
        chroot.put("offset", before)
    used = in_use_and_marked(chroot, stores())
    check_all_refused(used, lambda: nodes(chroot), keeps=False, ends=False)
    chroot.put("offset", before or b"0")  # the control: it was the number alone
    eventually(lambda: said_by(lambda: used.store.inspect()).startswith("not refused"), limit=LIMIT)
    check_goes_on(used)


def test_a_release_is_refused_as_well_and_done_when_the_format_is_ours_again(chroot: Chroot, stores: Make) -> None:
    used = in_use_and_marked(chroot, stores())
    check_all_refused(used, lambda: nodes(chroot), keeps=False)
    assert len(chroot.children("claims/default/r")) == 2
    chroot.put("offset", b"0")
    eventually(lambda: chroot.children("claims/default/r") == [], limit=LIMIT)


def test_a_client_that_comes_later_is_refused_as_well(chroot: Chroot, stores: Make) -> None:
    chroot.put("offset", b"f3 0")
    store = stores()
    for call in (lambda: store.ready(), lambda: store.claim(claim(1)), lambda: store.inspect(), lambda: store.time()):
        said = said_by(call)
        assert "has format 3, and this version of holdfast reads format 1" in said
    assert set(nodes(chroot)) == {"/offset"}


# -- nodes that are none of ours


@pytest.mark.parametrize("name", ["stranger", "a-b", "a-x-z", "a-y-0000000001", "lock-0000000001", "x" * 300])
def test_a_node_below_a_resource_that_is_none_of_ours_is_named(chroot: Chroot, stores: Make, name: str) -> None:
    chroot.put(f"claims/default/r/{name}")
    store = stores()
    for call in (lambda: store.claim(claim(1)), lambda: store.state("r"), lambda: store.evict("r", "client.1")):
        said = said_by(call)
        assert "claims/default/r/" in said
        assert "none that holdfast wrote; delete it" in said
        assert len(said) < 300
    assert token(store, claim(2, "other")), "other names are not concerned"


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b"[1]", b"\xff", b"[null,null,null,null]", b'["a","b",1,2]'])
def test_a_claim_that_holds_something_else_is_named(chroot: Chroot, stores: Make, data: bytes) -> None:
    chroot.put("claims/default/r/client.9-x-0000000000", data)
    store = stores()
    for call in (lambda: store.claim(claim(1)), lambda: store.state("r"), lambda: store.evict("r", "client.9")):
        said = said_by(call)
        assert "claims/default/r" in said, said
        assert "did not write" in said, said


# -- looking


def test_looking_changes_nothing(chroot: Chroot, stores: Make) -> None:
    used = use(stores())
    token(stores(), claim(7, "other"))
    used.store.write("gone", "v", used.fence, 1.0)
    chroot.put("claims/default/empty")
    before = nodes(chroot)
    with connect(chroot.url, io_timeout=LIMIT) as locks:
        store = stores()
        for _ in range(3):
            assert {state.resource for state in locks.inspect()} == {"r", "other"}
            assert [state.resource for state in locks.inspect("oth")] == ["other"]
            assert len(locks.holders("r")) == 1
            assert locks.holders("nobody") == []
            assert store.state("r") is not None
            store.ready()
            store.watch("r", None, SystemClock().now() + 0.01)
            assert used.store.read("k") is not None
    assert nodes(chroot) == before


def test_a_look_shows_who_holds_and_who_waits(chroot: Chroot, stores: Make) -> None:
    used = use(stores())
    (state,) = stores().inspect()
    assert (state.resource, state.token) == ("r", used.fence.token)
    assert [(seen.holder, seen.token) for seen in state.holders] == [(HELD.holder, used.fence.token)]
    assert [(seen.holder, seen.token) for seen in state.waiters] == [(WAITING.holder, 0)]


# -- the time


def test_the_time_is_that_of_the_server_within_what_it_says(chroot: Chroot, stores: Make) -> None:
    store = stores()
    for _ in range(20):
        before = time.time()
        told, uncertain = store.time()
        after = time.time()
        assert before - uncertain <= told <= after + uncertain  # the server's clock is that of this machine
        assert 0 < uncertain <= (after - before) / 2 + 0.002


def test_a_slow_way_makes_the_time_uncertain_and_not_wrong(chroot: Chroot, stores: Make) -> None:
    store = stores()
    store.time()
    for way in (chroot.rig.way.up, chroot.rig.way.down):
        way.delay = 0.3
        before = time.time()
        told, uncertain = store.time()
        after = time.time()
        assert uncertain >= 0.15
        assert before - uncertain <= told <= after + uncertain
        way.delay = 0.0
