"""Fenced registers in ZooKeeper, and its time.

A register is one node, written with the version that was read: two at once, and one of them reads again. It holds the
numbers of its fence, the value, and for how many seconds from its last write (mtime) on the value is kept. Whether that
is over is judged by ZooKeeper's clock alone: that of the leader, which stamps every write.

*What is over* is found by an index: /ends/NAMESPACE has a container for every minute, and in it a node for each thing
that is over then. Whoever writes looks at up to ten of them. A value that is over is taken out; the numbers of the
fence stay for a day more, for a stale writer may still come. Then the floor is raised to them, and the node deleted:
whoever comes without a node is judged by the floor. The index is a hint: what it names is read again, and what has been
written since has an entry of its own.

Why the node stays for a day, and is not deleted with its value: to make a node that is not there has no version to
compare. A writer that was paused since it has looked could then come in behind a newer one. Its session does not live
for a day.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ....core.claim import Record
from ....core.fence import Fence, Seen, enter
from ....errors import StoreUnavailable
from .. import wire
from ..nodes import decode, encode, escape, unescape
from ..refusals import refusal
from ..session import Session
from ..shared import Shared
from ..wire import Code, Reply, Request, Stat
from .ensemble import Ensemble

DAY = 86_400.0
_SLOT = 64.0  # seconds
_MOST = 10  # that one writer looks at
_CLOCK_FOR = 5.0  # seconds for which ZooKeeper's time is reckoned on by ours
_LOOK_EVERY = 1.0


class Held(NamedTuple):
    """What the node of a register holds."""

    seen: Seen
    token: int = 0
    value: str | None = None
    keep: float | None = 0.0  # seconds from its last write on; None: for ever

    def data(self) -> bytes:
        """Return it as it is written."""
        return encode([*self.seen, self.token, self.value, self.keep])

    def over(self, stat: Stat, now: float, more: float = 0.0) -> bool:
        """Return whether its time was over that many seconds ago."""
        return self.keep is not None and stat.mtime / 1000 + self.keep + more <= now


class Registers:
    """The registers of one namespace."""

    def __init__(self, ensemble: Ensemble, shared: Shared) -> None:
        self._ensemble = ensemble
        self._shared = shared
        self._space = shared.space
        self._due: list[tuple[float, str]] = []  # entries of the index that are to be looked at
        self._look_at = -inf

    async def read(self, key: str, fence: Fence | None) -> Record | None:
        """See Store."""
        until = self._ensemble.until()
        path = self._space.value(key)
        if fence is None:
            _, reply = await self._ensemble.read((wire.sync(path), wire.get_data(path)), until)
            found = self._found(reply, path)
            if found is None:
                return None
            return await self._record(*found, until)
        session = await self._ensemble.any(until)
        while True:
            held, stat = await self._look(session, path, until)
            seen = enter(held.seen, fence)
            if stat is None:
                held, left = Held(seen), 0.0
            else:
                now = await self._now(session, until) if held.keep is not None else 0.0
                if held.over(stat, now):
                    held = Held(seen)
                left = 0.0 if held.keep is None else max(0.0, stat.mtime / 1000 + held.keep - now)
                held = held._replace(seen=seen, keep=None if held.keep is None else left)
            if await self._put(session, path, held, stat, until):
                return Record(held.value, held.token) if held.value is not None else None

    async def write(self, key: str, value: str, fence: Fence, keep: float | None) -> None:
        """See Store."""
        until = self._ensemble.until()
        path = self._space.value(key)
        session = await self._ensemble.any(until)
        while True:
            held, stat = await self._look(session, path, until)
            if await self._put(session, path, Held(enter(held.seen, fence), fence.token, value, keep), stat, until):
                break
        try:
            await self._clean(session, until)
        except StoreUnavailable:
            pass  # the next writer does it

    async def time(self) -> tuple[float, float]:
        """See Store."""
        until = self._ensemble.until()
        session = await self._ensemble.any(until)
        before, after, told = await self._stamp(session, until)
        half = (after - before) / 2
        return told + half, half + 0.001  # it counts milliseconds

    # -- one register

    def _found(self, reply: Reply, path: str) -> tuple[Held, Stat] | None:
        if reply.code == Code.NO_NODE:
            return None
        if reply.code:
            raise refusal(reply.code, path)
        data, stat = wire.read_data(reply)
        newest, exclusive, token, value, keep = decode(data, 5, path)
        return Held(Seen(newest, exclusive), token, value, keep), stat

    async def _record(self, held: Held, stat: Stat, until: float) -> Record | None:
        if held.value is None:
            return None
        if held.keep is not None:
            session = await self._ensemble.any(until)
            if held.over(stat, await self._now(session, until)):
                return None
        return Record(held.value, held.token)

    async def _look(self, session: Session, path: str, until: float) -> tuple[Held, Stat | None]:
        """Read a register as it is now; one without a node has what the floor says."""
        requests = (wire.sync(path), wire.get_data(path), wire.get_data(self._space.floor))
        _, reply, floor = await self._ensemble.ask(session, requests, until)
        found = self._found(reply, path)
        if found is not None:
            return found
        return Held(self._floor(floor)[0]), None

    def _floor(self, reply: Reply) -> tuple[Seen, int]:
        if reply.code == Code.NO_NODE:
            return Seen(), -1
        if reply.code:
            raise refusal(reply.code, self._space.floor)
        data, stat = wire.read_data(reply)
        return Seen(*decode(data, 2, self._space.floor)), stat.version

    async def _put(self, session: Session, path: str, held: Held, stat: Stat | None, until: float) -> bool:
        """Write a register if it is as it was read; False if it is not."""
        request = (
            wire.create(path, held.data(), self._shared.acl)
            if stat is None
            else wire.set_data(path, held.data(), stat.version)
        )
        requests, entry = [request], ""
        if held.keep is not None:  # before its node: an entry without a node does no harm
            more = 0.0 if held.value is not None else DAY
            entry = self._entry(await self._now(session, until) + held.keep + more, path)
            requests.insert(0, wire.create(entry, b"", self._shared.acl))
        replies = await self._ensemble.ask(session, requests, until)
        reply = replies[-1]
        for made, where in zip(replies, (entry, path) if entry else (path,), strict=True):
            if made.code == Code.NO_NODE and (where == entry or stat is None):
                await self._ensemble.make_parents(session, where, until)
        if entry and replies[0].code == Code.NO_NODE:
            await self._ensemble.ask(session, (requests[0],), until)
        if reply.code in (Code.NO_NODE, Code.NODE_EXISTS, Code.BAD_VERSION):
            return False
        if reply.code:
            raise refusal(reply.code, path)
        return True

    # -- time

    async def _stamp(self, session: Session, until: float) -> tuple[float, float, float]:
        """Write a node for its time: returns our time before and after, and ZooKeeper's in between."""
        path = self._space.clock
        while True:
            before = self._ensemble.now()
            (reply,) = await self._ensemble.ask(session, (wire.set_data(path, b""),), until)
            after = self._ensemble.now()
            if not reply.code:
                told = wire.read_stat(reply).mtime / 1000
                self._shared.clock = (before, after, told)
                return before, after, told
            if reply.code != Code.NO_NODE:
                raise refusal(reply.code, path)
            await self._ensemble.make_parents(session, path, until)
            await self._ensemble.ask(session, (wire.create(path, b"", self._shared.acl),), until)

    async def _now(self, session: Session, until: float) -> float:
        """Return ZooKeeper's time, never one that has not come yet."""
        known = self._shared.clock
        if known is None or self._ensemble.now() - known[0] > _CLOCK_FOR:
            known = await self._stamp(session, until)
        return known[2] + self._ensemble.now() - known[1]

    # -- what is over

    def _entry(self, due: float, path: str) -> str:
        key = path.rpartition("/")[2]
        return f"{self._space.ends}/{int(due // _SLOT):x}/{int(due * 1000)}-{escape(unescape(key))}"

    async def _clean(self, session: Session, until: float) -> None:
        """Look at some of what may be over."""
        now = await self._now(session, until)
        if not self._due and now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._due = await self._list_due(session, now, until)
        due = [entry for entry in self._due if entry[0] <= now][:_MOST]
        self._due = [entry for entry in self._due if entry not in due] if due else self._due
        if due:
            await self._end(session, [path for _, path in due], now, until)

    async def _list_due(self, session: Session, now: float, until: float) -> list[tuple[float, str]]:
        (reply,) = await self._ensemble.ask(session, (wire.get_children(self._space.ends),), until)
        slots = sorted((int(name, 16), name) for name in wire.read_texts(reply)) if not reply.code else []
        found: list[tuple[float, str]] = []
        for number, name in slots[:4]:
            if number * _SLOT > now or found:
                break
            slot = f"{self._space.ends}/{name}"
            (reply,) = await self._ensemble.ask(session, (wire.get_children(slot),), until)
            if not reply.code:
                found = [(int(entry.partition("-")[0]) / 1000, f"{slot}/{entry}") for entry in wire.read_texts(reply)]
        return sorted(found)

    async def _end(self, session: Session, entries: list[str], now: float, until: float) -> None:
        """Take out values that are over, and delete the nodes that nobody has written for a day."""
        paths = [f"{self._space.values}/{entry.rpartition('/')[2].partition('-')[2]}" for entry in entries]
        replies = await self._ensemble.ask(session, [wire.get_data(path) for path in paths], until)
        steps: list[Request] = []
        forgotten = Seen()
        for entry, path, reply in zip(entries, paths, replies, strict=True):
            found = self._found(reply, path)
            if found is not None:
                held, stat = found
                if held.over(stat, now, 0.0 if held.value is not None else DAY):
                    if held.value is not None:
                        later = self._entry(now + DAY, path)
                        step = wire.create(later, b"", self._shared.acl)
                        (made,) = await self._ensemble.ask(session, (step,), until)
                        if made.code == Code.NO_NODE:
                            await self._ensemble.make_parents(session, later, until)
                            await self._ensemble.ask(session, (step,), until)
                        steps.append(wire.set_data(path, Held(held.seen).data(), stat.version))
                    else:
                        forgotten = Seen(*map(max, forgotten, held.seen))
                        steps.append(wire.delete(path, stat.version))
            steps.append(wire.delete(entry))
        if forgotten != Seen():
            await self._raise_floor(session, forgotten, until)
        await self._ensemble.ask(session, steps, until)

    async def _raise_floor(self, session: Session, seen: Seen, until: float) -> None:
        """Judge keys without a node by these numbers, from now on."""
        path = self._space.floor
        while True:
            _, reply = await self._ensemble.ask(session, (wire.sync(path), wire.get_data(path)), until)
            known, version = self._floor(reply)
            raised = Seen(*map(max, known, seen))
            if raised == known:
                return
            data = encode([*raised])
            step = wire.create(path, data, self._shared.acl) if version < 0 else wire.set_data(path, data, version)
            (done,) = await self._ensemble.ask(session, (step,), until)
            if done.code == Code.NO_NODE:
                await self._ensemble.make_parents(session, path, until)
            elif done.code not in (Code.OK, Code.NODE_EXISTS, Code.BAD_VERSION):
                raise refusal(done.code, path)
