"""Small helpers of the laws that are the same in both flavours."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ..core.events import Event

E = TypeVar("E", bound=BaseException)

ROUNDING = 1e-6  # of times that were added up and taken apart again


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but it does not stop the event loop on its way."""


class raises(Generic[E]):  # noqa: N801 (reads as a statement, like pytest's)
    """Demand that a block raises exactly this kind of error: AcquireTimeout does not pass for another LockError."""

    error: E

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self.error)

    def __enter__(self) -> raises[E]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            raise AssertionError(f"{self._kind.__name__} was expected, and nothing was raised")
        if not isinstance(error, self._kind):
            return False
        if type(error) is not self._kind:
            raise AssertionError(f"{self._kind.__name__} was expected, not {error!r}") from error
        self.error = error
        return True


class Seen(list[Event]):
    """An observer that is called where things happen, so that whoever asks knows what it has seen."""

    inline = True

    def __call__(self, event: Event) -> None:
        self.append(event)


class Ledger:
    """Who is inside right now, as the workers themselves see it: a second opinion on what the store grants."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._inside: dict[str, tuple[int, int]] = {}
        self.entered = 0

    def enter(self, holder: str, weight: int, capacity: int) -> None:
        """Note a grant, and demand that it fits beside the others.

        By the largest capacity, not by its own: one that was granted later may have come here first.
        """
        with self._mutex:
            total = weight + sum(others for others, _ in self._inside.values())
            limit = max(capacity, *(limit for _, limit in self._inside.values()), 0)
            assert total <= limit, f"{holder} of {capacity} was granted at weight {total}: {self._inside}"
            self._inside[holder] = (weight, capacity)
            self.entered += 1

    def leave(self, holder: str) -> None:
        """Note that a holder is about to release: until then it counts."""
        with self._mutex:
            del self._inside[holder]


def vain(limit: float, condition: Callable[[], object], complaint: Callable[[], str] | None) -> str:
    """Say what was waited for in vain."""
    if complaint is not None:
        return f"waited {limit:g} s: {complaint()}"
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):  # of code that has no file, or no source
        source = repr(condition)
    return f"did not come true within {limit:g} s: {source}"


def open_files() -> dict[int, str]:
    """Return the open file descriptors and what they lead to."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    found = {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:  # the one that listed the directory
            continue
    return found
