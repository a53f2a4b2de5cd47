"""once: one result is recorded for a key, whatever happens to those who do the work."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast.core.claim import Record
from holdfast.core.events import TokenRejected
from holdfast.core.outcome import outcome_of
from holdfast.errors import AcquireTimeout, Deadlock, LeaseLost, StaleToken, StoreUnavailable, Unsupported
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import Call, Gate, eventually, spawn
from holdfast.testing._async.tap import times, unanswered
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock
from tests.primitives._async.kit import waiting


class Work:
    """Work that is counted, and that can be held up or made to fail. Its result is the token that it ran with."""

    def __init__(self, locks: Client, *, gated: bool = False, **options: Any) -> None:
        self.runs: list[int] = []
        self.gate = Gate()
        self.error: Exception | None = None
        if not gated:
            self.gate.open()

        self.once = locks.once("invoice:{number}", **options)

        @self.once
        async def send(number: int, copy: str = "a", *, lease: Lease) -> list[int]:
            self.runs.append(lease.token)
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            return [number, lease.token]

        self.send: Any = send  # a type checker cannot know that the lease is passed by the decorator

    async def started(self) -> Call[list[int]]:
        """Call it beside the test, and wait until it runs."""
        before = len(self.runs)
        call = spawn(self.send, 7)
        await eventually(lambda: len(self.runs) > before)
        return call


async def test_the_work_is_done_once_and_everybody_gets_its_result(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        first, second = Work(one), Work(two)
        result = await first.send(7)
        assert result == [7, first.runs[0]]
        assert await first.send(number=7) == result
        assert await second.send(7, copy="b") == result  # what the template does not name makes no difference
        assert (len(first.runs), second.runs) == (1, [])
        assert await second.send(8) == [8, second.runs[0]]
        assert await one.inspect() == []


async def test_callers_at_the_same_time_wait_for_the_one_result(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        works = [Work(one, gated=True), Work(two, gated=True)]
        calls = [spawn(work.send, 7) for work in works for _ in range(3)]
        await waiting(one, "invoice:7", 5)
        for work in works:
            work.gate.open()
        results = [await call.join() for call in calls]
        assert results == [results[0]] * 6
        assert sum(len(work.runs) for work in works) == 1


async def test_without_it_the_work_is_done_by_everybody(url: str, clock: ManualClock) -> None:
    """The control of the test above: a lock alone only sees to it that they do not do it at the same time."""
    async with Client(url, clock=clock) as locks:
        runs = []

        @locks.lock("invoice:7")
        async def send() -> None:
            runs.append(1)

        calls = [spawn(send) for _ in range(6)]
        for call in calls:
            await call.join()
        assert len(runs) == 6


async def test_who_does_not_wait_is_told_that_it_is_being_done(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock, owner="web-3") as one, Client(url, clock=clock) as two:
        first, second = Work(one, gated=True), Work(two, wait=False)
        call = await first.started()
        with pytest.raises(AcquireTimeout, match="'invoice:7' is busy; held by web-3"):
            await second.send(7)
        first.gate.open()
        result = await call.join()
        assert await second.send(7) == result
        assert second.runs == []


async def test_waiting_has_the_timeout_of_the_lock(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        first, second = Work(one, gated=True, ttl=1000), Work(two, timeout=5)
        call = await first.started()
        late = spawn(second.send, 7)
        await eventually(lambda: late.done, lambda: clock.advance(0.5))
        with pytest.raises(AcquireTimeout):
            await late.join()
        first.gate.open()
        await call.join()


async def test_an_exception_is_not_recorded(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        work = Work(locks)
        work.error = KeyError("no paper")
        for _ in range(2):
            with pytest.raises(KeyError, match="no paper"):
                await work.send(7)
        assert await locks.inspect() == []
        work.error = None
        assert await work.send(7) == [7, work.runs[2]]
        assert work.runs == sorted(set(work.runs))


async def test_a_waiting_caller_takes_over_from_one_that_failed(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        first, second = Work(one, gated=True), Work(two)
        first.error = KeyError("no paper")
        call = await first.started()
        other = spawn(second.send, 7)
        await waiting(one, "invoice:7")
        first.gate.open()
        with pytest.raises(KeyError):
            await call.join()
        assert await other.join() == [7, second.runs[0]]
        assert second.runs[0] > first.runs[0]


async def test_a_result_is_forgotten_after_keep(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        work = Work(locks, keep=60)
        result = await work.send(7)
        clock.advance(59)
        assert await work.send(7) == result
        clock.advance(2)
        assert await work.send(7) != result
        assert len(work.runs) == 2


async def test_a_result_that_cannot_be_recorded_is_completed_all_the_same(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        runs = []

        @locks.once("invoice")
        async def send() -> object:
            runs.append(1)
            return object()

        for _ in range(3):
            with pytest.raises(TypeError, match="'invoice' was completed"):
                await send()
        assert len(runs) == 1


async def test_a_crash_before_the_record_lets_the_work_run_again(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as crashed, Client(url, clock=clock) as locks:
        first, second = Work(crashed, gated=True), Work(locks)
        call = await first.started()
        await crashed.orphan()
        other = spawn(second.send, 7)
        await waiting(locks, "invoice:7")
        clock.advance(31)
        assert await other.join() == [7, second.runs[0]]
        assert second.runs[0] > first.runs[0]
        first.gate.open()
        await call.join()


async def test_a_run_that_was_overtaken_gets_the_result_that_is_recorded(
    url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It was paused past its lease; when it comes back it cannot overwrite what another has recorded."""
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused, gated=True), Work(locks)
        call = await first.started()
        await paused.orphan()
        clock.advance(31)
        result = await second.send(7)
        first.gate.open()
        assert await call.join() == result
        assert await second.send(7) == result
        assert "was done twice" in caplog.text
        assert (len(first.runs), len(second.runs)) == (1, 1)


