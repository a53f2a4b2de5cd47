"""The end of a program: what is held is released, in time and in silence."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import pytest

import holdfast
from tests.shell.script import run, start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="not tested on Windows")


def test_a_client_that_was_never_closed_releases_at_exit(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    out, err = run(
        """
        import sys
        import holdfast

        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("r", ttl=300).acquire()
        detached = locks.lock("d", ttl=300, renew=False).acquire()
        print(lease.token)
        """,
        url,
    )
    assert err == ""
    with holdfast.connect(url) as locks:
        with locks.lock("r", timeout=0) as lease:
            assert lease.token > int(out)
        assert locks.lock("d").try_acquire() is None


def test_exit_inside_a_with(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    _, err = run(
        """
        import sys
        import holdfast

        with holdfast.connect(sys.argv[1]) as locks, locks.lock("r"):
            sys.exit()
        """,
        url,
    )
    assert err == ""
    with holdfast.connect(url) as locks:
        assert locks.inspect() == []


def test_threads_that_hold_and_wait_do_not_keep_the_program(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    _, err = run(
        """
        import sys, threading, time
        import holdfast

        locks = holdfast.connect(sys.argv[1])
        lock = locks.lock("r")
        held = threading.Event()

        def work():
            with lock:
                held.set()
                time.sleep(100)

        def wait():
            try:
                lock.acquire()
            except holdfast.LockError:
                pass

        for target in (work, wait, wait):
            threading.Thread(target=target, daemon=True).start()
            held.wait()
        """,
        url,
        limit=10,
    )
    assert err == ""
    with holdfast.connect(url) as locks, locks.lock("r", timeout=0):
        pass


@pytest.mark.parametrize("verb", ["claim", "release"])
def test_daemon_threads_end_the_step_that_they_are_at(verb: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    _, err = run(
        """
        import sys, threading, time
        import holdfast

        locks = holdfast.connect(sys.argv[1])
        store, verb = locks._engine.store, sys.argv[2]
        call, arrived = getattr(store, verb), threading.Event()

        def slow(*args):
            answer = call(*args) if verb == "claim" else None
            arrived.set()
            time.sleep(0.3)
            return answer or call(*args)

        def work():
            try:
                with locks.lock("r", ttl=300):
                    pass
            except holdfast.LockError:
                pass

        locks.ready()
        setattr(store, verb, slow)
        threading.Thread(target=work, daemon=True).start()
        arrived.wait()
        """,
        url,
        verb,
        limit=10,
    )
    assert err == ""
    with holdfast.connect(url) as locks:
        assert locks.inspect() == []


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_exit_in_time_when_the_store_hangs(verb: str) -> None:
    started = time.monotonic()
    out, _ = run(
        """
        import sys, time
        import holdfast

        started = time.monotonic()
        locks = holdfast.connect("memory://", io_timeout=1)
        leases = [locks.lock(f"r{n}", ttl=0.5).acquire() for n in range(10)]

        def hang(*args):
            time.sleep(1)
            raise holdfast.StoreUnavailable("no answer")

        setattr(locks._engine.store, sys.argv[1], hang)
        time.sleep(0.3)
        print(time.monotonic() - started)
        """,
        verb,
    )
    # 2 s for closing, one exchange that was under way then, and the interpreter itself.
    assert time.monotonic() - started - float(out) < 2 + 1 + 1.5


def test_exit_in_time_when_another_process_blocks_the_file(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    # Each waits for the other's sign: the file is blocked after the leases were taken, and before the program ends.
    held, blocked = tmp_path / "held", tmp_path / "blocked"
    wait = """
        import os, sys, time

        def wait_for(sign):
            while not os.path.exists(sign):
                time.sleep(0.01)
        """
    blocker = start(
        textwrap.dedent(wait)
        + textwrap.dedent(
            """
            import sqlite3

            wait_for(sys.argv[2])
            connection = sqlite3.connect(sys.argv[1], isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            open(sys.argv[3], "w").close()
            time.sleep(60)
            """
        ),
        *(path, held, blocked),
    )
    try:
        out, _ = run(
            textwrap.dedent(wait)
            + textwrap.dedent(
                """
                import holdfast

                locks = holdfast.connect(f"sqlite://{sys.argv[1]}", io_timeout=20)
                leases = [locks.lock(f"r{n}").acquire() for n in range(3)]
                open(sys.argv[2], "w").close()
                wait_for(sys.argv[3])
                print(time.monotonic(), flush=True)
                """
            ),
            *(path, held, blocked),
            limit=40,
        )
        assert time.monotonic() - float(out) < 2 + 1.5
    finally:
        blocker.kill()
        blocker.communicate()


def test_one_client_that_fails_to_close_does_not_keep_the_others(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    run(
        """
        import sys
        import holdfast

        def fail(*args):
            raise ZeroDivisionError

        bad = [holdfast.connect("memory://") for _ in range(5)]
        locks = holdfast.connect(sys.argv[1])
        bad += [holdfast.connect("memory://") for _ in range(5)]
        for client in bad:
            client._engine.store.close = fail
        lease = locks.lock("r", ttl=300).acquire()
        """,
        url,
    )
    with holdfast.connect(url) as locks:
        assert locks.inspect() == []


def test_a_client_without_leases_costs_nothing_at_exit() -> None:
    out, err = run(
        """
        import time
        import holdfast

        locks = holdfast.connect("memory://")
        with locks.lock("r"):
            pass
        print(time.monotonic())
        """
    )
    assert time.monotonic() - float(out) < 1
    assert err == ""
