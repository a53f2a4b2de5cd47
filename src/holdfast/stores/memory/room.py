"""Rooms: the shared state of `memory://` stores, the same for both flavours and for all clients of this process."""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ...core.claim import Answer, Claim, Evicted, Granted, Lost, Record, Renewal, Renewed, ResourceState, Waiting
from ...core.fence import Fence
from ...core.queue import Queue, Step
from ...core.register import Register
from ...errors import StoreUnavailable


class Wakeup(Protocol):
    """What wakes a waiter: a signal of either flavour."""

    def set(self) -> None:
        """Wake it."""
        ...


class Room:
    """Queues and registers by (namespace, name), under one lock that is never held across an await."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._inside = 0  # the thread that has it; none before it leaves, for whoever comes next notes itself late
        self._queues: dict[tuple[str, str], Queue] = {}
        self._registers: dict[tuple[str, str], Register] = {}
        self._wakeups: dict[str, Wakeup] = {}
        self._watchers: dict[tuple[str, str], set[Wakeup]] = {}
        self._floor = 0  # the highest counter of any queue that was forgotten

    def _check_free(self) -> None:
        """Refuse a signal handler that has interrupted its own thread in here: it would wait for itself for ever.

        Raises: StoreUnavailable.
        """
        if self._inside == get_ident() and self._mutex.locked():
            raise StoreUnavailable("memory:// was used in a signal handler that has interrupted its use")

    def claim(
        self,
        namespace: str,
        claim: Claim,
        queue: bool,
        wakeup: Callable[[], Wakeup],
        now: float,
        clock_us: int,
        waiting_life: float,
    ) -> Answer:
        """Claim, and note whom to wake when it becomes grantable: what `wakeup` returns, if it has to wait."""
        if self._inside:
            self._check_free()
        with self._mutex:
            self._inside = get_ident()
            key = (namespace, claim.resource)
            step = self._step(key, self._queue(key).claim(claim, now, clock_us, waiting_life, queue=queue))
            answer = step.answer
            if type(answer) is Waiting and queue:
                self._wakeups[claim.holder] = wakeup()
            elif self._wakeups:
                self._wakeups.pop(claim.holder, None)
            self._inside = 0
        assert type(answer) is Granted or type(answer) is Waiting
        return answer

    def renew(self, namespace: str, claims: Iterable[Claim], now: float) -> list[Renewal]:
        """Renew each claim."""
        answers: list[Renewal] = []
        if self._inside:
            self._check_free()
        with self._mutex:
            self._inside = get_ident()
            for claim in claims:
                key = (namespace, claim.resource)
                answer = self._step(key, self._queue(key).renew(claim.holder, now, claim.ttl)).answer
                assert isinstance(answer, Renewed | Lost)
                answers.append(answer)
            self._inside = 0
        return answers

    def release(self, namespace: str, resource: str, holder: str, keep: float, now: float) -> bool:
        """Release or withdraw."""
        if self._inside:
            self._check_free()
        with self._mutex:
            self._inside = get_ident()
            key = (namespace, resource)
            step = self._step(key, self._queue(key).release(holder, now, keep))
            self._inside = 0
        return step.answer is True

    def evict(self, namespace: str, resource: str, holder: str, at_once: bool, now: float) -> Evicted | None:
        """Break a granted claim."""
        with self._mutex:
            key = (namespace, resource)
            answer = self._step(key, self._queue(key).evict(holder, now, at_once)).answer
        assert answer is None or isinstance(answer, Evicted)
        return answer

    def inspect(self, namespace: str, prefix: str, now: float) -> list[ResourceState]:
        """Show what is held or waited for."""
        with self._mutex:
            states = [
                queue.state(resource, now)
                for (space, resource), queue in sorted(self._queues.items())
                if space == namespace and resource.startswith(prefix)
            ]
        return [state for state in states if state.holders or state.waiters]

    def watch(self, namespace: str, resource: str, wakeup: Wakeup) -> None:
        """Wake it at every change of the resource from now on."""
        with self._mutex:
            self._watchers.setdefault((namespace, resource), set()).add(wakeup)

    def unwatch(self, namespace: str, resource: str, wakeup: Wakeup) -> None:
        """Wake it no more."""
        with self._mutex:
            wakeups = self._watchers.get((namespace, resource), set())
            wakeups.discard(wakeup)
            if not wakeups:
                self._watchers.pop((namespace, resource), None)

    def read(self, namespace: str, key: str, fence: Fence | None, now: float) -> Record | None:
        """Read a register, through its fence if one is given."""
        with self._mutex:
            register = self._registers.get((namespace, key), Register())
            if fence is not None:
                register = self._registers[namespace, key] = register.entered(fence, now)
        return register.read(now)

    def write(self, namespace: str, key: str, value: str, fence: Fence, expires: float) -> None:
        """Write a register through its fence."""
        with self._mutex:
            known = self._registers.get((namespace, key), Register())
            self._registers[namespace, key] = known.written(value, fence, expires)

    def _queue(self, key: tuple[str, str]) -> Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Queue(counter=self._floor)
        return queue

    def _step(self, key: tuple[str, str], step: Step) -> Step:
        for entry in step.drop:
            if (wakeup := self._wakeups.pop(entry.claim.holder, None)) is not None:
                wakeup.set()
        for entry in step.wake:
            if (wakeup := self._wakeups.get(entry.claim.holder)) is not None:
                wakeup.set()
        if step.put or step.drop:
            for wakeup in self._watchers.get(key, ()):
                wakeup.set()
        queue = self._queues[key]
        if not queue.entries:
            # Tokens go on rising from the floor, so that unused resources cost nothing.
            if queue.counter > self._floor:
                self._floor = queue.counter
            del self._queues[key]
        return step


class Keeping:
    """What one client has in a room. Every method may be called in any thread, and none of them waits."""

    def __init__(self, room: Room, namespace: str, now: Callable[[], float]) -> None:
        self._room = room
        self._namespace = namespace
        self._now = now
        self.wakeups: dict[str, Any] = {}  # of claims that wait

    def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        return self._room.renew(self._namespace, claims, self._now())

    def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        self.wakeups.pop(holder, None)
        return self._room.release(self._namespace, resource, holder, keep, self._now())

    def ready(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """See Store."""
        self.wakeups.clear()


_rooms: dict[tuple[int, str], Room] = {}


def room(name: str) -> Room:
    """Return the room of this name, the same one for the whole process.

    A forked child starts with empty rooms: what it inherits is a copy that no longer excludes anybody.
    """
    return _rooms.setdefault((os.getpid(), name), Room())
