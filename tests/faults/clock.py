"""Move the clock of one running process, and of no other. Linux on x86-64, as root.

A process asks for the time through the vDSO, code that the kernel maps into it. Here that code is overwritten, in this
process alone: it makes the system call and adds an offset, which can be changed at any time. Timers of the kernel
(sleep, epoll) go on by the true clock.
"""

from __future__ import annotations

import os
import platform
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Routine(NamedTuple):
    """What takes the place of a function of the vDSO. The offsets stand right behind the code."""

    assembly: str  # for `as`; a test compares it with the code
    code: bytes


ROUTINES = {
    "clock_gettime": Routine(
        """
            mov     $228, %eax
            syscall
            test    %eax, %eax
            jnz     4f
            lea     5f(%rip), %rdx      # the offset of the wall clock
            test    %edi, %edi          # CLOCK_REALTIME
            jz      2f
            cmp     $5, %edi            # CLOCK_REALTIME_COARSE
            je      2f
            cmp     $7, %edi            # CLOCK_BOOTTIME, the last of the steady ones
            ja      4f
            cmp     $2, %edi            # 2 and 3 are processor time
            jb      1f
            cmp     $3, %edi
            jbe     4f
    1:      add     $16, %rdx           # the offset of the steady clocks
    2:      mov     (%rdx), %rcx
            mov     8(%rdx), %rdx
            add     %rcx, (%rsi)
            add     8(%rsi), %rdx
            cmp     $1000000000, %rdx
            jl      3f
            sub     $1000000000, %rdx
            incq    (%rsi)
    3:      mov     %rdx, 8(%rsi)
    4:      ret
            .balign 8
    5:
        """,
        bytes.fromhex(
            "b8e40000000f0585c07548488d154600000085ff741883ff05741383ff07773383ff02720583ff0376294883c210488b0a48"
            "8b520848010e480356084881fa00ca9a3b7c0a4881ea00ca9a3b48ff0648895608c30f1f4000"
        ),
    ),
    "gettimeofday": Routine(
        """
            mov     $96, %eax
            syscall
            test    %rdi, %rdi
            jz      2f
            mov     3f(%rip), %rcx
            add     %rcx, (%rdi)
            mov     3f+8(%rip), %rdx
            add     8(%rdi), %rdx
            cmp     $1000000, %rdx
            jl      1f
            sub     $1000000, %rdx
            incq    (%rdi)
    1:      mov     %rdx, 8(%rdi)
    2:      ret
            .balign 8
    3:
        """,
        bytes.fromhex(
            "b8600000000f054885ff742c488b0d2d00000048010f488b152b000000480357084881fa40420f007c0a4881ea40420f0048"
            "ff0748895708c30f1f8000000000"
        ),
    ),
    "time": Routine(
        """
            mov     $201, %eax
            syscall
            add     2f(%rip), %rax
            test    %rdi, %rdi
            jz      1f
            mov     %rax, (%rdi)
    1:      ret
            .balign 8
    2:
        """,
        bytes.fromhex("b8c90000000f054803050a0000004885ff7403488907c390"),
    ),
}

_DYNSYM = 11  # the type of the section of an ELF file that lists its functions
_NS = 1_000_000_000


def why_not() -> str:
    """Say why clocks cannot be moved here; empty if they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "clocks of processes can be moved on Linux on x86-64 only"
    return "" if os.geteuid() == 0 else "moving the clock of a process needs root"


@contextmanager
def moved(pid: int, *, realtime: float = 0.0, monotonic: float = 0.0) -> Iterator[None]:
    """Have the clock of a process set so many seconds ahead (or behind) within the `with`."""
    set_clock(pid, realtime=realtime, monotonic=monotonic)
    try:
        yield
    finally:
        set_clock(pid)


def set_clock(pid: int, *, realtime: float = 0.0, monotonic: float = 0.0) -> None:
    """Set the clocks of a process so many seconds ahead of the true ones; 0 sets them right again.

    `time()` follows in whole seconds. The process runs on afterwards, also if it was stopped before.

    Raises: RuntimeError if this cannot be done here.
    """
    if reason := why_not():
        raise RuntimeError(reason)
    start, end = _vdso(pid)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        functions = _functions(memory.read(end - start))
        offsets = _offsets(realtime, monotonic)
        _stop_outside(pid, start, end)
        try:
            for name, routine in ROUTINES.items():
                at, size = functions[f"__vdso_{name}"]
                patch = routine.code + offsets[name]
                if len(patch) > size:
                    raise RuntimeError(f"{name} of this kernel has {size} bytes, and {len(patch)} are needed")
                memory.seek(start + at)
                memory.write(patch)
        finally:
            os.kill(pid, signal.SIGCONT)


def _offsets(realtime: float, monotonic: float) -> dict[str, bytes]:
    real, steady = (divmod(round(seconds * _NS), _NS) for seconds in (realtime, monotonic))
    return {
        "clock_gettime": struct.pack("<4q", *real, *steady),
        "gettimeofday": struct.pack("<2q", real[0], real[1] // 1000),
        "time": struct.pack("<q", real[0]),
    }


def _vdso(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if line.rstrip().endswith("[vdso]"):
                start, end = line.split()[0].split("-")
                return int(start, 16), int(end, 16)
    raise RuntimeError(f"process {pid} has no vDSO")


def _functions(image: bytes) -> dict[str, tuple[int, int]]:
    """Return where the functions of an ELF image are, and how long they are."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + number * size) for number in range(count)]
    found: dict[str, tuple[int, int]] = {}
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != _DYNSYM:
            continue
        names = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, _, _, _, value, extent = struct.unpack_from("<IBBHQQ", image, at)
            text = image[names + name : image.index(b"\0", names + name)].decode()
            found[text] = (value, extent)
    return found


def _stop_outside(pid: int, start: int, end: int) -> None:
    """Stop a process while none of its threads is inside the code that is about to change."""
    for _ in range(500):
        os.kill(pid, signal.SIGSTOP)
        for _ in range(100):
            places = [_place(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
            if all(place is not None for place in places):
                break
            time.sleep(0.001)
        if not any(place is None or start <= place < end for place in places):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)
    raise RuntimeError(f"process {pid} could not be stopped outside of its clock")


def _place(pid: int, thread: int) -> int | None:
    """Return where a thread stands; None while it runs."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall") as file:
            text = file.read().split()
    except FileNotFoundError:  # it has ended
        return 0
    return None if text == ["running"] else int(text[-1], 16)
