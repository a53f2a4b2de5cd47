"""Clocks of single processes: moved, set right again, and nobody else's is touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.clock import ROUTINES, moved, set_clock, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

# Prints wall clock, steady clock, gettimeofday() and time() of libc, whenever it is asked.
CHILD = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
for _ in sys.stdin:
    day = (ctypes.c_long * 2)()
    libc.gettimeofday(day, None)
    print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), day[0] + day[1] / 1e6, libc.time(None), flush=True)
"""


class Child:
    """A process that tells its time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ahead(self) -> list[float]:
        """Return how far its clocks are ahead of ours."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = [time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time(), time.time()]
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told = map(float, self.process.stdout.readline().split())
        return [there - here for here, there in zip(before, told, strict=True)]


@pytest.fixture
def child() -> Iterator[Child]:
    found = Child()
    yield found
    found.process.kill()
    found.process.communicate()


def near(found: list[float], expected: list[float]) -> bool:
    # A busy machine may take seconds to answer; time() knows whole seconds only, and so does its offset.
    return all(-2.1 <= one - other < 10 for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("realtime", "monotonic"), [(1100.5, 0.0), (-7200.25, 0.0), (0.0, 500.0), (900.0, -300.75)])
def test_clocks_of_a_process_are_moved_and_set_right_again(child: Child, realtime: float, monotonic: float):
    assert near(child.ahead(), [0.0] * 4)
    with moved(child.process.pid, realtime=realtime, monotonic=monotonic):
        assert near(child.ahead(), [realtime, monotonic, realtime, realtime])
        set_clock(child.process.pid, realtime=2 * realtime, monotonic=monotonic)
        assert near(child.ahead(), [2 * realtime, monotonic, 2 * realtime, 2 * realtime])
    assert near(child.ahead(), [0.0] * 4)


def test_other_processes_keep_their_time(child: Child):
    other, before = Child(), time.time()
    try:
        with moved(child.process.pid, realtime=1000.0):
            assert near(other.ahead(), [0.0] * 4)
            assert time.time() - before < 500
    finally:
        other.process.kill()
        other.process.communicate()


@pytest.mark.parametrize("name", ROUTINES)
def test_code_is_what_the_assembly_says(name: str, tmp_path: Path):
    if shutil.which("as") is None or shutil.which("objcopy") is None:
        pytest.skip("as and objcopy are not installed: binutils has them")
    source = tmp_path / "routine.s"
    source.write_text(ROUTINES[name].assembly)
    subprocess.run(["as", source, "-o", tmp_path / "routine.o"], check=True)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", tmp_path / "routine.o", tmp_path / "routine.bin"], check=True
    )
    assert (tmp_path / "routine.bin").read_bytes() == ROUTINES[name].code
