"""Law 15: while its process runs, its interpreter lets other threads run and the store answers, a lease is renewed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..._async.lease import Lease
from ..._sync.client import Client as BlockingClient
from ...core.urls import parse_url
from ..law import law
from . import runtime
from .case import Case
from .runtime import eventually
from .tap import unanswered

_STEPS = 20  # of a ttl
_TTLS = 2  # that pass
_REAL_TTL = 3.0  # where the clock is real: a busy machine may stop a process for longer than a second
_PATIENCE = 3.0  # real seconds for a renewal, on a busy machine
_BURST = 20  # who acquire and release all the time
_CROWD = 500  # calls under way at the same time
_TRIES = 5  # a thread may come late by chance on a busy machine, but not every time


class _Passing(threading.Thread):
    """Lets some ttls pass, from a thread, while a rival asks for the resource again and again."""

    def __init__(self, case: Case, lease: Lease) -> None:
        super().__init__(name="time passes")
        self._case = case
        self._lease = lease
        self.rivals: list[int] = []  # tokens that the rival got
        self.over = False
        self.start()

    def run(self) -> None:
        """Let time pass."""
        case = self._case
        rival = BlockingClient(parse_url(case.url), namespace=case.namespace, io_timeout=5.0, clock=case.clock)
        try:
            for _ in range(_TTLS * _STEPS):
                self._pass(self._lease.ttl / _STEPS)
                found = rival.lock(self._lease.resource, ttl=self._lease.ttl).try_acquire()
                if found is not None:
                    self.rivals.append(found.token)
                    found.release()
        finally:
            rival.close()
            self.over = True

    def _pass(self, seconds: float) -> None:
        if not self._case.driven:
            return time.sleep(seconds)
        self._case.drive(seconds)
        give_up = time.monotonic() + _PATIENCE
        while 0 < self._lease.remaining < self._lease.ttl / 2 and time.monotonic() < give_up:
            time.sleep(0.002)


def _ttl(case: Case) -> float:
    return case.ttl if case.driven else max(_REAL_TTL, case.ttl)


async def _kept(case: Case, busy: Callable[[_Passing], None]) -> None:
    """Demand that a lease is kept for longer than its ttl while its thread is busy with this."""
    client = await case.client()
    lease = await client.lock("r", ttl=_ttl(case)).acquire()
    token = lease.token
    passing = _Passing(case, lease)
    busy(passing)
    passing.join()
    assert passing.rivals == [], f"a rival was granted {passing.rivals} beside {token}"
    lease.check()
    await lease.release()
    await case.nothing_left()


@law(15, "blocking")
async def body_that_blocks_does_not_lose_its_lease(case: Case) -> None:
    """A body that waits without giving way (a sleep, a driver, a subprocess) keeps its lease, also in a coroutine."""
    await _kept(case, lambda passing: passing.join())


@law(15, "blocking")
async def busy_body_does_not_lose_its_lease(case: Case) -> None:
    """A body that computes, with other threads that compute beside it, keeps its lease."""

    def compute(passing: _Passing) -> None:
        while not passing.over:
            sum(range(1000))

    def busy(passing: _Passing) -> None:
        others = [threading.Thread(target=compute, args=(passing,)) for _ in range(2)]
        for other in others:
            other.start()
        compute(passing)
        for other in others:
            other.join()

    await _kept(case, busy)


@law(15, "blocking")
async def full_executor_does_not_lose_a_lease(case: Case) -> None:
    """Where every thread of the default executor is taken, leases are renewed nevertheless."""
    client = await case.client()
    lease = await client.lock("r", ttl=_ttl(case)).acquire()
    passing = _Passing(case, lease)
    release = runtime.fill_executor()
    try:
        await eventually(lambda: passing.over, limit=60.0)
    finally:
        await release()
    assert passing.rivals == []
    lease.check()


@law(15)
async def burst_of_other_calls_does_not_lose_a_lease(case: Case) -> None:
    """Many who acquire and release at the same time do not hold up the renewals."""
    client = await case.client()
    lease = await client.lock("r", ttl=_ttl(case)).acquire()
    passing = _Passing(case, lease)

    async def work(number: int) -> None:
        while not passing.over:
            async with client.lock(f"r{number}", ttl=60):
                await runtime.pause(0.001)

    calls = [case.spawn(work, number) for number in range(_BURST)]
    for call in calls:
        await call.join(60.0)
    assert passing.rivals == []
    lease.check()


@law(15, "blocking", "driven")
async def renewal_does_not_stand_in_line_behind_other_calls(case: Case) -> None:
    """However many calls are under way when a lease is renewed, most of them are answered after it."""
    store = await case.store()
    mine = case.claim(ttl=60)
    await store.claim(mine)
    side = store.blocking()
    side.ready()  # as the keeper does: what is to be opened is opened before the first renewal
    answered: list[bool] = []
    before: list[int] = []  # of those, at the time of each renewal

    async def ask() -> None:
        await store.release("r2", "nobody")
        answered.append(True)

    def renew() -> None:
        side.renew([mine], 30.0)
        before.append(len(answered))

    try:
        for _ in range(_TRIES):
            answered.clear()
            calls = await runtime.crowd(ask, _CROWD)
            if len(answered) == len(calls):
                return  # here is no line: they were answered at once
            thread = threading.Thread(target=renew)
            thread.start()
            for call in calls:
                await call.join(60.0)
            thread.join()
            if before[-1] < _CROWD / 2:
                return
    finally:
        side.close()
    raise AssertionError(f"of {_CROWD} calls so many were answered before a renewal: {before}")


@law(15)
async def releases_that_go_unanswered_do_not_hold_up_renewals(case: Case) -> None:
    """While the keeper goes on with releases that nobody answers, it renews leases in time."""
    client = await case.client()
    lease = await client.lock("r", ttl=_ttl(case)).acquire()
    others = [await client.lock(f"r{number}", ttl=60).acquire() for number in range(5)]
    client.tap.before["release"] = unanswered
    for other in others:
        await other.release()
    gate = runtime.Gate()
    client.tap.before["release"] = gate.wait  # whoever tries again waits here
    await case.advance(0.6)
    await eventually(lambda: bool(gate.arrived))
    passing = _Passing(case, lease)
    await eventually(lambda: passing.over, limit=60.0)
    gate.open()
    client.tap.heal()
    assert passing.rivals == []
    lease.check()
