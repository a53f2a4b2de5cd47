"""Cancel: ends acquires that wait, from outside."""

from __future__ import annotations

from collections.abc import Callable


class Cancel:
    """Cancels acquires: `lock.acquire(cancel=cancel)`, and from any thread, task or signal handler `cancel.cancel()`.

    Whoever waits raises AcquireCancelled, and so does every later acquire that is given this object. What is held
    already stays held. One object may be given to many acquires, of any client and flavour.
    """

    __slots__ = ("_cancelled", "_waking")

    def __init__(self) -> None:
        self._cancelled = False
        self._waking: dict[object, Callable[[], None]] = {}  # by acquire: what wakes it

    @property
    def cancelled(self) -> bool:
        """Whether `cancel()` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancel what waits, and what comes. Takes no lock and does no I/O; twice does nothing more."""
        self._cancelled = True  # first: whoever begins to wait after the copy was made sees it
        for wake in list(self._waking.values()):
            wake()

    def _expect(self, acquire: object, wake: Callable[[], None]) -> None:
        """Wake this acquire when it is cancelled."""
        self._waking[acquire] = wake

    def _forget(self, acquire: object) -> None:
        self._waking.pop(acquire, None)

    def __repr__(self) -> str:
        return f"<Cancel {'cancelled' if self._cancelled else 'not cancelled'}>"


def check_cancel(cancel: object) -> Cancel | None:
    """Return it if it is a Cancel, or None.

    Raises: ValueError.
    """
    if cancel is None or isinstance(cancel, Cancel):
        return cancel
    raise ValueError(f"cancel must be a holdfast.Cancel() or None, not {cancel!r}")
