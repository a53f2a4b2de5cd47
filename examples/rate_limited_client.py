"""Several workers call an API that allows 5 calls a second, and keep to that together.

A refused worker is told when the next call is possible, sleeps for that long and asks again. Whoever asks first then
gets it: there is no line.

Run: python examples/rate_limited_client.py

Prints:
    calls: 15
    more than 5 in any second: False
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import holdfast

LIMIT = 5
CALLS = 15


def call_api(limit: holdfast.RateLimit) -> tuple[float, float]:
    """Wait for the permission to call, and call; return between which times it was given."""
    while True:
        asked = time.monotonic()
        try:
            limit.hit()
            return asked, time.monotonic()
        except holdfast.RateLimited as error:
            time.sleep(error.retry_after)


def main(folder: str) -> None:
    """Let three workers make all calls, and look at the times."""
    with holdfast.connect(f"sqlite:{folder}/locks.db") as locks, ThreadPoolExecutor(3) as workers:
        limit = locks.rate_limit("api.example.com", LIMIT, per=1)
        calls = list(workers.map(lambda _: call_api(limit), range(CALLS)))
    print("calls:", len(calls))
    # Calls that were surely made within one second: asked for after its begin, allowed before its end.
    most = max(sum(begin <= asked and allowed < begin + 1 for asked, allowed in calls) for begin, _ in calls)
    print(f"more than {LIMIT} in any second:", most > LIMIT)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
