"""A process that locks as it is told: actor.py URL. Reads one JSON command a line, answers with one JSON line.

Times are CLOCK_BOOTTIME, the same in all processes. `asks` counts the claims that were sent to the store.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import holdfast

locks = holdfast.connect(sys.argv[1])
leases: dict[str, holdfast.Lease] = {}
asked: dict[str, float] = {}
asks = 0
_claim = locks._engine.store.claim


def _count(*args: Any, **kwargs: Any) -> Any:
    global asks
    asks += 1
    return _claim(*args, **kwargs)


locks._engine.store.claim = _count  # type: ignore[method-assign]


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def acquire(name: str, timeout: float | None = None, **options: Any) -> dict[str, Any]:
    global asks
    asks = 0
    asked[name] = boot_time()
    leases[name] = locks.lock(name, **options).acquire(timeout=timeout)
    return {"token": leases[name].token, "at": boot_time(), "asks": asks, "cpu": time.process_time()}


def release(name: str) -> dict[str, Any]:
    at = boot_time()
    leases.pop(name).release()
    return {"at": at}


def look(name: str) -> dict[str, Any]:
    """Look once, without giving the keeper time to say anything; and say what a naive holder would believe."""
    lease = leases[name]
    lost = lease.lost
    try:
        lease.check()
        error = ""
    except holdfast.LeaseLost as caught:
        error = str(caught)
    # time.process_time stands still while a process is stopped, as many a home-made countdown does.
    return {"lost": lost, "error": error, "cpu": time.process_time(), "age": boot_time() - asked[name]}


def contend(name: str, seconds: float, begin: float) -> dict[str, Any]:
    """Take and give back in turn; return (token, from, to) of every hold."""
    holds = []
    while boot_time() < begin:
        time.sleep(0.001)
    while boot_time() < begin + seconds:
        with locks.lock(name, timeout=20) as lease:
            start = boot_time()
            time.sleep(0.0005)
            lease.check()
            holds.append((lease.token, start, boot_time()))
    return {"holds": holds}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "acquire": acquire,
    "release": release,
    "look": look,
    "contend": contend,
}

print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    do = command.pop("do")
    if do == "exit":
        break
    try:
        answer = COMMANDS[do](**command)
    except holdfast.LockError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)
