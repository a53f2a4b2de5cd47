"""A program that signals hit, again and again, at every step of taking and leaving a lock.

A timer raises a signal after a random time, so that its handler runs anywhere in the main thread.

    python -m tests.shell.interrupts WAY URL SECONDS SEED

Most ways raise KeyboardInterrupt from the handler. Whatever it struck, the resource must be free soon, although its ttl
is long: another client, in another thread, takes it. The way `first` does so in the first acquire of a new client, and
the way `closing` closes the client in the handler instead, as programs do at SIGTERM.

Prints what was found: how many signals struck, how often the resource stayed taken or a call took too long, whether
everything could be closed, and the threads that were left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import holdfast

_PATIENCE = 5.0  # seconds for the keeper to find what was left; far less than the ttl
_LONG = 300.0
_SHORT = 0.5
_COARSE = 2e-4  # seconds: a timer's error
_CLOSE = 1.0  # seconds that close() may take

armed: list[bool] = []  # whether a signal may strike now
numbers = itertools.count()


def by_lock(locks: holdfast.Client) -> None:
    with locks.lock("r", ttl=_LONG):
        pass


def by_lease(locks: holdfast.Client) -> None:
    # Short: an interrupt between the acquire and the `with` drops the lease, which ends at its ttl.
    with locks.lock("r", ttl=_SHORT).acquire():
        pass


_shared: dict[holdfast.Client, holdfast.Lock] = {}


def by_shared_lock(locks: holdfast.Client) -> None:
    with _shared.setdefault(locks, locks.lock("r", ttl=_LONG)):
        pass


def by_reentry(locks: holdfast.Client) -> None:
    lock = locks.lock("r", ttl=_LONG, reentrant=True)
    with lock, lock:
        pass


def by_two(locks: holdfast.Client) -> None:
    with locks.lock_all("r", "s", ttl=_LONG):
        pass


def by_decorator(locks: holdfast.Client) -> None:
    locks.lock("r", ttl=_LONG)(lambda: None)()


def by_release(locks: holdfast.Client) -> None:
    lease = None
    try:
        lease = locks.lock("r", ttl=_SHORT).acquire()
    finally:
        if lease is not None:
            try:
                lease.release()
            finally:
                lease.release()  # the first was interrupted: this one mends it


def by_readers(locks: holdfast.Client) -> None:
    catalog = locks.rwlock("r", ttl=_LONG)
    with catalog.read(), catalog.read():
        pass
    with catalog.write():
        pass


def by_permits(locks: holdfast.Client) -> None:
    permit = locks.semaphore("r", permits=2, ttl=_LONG)
    with permit, permit:
        pass


def by_tree(locks: holdfast.Client) -> None:
    with locks.tree("r/s/t", ttl=_LONG):
        pass


def by_terms(locks: holdfast.Client) -> None:
    # Short, here and below: an interrupt between the acquire and the body drops the lease, which ends at its ttl.
    for term in locks.election("r", value="me", ttl=_SHORT).terms():
        with term:
            pass
        break


def by_once(locks: holdfast.Client) -> None:
    locks.once(f"r:{next(numbers)}", keep=1, ttl=_SHORT)(lambda: 1)()


def by_generator(locks: holdfast.Client) -> None:
    @contextlib.contextmanager
    def held() -> Iterator[None]:
        with locks.lock("r", ttl=_LONG):
            yield

    with held():
        pass


WAYS: dict[str, Callable[[holdfast.Client], None]] = {
    "lock": by_lock,
    "lease": by_lease,
    "shared": by_shared_lock,
    "reentry": by_reentry,
    "two": by_two,
    "decorator": by_decorator,
    "release": by_release,
    "readers": by_readers,
    "permits": by_permits,
    "tree": by_tree,
    "terms": by_terms,
    "once": by_once,
    "generator": by_generator,
}


def strike_after(seconds: float, work: Callable[[], None]) -> bool:
    """Do the work and let a signal strike after that time; return whether it was interrupted."""
    armed[:] = [True]
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)  # again: Python drops what is raised in a finalizer
        work()
    except (KeyboardInterrupt, holdfast.LockError):
        return True
    finally:
        while True:
            try:
                armed.clear()
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                continue
    return False


def in_thread(work: Callable[[], bool], seconds: float) -> bool:
    """Return what the work returns in another thread, False if it takes longer; signals are for the main thread."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(found and found[0])


