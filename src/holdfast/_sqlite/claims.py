"""The verbs of the store on the tables. A free resource takes one statement; everything else asks the pure queue."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from .._clock import Clock
from ..core.claim import LOST, Answer, Claim, Granted, Renewal, Renewed, ResourceState, Waiting, bare
from ..core.queue import TOKEN_LIMIT, Entry, Queue, Step
from . import host
from .bells import Bell, Tower
from .database import Database
from .registers import Registers
from .rows import COLUMNS, pack, read_entry

_DAY = 86400.0
_SWEEP_EVERY = 3600.0
_MOST_WATCHED = 8  # processes ahead whose end wakes a waiter
_ALIVE_FOR = 1.0  # how long a process that was seen alive is taken for alive
_MOST_ALIVE = 1000

# Takes a free resource that is known. The token is the clock, where that is above the counter: so it need not be asked
# for. Everything else, a clock that was set back included, goes the longer way through the queue.
_TAKE = """
UPDATE claims SET counter = ?, token = ?, holder = ?, expires = ?, claim = ?
WHERE namespace = ? AND resource = ? AND seq = 0 AND holder IS NULL AND others = 0 AND counter < ?
"""

# Frees a resource that nobody else waits for or shares.
_FREE = """
UPDATE claims SET holder = NULL
WHERE namespace = ? AND resource = ? AND seq = 0 AND holder = ? AND token > 0 AND expires > ? AND kept = 0
  AND others = 0
