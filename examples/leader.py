"""Two candidates, one leader: handover in order, and after a crash.

The first leader is asked to end (SIGTERM) and gives the office back; the second leads at once. Then the second is
killed, and the first, started again, leads. An observer prints the changes.

Run: python examples/leader.py

Prints:
    web-1 leads
    web-1 ends in order
    web-2 leads
    web-2 is killed
    web-1 leads
    tokens rise: True
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import holdfast


def candidate(url: str, name: str) -> None:
    """Campaign until this process is ended; lead until the term is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # leaves the `with`, which gives the office back
    for term in holdfast.connect(url, owner=name).election("scheduler", value=name, ttl=3).terms():
        with term:
            while True:
                term.check()  # raises when the term is lost; the `with` then ends quietly, and the loop goes on
                time.sleep(0.05)  # the leader's work; what it writes carries term.fence


def start(url: str, name: str) -> BaseProcess:
    """Start a candidate."""
    process = get_context("spawn").Process(target=candidate, args=(url, name))
    process.start()
    return process


def wait_queued(locks: holdfast.Client) -> None:
    """Return when a candidate stands in line."""
    while not any(state.waiters for state in locks.inspect("scheduler")):
        time.sleep(0.01)


def leaders(locks: holdfast.Client) -> Iterator[holdfast.Leader]:
    """Yield and print each new leader."""
    for leader in locks.election("scheduler").observe():
        if leader is not None:
            print(leader.value, "leads")
            yield leader


def main(folder: str) -> None:
    """Let the candidates come and go."""
    url = f"sqlite:{folder}/locks.db"
    locks = holdfast.connect(url)
    changes = leaders(locks)
    first = start(url, "web-1")
    tokens = [next(changes).token]

    second = start(url, "web-2")
    wait_queued(locks)
    print("web-1 ends in order")
    first.terminate()
    tokens.append(next(changes).token)

    first = start(url, "web-1")
    wait_queued(locks)
    print("web-2 is killed")
    second.kill()
    tokens.append(next(changes).token)

    print("tokens rise:", tokens == sorted(tokens))
    first.kill()
    for process in (first, second):
        process.join()
    locks.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
