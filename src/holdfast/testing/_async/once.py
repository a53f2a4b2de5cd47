"""once: one result is recorded, whatever happens to those who do the work."""

from __future__ import annotations

from typing import Any

from ..._async.lease import Lease
from ...errors import AcquireTimeout, LeaseLost
from ..check import raises
from ..law import law
from .case import Case, CaseClient
from .runtime import eventually
from .tap import times, unanswered


class _Work:
    """Work that is counted and held up until it is told to go on. Its result is the token that it ran under."""

    def __init__(self, client: CaseClient, ttl: float = 60, **options: Any) -> None:
        self.runs: list[int] = []
        self.may_end = False
        self.error: Exception | None = None

        self.once = client.once("{name}", ttl=ttl, **options)

        @self.once
        async def do(name: str, *, lease: Lease) -> list[int]:
            self.runs.append(lease.token)
            await eventually(lambda: self.may_end)
            if self.error is not None:
                raise self.error
            return [lease.token]

        self.do: Any = do


@law(1, "register")
async def concurrent_callers_get_one_result(case: Case) -> None:
    """Of callers in several clients one does the work; all of them, and who comes later, get its result."""
    clients = [await case.client() for _ in range(3)]
    works = [_Work(client) for client in clients]
    calls = [case.spawn(work.do, "r") for work in works for _ in range(2)]
    await eventually(lambda: sum(client.tap.count("wait") > 0 for client in clients) >= 2)
    for work in works:
        work.may_end = True
    results = [await call.join() for call in calls]
    runs = [token for work in works for token in work.runs]
    assert results == [runs] * 6
    late = _Work(await case.client())
    assert await late.do("r") == runs
    assert late.runs == []
    await case.nothing_left()


@law(12, "register")
async def caller_that_does_not_wait_is_refused(case: Case) -> None:
    """With wait=False who comes while the work is done is told so at once, and gets the result later."""
    work, hasty = _Work(await case.client()), _Work(await case.client(), wait=False)
    call = case.spawn(work.do, "r")
    await eventually(lambda: bool(work.runs))
    with raises(AcquireTimeout):
        await case.spawn(hasty.do, "r").join()
    work.may_end = True
    result = await call.join()
    assert await hasty.do("r") == result
    assert hasty.runs == []


@law(6, "register")
async def work_of_a_crashed_runner_is_done_again(case: Case) -> None:
    """A crash before the result is recorded lets who waits do it, under a larger token."""
    crashed, client = await case.client(), await case.client()
    lost, work = _Work(crashed, ttl=case.ttl), _Work(client)
    lost_call = case.spawn(lost.do, "r")
    await eventually(lambda: bool(lost.runs))
    await crashed.orphan()
    call = case.spawn(work.do, "r")
    await eventually(lambda: client.tap.count("wait") > 0)
    work.may_end = True
    await case.advance(case.ttl + case.past)
    assert await call.join() == work.runs
    assert work.runs[0] > lost.runs[0]
    lost.may_end = True
    assert await lost_call.join() == work.runs


@law(2, "register")
async def paused_run_cannot_overwrite_the_result(case: Case) -> None:
    """A run that comes back after its lease gets what a newer one has recorded, or an error while there is nothing."""
    paused, client = await case.client(), await case.client()
    stale = [_Work(paused, ttl=case.ttl) for _ in range(2)]
    late = [case.spawn(work.do, name) for work, name in zip(stale, ("r", "r2"), strict=True)]
    await eventually(lambda: all(work.runs for work in stale))
    await paused.orphan()
    await case.advance(case.ttl + case.past)
    done, under_way = _Work(client), _Work(client)
    done.may_end = True
    result = await case.spawn(done.do, "r").join()
    call = case.spawn(under_way.do, "r2")
    await eventually(lambda: bool(under_way.runs))
    for work in stale:
        work.may_end = True
    assert await late[0].join() == result
    with raises(LeaseLost):
        await late[1].join()
    under_way.may_end = True
    assert await call.join() == under_way.runs
    for name, kept in (("r", result), ("r2", under_way.runs)):
        assert await done.do(name) == kept


@law(5, "register")
async def exception_is_not_recorded(case: Case) -> None:
    """Work that failed is done again by the next caller, and nothing is left of it."""
    work = _Work(await case.client())
    work.may_end = True
    work.error = KeyError("no paper")
    for _ in range(2):
        with raises(KeyError):
            await work.do("r")
        await case.nothing_left()
    work.error = None
    assert await work.do("r") == [work.runs[2]]
    assert work.runs == sorted(set(work.runs))


@law(4, "register")
async def result_whose_reply_was_lost_is_recorded_once(case: Case) -> None:
    """The work was done: an unanswered record is sent again, and the work is not done again."""
    client = await case.client()
    work = _Work(client)
    work.may_end = True
    for name, hooks in (("r", client.tap.before), ("r2", client.tap.after)):
        hooks["write"] = times(2, unanswered)
        call = case.spawn(work.do, name)
        await case.until(lambda call=call: call.done)  # type: ignore[misc]
        result = await call.join()
        assert await work.do(name) == result
    assert len(work.runs) == 2


@law(2, "register")
async def forgotten_result_does_not_come_back(case: Case) -> None:
    """Work whose result was forgotten is done again, and a run that was paused meanwhile cannot record its own."""
    paused, client = await case.client(), await case.client()
    stale, work = _Work(paused, ttl=case.ttl), _Work(client)
    work.may_end = True
    await work.do("r2")
    late = case.spawn(stale.do, "r")
    await eventually(lambda: bool(stale.runs))
    await paused.orphan()
    await case.advance(case.ttl + case.past)
    assert not await work.once.forget(name="r")
    stale.may_end = True
    with raises(LeaseLost):
        await late.join()
    assert await work.once.forget(name="r2")
    for name in ("r", "r2"):
        assert await work.do(name) == work.runs[-1:]
    assert len(work.runs) == 3


@law(6, "host", "register")
async def work_of_a_killed_process_is_done_again(case: Case) -> None:
    """kill -9 in the middle of the work: who waits does it, under a larger token, and its result is recorded."""
    child = case.child("work", ttl=case.real_ttl)
    await eventually(child.heard)
    client = await case.client(real=True)
    work = _Work(client)
    work.may_end = True
    call = case.spawn(work.do, "r")
    await eventually(lambda: client.tap.count("wait") > 0)
    child.kill()
    assert await call.join(case.real_ttl + case.capabilities.waiting_life + 1.0) == work.runs
    assert work.runs[0] > child.said[0][1]
    assert await work.do("r") == work.runs
    assert len(work.runs) == 1
