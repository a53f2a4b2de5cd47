"""Fenced registers on a majority of nodes: written to one, read from one, and put right where copies differ.

Each copy has a version that leads with its epoch, the exclusive token that it was written under. Whoever enters with a
newer token reads a majority and writes what it found under its own epoch. So what a stale writer has left on a minority
is older than that for ever, and nodes that the newer token has entered refuse it anyway.
"""

from __future__ import annotations

import os

from ....core.claim import Record
from ....core.fence import Fence
from ....errors import StoreUnavailable
from ...redis.replies import US, Names, check_entered
from ...redis.script import load
from ..ballots import Copy, read_copy
from .nodes import Nodes

_ENTER, _WRITE = load("redlock", "enter"), load("redlock", "write")
_TRIES = 3


class Registers:
    """The registers of one namespace."""

    def __init__(self, nodes: Nodes, names: Names) -> None:
        self._nodes = nodes
        self._names = names
        self._writer = os.urandom(8).hex()

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        name = self._names.register(key)
        for _ in range(_TRIES):
            copies = await self._enter(name, fence)
            latest = max(copies, key=lambda copy: copy.version)
            if fence is not None:
                await self._put(name, self._next(copies, latest.record, latest.left), fence)
                return latest.record
            same = sum(copy.version == latest.version for copy in copies)
            # A copy that only a minority has may be gone for the next reader: make sure of it, or take the newer one.
            if same >= self._nodes.needed or await self._put(name, latest, None):
                return latest.record
        raise StoreUnavailable(f"the register {key!r} is being written by others; ask again")

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        name = self._names.register(key)
        copies = await self._enter(name, fence)
        left = -1 if keep is None else int(keep * US)
        await self._put(name, self._next(copies, Record(value, fence.token), left), fence)

    def _next(self, copies: list[Copy], record: Record | None, left: int) -> Copy:
        exclusive = max(copy.exclusive for copy in copies)
        number = max(copy.version[1] for copy in copies) + 1
        return Copy(exclusive, (exclusive, number, self._writer), record, left)

    async def _enter(self, name: str, fence: Fence | None) -> list[Copy]:
        """Return the copies of a majority, after the fence has entered there.

        Raises: StaleToken; StoreUnavailable.
        """
        entering = () if fence is None else (fence.token, int(fence.shared))
        replies = [reply for reply in await self._nodes.run(_ENTER, [name], *entering) if reply is not None]
        for reply in replies:
            check_entered(reply, fence)  # one is enough: a newer token exists
        if len(replies) < self._nodes.needed:
            raise self._nodes.unavailable(len(replies))
        return [read_copy(reply) for reply in replies]

    async def _put(self, name: str, copy: Copy, fence: Fence | None) -> bool:
        """Write a copy to a majority; False if nodes refuse it, because a newer token has entered there.

        Raises: StaleToken instead, if a fence is given; StoreUnavailable.
        """
        record = copy.record or Record("", 0)
        replies = await self._nodes.run(
            _WRITE, [name], *copy.version, int(copy.record is not None), record.value, record.token, copy.left,
            *(() if fence is None else (fence.token, int(fence.shared))),
        )  # fmt: skip
        answers = [reply for reply in replies if reply is not None]
        for reply in answers:
            check_entered(reply, fence)
        if sum(reply[0] for reply in answers) >= self._nodes.needed:
            return True
        if len(answers) < self._nodes.needed:
            raise self._nodes.unavailable(len(answers))
        return False
