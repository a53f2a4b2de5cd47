"""Controls: each law notices the fault that it is about. A mutant has one thing wrong; every law has its mutants."""

import gc
import os
import threading

import pytest

from holdfast.core.promises import LAWS
from holdfast.errors import LockError
from holdfast.testing import contract
from holdfast.testing.contract import Law, Target
from tests.contract import mutant_primitives, mutant_shells, mutant_stores
from tests.contract.mutants import Mutant

# What fails here fails in threads and finalizers, too.
pytestmark = pytest.mark.filterwarnings("ignore")

MUTANTS = [*mutant_stores.MUTANTS, *mutant_shells.MUTANTS, *mutant_primitives.MUTANTS]

MEMORY = Target("memory://", driven=True)
SQLITE = Target("sqlite://{folder}/locks.db", driven=True)


def table() -> list[tuple[Mutant, Law]]:
    """Pair each mutant with the laws that must notice it: all in one flavour, the first also in the other."""
    laws = {(law.flavour, law.name): law for law in contract.laws(MEMORY)}
    found = []
    for mutant in MUTANTS:
        for number, name in enumerate(mutant.laws):
            sync, asynchronous = laws.get(("sync", name)), laws["async", name]
            found += [(mutant, law) for law in (sync, asynchronous if number == 0 or sync is None else None) if law]
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Do not wait long for what will not happen."""
    for flavour in ("sync", "async"):
        monkeypatch.setattr(f"holdfast.testing._{flavour}.runtime.LIMIT", 0.4)


def breaks(law: Law, store: Target) -> bool:
    """Tell whether the store breaks the law."""
    try:
        law.run(store)
    except (AssertionError, LockError):
        broken = True
    else:
        broken = False
    gc.collect()  # here and now: the leases that a broken law leaves behind warn when they go
    return broken


@pytest.mark.parametrize(("mutant", "law"), table(), ids=str)
def test_law_notices(mutant: Mutant, law: Law, monkeypatch):
    mutant.apply(monkeypatch, law.flavour)
    assert breaks(law, MEMORY)


def law_named(name: str, flavour: str = "sync", store: Target = SQLITE) -> Law:
    return next(law for law in contract.laws(store) if law.name == name and law.flavour == flavour)


# A process that believes in a larger token than it has: whoever follows it seems to be older.
BOASTS = """
        from holdfast._sqlite.claims import Claims
        claim = Claims.claim
        def boast(self, wish, queue=True):
            answer = claim(self, wish, queue)
            return answer._replace(token=answer.token + 10**9) if hasattr(answer, "token") else answer
        Claims.claim = boast
    """

# Faults of other processes: a sitecustomize.py makes them in every interpreter that the law starts.
IN_CHILDREN = {
    "killed_leader_is_followed_by_the_next": BOASTS,
    "work_of_a_killed_process_is_done_again": BOASTS,
    "processes_exclude_each_other": """
        from holdfast._sqlite.claims import Claims
        from holdfast.core.claim import Granted
        count = iter(range(1, 10**6))
        Claims.claim = lambda self, claim, queue=True: Granted(next(count), claim.ttl)
        Claims.release = lambda *args: True
    """,
    "tokens_rise_across_processes": """
        from holdfast._sqlite import claims
        claims.Claims.claim = lambda self, claim, queue=True: claims.Granted(5, claim.ttl)
        claims.Claims.release = lambda *args: True
    """,
    "stopped_holder_sees_its_loss_at_the_first_look": """
        from holdfast._sync.lease import Lease
        from holdfast._async.lease import Lease as Lease2
        Lease.lost = Lease2.lost = False
    """,
    "lease_stays_with_the_process_that_took_it": """
        from holdfast._sync.keeper import Keeper
        from holdfast._async.keeper import Keeper as Keeper2
        Keeper.inherited = Keeper2.inherited = property(lambda self: False)
    """,
    "closed_process_leaves_nothing": """
        from holdfast._sync.client import Client
        from holdfast._async.client import Client as Client2
        async def close(self): pass
        Client.close, Client2.close = (lambda self, timeout=0: None), close
    """,
    "detached_claim_outlives_its_process": """
        from holdfast._sqlite.claims import Claims
        claim = Claims.claim
        Claims.claim = lambda self, wish, queue=True: claim(self, wish._replace(detached=False), queue)
    """,
}


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", IN_CHILDREN)
def test_law_notices_a_fault_of_another_process(name, flavour, monkeypatch, tmp_path):
    code = "\n".join(line[8:] for line in IN_CHILDREN[name].splitlines())
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(f"holdfast.testing._{flavour}.runtime.LIMIT", 3.0)
    assert breaks(law_named(name, flavour), SQLITE)


def test_every_law_has_a_control():
    numbers = {law.number for _, law in table()} | {law_named(name).number for name in IN_CHILDREN}
    assert numbers == set(LAWS)


def test_every_law_of_a_primitive_has_a_control():
    themes = ("shares", "several", "election", "once")
    names = {law.name for law in contract.laws(SQLITE) if law.function.__module__.endswith(themes)}
    assert names - {law.name for _, law in table()} - set(IN_CHILDREN) == set()


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
