"""A process that enters and leaves a lock, in the version of holdfast that it finds on its path.

Run as `with_lock.py URL FLAVOUR`. For each line, a number, it does so as often and prints the seconds that it took.
"""

import asyncio
import gc
import sys
from time import perf_counter

import holdfast


def blocking(url: str) -> None:
    """`with lock`."""
    with holdfast.connect(url) as locks:
        lock = locks.lock("bench")
        for line in sys.stdin:
            times = range(int(line))
            gc.collect()
            start = perf_counter()
            for _ in times:
                with lock:
                    pass
            print(perf_counter() - start, flush=True)


async def asynchronous(url: str) -> None:
    """`async with lock`."""
    async with holdfast.aio.connect(url) as locks:
        lock = locks.lock("bench")
        while line := sys.stdin.readline():
            times = range(int(line))
            gc.collect()
            start = perf_counter()
            for _ in times:
                async with lock:
                    pass
            print(perf_counter() - start, flush=True)


if __name__ == "__main__":
    url, flavour = sys.argv[1:]
    if flavour == "asyncio":
        asyncio.run(asynchronous(url))
    else:
        blocking(url)
