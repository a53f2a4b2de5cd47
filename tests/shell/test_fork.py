"""Fork: a lease belongs to the process that took it, and the client works in the child."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.shell.script import run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

# What the programs below share: `in_child(f)` runs f in a forked child and raises here what went wrong there.
PRELUDE = """
import os, sys, threading, time, traceback
import holdfast

def in_child(function, limit=10):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + limit
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")

def raises(kind, function):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
"""


def run_forking(code: str, *args: object) -> None:
    out, err = run(PRELUDE + textwrap.dedent(code) + "\nprint('end')\n", *args, limit=30)
    assert out == "end\n", err


def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


def test_an_inherited_lease(tmp_path: Path) -> None:
    run_forking(
        """
        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("r").acquire()

        def child():
            assert lease.lost
            assert "belongs to process" in str(raises(holdfast.NotHeld, lease.check))
            raises(holdfast.NotHeld, lease.release)
            raises(holdfast.NotHeld, lease.renew)
            repr(lease)

        in_child(child)
        lease.check()
        assert not lease.lost
        assert len(locks.inspect("r")[0].holders) == 1
        lease.release()
        """,
        url(tmp_path),
    )


@pytest.mark.parametrize("way", ["lock", "lock.acquire()"])
def test_the_childs_exit_is_silent(way: str, tmp_path: Path) -> None:
    run_forking(
        f"""
        locks = holdfast.connect(sys.argv[1])
        lock = locks.lock("r")
        with {way} as lease:
            pid = os.fork()
        if not pid:
            try:
                assert locks.lock("s").try_acquire() is not None
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert lease.state == "released"
        """,
        url(tmp_path),
    )


def test_the_parents_hold_survives_the_childs_exit(tmp_path: Path) -> None:
    run_forking(
        """
        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("r").acquire()
        pid = os.fork()
        if not pid:
            sys.exit(0)  # the whole way out: atexit closes the child's client
        assert os.waitpid(pid, 0)[1] == 0
        lease.check()
        lease.renew()
        assert len(locks.inspect("r")[0].holders) == 1
        """,
        url(tmp_path),
    )


@pytest.mark.parametrize("way", ["lock", "lock.acquire()"])
def test_an_error_leaves_the_parents_with_in_the_child_as_it_is(way: str, tmp_path: Path) -> None:
    run_forking(
        f"""
        locks = holdfast.connect(sys.argv[1])
        lock = locks.lock("r")
        try:
            with {way} as lease:
                pid = os.fork()
                if not pid:
                    raise ZeroDivisionError
                assert os.waitpid(pid, 0)[1] == 0
                lease.check()
        except ZeroDivisionError as error:
            os._exit(len(getattr(error, "__notes__", ())))
        """,
        url(tmp_path),
    )


def test_the_child_has_its_own_client_and_keeper(tmp_path: Path) -> None:
    run_forking(
        """
        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("r", ttl=1).acquire()

        def child():
            assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
            assert locks.lock("r").try_acquire() is None  # the parent has it, and this is no deadlock
            with locks.lock("own", ttl=0.6) as own:
                time.sleep(0.9)  # longer than the ttl: somebody renews
                own.check()
                assert str(os.getpid()) in own.owner
            locks.close()
            assert threading.active_count() == 1

        in_child(child)
        lease.check()
        lease.release()
        """,
        url(tmp_path),
    )


def test_a_child_waits_for_its_parent(tmp_path: Path) -> None:
    run_forking(
        """
        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("r").acquire()
        token = lease.token
        threading.Timer(0.2, lease.release).start()

        def child():
            with locks.lock("r", timeout=5) as own:
                assert own.token > token

        in_child(child)
        """,
        url(tmp_path),
    )


def test_fork_while_another_thread_is_inside_the_keeper() -> None:
    run_forking(
        """
        locks = holdfast.connect("memory://")
        lease = locks.lock("r", ttl=0.5).acquire()
        entered, leave = threading.Event(), threading.Event()

        def hold_the_mutex():
            with locks._keeper._mutex, locks._store._room._mutex:
                entered.set()
                leave.wait()

        holder = threading.Thread(target=hold_the_mutex, daemon=True)
        holder.start()
        entered.wait()

        def child():
            time.sleep(0.6)  # past the parent's deadline: a look must not go through the parent's keeper
            assert lease.lost
            repr(lease), lease.state, lease.remaining
            raises(holdfast.NotHeld, lease.check)
            assert lease.wait_lost(0.01)
            with locks.lock("r", timeout=1) as own:
                own.check()
            locks.close()

        try:
            in_child(child, limit=5)
        finally:
            leave.set()
            holder.join()
        """
    )


def test_memory_starts_empty_in_the_child() -> None:
    run_forking(
        """
        locks = holdfast.connect("memory://")
        lease = locks.lock("r").acquire()

        def child():
            assert locks.inspect() == []
            with locks.lock("r", timeout=0):
                assert len(locks.inspect()) == 1

        in_child(child)
        lease.check()
        """
    )


def test_an_inherited_lease_dies_silently() -> None:
    run_forking(
        """
        import gc, warnings
        warnings.simplefilter("error")
        locks = holdfast.connect("memory://")
        lease = locks.lock("r").acquire()

        def child():
            global lease
            sys.unraisablehook = lambda unraisable: os._exit(3)
            del lease
            gc.collect()

        in_child(child)
        lease.check()
        lease.release()
        """
    )


def test_a_closed_client_stays_closed_in_the_child() -> None:
    run_forking(
        """
        locks = holdfast.connect("memory://")
        locks.close()
        in_child(lambda: raises(holdfast.LockError, locks.lock("r").acquire))
        """
    )


def test_a_grandchild(tmp_path: Path) -> None:
    run_forking(
        """
        locks = holdfast.connect(sys.argv[1])

        def grandchild():
            with locks.lock("r", timeout=0):
                pass

        def child():
            with locks.lock("s"):
                in_child(grandchild)

        with locks.lock("t"):
            in_child(child)
        """,
        url(tmp_path),
    )


def test_an_asyncio_client_made_before_the_fork(tmp_path: Path) -> None:
    run_forking(
        """
        import asyncio
        locks = holdfast.aio.connect(sys.argv[1])

        async def use():
            async with locks.lock("r", timeout=5) as lease:
                lease.check()
            await locks.close()

        in_child(lambda: asyncio.run(use()))
        asyncio.run(use())
        """,
        url(tmp_path),
    )


def test_an_asyncio_client_that_was_used_before_the_fork(tmp_path: Path) -> None:
    run_forking(
        """
        import asyncio
        locks = holdfast.aio.connect(sys.argv[1])

        async def use():
            async with locks.lock("r", timeout=5) as lease:
                lease.check()

        async def once():
            await use()

        asyncio.run(once())
        in_child(lambda: asyncio.run(use()))  # the child's client is new: its first loop is this one
        """,
        url(tmp_path),
    )


def test_multiprocessing_with_a_client_of_the_module(tmp_path: Path) -> None:
    run_forking(
        """
        import multiprocessing

        locks = holdfast.connect(sys.argv[1])
        lock = locks.lock("r", timeout=20)

        def work(number):
            tokens = []
            for _ in range(5):
                with lock as lease:
                    tokens.append(lease.token)
            return tokens

        with lock:
            pass
        with multiprocessing.get_context("fork").Pool(3) as pool:
            tokens = [token for part in pool.map(work, range(6)) for token in part]
        assert len(set(tokens)) == 30
        with locks.lock("r", timeout=0):
            pass
        """,
        url(tmp_path),
    )