def is_free(rival: holdfast.Client, resource: str) -> bool:
    """Take the resource, within the patience."""

    def take() -> bool:
        lease = rival.lock(resource, ttl=_LONG).try_acquire(_PATIENCE)
        if lease is not None:
            lease.release()
        return lease is not None

    return in_thread(take, _PATIENCE * 2)


def can_close(*clients: holdfast.Client) -> bool:
    """Close them all."""

    def close() -> bool:
        for client in clients:
            client.close(_CLOSE)
        return True

    return in_thread(close, _PATIENCE * 2)


def usual_time(work: Callable[[], None]) -> float:
    """Return the seconds that the work takes undisturbed, the least of some."""
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return sorted(times)[25]


class Found:
    """What was found."""

    def __init__(self) -> None:
        self.strikes = self.stuck = 0
        self.closed = True

    def struck(self, well: bool) -> None:
        """Count a strike, and whether all was well after it."""
        self.strikes += 1
        self.stuck += not well


def with_one_client(found: Found, url: str, work: Callable[[holdfast.Client], None], times: Iterator[float]) -> None:
    """Interrupt a client that has been at work for long."""
    locks, rival = holdfast.connect(url), holdfast.connect(url)
    usual = usual_time(lambda: work(locks))
    # What a statement leaves is found at the next look of any keeper of the process: the rival's is awake from here on.
    is_free(rival, "r")

    def again_and_again() -> None:  # the timer is coarse: it may strike anywhere only if this takes much longer
        while True:
            work(locks)

    for share in times:
        if strike_after((1 + share) * max(usual, _COARSE), again_and_again):
            found.struck(is_free(rival, "r") and is_free(rival, "s"))
    found.closed = can_close(locks, rival)


def with_new_clients(found: Found, url: str, work: Callable[[holdfast.Client], None], times: Iterator[float]) -> None:
    """Interrupt the first acquire of a client, in which its threads are started."""
    with holdfast.connect(url) as rival:

        def first() -> None:
            with holdfast.connect(url) as other:
                work(other)

        usual = usual_time(first)
        for share in times:
            locks = holdfast.connect(url)
            struck = strike_after(share * usual + 1e-6, lambda locks=locks: work(locks))  # type: ignore[misc]
            well = is_free(locks, "r")  # it must still be of use
            found.closed = found.closed and can_close(locks)
            if struck:
                found.struck(well and is_free(rival, "r"))


def closing(found: Found, url: str, work: Callable[[holdfast.Client], None], times: Iterator[float]) -> None:
    """Close a client in a signal handler, wherever that runs."""
    current: list[holdfast.Client] = []
    took: list[float] = []

    def close(*_: object) -> None:
        if not armed:
            return
        armed.clear()  # once
        begun = time.monotonic()
        current[-1].close(_CLOSE)
        took.append(time.monotonic() - begun)

    def twice() -> None:
        for _ in range(2):
            work(current[0])

    def first() -> None:
        with holdfast.connect(url) as other:
            current[:] = [other]
            twice()

    usual = usual_time(first)
    signal.signal(signal.SIGALRM, close)
    for number, share in enumerate(times):
        # Namespaces of their own: where the signal struck inside of a lock, close() may have had no time to release.
        current[:] = [holdfast.connect(url, namespace=f"n{number}")]
        took.clear()
        strike_after(share * usual + 1e-6, twice)
        with holdfast.connect(url, namespace=f"n{number}") as rival:
            if took:
                found.struck(took[0] < _CLOSE * 3 and (took[0] >= _CLOSE or is_free(rival, "r")))
        found.closed = found.closed and can_close(*current)


def threads() -> list[str]:
    """Name the threads of holdfast."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast"))


def main(way: str, url: str, seconds: float, seed: int) -> None:
    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    faulthandler.dump_traceback_later(seconds + 40, exit=True)  # it hangs
    signal.signal(signal.SIGALRM, interrupt)
    chance, until, found = random.Random(seed), time.monotonic() + seconds, Found()

    def times() -> Iterator[float]:
        while time.monotonic() < until and found.stuck < 3:
            yield chance.random()

    match way:
        case "closing":
            closing(found, url, by_lock, times())
        case "first":
            with_new_clients(found, url, by_lock, times())
        case _:
            with_one_client(found, url, WAYS[way], times())
    give_up = time.monotonic() + _PATIENCE  # close() that was out of time leaves its end to the timekeeper
    while (left := threads()) and time.monotonic() < give_up:
        time.sleep(0.01)
    print(json.dumps(vars(found) | {"left": left}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
