"""A lock keeps two from paying at once; the fence refuses the one that comes too late.

A worker holds the lock of an account, reads the balance, and is stopped past its lease before it writes. Another pays
meanwhile. When the worker wakes up, its write would undo that payment.

Run: python examples/payments.py

Prints:
    worker: holds the account, reads 100, and is stopped
    main: holds the account, with a higher token, and pays 80
    worker: wakes up and writes 70
    worker: refused: token ... for 'account:1' is stale
    balance: 20
"""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import get_context

import holdfast


@contextmanager
def account(folder: str, fence: holdfast.Fence) -> Iterator[sqlite3.Connection]:
    """Begin a transaction that nobody with an older token can begin any more; commit at the end."""
    with closing(sqlite3.connect(f"{folder}/bank.db", isolation_level=None)) as bank:
        bank.execute("BEGIN IMMEDIATE")
        # The first statement of every transaction, before any read.
        enter = "UPDATE account SET fence_token = :token WHERE name = :name AND fence_token <= :token"
        if not bank.execute(enter, {"token": fence.token, "name": fence.resource}).rowcount:
            raise holdfast.StaleToken(f"token {fence.token} for {fence.resource!r} is stale", token=fence.token)
        yield bank
        bank.execute("COMMIT")  # not reached after an error; closing rolls back then


def read(folder: str, fence: holdfast.Fence) -> int:
    """Return the balance."""
    with account(folder, fence) as bank:
        (balance,) = bank.execute("SELECT balance FROM account WHERE name = ?", (fence.resource,)).fetchone()
        return int(balance)


def write(folder: str, fence: holdfast.Fence, balance: int) -> None:
    """Set the balance."""
    with account(folder, fence) as bank:
        bank.execute("UPDATE account SET balance = ? WHERE name = ?", (balance, fence.resource))


def worker(folder: str) -> None:
    """Pay 30, too late."""
    locks = holdfast.connect(f"sqlite:{folder}/locks.db")
    try:
        with locks.lock("account:1", ttl=1) as lease:
            balance = read(folder, lease.fence)
            print(f"worker: holds the account, reads {balance}, and is stopped", flush=True)
            lease.check()
            os.kill(os.getpid(), signal.SIGSTOP)  # a long pause, at the worst moment
            print(f"worker: wakes up and writes {balance - 30}", flush=True)
            write(folder, lease.fence, balance - 30)
    except holdfast.StaleToken as error:
        print("worker: refused:", error, flush=True)


def main(folder: str) -> None:
    """Wait until the worker is stopped, pay 80, and let it go on."""
    with closing(sqlite3.connect(f"{folder}/bank.db", isolation_level=None)) as bank:
        bank.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER, fence_token INTEGER DEFAULT 0)")
        bank.execute("INSERT INTO account (name, balance) VALUES ('account:1', 100)")
    process = get_context("spawn").Process(target=worker, args=(folder,))
    process.start()
    assert process.pid is not None
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    locks = holdfast.connect(f"sqlite:{folder}/locks.db")
    with locks.lock("account:1") as lease:  # free when the worker's ttl has passed
        print("main: holds the account, with a higher token, and pays 80", flush=True)
        write(folder, lease.fence, read(folder, lease.fence) - 80)
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    with locks.lock("account:1") as lease:
        print("balance:", read(folder, lease.fence))
    locks.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
