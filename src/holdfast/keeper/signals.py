"""Signals between threads, made of C locks.

`threading.Event` and `Condition` are Python code around a lock: a KeyboardInterrupt in the middle of `set()` leaves
that lock taken for ever, and with it everybody who waits for the signal later. Here nothing is ever taken that an
interrupt could leave taken: a waiter sleeps on a lock of its own, and whoever wakes it releases that lock, which is one
call of C.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import Any

from .._clock import Clock

_SLICE = 1.0  # seconds after which a sleeper looks at the flag, in case whoever raised it was interrupted


class Latch:
    """A flag that one activity waits for; its wait lowers it. To raise it takes one call of C."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Raise the flag."""
        try:
            self._lock.release()
        except RuntimeError:  # it is up
            pass

    def wait(self, clock: Clock, until: float) -> bool:
        """Return True once the flag was raised, and lower it; False when `until` has come."""
        while (left := until - clock.now()) > 0:
            if self._lock.acquire(True, clock.patience(left)):
                return True
        return self._lock.acquire(False)


class Signal:
    """A flag that can be raised, lowered and awaited by any thread."""

    __slots__ = ("_gates", "_up")

    def __init__(self) -> None:
        self._up = False
        self._gates: dict[int, Any] = {}  # a locked lock for each waiter

    def set(self) -> None:
        """Raise the flag and wake everybody."""
        self._up = True
        for gate in list(self._gates.values()):
            try:
                gate.release()
            except RuntimeError:  # somebody else was faster
                pass

    def clear(self) -> None:
        """Lower the flag."""
        self._up = False

    def is_set(self) -> bool:
        """Return whether the flag is up."""
        return self._up

    def wait(self, clock: Clock, until: float) -> bool:
        """Return True once the flag is up, False when `until` has come."""
        gate = allocate_lock()
        gate.acquire()
        self._gates[id(gate)] = gate
        try:
            while not self._up:
                left = until - clock.now()
                if left <= 0:
                    return False
                gate.acquire(True, min(_SLICE, clock.patience(left)))
        finally:
            self._gates.pop(id(gate), None)
        return True
