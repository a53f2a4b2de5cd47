"""The verbs of the store on the tables. A free resource takes one statement; everything else asks the pure queue."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from ..._clock import Clock
from ...core.claim import (
    LOST,
    Answer,
    Claim,
    Details,
    Evicted,
    Granted,
    Renewal,
    Renewed,
    ResourceState,
    Waiting,
    details_of,
    unchecked,
)
from ...core.queue import TOKEN_LIMIT, Entry, Queue, Step
from . import host
from .database import Database
from .registers import Registers
from .rows import COLUMNS, pack, read_entry
from .wakeups import Wakeup, WakeupFolder

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
        self._wakeup_folder = WakeupFolder(path.with_name(path.name + "-wake"))
        self._process = host.process_id()
        self._wakeups_mutex = threading.Lock()
        self._wakeups: dict[str, Wakeup] = {}  # of claims that wait
        self._idle: list[Wakeup] = []
        self._ahead: dict[str, dict[int, str]] = {}  # processes ahead of claims that wait, by pid
        self._alive: dict[str, float] = {}  # when a process was last seen alive
        self._next_sweep = -inf
        self._packed: tuple[Details | None, str] = (None, "")  # the last one: a lock packs the same again and again

    def open(self) -> None:
        """Open and check the file."""
        self._database.run(lambda connection: None)

    def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        now = self._now()
        if now >= self._next_sweep:
            self._sweep(now)
        resource, holder, details = claim.resource, claim.holder, details_of(claim)
        # A claim that waits has a row: it cannot find the resource free.
        if holder not in self._wakeups:
            token, ttl = self._wall_ns() // 1000, claim.ttl
            packed = self._packed
            if packed[0] != details:
                packed = self._packed = (details, pack(claim, self._process))
            row = (token, token, holder, now + ttl, packed[1], self._namespace, resource, token)
            if token < TOKEN_LIMIT and self._database.change(_TAKE, row, now):
                return unchecked(Granted, (token, ttl))
        return self._claim_busy(claim, queue)

    def _claim_busy(self, claim: Claim, queue: bool) -> Answer:
        address = self._process + "|" + (self._assign_wakeup(claim.holder) if queue else "")
        answer = self._step(claim.resource, lambda waiting: self._claim_or_bury(waiting, claim, queue, address))
        assert isinstance(answer, Granted | Waiting)
        if isinstance(answer, Granted) or not queue:
            self._retire_wakeup(claim.holder)
        return answer

    def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""

        def work(connection: sqlite3.Connection) -> list[Renewal]:
            now = self._clock.now()
            done = []
            with self._database.transaction(connection):
                for claim in claims:
                    row = (now + claim.ttl, self._namespace, claim.resource, claim.holder, now)
                    done.append(connection.execute(_RENEW, row).rowcount)
            return [Renewed(c.ttl) if n else LOST for c, n in zip(claims, done, strict=True)]

        return self._database.run(work, limit)

    def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        if not keep and holder not in self._wakeups:
            now = self._now()
            if self._database.change(_FREE, (self._namespace, resource, holder, now), now):
                return True
        return self._release_busy(resource, holder, keep)

    def _release_busy(self, resource: str, holder: str, keep: float) -> bool:
        try:
            answer = self._step(resource, lambda queue: queue.release(holder, self._clock.now(), keep))
        finally:  # also without an answer, for it may be the last try; the next owner is woken once too often at most
            self._retire_wakeup(holder)
        return answer is True

    def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store."""
        answer = self._step(resource, lambda queue: queue.evict(holder, self._clock.now(), at_once))
        assert answer is None or isinstance(answer, Evicted)
        return answer

    def time(self) -> tuple[float, float]:
        """See Store. All who use the file are on this machine."""
        return self._wall(), 0.0

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
        """Return what wakes a waiting claim: the descriptor of its wake-up, and pidfds of the processes ahead of it.

        Give the pidfds to `unwatch`. A process that is gone already wakes it.
        """
        with self._wakeups_mutex:
            wakeup = self._wakeups.get(holder)
        pidfds: dict[int, str] = {}
        if hasattr(os, "pidfd_open"):
            for pid, process in self._ahead.get(holder, {}).items():
                try:
                    pidfds[os.pidfd_open(pid)] = process
                except ProcessLookupError:
                    self._alive.pop(process, None)
                    if wakeup is not None:
                        self._wakeup_folder.wake(wakeup.name)
                except OSError:  # too many open files, or a kernel without pidfds: the waiting life has to do
                    break
        return (wakeup.fileno() if wakeup is not None else None), pidfds

    def unwatch(self, pidfds: dict[int, str]) -> None:
        """Close pidfds, and remember which processes have ended."""
        poll = select.poll()
        for fd in pidfds:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0) if pidfds else ():
            self._alive.pop(pidfds[fd], None)
        for fd in pidfds:
            os.close(fd)

    def wake(self, holder: str) -> None:
        """Wake a waiter of this client; where the system has no wake-ups, it looks again soon by itself."""
        if (wakeup := self._wakeups.get(holder)) is not None:
            self._wakeup_folder.wake(wakeup.name)

    def wake_all(self) -> None:
        """Wake every waiter of this client."""
        # Without the mutex: a signal handler may close the client in a thread that has it. The copy is one call of C.
        for wakeup in list(self._wakeups.values()):
            self._wakeup_folder.wake(wakeup.name)

    def close(self) -> None:
        """Close the file and the wake-ups."""
        self._database.close()
        with self._wakeups_mutex:
            wakeups = [*self._wakeups.values(), *self._idle]
            self._wakeups.clear()
            self._idle.clear()
        for wakeup in wakeups:
            wakeup.close()
        self._wakeup_folder.close()

    def _claim_or_bury(self, queue: Queue, claim: Claim, wait: bool, address: str) -> Step:
        """Claim; if the dead stand in the way, bury them and claim again."""
        now, clock_us = self._clock.now(), self._clock.wall_ns() // 1000
        step = queue.claim(claim, now, clock_us, self._waiting_life, queue=wait, address=address)
        if not isinstance(step.answer, Waiting):
            return step
        mine = queue.find(claim.holder)
        ahead = queue.ahead_of(mine.seq if mine is not None else queue.next_seq())
        buried = self._bury(queue, ahead)
        if buried:
            again = queue.claim(claim, now, clock_us, self._waiting_life, queue=wait, address=address)
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
        return queue.bury({entry.claim.holder for entry in entries if _process(entry) in dead}).drop

    def _is_dead(self, process: str) -> bool:
        """Ask about a process, but not every time: whoever waits is woken by the end of one that was alive."""
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
        """Load a queue, decide, store what changed, and wake those that can go."""
        key = (self._namespace, resource)

        def work(connection: sqlite3.Connection) -> Step:
            with self._database.transaction(connection):
                queue = self._load(connection, key)
                step = decide(queue)
                wake, dropped = step.wake, step.drop
                while wake and (buried := self._bury(queue, wake)):  # never wake the dead, but whoever comes after
                    dropped, wake = dropped + buried, queue.grantable()
                self._save(connection, key, queue, step.put, dropped)
            return step._replace(wake=wake, drop=dropped)

        step = self._database.run(work)
        for entry in step.wake:
            self._wakeup_folder.wake(entry.address.partition("|")[2])
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
            text = pack(e.claim, e.address)
            connection.execute(_PUT, (*key, e.seq, 0, e.claim.holder, e.token, e.expires, e.kept, text))
        if put or dropped:
            connection.execute(_COUNT, (*key, queue.counter, sum(e.seq > 0 for e in queue.entries)))

    def _sweep(self, now: float) -> None:
        """Forget what is over: expired claims, and the counters that the clock has left a day behind.

        The highest of these becomes the floor, from which forgotten resources start again.
        """
        self._next_sweep = now + _SWEEP_EVERY
        wall = self._wall()
        over = now - _DAY  # so long ago that nobody waits for it and has to be woken

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

    def _assign_wakeup(self, holder: str) -> str:
        """Give a claim that waits a wake-up, and return its name; empty where the system has none."""
        with self._wakeups_mutex:
            wakeup = self._wakeups.get(holder)
            if wakeup is None:
                wakeup = self._idle.pop() if self._idle else self._wakeup_folder.new_wakeup()
                if wakeup is None:
                    return ""
                self._wakeups[holder] = wakeup
            wakeup.drain()
            return wakeup.name

    def _retire_wakeup(self, holder: str) -> None:
        """Keep the wake-up of a claim that waits no more for the next one. Two may end a claim at the same time."""
        if holder in self._wakeups:
            with self._wakeups_mutex:
                wakeup = self._wakeups.pop(holder, None)
                if wakeup is not None:
                    self._idle.append(wakeup)
        self._ahead.pop(holder, None)

    def _wall(self) -> float:
        return self._clock.wall_ns() / 1e9


def _process(entry: Entry) -> str:
    return entry.address.partition("|")[0]
