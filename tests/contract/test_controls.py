"""Controls: each law notices the fault that it is about. A mutant has one thing wrong; every law has its mutants."""

import gc
import os
import threading
from collections.abc import Iterator
from functools import cache

import pytest

from holdfast import _process
from holdfast.errors import LockError
from holdfast.testing import contract
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract import Law, Target
from holdfast.testing.law import registered
from tests.contract import mutant_core, mutant_primitives, mutant_shells, mutant_stores
from tests.contract.mutants import LIMIT, MEMORY, SQLITE, Mutant

# What fails here fails in threads and finalizers, too.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.control]

MUTANTS = [*mutant_stores.MUTANTS, *mutant_core.MUTANTS, *mutant_shells.MUTANTS, *mutant_primitives.MUTANTS]


@cache
def laws(store: Target) -> dict[tuple[str, str], Law]:
    """Return the laws of a store by flavour and name."""
    return {(law.flavour, law.name): law for law in contract.laws(store)}


def table() -> list[tuple[Mutant, Target, Law]]:
    """Pair each mutant with the laws that must notice it: all in one flavour, the first also in the other."""
    found: list[tuple[Mutant, Target, Law]] = []
    for mutant in MUTANTS:
        for number, name in enumerate(mutant.laws):
            store = mutant.store if any(name == known for _, known in laws(mutant.store)) else SQLITE
            both = [law for flavour in mutant.flavours if (law := laws(store).get((flavour, name))) is not None]
            found += [(mutant, store, law) for law in (both if number == 0 else both[:1])]
    return found


@pytest.fixture
def clocks() -> Iterator[list[ManualClock]]:
    """End what a broken client has left running, after it was mended: it must not disturb the next control."""
    engines, keepers = set(_process._engines), set(_process._keepers)
    driven: list[ManualClock] = []
    yield driven
    for engine in set(_process._engines) - engines:
        if not engine.closing:
            engine.stop()
    for keeper in set(_process._keepers) - keepers:
        if not keeper.ended:
            keeper.stop()
            keeper.join(1.0)
            keeper.call("close", ())
    for clock in driven:
        clock.advance(1e9)  # whoever waits for a time that has not come waits in vain


@pytest.fixture(autouse=True)
def patch(clocks: list[ManualClock], monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give what breaks things; it is undone before anything is ended."""

    def new_clock() -> ManualClock:
        clocks.append(ManualClock())
        return clocks[-1]

    for flavour in ("sync", "async"):
        monkeypatch.setattr(f"holdfast.testing._{flavour}.case.ManualClock", new_clock)
    hurry(monkeypatch, LIMIT)
    return monkeypatch


def hurry(patch: pytest.MonkeyPatch, limit: float) -> None:
    """Have laws not wait long for what will not happen."""
    for flavour in ("sync", "async"):
        patch.setattr(f"holdfast.testing._{flavour}.runtime.LIMIT", limit)
        patch.setattr(f"holdfast.testing._{flavour}.calls._SLACK", 0.3)
        patch.setattr(f"holdfast.testing._{flavour}.keeping._PATIENCE", 0.05)


def breaks(law: Law, store: Target) -> bool:
    """Return whether the store breaks the law."""
    try:
        law.run(store)
    except (AssertionError, LockError):
        broken = True
    else:
        broken = False
    gc.collect()  # here and now: the leases that a broken law leaves behind warn when they go
    return broken


@pytest.mark.parametrize(("mutant", "store", "law"), table(), ids=str)
def test_law_notices(mutant: Mutant, store: Target, law: Law, patch):
    hurry(patch, mutant.limit)
    mutant.apply(patch, law.flavour)
    assert breaks(law, store)


# A process that believes in a larger token than it has: whoever follows it seems to be older.
BOASTS = """
        from holdfast.stores.sqlite.claims import Claims
        claim = Claims.claim
        def boast(self, asked, queue=True):
            answer = claim(self, asked, queue)
            return answer._replace(token=answer.token + 10**9) if hasattr(answer, "token") else answer
        Claims.claim = boast
    """

# Faults of other processes: a sitecustomize.py makes them in every interpreter that the law starts.
IN_CHILDREN = {
    "killed_holder_is_followed_by_the_next_waiter": BOASTS,
    "killed_leader_is_followed_by_the_next": BOASTS,
    "work_of_a_killed_process_is_done_again": BOASTS,
    "processes_exclude_each_other": """
        from holdfast.stores.sqlite.claims import Claims
        from holdfast.core.claim import Granted
        count = iter(range(1, 10**6))
        Claims.claim = lambda self, claim, queue=True: Granted(next(count), claim.ttl)
        Claims.release = lambda *args: True
    """,
    "tokens_rise_across_processes": """
        from holdfast.stores.sqlite import claims
        claims.Claims.claim = lambda self, claim, queue=True: claims.Granted(5, claim.ttl)
        claims.Claims.release = lambda *args: True
    """,
    "stopped_holder_sees_its_loss_at_the_first_look": """
        from holdfast._sync.lease import Lease
        from holdfast._async.lease import Lease as Lease2
        Lease.lost = Lease2.lost = False
    """,
    "lease_stays_with_the_process_that_took_it": """
        from holdfast import _process
        _process.remember_keeper = lambda keeper: None
    """,
    "closed_process_leaves_nothing": """
        from holdfast._sync.client import Client
        from holdfast._async.client import Client as Client2
        async def close(self): pass
        Client.close, Client2.close = (lambda self, timeout=0: None), close
    """,
    "detached_claim_outlives_its_process": """
        from holdfast.stores.sqlite.claims import Claims
        claim = Claims.claim
        Claims.claim = lambda self, asked, queue=True: claim(self, asked._replace(detached=False), queue)
    """,
}


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", IN_CHILDREN)
def test_law_notices_a_fault_of_another_process(name, flavour, patch, tmp_path):
    code = "\n".join(line[8:] for line in IN_CHILDREN[name].splitlines())
    (tmp_path / "sitecustomize.py").write_text(code)
    patch.setenv("PYTHONPATH", str(tmp_path))
    hurry(patch, 3.0)
    assert breaks(laws(SQLITE)[flavour, name], SQLITE)


def test_every_law_has_a_control():
    every = {name for _, name in laws(SQLITE)}
    assert {law.name for flavour in ("sync", "async") for law in registered(flavour)} == every
    assert every - {law.name for _, _, law in table()} - set(IN_CHILDREN) == set()


def test_every_mutant_names_laws_that_there_are():
    every = {name for _, name in laws(SQLITE)}
    assert {mutant.name: set(mutant.laws) - every for mutant in MUTANTS if not set(mutant.laws) <= every} == {}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_thread_and_file_that_are_left_behind_are_noticed(flavour):
    end = threading.Event()
    files = []

    def leave_thread(case):
        threading.Thread(target=end.wait).start()

    def leave_file(case):
        files.append(os.open(os.devnull, os.O_RDONLY))

    for leave in (leave_thread, leave_file):

        async def leave_in_loop(case, leave=leave):
            leave(case)

        function = leave if flavour == "sync" else leave_in_loop
        assert breaks(Law(1, "leave", flavour, frozenset(), function), MEMORY)
    end.set()
    os.close(files[0])
