"""Entries: one for each `with` statement that is open. However it is left, its leases are given back.

Ctrl-C may strike at the entry of `__exit__`, before its first line: the `with` statement is left then, and nobody has
released anything. So `__exit__` is made anew for each statement, by a descriptor, as an object to which that statement
alone refers. The statement looks it up before it calls `__enter__`, and drops it when it is left, in whatever way. A
weak reference notices that: its callback puts the entry on the list `left`, in C, where no interrupt can strike. The
keeper looks at the list at its next wake-up and gives back what is not settled. A normal exit disarms the entry first.

A generator that stands in a `with` may be found by the garbage collector. The statement is left then in whatever thread
the collector runs in, maybe inside of one of our locks, and to release there could wait for that very lock. So such an
entry is put on the list as well, and its keeper woken.

The order in which an interpreter does this is the same from Python 3.6 on: look up `__enter__`, look up `__exit__`,
call the first. So `__enter__` finds the entry that was made just before, in its own thread; ExitStack looks both up on
the class and does the same, but one that is struck as it calls our exit refers to it until the collector runs. Who
calls `__enter__` by hand finds none, and gets an entry that nothing guards.
"""

from __future__ import annotations

import gc
import weakref
from _thread import get_ident
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from sys import _getframe
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar, overload

from ..core.lease import RELEASED, Hold
from .bodies import Strand, close_body, with_around

R = TypeVar("R")

left: deque[Guard] = deque()  # of statements that were left without a normal exit, in any client of this process
_note_left = left.append
_pending: dict[int, Guard] = {}  # by thread: looked up, and not entered yet

# The last of them is what the collector has said last. Noted by one call of C: in Python code an interrupt could
# strike, and would be lost there.
_phases = OrderedDict.fromkeys(("start", "stop"))
getattr(gc, "callbacks", []).append(_phases.move_to_end)


class Share:
    """A lease as far as its keeper is concerned: its part in a hold."""

    __slots__ = ("_counted", "_hold", "_settled")

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._counted = 0  # 1: it counts no more among the hold's shares; 2: and several have tried to release it
        self._settled = False  # and nothing is left to do; this comes last

    @property
    def _half_released(self) -> bool:
        """Whether it has ended for its holder, and not yet for the store."""
        return not self._settled and self._hold.state is RELEASED


class Entry:
    """A `with` statement: the leases that it holds open, and the object that it leaves by."""

    kind: type | None = None  # of what is entered
    guard: Guard | None = None
    leases: tuple[Share, ...] = ()  # to be given back if the statement is abandoned
    target: Any = None  # what was entered, once that is done
    actor = ""  # the first part of the names of its claims, and of those that are made inside of it
    # What its body is known by, see `bodies`: the frame that opened it, until it is left.
    frame: FrameType | None = None
    looked_up_in = 0  # the frame, if it is by_class
    by_class = False  # opened by something that looked `__exit__` up on the class, as ExitStack does
    task: Any = None
    strand: Strand | None = None

    def note(self, lease: Share) -> None:
        """Note a lease that was granted for the statement: from here on it is given back in any case."""
        self.leases = (*self.leases, lease)

    def fail(self) -> None:
        """Note that it was not entered: unless it holds something, nobody has to look at it. Failures may come by the
        thousand, and no keeper may run.
        """
        if all(lease._settled for lease in self.leases):
            self.disarm()

    @property
    def is_open(self) -> bool:
        """Whether the statement has not been left, be it by Ctrl-C."""
        return self.guard is not None and self.guard() is not None

    def disarm(self) -> None:
        """Note that the statement was left in order."""
        self.guard = None  # breaks the circle, too: the collector need not
        if self.frame is not None:
            close_body(self)


class Guard(weakref.ref[Any]):
    """Notices that the exit object of a statement is gone."""

    __slots__ = ("entry",)

    entry: Entry


def arm(entry: Entry, leaving: object) -> None:
    """Have the entry's leases given back when this object dies, unless it is disarmed before."""
    guard = Guard(leaving, _note_left)
    guard.entry = entry
    entry.guard = guard


def begin(manager: object) -> Entry:
    """Return the entry of the `with` statement that calls `__enter__` now; a new one if it is called by hand."""
    guard = _pending.pop(get_ident(), None)
    if guard is not None and guard.entry.kind is type(manager) and (leaving := guard()) is not None:
        entry = guard.entry
        frame = _getframe(2)
        # Else somebody has looked an exit up by hand: of another one, or to push it onto a stack.
        if entry.looked_up_in == id(frame) if entry.by_class else leaving.args[1] is manager:
            # Not the frame of ExitStack itself: it refers to the exit, which would then be in a circle with it, and an
            # interrupt would leave the entry to the collector.
            entry.frame = with_around(frame) if entry.by_class else frame
            return entry
    return Entry()


def collected(entry: Entry, error: BaseException | None) -> bool:
    """Return whether the collector leaves this statement, or may: then the keeper gives back what it holds."""
    if not isinstance(error, GeneratorExit) or entry.guard is None or next(reversed(_phases)) == "stop":
        return False
    left.append(entry.guard)
    for share in entry.leases:
        share._hold.keeper.wake.set()
    return True


def settle_left() -> None:
    """Give back what statements have left behind. Any keeper may do so for all: each lease knows its own."""
    while left:
        try:
            entry = left.popleft().entry
        except IndexError:  # another keeper was faster
            return
        for share in entry.leases:
            share._hold.keeper.abandon(share)
        entry.disarm()


Exiting = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], R]


class Exit(Generic[R]):
    """The `__exit__` of a class: each look-up makes an object for one `with` statement."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[..., R]) -> None:
        self._leave = leave  # takes entry, manager, type, error and traceback

    @overload
    def __get__(self, manager: None, kind: type) -> Callable[..., R]: ...

    @overload
    def __get__(self, manager: object, kind: type) -> Exiting[R]: ...

    def __get__(self, manager: object | None, kind: type) -> Callable[..., R]:
        entry = Entry()
        entry.kind = kind
        # A partial, not a method of ours: no frame refers to it, so that a traceback cannot keep it alive.
        if manager is None:
            entry.by_class = True
            entry.looked_up_in = id(_getframe(1))
            leave = partial(self._leave, entry)
        else:
            leave = partial(self._leave, entry, manager)
        guard = Guard(leave, _note_left)
        guard.entry = entry
        entry.guard = guard
        _pending[get_ident()] = guard
        return leave