async def test_a_run_that_is_being_overtaken_raises(url: str, clock: ManualClock) -> None:
    """Its result may not be recorded, and the other's is not there yet."""
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused, gated=True), Work(locks, gated=True)
        call = await first.started()
        await paused.orphan()
        clock.advance(31)
        other = await second.started()
        first.gate.open()
        with pytest.raises(LeaseLost, match="'invoice:7' was done in vain") as caught:
            await call.join()
        assert isinstance(caught.value.__cause__, StaleToken)
        second.gate.open()
        assert await other.join() == [7, second.runs[0]]


async def test_a_run_that_lost_its_lease_to_nobody_is_recorded(url: str, clock: ManualClock) -> None:
    """No newer one has come: the fence, not the clock, decides whether a result may be recorded."""
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused, gated=True), Work(locks)
        call = await first.started()
        await paused.orphan()
        clock.advance(31)
        first.gate.open()
        result = await call.join()
        assert await second.send(7) == result
        assert second.runs == []


@pytest.mark.parametrize("done", [True, False])
async def test_a_run_that_was_overtaken_before_it_began_does_not_begin(
    url: str, clock: ManualClock, done: bool
) -> None:
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused), Work(locks, gated=True)
        calls: list[Call[list[int]]] = []
        reads = []

        async def overtaken() -> None:
            reads.append(1)
            if len(reads) != 2:
                return
            await paused.orphan()
            clock.advance(31)
            calls.append(await second.started())
            if done:
                second.gate.open()
                await calls[0].join()

        paused.tap.before["read"] = overtaken
        call = spawn(first.send, 7)
        await eventually(lambda: call.done)
        if done:
            assert await call.join() == [7, second.runs[0]]
        else:
            with pytest.raises(LeaseLost, match="'invoice:7' was not begun"):
                await call.join()
            second.gate.open()
            await calls[0].join()
        assert first.runs == []


async def test_a_write_that_goes_unanswered_is_tried_again(url: str, clock: ManualClock) -> None:
    """The work is done: it must not be done once more because a reply was lost."""
    async with CaseClient(url, clock=clock) as locks:
        work = Work(locks, ttl=1000)
        for number, hooks in enumerate((locks.tap.before, locks.tap.after)):
            hooks["write"] = times(2, unanswered)
            call = spawn(work.send, number)
            await eventually(lambda call=call: call.done, lambda: clock.advance(0.05))  # type: ignore[misc]
            result = await call.join()
            assert await work.send(number) == result
            assert len(work.runs) == number + 1


