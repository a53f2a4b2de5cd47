"""Other Pythons of this machine, from 3.12 on: what the keeper relies on is not the same in all of them.

They need nothing installed: memory and SQLite have no dependencies. `make pythons` runs all tests there.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

import holdfast
from tests.shell.script import SOURCE
from tests.shell.test_loops import ENDS, PREAMBLE

pytestmark = pytest.mark.slow

VERSIONS = ["3.12", "3.13", "3.14"]
PYENV = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))


@cache
def find(version: str) -> str | None:
    """Return a Python of that version that runs here; a shim of pyenv may exist and yet not run."""
    code = "import sys, sqlite3; print('%d.%d' % sys.version_info[:2], hasattr(sys, '_is_gil_enabled'))"
    candidates = [shutil.which(f"python{version}"), *glob.glob(f"{PYENV}/versions/{version}*/bin/python")]
    for candidate in filter(None, candidates):
        tried = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if tried.returncode == 0 and tried.stdout.startswith(version):
            return candidate
    return None


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    """Another Python of this machine."""
    found = find(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    return found


def run(python: str, code: str, *args: object, limit: float = 60) -> tuple[str, str]:
    """Run a program to its end; return what it wrote."""
    done = subprocess.run(
        [python, "-c", dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("url", ["memory://", "sqlite://{folder}/locks.db"], ids=["memory", "sqlite"])
def test_a_lease_is_renewed_while_its_process_runs(url: str, python: str) -> None:
    out, _ = run(
        python,
        """
        import logging, sys
        from holdfast.testing import contract

        logging.disable()
        store = contract.Target(sys.argv[1], driven=True)
        for law in contract.laws(store):
            if law.number == 15:
                law.run(store)
                print(law.flavour)
        """,
        url,
    )
    flavours = out.split()
    assert flavours.count("sync") == flavours.count("async") >= 6


def test_eager_tasks(python: str) -> None:
    """A task that runs at once, inside of whoever makes it, must not find us in the middle of something."""
    out, err = run(
        python,
        """
        import asyncio, sys
        import holdfast, holdfast.aio

        async def use(locks, number):
            async with locks.lock("shared", ttl=60, timeout=30) as lease:
                lease.check()
            lease = await locks.lock(f"own {number}", ttl=0.6).acquire()
            await asyncio.sleep(0.9)  # longer than the ttl: somebody renews
            lease.check()
            await lease.release()

        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            async with holdfast.aio.connect("memory://") as locks:
                await asyncio.gather(*(use(locks, number) for number in range(20)))
                lease = await asyncio.create_task(locks.lock("task").acquire())
                waiting = asyncio.create_task(locks.lock("task").acquire())
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.create_task(lease.release())
                try:
                    async with locks.lock("lost", ttl=0.5, renew=False) as lease:
                        await asyncio.sleep(60)
                except holdfast.LeaseLost:
                    print("lost")
                await asyncio.sleep(0.01)
                assert await locks.inspect() == [], await locks.inspect()
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(main())
        """,
    )
    assert out.split() == ["lost"]
    assert [line for line in err.splitlines() if "'lost'" not in line] == []


def test_who_is_inside_of_which_body(python: str) -> None:
    """Frames, the order in which a `with` looks methods up, and eager tasks are matters of the interpreter."""
    out, err = run(
        python,
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        from contextlib import ExitStack, asynccontextmanager, contextmanager
        import holdfast, holdfast.aio
        from holdfast._sync import runtime

        locks = holdfast.connect("memory://")
        lock = locks.lock("r", reentrant=True, timeout=0)

        @contextmanager
        def held():
            with lock as lease:
                yield lease

        def standing():
            generator = held().gen
            next(generator)
            return generator

        def deeper():
            with lock as lease:
                return lease.token

        with lock as one, held() as two, ExitStack() as stack:
            three = stack.enter_context(lock)
            assert {one.token, two.token, three.token, deeper(), lock(deeper)()} == {one.token}
        assert not runtime.strand().opened and not locks.inspect()
        with held() as one:
            assert deeper() == one.token
        @held()
        def recurse(depth):
            return depth and recurse(depth - 1)
        recurse(3)
        assert not runtime.strand().opened and not locks.inspect()
        try:
            with locks.lock("r"), locks.lock("r"):
                pass
        except holdfast.Deadlock:
            print("deadlock")
        with ThreadPoolExecutor(1) as pool:
            left_open = pool.submit(standing).result()
            assert pool.submit(lock.try_acquire).result() is None
            left_open.close()
        assert not locks.inspect()

        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            async with holdfast.aio.connect("memory://") as locks:
                lock = locks.lock("r", reentrant=True)
                @asynccontextmanager
                async def held():
                    async with lock as lease:
                        await asyncio.sleep(0)
                        yield lease
                async with held() as outer, lock as inner:
                    assert outer.token == inner.token
                async with lock as outer, lock as inner:
                    assert outer.token == inner.token
                    # Its first step runs on the stack of the task that makes it.
                    assert await asyncio.create_task(lock.try_acquire()) is None
                assert not await locks.inspect()

        asyncio.run(main())
        """,
    )
    assert (out.split(), err) == (["deadlock"], "")


@pytest.mark.parametrize("end", ENDS)
def test_a_lease_held_at_the_end_of_the_program_is_given_back(end: str, python: str, tmp_path: Path) -> None:
    """From 3.12 on no thread can be started while the interpreter ends."""
    url = f"sqlite://{tmp_path}/locks.db"
    _, err = run(python, PREAMBLE + dedent(ENDS[end]), url)
    assert err == ""
    with holdfast.connect(url) as locks, locks.lock("r", timeout=0):
        pass


def test_the_end_of_a_program_whose_keeper_has_gone_home(python: str, tmp_path: Path) -> None:
    """Activities without work end after a while; then there is none at the end, and none can be started."""
    url = f"sqlite://{tmp_path}/locks.db"
    out, err = run(
        python,
        """
        import sys, time
        import holdfast

        def observe(event):
            print(type(event).__name__)

        locks = holdfast.connect(sys.argv[1], observers=[observe])
        detached = locks.lock("d", ttl=300, renew=False).acquire()
        lease = locks.lock("r", ttl=300).acquire()
        time.sleep(2.5)  # the teller has gone
        """,
        url,
    )
    assert (out.split(), err) == (["Acquired", "Acquired", "Released"], "")
    with holdfast.connect(url) as locks, locks.lock("r", timeout=0):
        assert locks.lock("d").try_acquire() is None