"""

_RENEW = """
UPDATE claims SET expires = ?
WHERE namespace = ? AND resource = ? AND holder = ? AND token > 0 AND expires > ? AND kept = 0
"""

_LOAD = f"SELECT {COLUMNS} FROM claims WHERE namespace = ? AND resource = ? ORDER BY seq"

_PUT = f"""
INSERT OR REPLACE INTO claims (namespace, resource, others, {COLUMNS}) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?)
"""

_COUNT = """
INSERT INTO claims (namespace, resource, seq, counter, others) VALUES (?, ?, 0, ?, ?)
ON CONFLICT DO UPDATE SET counter = excluded.counter, others = excluded.others
"""

_EMPTY = "UPDATE claims SET holder = NULL, token = 0, kept = 0 WHERE namespace = ? AND resource = ? AND seq = 0"


class Claims:
    """The claims and registers of one namespace in one file. Every method blocks for io_timeout at most."""

    def __init__(
        self, path: Path, namespace: str, clock: Clock, io_timeout: float, waiting_life: float, make_parents: bool
    ) -> None:
        self._database = Database(path, clock, io_timeout, make_parents)
        self.registers = Registers(self._database, namespace, self._wall)
        self._namespace = namespace
        self._clock = clock
        self._now, self._wall_ns = clock.now, clock.wall_ns
        self._waiting_life = waiting_life
        self._tower = Tower(path.with_name(path.name + "-wake"))
        self._process = host.process_id()
        self._bells_mutex = threading.Lock()
        self._bells: dict[str, Bell] = {}  # of claims that wait
        self._idle: list[Bell] = []
        self._ahead: dict[str, dict[int, str]] = {}  # processes ahead of claims that wait, by pid
        self._alive: dict[str, float] = {}  # when a process was last seen alive
        self._next_sweep = -inf
        self._packed: tuple[list[Any], str] = ([], "")  # the last one: a lock packs the same again and again

    def open(self) -> None:
        """Open and check the file."""
        self._database.run(lambda connection: None)

    def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        now = self._now()
        if now >= self._next_sweep:
            self._sweep(now)
        resource, holder, *wish = claim
        # A claim that waits has a row: it cannot find the resource free.
        if holder not in self._bells:
            token, ttl = self._wall_ns() // 1000, claim.ttl
            packed = self._packed
            if packed[0] != wish:
                packed = self._packed = (wish, pack(wish, self._process))
            row = (token, token, holder, now + ttl, packed[1], self._namespace, resource, token)
            if token < TOKEN_LIMIT and self._database.change(_TAKE, row, now):
                return bare(Granted, (token, ttl))
        return self._claim_busy(claim, queue)

    def _claim_busy(self, claim: Claim, queue: bool) -> Answer:
        place = self._process + "|" + (self._bell(claim.holder) if queue else "")
        answer = self._step(claim.resource, lambda waiting: self._claim_or_bury(waiting, claim, queue, place))
        assert isinstance(answer, Granted | Waiting)
        if isinstance(answer, Granted) or not queue:
            self._hang_up(claim.holder)
        return answer

    def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See Store."""

        def work(connection: sqlite3.Connection) -> list[Renewal]:
            now = self._clock.now()
            done = []
            with self._database.transaction(connection):
                for claim in claims:
                    row = (now + claim.ttl, self._namespace, claim.resource, claim.holder, now)
                    done.append(connection.execute(_RENEW, row).rowcount)
            return [Renewed(c.ttl) if n else LOST for c, n in zip(claims, done, strict=True)]

        return self._database.run(work)

    def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        if not keep and holder not in self._bells:
            now = self._now()
            if self._database.change(_FREE, (self._namespace, resource, holder, now), now):
                return True
        return self._release_busy(resource, holder, keep)

    def _release_busy(self, resource: str, holder: str, keep: float) -> bool:
        answer = self._step(resource, lambda queue: queue.release(holder, self._clock.now(), keep))
        self._hang_up(holder)
        return answer is True

    def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        rows = self._database.run(
            lambda connection: connection.execute(
                f"SELECT {COLUMNS}, resource FROM claims WHERE namespace = ? "
                "AND substr(resource, 1, length(?)) = ? ORDER BY resource, seq",
                (self._namespace, prefix, prefix),
            ).fetchall()
        )
        queues: dict[str, Queue] = {}
        for row in rows:
            resource = row[7]
            queue = queues.setdefault(resource, Queue())
            if row[0] == 0:
                queue.counter = row[1]
            if row[2] is not None:
                queue.entries.append(read_entry(resource, row))
        now = self._clock.now()
        states = [queue.state(resource, now) for resource, queue in queues.items()]
        return [state for state in states if state.holders or state.waiters]

    def watched(self, holder: str) -> tuple[int | None, dict[int, str]]:
        """Return what wakes a waiting claim: its bell's descriptor, and open pidfds of the processes ahead of it.

        Give the pidfds to `unwatch`. A process that is gone already makes the bell ring.
        """
        with self._bells_mutex:
            bell = self._bells.get(holder)
        pidfds: dict[int, str] = {}
        if hasattr(os, "pidfd_open"):
            for pid, process in self._ahead.get(holder, {}).items():
                try:
                    pidfds[os.pidfd_open(pid)] = process
                except ProcessLookupError:
                    self._alive.pop(process, None)
                    if bell is not None:
                        self._tower.ring(bell.name)
                except OSError:  # too many open files, or a kernel without pidfds: the waiting life has to do
                    break
        return (bell.fileno() if bell is not None else None), pidfds

    def unwatch(self, pidfds: dict[int, str]) -> None:
        """Close pidfds, and remember which processes have ended."""
        poll = select.poll()
        for fd in pidfds:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0) if pidfds else ():
            self._alive.pop(pidfds[fd], None)
        for fd in pidfds:
            os.close(fd)

    def ring_all(self) -> None:
        """Wake every waiter of this client."""
        with self._bells_mutex:
            names = [bell.name for bell in self._bells.values()]
        for name in names:
            self._tower.ring(name)

    def close(self) -> None:
        """Close the file and take down the bells."""
        self._database.close()
        with self._bells_mutex:
            bells = [*self._bells.values(), *self._idle]
            self._bells.clear()
            self._idle.clear()
        for bell in bells:
            bell.close()
        self._tower.close()

    def _claim_or_bury(self, queue: Queue, claim: Claim, wait: bool, place: str) -> Step:
        """Claim; if the dead stand in the way, bury them and claim again."""
        now, clock_us = self._clock.now(), self._clock.wall_ns() // 1000
        step = queue.claim(claim, now, clock_us, self._waiting_life, queue=wait, place=place)
        if not isinstance(step.answer, Waiting):
            return step
        mine = queue.find(claim.holder)
        ahead = queue.ahead_of(mine.seq if mine is not None else queue.next_seq())
        buried = self._bury(queue, ahead)
        if buried:
            again = queue.claim(claim, now, clock_us, self._waiting_life, queue=wait, place=place)
            step = Step(again.answer, step.put + again.put, step.drop + buried + again.drop, queue.grantable())
            ahead = queue.ahead_of(mine.seq if mine is not None else queue.next_seq())
        processes = dict.fromkeys(_process(entry) for entry in ahead if not entry.outlives)
        pids = {pid: process for process in processes if (pid := host.pid_of(process, self._process)) is not None}
        self._ahead[claim.holder] = dict(list(pids.items())[:_MOST_WATCHED])
        return step

    def _bury(self, queue: Queue, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Drop the claims of dead processes among these."""
        processes = {process for entry in entries if (process := _process(entry))}
        dead = {process for process in processes if self._is_dead(process)}
        if not dead:
            return ()
        return queue.evict({entry.claim.holder for entry in entries if _process(entry) in dead}).drop

    def _is_dead(self, process: str) -> bool:
        """Ask for a process, but not again and again: whoever waits is woken by the end of one that was alive."""
        now = self._clock.now()
        if self._alive.get(process, -inf) > now - _ALIVE_FOR:
            return False
        if host.is_dead(process, self._process):
            return True
        if len(self._alive) > _MOST_ALIVE:
            self._alive.clear()
        self._alive[process] = now
        return False

    def _step(self, resource: str, decide: Callable[[Queue], Step]) -> object:
        """Load a queue, decide, store what changed, and ring those that can go."""
        key = (self._namespace, resource)

        def work(connection: sqlite3.Connection) -> Step:
            with self._database.transaction(connection):
                queue = self._load(connection, key)
                step = decide(queue)
                wake, dropped = step.wake, step.drop
                while wake and (buried := self._bury(queue, wake)):  # never wake the dead: wake who comes after
                    dropped, wake = dropped + buried, queue.grantable()
                self._save(connection, key, queue, step.put, dropped)
            return step._replace(wake=wake, drop=dropped)

        step = self._database.run(work)
        for entry in step.wake:
            self._tower.ring(entry.place.partition("|")[2])
        return step.answer

    def _load(self, connection: sqlite3.Connection, key: tuple[str, str]) -> Queue:
        rows = connection.execute(_LOAD, key).fetchall()
        if rows:
            counter = rows[0][1]
        else:
            (counter,) = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone()
        return Queue([read_entry(key[1], row) for row in rows if row[2] is not None], counter)

    def _save(
        self,
        connection: sqlite3.Connection,
        key: tuple[str, str],
        queue: Queue,
        put: Sequence[Entry],
        dropped: Sequence[Entry],
    ) -> None:
        for entry in dropped:
            if entry.seq:
                connection.execute(
                    "DELETE FROM claims WHERE namespace = ? AND resource = ? AND seq = ?", (*key, entry.seq)
                )
            else:
                connection.execute(_EMPTY, key)
        for e in put:
            text = pack(e.claim[2:], e.place)
            connection.execute(_PUT, (*key, e.seq, 0, e.claim.holder, e.token, e.expires, e.kept, text))
        if put or dropped:
            connection.execute(_COUNT, (*key, queue.counter, sum(e.seq > 0 for e in queue.entries)))

    def _sweep(self, now: float) -> None:
        """Forget what is over: expired claims, and the counters that the clock has left a day behind.

        The highest of these becomes the floor, from which forgotten resources start again.
        """
        self._next_sweep = now + _SWEEP_EVERY
        wall = self._wall()
        over = now - _DAY  # so long over that nobody waits for it: nobody has to be woken

        def work(connection: sqlite3.Connection) -> None:
            with self._database.transaction(connection):
                expired = connection.execute(
                    "SELECT DISTINCT namespace, resource FROM claims WHERE holder IS NOT NULL AND expires <= ?", (over,)
                ).fetchall()
                for key in expired:
                    queue = self._load(connection, key)
                    self._save(connection, key, queue, (), queue.sweep(over))
                gone = connection.execute(
                    "DELETE FROM claims WHERE seq = 0 AND holder IS NULL AND others = 0 AND counter < ? "
                    "RETURNING counter",
                    (int((wall - _DAY) * 1e6),),
                ).fetchall()
                if gone:
                    connection.execute(
                        "UPDATE meta SET value = max(value, ?) WHERE key = 'floor'", (max(row[0] for row in gone),)
                    )
                connection.execute("DELETE FROM registers WHERE expires < ?", (wall - _DAY,))

        self._database.run(work)

    def _bell(self, holder: str) -> str:
        """Return the name of the bell that wakes this claim; empty where there are none."""
        with self._bells_mutex:
            bell = self._bells.get(holder)
            if bell is None:
                bell = self._idle.pop() if self._idle else self._tower.bell()
                if bell is None:
                    return ""
                self._bells[holder] = bell
            bell.hush()
            return bell.name

    def _hang_up(self, holder: str) -> None:
        if holder in self._bells:
            with self._bells_mutex:
                self._idle.append(self._bells.pop(holder))
        self._ahead.pop(holder, None)

    def _wall(self) -> float:
        return self._clock.wall_ns() / 1e9


def _process(entry: Entry) -> str:
    return entry.place.partition("|")[0]
