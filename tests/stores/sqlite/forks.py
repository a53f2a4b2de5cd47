"""A process that forks with an open client and a held lease, under load: forks.py PATH FORKS THREADS.

Prints "ok" if the parent's lease stayed valid and renewable and every child locked for itself.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

import holdfast

path, forks, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
locks = holdfast.connect(f"sqlite://{path}")
lease = locks.lock("parent").acquire()
stop = threading.Event()
failures: list[str] = []


def child(number: str) -> None:
    try:
        lease.check()
        raise AssertionError("the child has its parent's lease")
    except holdfast.NotHeld:
        pass
    assert lease.lost
    assert locks.lock("parent").try_acquire() is None, "the parent holds it"
    with locks.lock("children", timeout=30) as own:
        assert own.token > 0
        own.renew()
    locks.close()


def load() -> None:
    while not stop.is_set():
        with locks.lock(f"load {threading.get_ident()}", timeout=30):
            pass


def fork_often(number: int) -> None:
    for i in range(forks // threads):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(f"{number}.{i}")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            failures.append(f"child {number}.{i}")


workers = [threading.Thread(target=load, daemon=True) for _ in range(2)]
forkers = [threading.Thread(target=fork_often, args=(i,), daemon=True) for i in range(threads)]
for thread in (*workers, *forkers):
    thread.start()
for thread in forkers:
    thread.join(60)
    assert not thread.is_alive(), "a fork hangs"
stop.set()
for thread in workers:
    thread.join(10)
    assert not thread.is_alive(), "a lock hangs after the forks"
assert not failures, failures
lease.check()
lease.renew()
assert not lease.lost
lease.release()
with locks.lock("parent", timeout=5):
    pass
locks.close()
print("ok")
