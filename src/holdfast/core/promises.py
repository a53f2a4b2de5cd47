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
    """Among whom a lock excludes."""

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
    """What a store can do. `faults` gives the laws that a fault breaks; a fault that is not in it cannot happen."""

    store: str
    scope: Scope
    faults: Mapping[Fault, Broken]
    fair: bool = True
    unfair: bool = True
    shared: bool = True
    detached: bool = True
    register: bool = True
    evict: bool = False  # a claim can be broken by somebody else
    extend: bool = False  # a lease can get a longer ttl
    dated: bool = False  # a token is the time of its grant, in microseconds, unless a clock was set back
    herd: bool = False
    session: bool = False  # claims of a client share one life: they are lost together
    min_ttl: float = 0.0
    max_ttl: float = inf
    waiting_life: float = 6.0
    lag: float = 0.0  # how long after its end a claim may still be there, until the store has noticed
    notes: tuple[str, ...] = ()  # what was found in this deployment that breaks laws, and what to set

    def keeps(self, law: int) -> bool:
        """Return whether a law is kept through every fault that this deployment can have."""
        return all(law not in broken for broken in self.faults.values())

    def breaking(self, law: int) -> list[Fault]:
        """Return the faults that break this law."""
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
