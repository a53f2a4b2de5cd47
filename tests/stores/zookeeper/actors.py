"""Programs that lock in ZooKeeper, and are stopped, killed and interrupted meanwhile.

    python -m tests.stores.zookeeper.actors ROLE ARGUMENT...

Each says what it does by lines of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.stores.zookeeper import wire
from holdfast.testing._sync.runtime import eventually
from tests.shell.interrupts import armed, can_close, is_free, strike_after, threads
from tests.stores.zookeeper.rig import Raw

LONG = 600.0
PLAIN = "/plain"  # a node of no register, which anybody may write


def say(*facts: object) -> None:
    print(json.dumps(facts), flush=True)


def stale(url: str, port: str, way: str, ttl: str) -> None:
    """Take the lock, look at the lease, and be stopped right then; when it goes on, write and look again."""
    raw = Raw(int(port))
    with holdfast.connect(url, io_timeout=5) as locks:
        register = locks.register("k")
        lease = locks.lock("r", ttl=float(ttl)).acquire(20)
        register.read()  # it has a connection for what is no claim
        raw.ask(wire.exists(PLAIN))
        say("held", lease.token)
        lease.check()
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            if way == "fenced":
                # Again, for its connections have ended, and the first try may be the one that finds out.
                eventually(lambda: written(register, lease.fence))
            else:
                raw.ask(wire.set_data(PLAIN, b"stale"))
            say("written")
        except holdfast.StaleToken:
            say("refused")
        say("lost", lease.lost)
    raw.close()


def written(register: holdfast.Register, fence: holdfast.Fence) -> bool:
    try:
        register.write("stale", fence=fence)
    except holdfast.StoreUnavailable:
        return False
    return True


def count(url: str, stop: str) -> None:
    """Add the token of each hold to the list in a register; say what is known to be there."""
    with holdfast.connect(url, io_timeout=1) as locks:
        register = locks.register("k")
        while not os.path.exists(stop):
            try:
                with locks.lock("r", ttl=10, timeout=60) as lease:
                    found = again(lease, lambda fence=lease.fence: register.read(fence))  # type: ignore[misc]
                    tokens = json.loads(found.value) if found is not None else []
                    text = json.dumps([*tokens, lease.token])
                    again(lease, lambda fence=lease.fence, text=text: register.write(text, fence=fence))  # type: ignore[misc]
                    say(lease.token)
            except holdfast.LockError as error:  # whether it was written is not known, and need not be
                print(repr(error), file=sys.stderr)


def again(lease: holdfast.Lease, act: Callable[[], object]) -> Any:
    """Do it until that is known, as long as the lease is held: to do the same once more is safe."""
    while True:
        try:
            return act()
        except holdfast.StoreUnavailable:
            lease.check()
            time.sleep(0.05)


def interrupted(url: str, port: str, way: str, strikes: str, seed: str) -> None:
    """Be interrupted again and again, at any step of what the way says."""
    chance, struck, raw = random.Random(int(seed)), 0, Raw(int(port))
    faulthandler.dump_traceback_later(80, exit=True)  # it hangs

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    locks, rival = holdfast.connect(url, io_timeout=10), holdfast.connect(url, io_timeout=10)
    over: list[bool] = []

    def pass_on() -> None:
        while not over:
            with rival.lock("r", ttl=LONG):
                time.sleep(0.0005)

    thread = threading.Thread(target=pass_on)
    held = rival.lock("r", ttl=LONG).acquire(20) if way == "waiting" else None
    mine = raw.all_claims()
    if way == "busy":
        thread.start()
    work = WAYS[way]

    def again_and_again() -> None:
        while True:
            work(locks)

    for _ in range(int(strikes)):
        struck += strike_after(chance.random() * 0.01 + 1e-6, again_and_again)
    over.append(True)
    if way == "busy":
        thread.join()
    eventually(lambda: raw.all_claims() == mine, limit=20, complaint=lambda: f"{raw.all_claims()} are left")
    if held is not None:
        held.release()
    say("struck", struck, "works", is_free(locks, "r"), "closed", can_close(locks, rival), "left", raw.all_claims())
    eventually(lambda: not threads())


def lock(locks: holdfast.Client) -> None:
    with locks.lock("r", ttl=LONG):
        pass


def permits(locks: holdfast.Client) -> None:
    with locks.semaphore("r", permits=2, ttl=LONG), locks.semaphore("r", permits=2, ttl=LONG):
        pass


def two(locks: holdfast.Client) -> None:
    with locks.lock_all("r", "s", ttl=LONG):
        pass


# Free: nobody else is there. Waiting: another holds it all the time. Busy: another takes it and gives it back.
WAYS = {"free": lock, "waiting": lock, "busy": lock, "permits": permits, "two": two}


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"stale": stale, "count": count, "interrupted": interrupted}
    roles[sys.argv[1]](*sys.argv[2:])
