"""The threads of a test."""

from __future__ import annotations

import sys
import threading
import traceback

# What ran before the test: a control elsewhere may leave the threads of a store that it broke.
others: set[threading.Thread] = set()


def activities() -> list[str]:
    """Name the threads that holdfast runs on behalf of this test."""
    mine = set(threading.enumerate()) - others
    return sorted(thread.name for thread in mine if thread.name.startswith("holdfast-"))


def running() -> set[int]:
    """Return all threads that run Python code, also those that `threading` does not know."""
    return set(sys._current_frames())


def left(before: set[int]) -> str:
    """Say what runs beside these threads; nothing, if they alone do."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident not in before
    )
