"""Waiting for the answers of a session, in the asyncio flavour; the blocking one is `_sync/transport.py`."""

from __future__ import annotations

import asyncio


class Asked:
    """A question that is under way: the session's thread tells when it is answered."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self._loop.create_future()

    def tell(self) -> None:
        """Say that the answer is there, in any thread."""
        try:
            self._loop.call_soon_threadsafe(_settle, self._future, True)
        except RuntimeError:  # the loop is closed: nobody waits for this answer
            pass

    async def wait(self, seconds: float) -> bool:
        """Return True when the answer is there, False if it takes longer."""
        if seconds <= 0 and not self._future.done():
            return False
        timer = self._loop.call_later(seconds, _settle, self._future, False)
        try:
            return await self._future
        finally:
            timer.cancel()


def _settle(future: asyncio.Future[bool], answered: bool) -> None:
    if not future.done():
        future.set_result(answered)