async def test_a_write_that_is_never_answered_raises_when_the_lease_is_lost(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks, Client(url, clock=clock) as other:
        work = Work(locks)
        locks.tap.before["write"] = locks.tap.before["renew"] = unanswered
        call = spawn(work.send, 7)
        await eventually(lambda: call.done, lambda: clock.advance(0.2))
        with pytest.raises((StoreUnavailable, LeaseLost)):  # in asyncio the loss itself may come first
            await call.join()
        clock.advance(60)  # the holder gave up before the store can grant to another
        assert await Work(other).send(7) != [7, work.runs[0]]


async def test_a_lease_that_is_lost_after_the_record_changes_nothing(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        work = Work(locks)

        async def lose() -> None:
            clock.advance(31)

        locks.tap.after["write"] = lose
        result = await work.send(7)
        assert result == [7, work.runs[0]]
        assert await work.send(7) == result


async def test_the_record_is_made_through_the_fence(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        work = Work(locks)
        result = await work.send(7)
        assert await locks._engine.store.read("invoice:7") == Record(outcome_of(result).packed(), work.runs[0])


async def test_work_that_calls_itself_does_not_wait_for_itself(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:

        @locks.once("count:{n}")
        async def count(n: int, same: bool) -> int:
            return 0 if n == 0 else 1 + await count(n if same else n - 1, same)

        assert await count(3, False) == 3
        with pytest.raises(Deadlock):
            await count(5, True)
        assert await locks.inspect() == []


async def test_keys_are_made_of_the_arguments(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        names: list[str] = []

        @locks.once("{a}:{b}")
        async def by_template(a: str, b: str = "c", *rest: int, **more: int) -> None:
            names.extend(state.resource for state in await locks.inspect())

        await by_template("a:b")
        await by_template("a", "b:c", 5, x=6)
        assert names == ["a%3Ab:c", "a:b%3Ac"]

        @locks.once(key=lambda a, *, b: f"own {a}{b}")
        async def by_key(a: str, *, b: str) -> None:
            names.extend(state.resource for state in await locks.inspect())

        await by_key("x", b="y")
        assert names[2:] == ["own xy"]
        for bad in ("", "x" * 500):  # with the text around it that is too long, or a control character
            with pytest.raises(ValueError, match="resource"):
                await by_key(bad, b="\n" * 20)
        with pytest.raises(TypeError, match="a must be a str"):
            await by_template(1.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="missing"):
            await by_template()  # type: ignore[call-arg]
        assert len(names) == 3


async def test_the_lease_is_ours_to_pass(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        with pytest.raises(TypeError, match=r"takes `lease` by position.*another name$"):

            @locks.once("flat:{lease}")
            async def rent(lease: str) -> str:
                return lease

        with pytest.raises(TypeError, match="lease"):
            await Work(locks).send(7, lease=None)


async def test_bad_arguments_raise_at_once(url: str) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match="and not both"):
            locks.once()
        with pytest.raises(ValueError, match="and not both"):
            locks.once("a", key=str)
        with pytest.raises(ValueError, match="cannot be called"):
            locks.once(key="a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="keep must be"):
            locks.once("a", keep=0.5)
        with pytest.raises(ValueError, match="wait must be True or False"):
            locks.once("a", wait=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ttl must be"):
            locks.once("a", ttl=0)

        async def plain(number: int, *numbers: int) -> None: ...

        async def generator() -> Any:
            yield 1

        for template, rule in (("{other}", "'other'"), ("{numbers}", "'numbers'"), ("{number:>5}", "plain")):
            with pytest.raises(ValueError, match=rule):
                locks.once(template)(plain)
        with pytest.raises(TypeError, match="generator"):
            locks.once("a")(generator)


async def test_a_store_without_registers_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(url) as locks:
        monkeypatch.setattr(locks._engine.store, "capabilities", locks.capabilities._replace(register=False))
        with pytest.raises(Unsupported, match="lack `register`"):
            locks.once("a")


async def test_a_result_that_is_forgotten_is_made_again(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        work, other = Work(one), Work(two)
        first, eighth = await work.send(7), await work.send(8)
        assert await other.once.forget(number=7) is True
        assert await other.once.forget(number=7) is False
        assert await work.once.forget(number=9) is False
        again = await other.send(7)
        assert again == [7, other.runs[0]]
        assert again != first
        assert await work.send(7) == again
        assert await work.send(8) == eighth
        assert await one.inspect() == []
        assert await two.once("invoice:{number}").forget(number=7) is True  # a script need not have the function
        clock.advance(2)  # what marks it as forgotten is gone, too
        assert await one._engine.store.read("invoice:7") is None
        assert await work.send(7) == [7, work.runs[-1]]


async def test_work_under_way_is_waited_for_and_its_result_forgotten(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as one, Client(url, clock=clock) as two:
        work, other = Work(one, gated=True), Work(two)
        call = await work.started()
        forgetting = spawn(other.once.forget, number=7)
        await waiting(one, "invoice:7")
        late = spawn(other.send, 7)
        await waiting(one, "invoice:7", 2)
        with pytest.raises(AcquireTimeout):
            await Work(two, wait=False).once.forget(number=7)
        work.gate.open()
        assert await call.join() == [7, work.runs[0]]
        assert await forgetting.join() is True
        assert await late.join() == [7, other.runs[0]]  # it came after, and so it does the work
        assert other.runs[0] > work.runs[0]


async def test_a_paused_run_does_not_bring_back_what_was_forgotten(url: str, clock: ManualClock) -> None:
    seen = Seen()
    async with CaseClient(url, clock=clock, observers=[seen]) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused, gated=True), Work(locks)
        call = await first.started()
        await paused.orphan()
        clock.advance(31)
        assert await second.once.forget(number=7) is False  # it has recorded nothing yet, and may not any more
        first.gate.open()
        with pytest.raises(LeaseLost, match="'invoice:7' was done in vain"):
            await call.join()
        assert await second.send(7) == [7, second.runs[0]]
        (event,) = (event for event in seen if isinstance(event, TokenRejected))
        assert (event.kind, event.guard, event.token) == ("once", "register 'invoice:7'", first.runs[0])


async def test_forgetting_by_hand_without_the_lock_lets_it_come_back(url: str, clock: ManualClock) -> None:
    """The control of the test above: whoever does not enter the fence is followed by the paused run."""
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused, gated=True), Work(locks)
        call = await first.started()
        await paused.orphan()
        clock.advance(31)
        assert await locks.register("invoice:7").read() is None
        first.gate.open()
        result = await call.join()
        assert await second.send(7) == result


async def test_forgetting_that_is_overtaken_raises(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as paused, Client(url, clock=clock) as locks:
        first, second = Work(paused), Work(locks, gated=True, keep=60)
        second.gate.open()
        await second.send(7)

        async def overtaken() -> None:
            await paused.orphan()
            clock.advance(61)
            await second.send(7)

        paused.tap.before["write"] = overtaken
        forgetting = spawn(first.once.forget, number=7)
        await eventually(lambda: forgetting.done)
        with pytest.raises(LeaseLost, match="'invoice:7' was not forgotten"):
            await forgetting.join()
        assert await second.send(7) == [7, second.runs[-1]]
        assert len(second.runs) == 2


async def test_a_lease_that_is_lost_after_the_forgetting_changes_nothing(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        work = Work(locks)
        await work.send(7)

        async def lose() -> None:
            clock.advance(31)

        locks.tap.after["write"] = lose
        assert await work.once.forget(number=7) is True
        locks.tap.heal()
        await work.send(7)
        assert len(work.runs) == 2


async def test_forgetting_that_went_unanswered_may_be_repeated(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        work = Work(locks)
        await work.send(7)
        for hooks, left in ((locks.tap.before, True), (locks.tap.after, False)):
            hooks["write"] = times(1, unanswered)
            with pytest.raises(StoreUnavailable):
                await work.once.forget(number=7)
            hooks.clear()
            assert await work.once.forget(number=7) is left
            await work.send(7)
        assert len(work.runs) == 3


async def test_work_cannot_forget_itself(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        job = locks.once("job")

        @job
        async def work() -> None:
            await job.forget()

        with pytest.raises(Deadlock):
            await work()


async def test_what_is_forgotten_is_named_as_the_template_or_the_key_says(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks:
        runs = []
        by_template, by_key = locks.once("{a}:{b}"), locks.once(key=lambda a, *, b: f"own {a}{b}")

        @by_template
        async def pair(a: str, b: str = "c") -> None:
            runs.append("template")

        @by_key
        async def own(a: str, *, b: str) -> None:
            runs.append("key")

        await pair("x")
        await own("x", b="y")
        sent = len(locks.tap.calls)
        for wrong in ({}, {"a": "x"}, {"a": "x", "b": "c", "c": 1}, {"number": 7}):
            with pytest.raises(TypeError, match="by keyword: a=…, b=…"):
                await by_template.forget(**wrong)
        with pytest.raises(TypeError, match=r"forget takes what '\{a\}:\{b\}' names, by keyword: a=…, b=…"):
            await by_template.forget("x", "c")
        with pytest.raises(TypeError):
            await by_key.forget("x")
        assert len(locks.tap.calls) == sent
        assert await by_template.forget(a="x", b="c") is True
        assert await by_key.forget("x", b="y") is True
        await pair("x")
        await own("x", b="y")
        assert runs == ["template", "key"] * 2


async def test_a_result_that_is_too_long_is_not_recorded_and_the_work_is_done_once(
    url: str, clock: ManualClock
) -> None:
    async with Client(url, clock=clock) as locks:
        runs = []

        @locks.once("report")
        async def report() -> str:
            runs.append(1)
            return "x" * 300_000

        for _ in range(2):
            with pytest.raises(TypeError, match=r"'report' was completed.*at most 262144"):
                await report()
        assert len(runs) == 1
