"""What a store promises: its capabilities, and which laws it keeps under which fault."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import NamedTuple

from ..errors import StoreError


class Fault(Enum):
    """What can happen to a deployment."""

    CLIENT_PAUSE = "client pause"
    CLIENT_CRASH = "client crash"
    SERVER_RESTART = "server restart"
    SERVER_FAILOVER = "server failover"
    CLOCK_STEP = "clock step"


class Scope(Enum):
    """How far a lock reaches: the threads of one process, the processes of one host, or all machines of a cluster."""

    PROCESS = "process"
    HOST = "host"
    CLUSTER = "cluster"


LAWS: dict[int, str] = {
    1: "the granted weight never exceeds the largest live capacity; an exclusive grant is alone",
    2: "tokens are unique and rise from grant to grant",
    3: "only its holder can renew or release a claim",
    4: "a claim sent twice is one claim",
    5: "an abandoned acquire leaves nothing that outlives its waiting life or ttl",
    6: "a crashed holder's resource goes to the next live waiter",
    7: "waiters are served first come, first served, where the store promises it",
    8: "a release, withdrawal or noticed expiry wakes at once those that can now be granted",
    9: "an unknown renewal never extends a lease; loss is told before the store can grant to another",
    10: "the body never starts without a lease",
    11: "a lease belongs to the process that took it; a fork does not copy it",
    12: "every call returns within its timeout + io_timeout",
    13: "bad input raises ValueError with the value and the rule; nothing is sent",
    14: "close() releases, withdraws and ends everything, and may be called twice",
    15: "while its process runs, other threads can run and the store answers, a lease is renewed",
}

# The law that correctness rests on: a guard can refuse the stale writer only while tokens rise.
FENCING_LAW = 2

Broken = frozenset[int]
KEEPS_ALL: Broken = frozenset()


class Capabilities(NamedTuple):
    """What a store can do, and promises.

    store: its name, as messages and events have it.
    scope: how far its locks reach: a process, a host or a cluster.
    faults: the laws that each fault breaks. A fault that is not in it cannot happen.
    fair: whether it serves first come, first served.
    unfair: whether a claim may overtake those who wait.
    shared: whether several claims may hold a resource: readers, permits, trees.
    detached: whether a claim can outlive its client: `renew=False`, `min_hold`, rate limits.
    register: whether it has fenced registers, which `once` needs.
    evict: whether somebody else can break a claim.
    extend: whether a lease can be made longer.
    dated: whether a token is the time of its grant, in microseconds, unless a clock was set back.
    herd: whether a change wakes all who wait, and not only those that can go.
    session: whether the claims of a client share one life, and are lost together.
    min_ttl, max_ttl: the shortest and the longest lease that it keeps, in seconds.
    waiting_life: seconds that a waiting claim keeps its place after it last asked.
    lag: how many seconds after its end a claim may still be there, until the store has noticed.
    notes: what was found in this deployment that breaks laws, and what to set.
    """

    store: str
    scope: Scope
    faults: Mapping[Fault, Broken]
    fair: bool = True
    unfair: bool = True
    shared: bool = True
    detached: bool = True
    register: bool = True
    evict: bool = False
    extend: bool = False
    dated: bool = False
    herd: bool = False
    session: bool = False
    min_ttl: float = 0.0
    max_ttl: float = inf
    waiting_life: float = 6.0
    lag: float = 0.0
    notes: tuple[str, ...] = ()

    def keeps(self, law: int) -> bool:
        """Return whether a law is kept through every fault that this deployment can have.

        law: its number, 1 to 15; see docs/guarantees.md.
        """
        return all(law not in broken for broken in self.faults.values())

    def breaking(self, law: int) -> list[Fault]:
        """Return the faults that break a law.

        law: its number, 1 to 15.
        """
        return [fault for fault, broken in self.faults.items() if law in broken]


def check_require(require: object) -> str | None:
    """Return the requirement if it is one that we know."""
    if require not in (None, "efficiency", "correctness"):
        raise ValueError(f"require must be 'efficiency', 'correctness' or None, not {require!r}")
    return None if require is None else str(require)


def check_promises(capabilities: Capabilities, require: str | None) -> None:
    """Refuse a store that cannot keep what is required.

    Raises: StoreError naming the faults that break the fencing law.
    """
    if require == "correctness" and not capabilities.keeps(FENCING_LAW):
        faults = ", ".join(fault.value for fault in capabilities.breaking(FENCING_LAW))
        found = "".join(f"; {note}" for note in capabilities.notes)
        raise StoreError(
            f"require='correctness' needs a store that keeps law {FENCING_LAW} ({LAWS[FENCING_LAW]}); "
            f"{capabilities.store} breaks it on: {faults}{found}"
        )
