"""Fork: a lease belongs to the process that took it, and the client works in the child."""

from __future__ import annotations

import gc
import os
import textwrap
from pathlib import Path

import pytest

import holdfast
from holdfast import _process
from holdfast._living import Living
from holdfast.stores.sqlite import database
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
            with locks._engine.keeper._mutex, locks._engine.store._room._mutex:
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


def test_a_client_that_cannot_begin_anew_does_not_keep_the_others(tmp_path: Path) -> None:
    """A password that is asked for, or a driver, may be missing in the child."""
    run_forking(
        """
        def fail():
            raise RuntimeError("no driver here")

        clients = [holdfast.connect(sys.argv[1]) for _ in range(9)]
        for bad in clients[::2]:
            bad._engine._make_store = fail

        def child():
            for locks in clients[1::2]:
                with locks.lock("r") as lease:
                    lease.check()
            for locks in clients[::2]:
                assert "is closed; connect() again" in str(raises(holdfast.LockError, locks.lock("r").acquire))

        in_child(child)
        for locks in clients:
            with locks.lock("r"):
                pass
        """,
        url(tmp_path),
    )


THREADS = """
def threads():
    return len(os.listdir("/proc/self/task"))

def ended(count, limit=10):
    until = time.monotonic() + limit
    while threads() > count:
        assert time.monotonic() < until, sys._current_frames()
        time.sleep(0.01)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
def test_no_thread_outlives_its_client_on_either_side(flavour: str, store: str, tmp_path: Path) -> None:
    """The kernel counts, not Python: what the keeper starts is hardly known to `threading`."""
    blocking = """
        locks = holdfast.connect(sys.argv[1])
        leases = [locks.lock(f"r{number}", ttl=1).acquire() for number in range(3)]
        time.sleep(0.5)  # for a renewal
        assert threads() > 1

        def child():
            assert threads() == 1
            assert all(lease.lost for lease in leases)
            mine = [locks.lock(f"s{number}", ttl=0.6).acquire() for number in range(3)]
            time.sleep(0.9)  # longer than the ttl: somebody renews
            for lease in mine:
                lease.check()
            locks.close()
            assert [lease.state for lease in mine] == ["released"] * 3
            ended(1)

        in_child(child)
        time.sleep(0.7)
        for lease in leases:
            lease.check()
        locks.close()
        ended(1)
        """
    asyncio = """
        import asyncio
        locks = holdfast.aio.connect(sys.argv[1])

        async def parent():
            leases = [await locks.lock(f"r{number}", ttl=1).acquire() for number in range(3)]
            await asyncio.sleep(0.5)  # for a renewal
            assert threads() > 1

            def child():
                assert threads() == 1
                assert all(lease.lost for lease in leases)
                asyncio.events._set_running_loop(None)  # that of the parent
                asyncio.run(use())

            in_child(child)  # blocks the loop, too
            for lease in leases:
                lease.check()
            await locks.close()
            ended(1)

        async def use():
            mine = [await locks.lock(f"s{number}", ttl=0.6).acquire() for number in range(3)]
            await asyncio.sleep(0.9)  # longer than the ttl: somebody renews
            for lease in mine:
                lease.check()
            await locks.close()
            assert [lease.state for lease in mine] == ["released"] * 3
            ended(1)

        asyncio.run(parent())
        """
    code = THREADS + textwrap.dedent(blocking if flavour == "blocking" else asyncio)
    run_forking(code, "memory://" if store == "memory" else url(tmp_path))


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


def test_hooks_run_in_their_turn_whoever_registers_first() -> None:
    run_forking(
        """
        from holdfast._fork import Turn, at_fork
        seen = []
        for turn in (Turn.CLIENTS, Turn.LEASES, Turn.STRANDS, Turn.CONNECTIONS):
            at_fork(turn, before=lambda turn=turn: seen.append(-turn), in_child=lambda turn=turn: seen.append(turn))

        def child():
            assert seen == [-4, -3, -2, -1, 1, 2, 3, 4], seen

        in_child(child)
        assert seen == [-4, -3, -2, -1]
        """
    )


def test_one_hook_is_registered_with_python() -> None:
    run_forking(
        """
        hooks = []
        os.register_at_fork = lambda **moments: hooks.append(sys._getframe(1).f_globals["__name__"])
        for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
            del sys.modules[name]
        import holdfast, holdfast.aio
        for scheme in ("memory://", "sqlite:x.db", "redis://h", "redlock://a,b,c", "etcd://h"):
            holdfast.connect(scheme), holdfast.aio.connect(scheme)
        assert [name for name in hooks if name.startswith("holdfast")] == ["holdfast._fork"], hooks
        """
    )


@pytest.mark.parametrize("living", [_process._engines, _process._keepers, database._databases])
def test_a_client_may_come_while_all_are_gone_through(living: Living[object], tmp_path: Path) -> None:
    """As another thread makes one while this one forks, or while the interpreter ends."""
    url = f"sqlite://{tmp_path}/locks.db"
    known = [holdfast.connect(url)]
    known += [holdfast.connect(url) for _ in living]
    assert len(known) > 1
    seen = len(list(living))
    known.clear()
    gc.collect()
    assert len(list(living)) < seen
