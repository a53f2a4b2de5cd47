"""What people see of the claims in ZooKeeper: reads only, which change nothing there."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.claim import ClaimState, ResourceState, find
from ....core.line import holders
from .. import nodes, wire
from ..nodes import Line, line_of, read_claim, unescape
from ..refusals import refusal
from ..shared import Shared
from ..wire import Code, Reply, Request, Stat
from .ensemble import Ensemble

_MOST_AT_ONCE = 500  # requests in one send


class Views:
    """The claims of one namespace."""

    def __init__(self, ensemble: Ensemble, shared: Shared, waiting_life: float) -> None:
        self._ensemble = ensemble
        self._space = shared.space
        self._waiting_life = waiting_life

    async def state(self, resource: str, until: float) -> ResourceState | None:
        """See Store."""
        return find(await self._states([nodes.escape(resource)], until), resource)

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        until = self._ensemble.until()
        requests = (wire.sync(self._space.claims), wire.get_children(self._space.claims))
        _, reply = await self._ensemble.read(requests, until)
        names = wire.read_texts(reply) if _is_there(reply, self._space.claims) else []
        found = [name for name in names if unescape(name).startswith(prefix)]
        return sorted(await self._states(found, until), key=lambda state: state.resource)

    async def _states(self, escaped: Sequence[str], until: float) -> list[ResourceState]:
        queues = [f"{self._space.claims}/{name}" for name in escaped]
        # A server may be behind the one that somebody else has just been granted by.
        requests = [wire.sync(self._space.claims), *(wire.get_children(queue) for queue in queues)]
        _, *listed = await self._read_all(requests, until)
        lines = [
            (queue, line_of(reply, queue))
            for queue, reply in zip(queues, listed, strict=True)
            if _is_there(reply, queue)
        ]
        paths = [f"{queue}/{node.name}" for queue, line in lines for node in line.nodes]
        read = [
            wire.read_data(reply) if _is_there(reply, path) else None
            for path, reply in zip(
                paths, await self._read_all([wire.get_data(path) for path in paths], until), strict=True
            )
        ]
        owners = sorted({seen[1].owner for seen in read if seen is not None})
        marks = await self._read_all([wire.get_children(f"{self._space.broken}/{owner:x}") for owner in owners], until)
        broken = {
            (owner, name)
            for owner, reply in zip(owners, marks, strict=True)
            if not reply.code
            for name in wire.read_texts(reply)
        }
        facts = dict(zip(paths, read, strict=True))
        session = await self._ensemble.any(until)
        offset = await self._ensemble.offset(session, until)
        states = [self._state(queue, line, facts, broken, offset) for queue, line in lines]
        return [state for state in states if state.holders or state.waiters]

    def _state(
        self,
        queue: str,
        line: Line,
        facts: dict[str, tuple[bytes, Stat] | None],
        broken: set[tuple[int, str]],
        offset: int,
    ) -> ResourceState:
        held: list[ClaimState] = []
        waiting: list[ClaimState] = []
        for node, holds in zip(line.nodes, holders(line.places), strict=True):
            seen = facts[f"{queue}/{node.name}"]
            if seen is None:
                continue
            claim = read_claim(seen[0], queue)
            token = seen[1].czxid + offset if holds else 0
            left = claim.timeout if holds else min(claim.timeout, self._waiting_life)
            (held if holds else waiting).append(
                ClaimState(
                    unescape(node.holder), claim.owner, token, left, *node.place, claim.value, False, True,
                    holds and (seen[1].owner, node.holder) in broken,
                )
            )  # fmt: skip
        newest = max((claim.token for claim in held), default=0)
        return ResourceState(unescape(queue.rpartition("/")[2]), newest, tuple(held), tuple(waiting))

    async def _read_all(self, requests: Sequence[Request], until: float) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(requests), _MOST_AT_ONCE):
            replies += await self._ensemble.read(requests[start : start + _MOST_AT_ONCE], until)
        return replies


def _is_there(reply: Reply, path: str) -> bool:
    """Return whether a node is there. Who may not see it must not be told that nobody holds anything."""
    if reply.code not in (Code.OK, Code.NO_NODE):
        raise refusal(reply.code, path)
    return not reply.code
