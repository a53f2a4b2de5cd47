"""Bodies: which open `with` a call stands in.

Whoever takes a re-entrant lock again, or waits for what it holds itself, is told by the *body* that the call stands in.
Neither the thread nor the task would do. A pool gives a thread to the next request while the first one still holds, for
a framework may enter in one job and leave in another. An event loop runs other tasks in the thread of a blocking
client. A generator may stop in the middle of its `with` and be resumed by anybody. To let one of these share a hold
would make two holders under one token, and no fence helps against that. So a call is inside of a body only where that
is certain:

- The frame that opened the body is on the caller's stack. A `with` statement in a plain function or a coroutine is left
  when that ends, so a call that has its frame on the stack really runs within it.
- The task is the same. An eager task runs its first step on the stack of the task that made it, and goes on beside it.
- Where a generator stands between (`@contextmanager`), it may be resumed by anybody. Then the frame is taken whose own
  `with` statement enters that generator. If there is none, whoever entered it did so by a call, as a thread of a pool
  does, or a scheduler, or pytest: its frame is on the stack of the next job as well, and proves nothing.

In doubt a call is inside of nothing, and waits in line like everybody else. A bare acquire() is no body, and neither is
what was entered by a call: of `__enter__`, or of an ExitStack, which may be handed to somebody else.

A body refers to its frame for as long as it is open, so that no later frame can be taken for it. Nothing but its own
`with` statement keeps the body alive: a generator that was given up in the middle of its `with` may be among the
variables of that frame, and must be found by the collector.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from .entries import Entry

FOR_LOOPS = "use holdfast.aio in coroutines, or acquire with timeout=0"  # what to tell who blocks an event loop

_GENERATOR = 0x20 | 0x200  # flags of the code of generators and async generators
_OF_AENTER = 1  # the argument of GET_AWAITABLE for what `async with` awaits first
_NEAR = 16  # bytes of code within which an await has begun

Ref = ref["Entry"]


class Strand:
    """A thread or a task: the label that its claims have, and the bodies that were opened in it."""

    __slots__ = ("__weakref__", "is_task", "label", "opened")

    def __init__(self, label: str, is_task: bool) -> None:
        self.label = label
        self.is_task = is_task  # else tasks of a loop that runs in this thread have to be told apart
        self.opened: dict[int, Ref] = {}  # by id: one call of C adds or removes one

    def bodies(self) -> list[Entry]:
        """Return the bodies that are open, the innermost first."""
        found = []
        for key, known in reversed(self.opened.copy().items()):
            body = known()
            if body is not None:
                found.append(body)
            elif self.opened.get(key) is known:  # the collector has found it: nobody left its `with`
                self.opened.pop(key, None)
        return found


def running_loop() -> Any:
    """Return the event loop that runs in this thread, if any. A program without asyncio need not load it for that."""
    asyncio: Any = sys.modules.get("asyncio.events")
    return None if asyncio is None else asyncio._get_running_loop()


def running_task() -> Any:
    """Return the task that runs in this thread, if any."""
    loop = running_loop()
    return None if loop is None else sys.modules["asyncio.tasks"].current_task(loop)


def open_body(entry: Entry, strand: Strand) -> None:
    """Note that the body of a `with` begins."""
    frame = entry.frame
    if frame is None:
        return  # entered by hand
    if frame.f_code.co_flags & _GENERATOR:
        entry.frame = with_around(frame)
        if entry.frame is None:
            return
    if not strand.is_task:
        entry.task = running_task()
    entry.strand = strand
    strand.opened[id(entry)] = ref(entry)


def close_body(entry: Entry) -> None:
    """Note that the body is over, in whatever thread or task."""
    entry.frame = None
    strand = entry.strand
    if strand is not None:
        strand.opened.pop(id(entry), None)


def enclosing(strand: Strand) -> Iterator[Entry]:
    """Yield the bodies that the caller is inside of, the innermost first."""
    task, stack = _task_in(strand), _stack()
    for body in strand.bodies():
        if id(body.frame) in stack and body.task is task and body.is_open:
            yield body


def surrounding(strand: Strand) -> Iterator[Entry]:
    """Yield the bodies that the caller is inside of, the innermost first; in less time, and not quite as certain.

    A `with` that is open in this thread and task is around the caller, unless somebody switches stacks by hand.
    """
    task = _task_in(strand)
    for body in strand.bodies():
        if body.is_open and body.task is task:
            yield body


def _stack() -> set[int]:
    # Not the frames themselves: this would be one of them, a circle, and keep what all of them refer to.
    frame: FrameType | None = sys._getframe(1)
    found = set()
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def _task_in(strand: Strand) -> Any:
    return None if strand.is_task else running_task()


def with_around(frame: FrameType | None) -> FrameType | None:
    """Return the frame whose own `with` statement, right now, enters the generators that stand between; None if a call
    does.
    """
    while frame is not None:
        if not frame.f_code.co_flags & _GENERATOR:
            if _enters_a_with(frame):
                return frame
            module = str(frame.f_globals.get("__name__"))
            if module != "contextlib" and not module.startswith("holdfast._"):
                return None
        frame = frame.f_back
    return None


def _enters_a_with(frame: FrameType) -> bool:
    """Return whether a frame stands at the beginning of a `with` statement, or awaits that of an `async with`."""
    from opcode import opmap  # not at the top: few need it

    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and code[at] == opmap["CACHE"]:  # Python 3.12 points at what follows the instruction
        at -= 2
    now = code[at]
    if now == opmap.get("BEFORE_WITH"):
        return True
    if now == opmap["CALL"] and "LOAD_SPECIAL" in opmap:  # from Python 3.14 on `with` calls what it has looked up
        return code[at - 2] == opmap["LOAD_SPECIAL"]
    if now not in (opmap["SEND"], opmap["YIELD_VALUE"]):
        return False
    for before in range(at, max(-1, at - _NEAR), -2):  # an await begins with this, and its argument says of what
        if code[before] == opmap["GET_AWAITABLE"]:
            return code[before + 1] == _OF_AENTER
    return False
