"""Waiting for the answers of a session, in the blocking flavour; the asyncio one is `_async/transport.py`."""

from __future__ import annotations

from _thread import allocate_lock


class Asked:
    """A question that is under way: the session's thread tells when it is answered.

    A lock of C, and nothing made of Python: an interrupt can strike while somebody waits for it, and harms nobody.
    """

    __slots__ = ("_lock", "tell")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self.tell = self._lock.release

    def wait(self, seconds: float) -> bool:
        """Return True when the answer is there, False if it takes longer."""
        return self._lock.acquire(True, max(0.0, seconds))
