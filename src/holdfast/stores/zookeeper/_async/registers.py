"""Fenced registers in ZooKeeper, and its time.

*A register* is one node: the numbers of its fence, the value, and for how long the value is kept from its write on.
Whether that is over is judged by ZooKeeper's clock alone: that of the leader, which stamps every write (mtime). The
numbers stay for a day longer than the value, for a stale writer may still come.

*The floor* is one node for all registers of a namespace: what the fences of those had seen that are forgotten. Whoever
finds no node is judged by it. It is raised before a node is deleted.

*The index*, /ends/NAMESPACE, has a container for every minute, and in it an entry for each register with something that
is over then: the value, or the numbers. Whoever writes looks at up to ten entries that are due. The node of a register
says which entry is its own. All others of its name are left over, and are deleted by whoever finds them.

*Writing* is: look at the floor, then at the node, judge, and change all of it in one transaction, on the condition that
floor and node still have the versions that were read. Else look again. Why the floor, too: a version says nothing of a
node that was deleted and made again, and a node that is not there has none. A writer may have been paused since it has
looked, for longer than a day even, and must not come in behind a newer one. As long as the floor is as it was, nothing
was forgotten. Why the entry, too: a node without one would stay for ever.

*An entry comes too early* if the value was written anew, or by the time that a request takes. Then it is moved, and
what the node says of it with it: nobody makes a new entry with every write. The node is written for that, and so its
mtime says no more when its value was: `since` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import ceil, inf
from random import sample, shuffle
from typing import NamedTuple

from ....core.claim import Record
from ....core.fence import Fence, Seen, enter
from ....errors import StoreError, StoreUnavailable
from .. import wire
from ..nodes import decode, encode
from ..refusals import refusal
from ..session import Session
from ..shared import Shared
from ..wire import Code, Op, Reply, Request, Stat
from .ensemble import Ensemble

DAY = 86_400_000  # milliseconds, as all times of ZooKeeper
_SLOT = 60_000
_MOST = 10  # entries that one writer looks at
_MOST_SLOTS = 50
_CLOCK_FOR = 5.0  # seconds for which ZooKeeper's time is reckoned on by ours
_LOOK_EVERY = 1000
_SLOT_NAME = re.compile("[0-9a-f]{1,12}")


class Held(NamedTuple):
    """What the node of a register holds."""

    seen: Seen
    token: int = 0
    value: str | None = None
    keep: int | None = 0  # for how long; None: for ever
    since: int | None = None  # from when on; None: from the mtime on
    entry: int | None = None  # when its entry in the index is due

    def data(self) -> bytes:
        """Return it as it is written."""
        # Not escaped more than need be: ZooKeeper takes a megabyte at the most, and the longest value has a quarter.
        return json.dumps([*self.seen, *self[1:]], ensure_ascii=False, separators=(",", ":")).encode()

    def end(self, mtime: int) -> float:
        """Return when its value is over."""
        return inf if self.keep is None else (mtime if self.since is None else self.since) + self.keep

    def due(self, mtime: int) -> float:
        """Return when there is something to do: the value is over, or the numbers are."""
        return self.end(mtime) + (0 if self.value is not None else DAY)


class Found(NamedTuple):
    """A register as it was found: without a node it has what the floor says, and no stat."""

    held: Held
    stat: Stat | None
    floor: int  # the version of the floor


class Due(NamedTuple):
    """An entry of the index."""

    due: int
    key: str  # escaped
    path: str


class Step(NamedTuple):
    """A part of a transaction."""

    path: str
    request: Request


class Failure(NamedTuple):
    """The first step of a transaction that failed, and why."""

    step: Step
    code: int

    @property
    def lacks_parent(self) -> bool:
        """Whether a node could not be made for want of a place."""
        return self.code == Code.NO_NODE and self.step.request[0] == Op.CREATE


class Registers:
    """The registers of one namespace."""

    def __init__(self, ensemble: Ensemble, shared: Shared) -> None:
        self._ensemble = ensemble
        self._shared = shared
        self._space = shared.space
        self._due: list[Due] = []  # entries that are to be looked at, in no order
        self._look_at = -inf

    async def read(self, key: str, fence: Fence | None) -> Record | None:
        """See Store."""
        until = self._ensemble.until()
        if fence is not None:
            return await self._enter(key, fence, until)
        path = self._space.value(key)
        _, reply = await self._ensemble.read((wire.sync(path), wire.get_data(path)), until)
        found = _read(reply, path)
        if found is None or found[0].value is None:
            return None
        held, stat = found
        if held.keep is not None:
            now = await self._now(await self._ensemble.any(until), until)
            if held.end(stat.mtime) <= now:
                return None
        return _record(held)

    async def _enter(self, key: str, fence: Fence, until: float) -> Record | None:

        def entered(held: Held, mtime: int, now: int) -> Held:
            seen = enter(held.seen, fence)
            if held.value is None or held.end(mtime) <= now:
                return Held(seen)  # its numbers are as old as this write
            return held._replace(seen=seen, since=mtime if held.since is None else held.since)

        return _record(await self._change(key, entered, until))

    async def write(self, key: str, value: str, fence: Fence, keep: float | None) -> None:
        """See Store."""
        until = self._ensemble.until()
        kept = None if keep is None else ceil(keep * 1000)

        def written(held: Held, mtime: int, now: int) -> Held:
            return Held(enter(held.seen, fence), fence.token, value, kept)

        await self._change(key, written, until)
        try:
            await self._clean(await self._ensemble.any(until), until)
        except StoreError:
            pass  # it is written; the next writer cleans

    async def time(self) -> tuple[float, float]:
        """See Store."""
        until = self._ensemble.until()
        session = await self._ensemble.any(until)
        before, after, told = await self._stamp(session, until)
        half = (after - before) / 2
        return told + half, half + 0.001  # it counts milliseconds

    # -- one register

    async def _change(self, key: str, change: Callable[[Held, int, int], Held], until: float) -> Held:
        """Change a register in one step; returns what it holds then.

        change: called with what it holds, when that was written, and the time.

        Raises: StaleToken; StoreUnavailable if others change it all the time.
        """
        path = self._space.value(key)
        while True:
            found = await self._look(path, until)
            session = await self._ensemble.any(until)
            now = await self._now(session, until)
            held = change(found.held, found.stat.mtime if found.stat is not None else 0, now)
            if await self._put(session, path, held, found, now, until):
                return held
            if self._ensemble.now() >= until:
                raise StoreUnavailable(f"the register {key!r} was changed by others all the time")

    async def _look(self, path: str, until: float) -> Found:
        """Read a register as it is now. The floor comes first: if it is the same afterwards, so is the node's life."""
        floor = self._space.floor
        requests = (wire.sync(path), wire.get_data(floor), wire.get_data(path))
        while True:
            _, low, reply = await self._ensemble.read(requests, until)
            if low.code != Code.NO_NODE:
                break
            await self._create_floor(await self._ensemble.any(until), until)
        seen, version = self._floor(low)
        found = _read(reply, path)
        return Found(Held(seen), None, version) if found is None else Found(*found, version)

    async def _put(self, session: Session, path: str, held: Held, found: Found, now: int, until: float) -> bool:
        """Write a register if it is as it was found; False if it is to be looked at again."""
        key, old = path.rpartition("/")[2], found.held.entry
        entry = None
        if held.keep is not None:
            due = int(held.due(now))
            entry = due if old is None or old > due else old  # one that comes too early is moved then
        data = held._replace(entry=entry).data()
        if found.stat is None:
            change = Step(path, wire.create(path, data, self._shared.acl))
        else:
            change = Step(path, wire.set_data(path, data, found.stat.version))
        steps = [self._nothing_forgotten(found.floor), change, *self._move(key, old, entry)]
        (failure,) = await self._transact(session, [steps], until)
        if failure is not None and failure.step is steps[-1] and failure.code == Code.NO_NODE and old is not None:
            # Somebody has deleted its entry by hand: nobody could ever write it again.
            (failure,) = await self._transact(session, [steps[:-1]], until)
        if failure is None:
            return True
        if failure.lacks_parent:
            await self._ensemble.make_parents(session, failure.step.path, until)
        elif failure.code not in (Code.NO_NODE, Code.NODE_EXISTS, Code.BAD_VERSION):
            raise refusal(failure.code, failure.step.path)
        return False

    # -- the floor

    def _floor(self, reply: Reply) -> tuple[Seen, int]:
        """Return what it says, and its version."""
        path = self._space.floor
        if reply.code:
            raise refusal(reply.code, path)
        data, stat = wire.read_data(reply)
        facts = decode(data, 2, path)
        _check_numbers(facts, path)
        return Seen(*facts), stat.version

    async def _create_floor(self, session: Session, until: float) -> None:
        path = self._space.floor
        (reply,) = await self._ensemble.ask(session, (wire.create(path, encode([*Seen()]), self._shared.acl),), until)
        if reply.code == Code.NO_NODE:
            await self._ensemble.make_parents(session, path, until)
        elif reply.code not in (Code.OK, Code.NODE_EXISTS):
            raise refusal(reply.code, path)

    async def _raise_floor(self, session: Session, seen: Seen, until: float) -> int:
        """Judge registers without a node by these numbers, from now on; returns its version."""
        path = self._space.floor
        while True:
            _, reply = await self._ensemble.ask(session, (wire.sync(path), wire.get_data(path)), until)
            known, version = self._floor(reply)
            raised = Seen(*map(max, known, seen))
            if raised == known:
                return version
            (done,) = await self._ensemble.ask(session, (wire.set_data(path, encode([*raised]), version),), until)
            if not done.code:
                return wire.read_stat(done).version
            if done.code not in (Code.NO_NODE, Code.BAD_VERSION):
                raise refusal(done.code, path)

    def _nothing_forgotten(self, floor: int) -> Step:
        return Step(self._space.floor, wire.check(self._space.floor, floor))

    # -- time

    async def _stamp(self, session: Session, until: float) -> tuple[float, float, float]:
        """Write a node for its time: returns our time before and after, and ZooKeeper's in between, in seconds."""
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

    async def _now(self, session: Session, until: float) -> int:
        """Return ZooKeeper's time, never one that has not come yet."""
        known = self._shared.clock
        if known is None or self._ensemble.now() - known[0] > _CLOCK_FOR:
            known = await self._stamp(session, until)
        return int((known[2] + self._ensemble.now() - known[1]) * 1000)

    # -- what is over

    def _entry(self, key: str, due: int) -> str:
        return f"{self._space.ends}/{due // _SLOT:x}/{due}-{key}"

    def _move(self, key: str, old: int | None, new: int | None) -> list[Step]:
        """Return what gives a register another entry. Its old one comes last."""
        steps: list[Step] = []
        if new is not None and new != old:
            path = self._entry(key, new)
            steps.append(Step(path, wire.create(path, b"", self._shared.acl)))
        if old is not None and new != old:
            path = self._entry(key, old)
            steps.append(Step(path, wire.delete(path)))
        return steps

    async def _clean(self, session: Session, until: float) -> None:
        """Look at some of what may be over."""
        now = await self._now(session, until)
        if not self._due and now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._due = await self._list_due(session, now, until)
        due, self._due = self._due[-_MOST:], self._due[:-_MOST]
        if due:
            await self._end(session, due, now, until)

    async def _list_due(self, session: Session, now: int, until: float) -> list[Due]:
        """List entries that are due: any, and in any order. Clients that clean at the same time must not do the same;
        and what cannot be cleaned must not stand before the rest.
        """
        ends = self._space.ends
        (reply,) = await self._ensemble.ask(session, (wire.get_children(ends),), until)
        names = wire.read_texts(reply) if not reply.code else []
        past = [name for name in names if _SLOT_NAME.fullmatch(name) and int(name, 16) * _SLOT <= now]
        slots = [f"{ends}/{name}" for name in sample(past, min(len(past), _MOST_SLOTS))]
        listed = await self._ensemble.ask(session, [wire.get_children(slot) for slot in slots], until)
        found: list[Due] = []
        empty: list[str] = []
        for slot, reply in zip(slots, listed, strict=True):
            names = wire.read_texts(reply) if not reply.code else []
            if not names:
                empty.append(slot)
            for name in names:
                due, _, key = name.partition("-")
                if due.isdecimal() and int(due) <= now:
                    found.append(Due(int(due), key, f"{slot}/{name}"))
        # One that never had an entry is not removed by ZooKeeper. Whoever wants it now makes it again.
        await self._ensemble.ask(session, [wire.delete(slot) for slot in empty], until)
        shuffle(found)
        return found

    async def _end(self, session: Session, entries: Sequence[Due], now: int, until: float) -> None:
        """Take out values that are over, and forget the registers whose numbers are."""
        paths = [f"{self._space.values}/{entry.key}" for entry in entries]
        requests = [wire.get_data(self._space.floor), *(wire.get_data(path) for path in paths)]
        low, *replies = await self._ensemble.ask(session, requests, until)
        _, floor = self._floor(low)
        forgotten = Seen()
        changes: list[list[Step]] = []
        for entry, path, reply in zip(entries, paths, replies, strict=True):
            try:
                found = _read(reply, path)
            except StoreError:
                continue  # it is not ours
            if found is None or found[0].entry != entry.due:
                changes.append([Step(entry.path, wire.delete(entry.path))])  # left over
                continue
            held, stat = found
            end = held.end(stat.mtime)
            if end + DAY <= now:
                forgotten = Seen(*map(max, forgotten, held.seen))
                change, due = wire.delete(path, stat.version), None
            else:
                since = stat.mtime if held.since is None else held.since
                held = held._replace(since=since)
                if end <= now:
                    held = Held(held.seen, since=int(end))
                due = int(held.due(0)) if held.keep is not None else None
                change = wire.set_data(path, held._replace(entry=due).data(), stat.version)
            changes.append([Step(path, change), *self._move(entry.key, entry.due, due)])
        if forgotten != Seen():
            floor = await self._raise_floor(session, forgotten, until)
        changes = [[self._nothing_forgotten(floor), *change] for change in changes]
        failures = await self._transact(session, changes, until)
        homeless = {
            failure.step.path: change
            for change, failure in zip(changes, failures, strict=True)
            if failure is not None and failure.lacks_parent
        }
        for path in {path.rpartition("/")[0]: path for path in homeless}.values():
            await self._ensemble.make_parents(session, path, until)
        # What fails for another reason has changed meanwhile. It is still in the index.
        await self._transact(session, list(homeless.values()), until)

    # -- transactions

    async def _transact(
        self, session: Session, changes: Sequence[Sequence[Step]], until: float
    ) -> list[Failure | None]:
        """Do each of the changes wholly or not at all; returns for each what has failed, if something has."""
        requests = [wire.together([step.request for step in steps]) for steps in changes]
        replies = await self._ensemble.ask(session, requests, until)
        failures: list[Failure | None] = []
        for steps, reply in zip(changes, replies, strict=True):
            if reply.code:
                raise refusal(reply.code, steps[0].path)
            failed = wire.read_failure(reply)
            failures.append(Failure(steps[failed[0]], failed[1]) if failed is not None else None)
        return failures


def _read(reply: Reply, path: str) -> tuple[Held, Stat] | None:
    """Read the node of a register; None if there is none.

    Raises: StoreError.
    """
    if reply.code == Code.NO_NODE:
        return None
    if reply.code:
        raise refusal(reply.code, path)
    data, stat = wire.read_data(reply)
    newest, exclusive, token, value, *times = decode(data, 7, path)
    _check_numbers([newest, exclusive, token, *(time for time in times if time is not None)], path)
    return Held(Seen(newest, exclusive), token, value if value is None else str(value), *times), stat


def _check_numbers(facts: Sequence[object], path: str) -> None:
    if not all(isinstance(fact, int) for fact in facts):
        raise StoreError(f"the node {path} in ZooKeeper holds something that holdfast did not write; delete it")


def _record(held: Held) -> Record | None:
    return Record(held.value, held.token) if held.value is not None else None
