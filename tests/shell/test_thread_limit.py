"""The limit of threads, reached for real: the acquire fails and says why, and all works again later."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.shell.script import run

# Each thread asks for more memory than the process may have: as root, too, it is then refused by the system.
PREAMBLE = """
import asyncio, logging, os, resource, sys, threading, time
import holdfast, holdfast.aio

logging.basicConfig(format="%(levelname)s %(message)s")

def used():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

def limit():
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (used() + (1 << 29), resource.RLIM_INFINITY))

def lift():
    threading.stack_size(0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
BLOCKING = """
limit()
with holdfast.connect(sys.argv[1]) as locks, holdfast.connect(sys.argv[1]) as others:
    for _ in range(2):
        try:
            with locks.lock("r", ttl=0.6):
                print("inside")
        except holdfast.LockError as error:
            print(error)
    assert others.inspect() == []
    lift()
    with locks.lock("r", ttl=0.6, timeout=0) as lease:
        limit()  # what runs by now has to do
        time.sleep(1)
        print(lease.state)
        lift()
    assert others.inspect() == []
"""
ASYNCIO = """
async def main():
    async with holdfast.aio.connect(sys.argv[1]) as others, holdfast.aio.connect(sys.argv[1]) as locks:
        await others.ready()
        limit()
        for _ in range(2):
            try:
                async with locks.lock("r", ttl=0.6):
                    print("inside")
            except holdfast.LockError as error:
                print(error)
        assert await others.inspect() == []
        lift()
        async with locks.lock("r", ttl=0.6, timeout=0) as lease:
            await asyncio.sleep(0.05)
            limit()
            time.sleep(1)
            print(lease.state)
            lift()
        assert await others.inspect() == []

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS as Linux has it")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_no_more_threads(program: str, store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    out, err = run(PREAMBLE + dedent(program), url)
    *errors, state = out.splitlines()
    reason = (
        "leases cannot be kept, for no thread could be started (can't start new thread); raise the limit of threads"
    )
    assert (errors, state) == ([reason] * 2, "held")
    assert [
        line for line in err.splitlines() if "loop has not run" not in line and "not released yet" not in line
    ] == []
