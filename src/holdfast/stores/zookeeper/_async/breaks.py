"""Breaking a claim in ZooKeeper by hand.

Whoever breaks a claim leaves a mark where its session looks with every proof, in the same send as the sync. A proof
that was answered without the mark was sent before the mark was there, and its session lives for one timeout from then
at the most. From the mark on, renewals say Lost. The client of the holder deletes node and mark at the end that its
last renewal has put; one that is dead, or cut off, leaves the node to the end of its session.

A mark is lasting: it must outlive the client that leaves it, which may be a command that ends at once. What the client
of a holder did not delete is deleted by whoever breaks a claim later, if the claim of that mark is gone.
"""

from __future__ import annotations

from contextlib import suppress

from ....core.claim import Evicted
from ....core.line import holders
from ....errors import StoreError
from .. import nodes, wire
from ..nodes import line_of, read_claim
from ..refusals import refusal
from ..session import Session
from ..shared import Shared
from ..wire import Code
from .ensemble import Ensemble

_MOST_MARKS = 50  # that one break looks at


class Breaks:
    """Breaks claims of one namespace."""

    def __init__(self, ensemble: Ensemble, shared: Shared) -> None:
        self._ensemble = ensemble
        self._shared = shared
        self._space = shared.space

    async def evict(self, resource: str, holder: str, at_once: bool) -> Evicted | None:
        """See Store. Without `at_once` it ends at the latest when the timeout of its session has passed."""
        until = self._ensemble.until()
        session = await self._ensemble.any(until)
        queue = self._space.queue(resource)
        _, reply = await self._ensemble.ask(session, (wire.sync(queue), wire.get_children(queue)), until)
        if reply.code == Code.NO_NODE:
            return None
        line = line_of(reply, queue)
        name = next(iter(line.of(nodes.escape_holder(holder))), "")
        if not name or not holders(line.places)[line.find(name)]:
            return None
        path = f"{queue}/{name}"
        if at_once:
            return Evicted(0.0) if await self._ensemble.delete(session, path, until) else None
        (reply,) = await self._ensemble.ask(session, (wire.get_data(path),), until)
        if reply.code:
            return None
        data, stat = wire.read_data(reply)
        if not await self._mark(session, self._space.mark(stat.owner, holder), path, until):
            return None
        with suppress(StoreError):  # the claim is broken, and the next break looks again
            await self._sweep(session, until)
        return Evicted(read_claim(data, path).timeout)

    async def _mark(self, session: Session, mark: str, path: str, until: float) -> bool:
        """Leave a mark on a claim; False if it has gone meanwhile."""
        requests = (wire.create(mark, path.encode(), self._shared.acl), wire.exists(path))
        made, there = await self._ensemble.ask(session, requests, until)
        if made.code == Code.NO_NODE:
            await self._ensemble.make_parents(session, mark, until)
            made, there = await self._ensemble.ask(session, requests, until)
        if made.code not in (Code.OK, Code.NODE_EXISTS):
            raise refusal(made.code, mark)
        if there.code:
            await self._ensemble.delete(session, mark, until)
        return not there.code

    async def _sweep(self, session: Session, until: float) -> None:
        """Delete marks that were left on claims that have gone."""
        (reply,) = await self._ensemble.ask(session, (wire.get_children(self._space.broken),), until)
        owners = [f"{self._space.broken}/{name}" for name in wire.read_texts(reply)] if not reply.code else []
        listed = await self._ensemble.ask(session, [wire.get_children(owner) for owner in owners[:_MOST_MARKS]], until)
        marks = [
            f"{owner}/{name}"
            for owner, seen in zip(owners, listed, strict=False)
            if not seen.code
            for name in wire.read_texts(seen)
        ][:_MOST_MARKS]
        read = await self._ensemble.ask(session, [wire.get_data(mark) for mark in marks], until)
        found = [(mark, wire.read_data(one)[0]) for mark, one in zip(marks, read, strict=True) if not one.code]
        ours = f"{self._space.root}/claims/"  # what names anything else is none of ours
        claims = [(mark, path) for mark, data in found if (path := data.decode(errors="replace")).startswith(ours)]
        there = await self._ensemble.ask(session, [wire.exists(claim) for _, claim in claims], until)
        gone = [mark for (mark, _), one in zip(claims, there, strict=True) if one.code == Code.NO_NODE]
        await self._ensemble.ask(session, [wire.delete(mark) for mark in gone], until)
