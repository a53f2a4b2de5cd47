"""A hierarchy: one order, or all orders of a user; and a table that enters the fence of every node on the path.

A packer holds one order and is paused past its lease. Meanwhile somebody holds the user, and with it all orders below,
and cancels them. The packer's own order has not been locked by anybody else, so its own token is still the newest;
it is the fence of the user, a parent, that refuses it.

Run: python examples/tree_of_orders.py

Prints:
    packer holds orders/7/99
    orders/7/98 is free beside it: True
    orders/7 is taken: True
    user 7 is deleted: order 99 is cancelled
    the packer is refused by orders/7
    order 99 is cancelled
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing

import holdfast


def enter(shop: sqlite3.Connection, fence: holdfast.Fence) -> None:
    """Enter one fence: exclusive tokens must be as new as any, shared ones as new as any exclusive one."""
    shop.execute("INSERT INTO fence (resource) VALUES (?) ON CONFLICT DO NOTHING", (fence.resource,))
    rule = "exclusive <= :token" if fence.shared else "newest <= :token"
    change = "newest = max(newest, :token)" if fence.shared else "newest = :token, exclusive = :token"
    told = {"token": fence.token, "name": fence.resource}
    if not shop.execute(f"UPDATE fence SET {change} WHERE resource = :name AND {rule}", told).rowcount:
        raise holdfast.StaleToken(f"refused by {fence.resource}", resource=fence.resource, token=fence.token)


def write(shop: sqlite3.Connection, lease: holdfast.TreeLease, order: str, state: str) -> None:
    """Change an order, after all fences of the path."""
    shop.execute("BEGIN IMMEDIATE")
    try:
        for fence in lease.fences:
            enter(shop, fence)
        shop.execute("UPDATE orders SET state = ? WHERE number = ?", (state, order))
    except BaseException:
        shop.execute("ROLLBACK")
        raise
    shop.execute("COMMIT")


def state(shop: sqlite3.Connection) -> str:
    """Return the state of the order."""
    (found,) = shop.execute("SELECT state FROM orders WHERE number = '99'").fetchone()
    return str(found)


def main(folder: str) -> None:
    """Pack, pause, cancel, wake up."""
    url = f"sqlite:{folder}/locks.db"
    with (
        holdfast.connect(url, owner="packer") as packer,
        holdfast.connect(url, owner="clerk") as clerk,
        closing(sqlite3.connect(f"{folder}/shop.db", isolation_level=None)) as shop,
    ):
        shop.execute("CREATE TABLE orders (number TEXT PRIMARY KEY, state TEXT)")
        shop.execute(
            "CREATE TABLE fence (resource TEXT PRIMARY KEY, newest INTEGER DEFAULT 0, exclusive INTEGER DEFAULT 0)"
        )
        shop.execute("INSERT INTO orders VALUES ('99', 'new')")

        # renew=False: a pause as far as the lease goes.
        paused = packer.tree("orders/7/99", ttl=1, renew=False).acquire()
        print("packer holds", paused.resource)
        with clerk.tree("orders/7/98") as beside:
            print(f"{beside.resource} is free beside it:", not beside.lost)
        print("orders/7 is taken:", clerk.tree("orders/7").try_acquire() is None)

        time.sleep(paused.remaining)  # the packer does not run
        with clerk.tree("orders/7", timeout=5) as lease:
            write(shop, lease, "99", "cancelled")
            print("user 7 is deleted: order 99 is", state(shop))
        try:
            write(shop, paused, "99", "packed")
        except holdfast.StaleToken as error:
            print("the packer is", error)
        print("order 99 is", state(shop))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
