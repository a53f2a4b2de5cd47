"""The teller where flavours differ: observers that use the client, forks, and the end of the program."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest

import holdfast
from holdfast.core import events
from holdfast.core.events import Event
from holdfast.testing._sync.runtime import eventually
from tests.shell.script import run
from tests.shell.threads import left, running


def test_an_observer_may_use_the_blocking_client(name: str) -> None:
    tokens: list[int] = []

    def observe(event: Event) -> None:
        if isinstance(event, events.Acquired) and event.resource == "r":
            with locks.lock("of the observer") as lease:
                tokens.append(lease.token)

    with holdfast.connect(f"memory://{name}", observers=[observe]) as locks:
        with locks.lock("r"):
            pass
        eventually(lambda: tokens)
        assert locks.inspect() == []


@pytest.mark.parametrize("way", ["observer", "on_lost"])
def test_the_blocking_client_may_be_closed_by_what_is_told(way: str, name: str) -> None:
    """close() waits for the teller, and is called by it: it must not wait for itself."""
    before, took = running(), list[float]()

    def close(what: object) -> None:
        started = time.monotonic()
        locks.close()
        took.append(time.monotonic() - started)

    def observe(event: Event) -> None:
        if way == "observer" and isinstance(event, events.Lost):
            close(event)

    locks = holdfast.connect(f"memory://{name}", observers=[observe])
    held = locks.lock("held").acquire()
    lost = locks.lock("lost", ttl=0.5, renew=False, on_lost=close if way == "on_lost" else None).acquire()
    eventually(lambda: took)
    assert took[0] < 3
    assert (held.state, lost.state) == ("released", "lost")
    eventually(lambda: not left(before), complaint=lambda: left(before))


def test_a_forked_child_tells_its_own_events_only(name: str) -> None:
    """What the parent had not told yet is the parent's to tell."""
    seen: list[tuple[int, str, str]] = []
    hangs, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def observe(event: Event) -> None:
        if os.getpid() == parent:
            hangs.set()
            go_on.wait(60)
        seen.append((os.getpid(), type(event).__name__, event.resource))

    with holdfast.connect(f"memory://{name}", observers=[observe]) as locks:
        for _ in range(20):
            with locks.lock("parent"):
                pass
        assert hangs.wait(10)
        child = os.fork()
        if child == 0:
            try:
                seen.clear()
                with locks.lock("child"):
                    pass
                locks.close()
                wanted = [(os.getpid(), kind, "child") for kind in ("Acquired", "Released")]
                os._exit(0 if seen == wanted else 3)
            except BaseException:
                os._exit(4)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        go_on.set()
    assert [kind for _, kind, _ in seen] == ["Acquired", "Released"] * 20


BLOCKING = """
    import sys
    import holdfast

    locks = holdfast.connect(sys.argv[1], observers=[observe])
    lease = locks.lock("r", ttl=300).acquire()
    """

ASYNCIO = """
    import asyncio, sys
    import holdfast

    async def main():
        global locks, lease
        locks = holdfast.aio.connect(sys.argv[1], observers=[observe])
        lease = await locks.lock("r", ttl=300).acquire()

    asyncio.run(main())
    """

flavours = pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])


def program_with(observer: str, program: str) -> str:
    return dedent(observer) + dedent(program)


@flavours
def test_what_happens_at_the_end_of_the_program_is_told(program: str, tmp_path: Path) -> None:
    out, err = run(
        program_with(
            """
            import time

            def observe(event):
                time.sleep(0.1)
                print(type(event).__name__, flush=True)
            """,
            program,
        ),
        f"sqlite://{tmp_path}/locks.db",
    )
    assert (out.split(), err) == (["Acquired", "Released"], "")


@flavours
def test_an_observer_that_never_returns_does_not_hang_the_end(program: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    started = time.monotonic()
    _, err = run(
        program_with(
            """
            import threading

            def observe(event):
                threading.Event().wait()
            """,
            program,
        ),
        url,
    )
    assert time.monotonic() - started < 10
    assert err == ""
    with holdfast.connect(url) as locks, locks.lock("r", timeout=0):
        pass
