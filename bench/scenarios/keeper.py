"""Ten thousand leases in one client: one keeper, little memory, renewals in batches, none lost."""

import gc
import threading
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import holdfast
from bench.model import Budget, Plan, Scenario, Series

STORES = ("memory", "sqlite")
WARM = 100  # leases that pay for what a client makes once


class CountingSide:
    """Stands between the keeper and its side of the store, and notes the size of every batch."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    def renew(self, claims: Sequence[Any], limit: float) -> Any:
        self.batches.append(len(claims))
        return self._side.renew(claims, limit)


def take(locks: holdfast.Client, names: Sequence[str], ttl: float) -> list[holdfast.Lease]:
    """Hold every name."""
    return [locks.lock(name, ttl=ttl).acquire() for name in names]


def bytes_a_lease(url: str, names: Sequence[str]) -> float:
    """Measure what one more lease keeps allocated, the store's part included where it lives in this process."""
    tracemalloc.start()
    try:
        with holdfast.connect(url, namespace="bytes") as locks:
            held = take(locks, names[:WARM], ttl=600)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            held += take(locks, names[WARM:], ttl=600)
            gc.collect()
            return (tracemalloc.get_traced_memory()[0] - before) / len(names[WARM:])
    finally:
        tracemalloc.stop()


def still_ours(lease: holdfast.Lease) -> bool:
    """Ask the lease, and then the store by giving it back."""
    try:
        lease.check()
        lease.release()
    except holdfast.LeaseLost:
        return False
    return True


def keep(store: str, url: str, names: Sequence[str], ttl: float, seconds: float) -> list[Series]:
    """Hold every name for some renewal periods and see what the keeper did."""
    others = set(threading.enumerate())
    with holdfast.connect(url, namespace="keep") as locks:
        keeper: Any = locks._engine.keeper
        counting = keeper.side.made = CountingSide(keeper.side.made)
        held = take(locks, names, ttl)
        began, used = time.monotonic(), time.process_time()
        time.sleep(seconds)
        busy = (time.process_time() - used) / (time.monotonic() - began)
        threads = [thread.name for thread in threading.enumerate() if thread not in others]
        batches = list(counting.batches)
        kept = sum(map(still_ours, held))
    keepers = sum("keeper" in name for name in threads)
    return [
        Series(f"{store}: keepers", "threads", [float(keepers)]),
        Series(f"{store}: all threads", ", ".join(sorted(threads)), [float(len(threads))]),
        Series(f"{store}: lost", "leases", [float(len(names) - kept)]),
        Series(f"{store}: renewals a lease", "renewals", [sum(batches) / len(names)]),
        Series(f"{store}: leases a batch", "leases", [sum(batches) / max(1, len(batches))]),
        Series(f"{store}: CPU while keeping", "% of one", [100 * busy]),
    ]


def measure(plan: Plan) -> Sequence[Series]:
    """Measure each store: first the memory, undisturbed by renewals, then the keeping, undisturbed by tracemalloc."""
    names = [f"lease:{number}" for number in range(1_000 if plan.quick else 10_000)]
    seconds = 4.0 if plan.quick else 9.0
    found: list[Series] = []
    for store in STORES:
        url = "memory://" if store == "memory" else f"sqlite://{plan.directory}/locks.db"
        found.append(Series(f"{store}: memory a lease", "bytes", [bytes_a_lease(url, names)]))
        found += keep(store, url, names, ttl=3.0, seconds=seconds)
    return found


SCENARIO = Scenario(
    name="keeper",
    title="10,000 leases in one client (quick: 1,000)",
    settings={"kept": "ttl=3 for 9 s (quick: 4 s)"},
    measure=measure,
    budgets=[
        budget
        for store in STORES
        for budget in (
            Budget(f"{store}: memory a lease", "at most", 2048),
            Budget(f"{store}: keepers", "never over", 1),
            Budget(f"{store}: lost", "never over", 0),
            Budget(f"{store}: renewals a lease", "at least", 2),
            Budget(f"{store}: leases a batch", "at least", 100),
        )
    ],
)
