"""SIGTERM: without help it leaves leases for their ttl; release_on_sigterm() gives them back first."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

import holdfast
from holdfast.testing._sync.runtime import eventually
from tests.shell.script import start

pytestmark = pytest.mark.slow

PROGRAM = """
    import asyncio, os, signal, sys, time
    import holdfast, holdfast.aio

    {prepare}
    def holds():
        os.write(1, b"holds\\n")  # not print: a handler that prints may strike in the middle
        while True:
            time.sleep(0.02)  # not at one stroke: a signal that comes just before would not end it

    def blocking(locks):
        with locks.lock("r", ttl=60):
            holds()

    async def asynchronous():
        async with holdfast.aio.connect(sys.argv[1]) as locks:
            async with locks.lock("r", ttl=60):
                holds()  # not even the loop runs

    locks = holdfast.connect(sys.argv[1])
    {how}
"""
HOW = {"blocking": "blocking(locks)", "asyncio": "asyncio.run(asynchronous())"}


@contextmanager
def running(tmp_path: Path, how: str, prepare: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program that holds `r` until it is told to end."""
    url = f"sqlite://{tmp_path}/locks.db"
    with start(dedent(PROGRAM).format(prepare=dedent(prepare), how=HOW[how]), url) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            yield process, url
        finally:
            process.kill()


def ends(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    return process.returncode, out


def detached(url: str) -> bool:
    """Return whether `r` is held although its process is gone: SQLite notices a dead process, so look at the row."""
    with holdfast.connect(url) as locks:
        return bool(locks.inspect("r"))


@pytest.mark.parametrize("how", HOW)
def test_leases_are_given_back_and_the_process_dies_of_the_signal(how: str, tmp_path: Path) -> None:
    with running(tmp_path, how, "holdfast.release_on_sigterm(); holdfast.release_on_sigterm()") as (process, url):
        assert ends(process) == (-signal.SIGTERM, "")
        assert not detached(url)


@pytest.mark.control
@pytest.mark.parametrize("how", HOW)
def test_without_it_they_stay_for_their_ttl(how: str, tmp_path: Path) -> None:
    with running(tmp_path, how, "") as (process, url):
        assert ends(process) == (-signal.SIGTERM, "")
        assert detached(url)


@pytest.mark.parametrize("how", HOW)
def test_the_handler_that_was_there_comes_after(how: str, tmp_path: Path) -> None:
    prepare = """
        def old(number, frame):
            print("old", number, len(holdfast.connect(sys.argv[1]).inspect()), flush=True)
            sys.exit(5)

        signal.signal(signal.SIGTERM, old)
        holdfast.release_on_sigterm()
    """
    with running(tmp_path, how, prepare) as (process, _):
        assert ends(process) == (5, "old 15 0\n")


def test_a_program_that_ignores_the_signal_goes_on_ignoring_it(tmp_path: Path) -> None:
    prepare = "signal.signal(signal.SIGTERM, signal.SIG_IGN); holdfast.release_on_sigterm()"
    with running(tmp_path, "blocking", prepare) as (process, url):
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert detached(url)


def test_number_one_of_a_container_ends_too(tmp_path: Path) -> None:
    """The kernel spares it: a signal whose handler is the default one does nothing there."""
    prepare = """
        import os
        os.getpid = lambda: 1
        os.kill = lambda number, signal: None
        holdfast.release_on_sigterm()
    """
    with running(tmp_path, "blocking", prepare) as (process, url):
        assert ends(process) == (128 + signal.SIGTERM, "")
        assert not detached(url)


WAITS = """
    import asyncio, signal, sys
    import holdfast, holdfast.aio

    {prepare}
    async def asynchronous():
        async with holdfast.aio.connect(sys.argv[1]) as locks:
            await locks.lock("r").acquire()

    print("waits", flush=True)
    {how}
"""
WAYS = {
    "blocking": "holdfast.connect(sys.argv[1]).lock('r').acquire()",
    "asyncio": "asyncio.run(asynchronous())",
}


def waiters_after_sigterm(how: str, prepare: str, tmp_path: Path) -> int:
    """Return how many wait when a process that waited was ended by SIGTERM."""
    url = f"sqlite://{tmp_path}/locks.db"
    with holdfast.connect(url) as locks, locks.lock("r", ttl=60):
        with start(dedent(WAITS).format(prepare=prepare, how=WAYS[how]), url) as process:
            eventually(lambda: locks.inspect("r")[0].waiters)
            assert ends(process)[0] == -signal.SIGTERM
        return len(locks.inspect("r")[0].waiters)


@pytest.mark.parametrize("how", WAYS)
def test_what_waits_is_withdrawn(how: str, tmp_path: Path) -> None:
    assert waiters_after_sigterm(how, "holdfast.release_on_sigterm()", tmp_path) == 0


@pytest.mark.control
@pytest.mark.parametrize("how", WAYS)
def test_without_it_what_waits_stays_in_line(how: str, tmp_path: Path) -> None:
    assert waiters_after_sigterm(how, "", tmp_path) == 1
