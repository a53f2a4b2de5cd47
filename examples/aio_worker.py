"""An asyncio worker: the orders of one customer one after the other, different customers at the same time.

Each order is packed under the lock of its customer. One lease is lost in the middle; its body is cancelled before
another can hold the lock, and the order is tried again.

Run: python examples/aio_worker.py

Prints:
    ada's second order: the lease was lost, the body was cancelled; again
    packed: ada 2, bob 1, eve 1
    at the same time for one customer: 1
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter

import holdfast
from holdfast import aio

packing: Counter[str] = Counter()
packed: Counter[str] = Counter()
most: Counter[str] = Counter()


async def pack(locks: aio.Client, customer: str, *, stalls: bool = False) -> None:
    """Pack an order; a body that stalls is not renewed and loses its lease."""
    async with locks.lock(f"customer:{customer}", ttl=0.5 if stalls else 30, renew=not stalls):
        packing[customer] += 1
        most[customer] = max(most[customer], packing[customer])
        try:
            await asyncio.sleep(60 if stalls else 0.1)
        finally:
            packing[customer] -= 1
        packed[customer] += 1


async def stall_and_pack_again(locks: aio.Client, customer: str) -> None:
    """Pack an order whose first try loses its lease."""
    try:
        await pack(locks, customer, stalls=True)
    except holdfast.LeaseLost:
        print(f"{customer}'s second order: the lease was lost, the body was cancelled; again")
        await pack(locks, customer)


async def main(folder: str) -> None:
    """Pack all orders at once."""
    async with aio.connect(f"sqlite:{folder}/locks.db") as locks:
        async with asyncio.TaskGroup() as orders:
            for customer in ("ada", "bob", "eve"):
                orders.create_task(pack(locks, customer))
            orders.create_task(stall_and_pack_again(locks, "ada"))
    print("packed:", ", ".join(f"{customer} {count}" for customer, count in sorted(packed.items())))
    print("at the same time for one customer:", max(most.values()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(temporary))
