"""Registers: values that only the holder of a lease can change, and whoever comes too late is refused and told of."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast.core.claim import Record
from holdfast.core.events import TokenRejected
from holdfast.core.fence import Fence
from holdfast.core.register import MOST_BYTES
from holdfast.errors import LockError, StaleToken, StoreError, StoreUnavailable, Unsupported
from holdfast.testing._async.case import CaseClient
from holdfast.testing._async.runtime import Gate, eventually, spawn
from holdfast.testing._async.tap import times, unanswered
from holdfast.testing.check import Seen
from holdfast.testing.clock import ManualClock


async def test_the_holder_of_a_lock_writes_and_everybody_reads(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, Client(url, clock=clock) as other:
        balance = locks.register("balance:7")
        assert repr(balance) == "<Register 'balance:7'>"
        assert await balance.read() is None
        async with locks.lock("account:7") as lease:
            assert await balance.read(lease.fence) is None
            for value in ("", "100", "ü🔒\0\n", "90"):
                await balance.write(value, fence=lease.fence)
                assert await other.register("balance:7").read() == Record(value, lease.token)
        assert await other.register("balance:8").read() is None
        async with Client(url, clock=clock, namespace="other") as elsewhere:
            assert await elsewhere.register("balance:7").read() is None


async def stale_lease(url: str, clock: ManualClock, observers: Seen) -> tuple[CaseClient, Fence]:
    """Return a client whose lease has run out unnoticed, and its fence."""
    paused = CaseClient(url, clock=clock, observers=[observers])
    lease = await paused.lock("account:7").acquire()
    await paused.orphan()
    clock.advance(31)
    return paused, lease.fence


async def test_a_stale_holder_is_refused_and_told_of(
    url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    paused, stale = await stale_lease(url, clock, seen)
    async with paused, Client(url, clock=clock) as locks:
        async with locks.lock("account:7") as lease:
            await locks.register("balance:7").write("90", fence=lease.fence)
        late = paused.register("balance:7")
        with pytest.raises(StaleToken) as caught:
            await late.write("100", fence=stale)
        assert caught.value.newest == lease.token
        with pytest.raises(StaleToken):
            await late.read(stale)
        assert await late.read() == Record("90", lease.token)
        first, _ = (event for event in seen if isinstance(event, TokenRejected))
        facts = (first.store, first.namespace, first.resource, first.kind, first.guard, first.token, first.newest)
        store = locks.capabilities.store
        assert facts == (store, "default", "account:7", "register", "register 'balance:7'", stale.token, lease.token)
        await eventually(lambda: caplog.text.count("refused") == 2)
        said = f"register 'balance:7' refused the stale token {stale.token} of 'account:7': {lease.token} was here"
        assert said in caplog.text
        assert caplog.records[-1].levelname == "WARNING"


async def test_without_a_fence_the_stale_holder_would_have_the_last_word(url: str, clock: ManualClock) -> None:
    """The control: a write that is not judged by its token, as any other store of values takes it."""
    paused, stale = await stale_lease(url, clock, Seen())
    async with paused, Client(url, clock=clock) as locks:
        async with locks.lock("account:7") as lease:
            await locks.register("balance:7").write("90", fence=lease.fence)
        await paused.register("balance:7").write("100", fence=stale._replace(token=2**53 - 1))
        assert await locks.register("balance:7").read() == Record("100", 2**53 - 1)


async def test_a_read_through_the_fence_shuts_older_writers_out(url: str, clock: ManualClock) -> None:
    seen = Seen()
    paused, stale = await stale_lease(url, clock, seen)
    async with paused, Client(url, clock=clock) as locks, locks.lock("account:7") as lease:
        register = locks.register("balance:7")
        assert await register.read() is None  # this one lets everybody in
        await paused.register("balance:7").write("100", fence=stale)
        assert await register.read(lease.fence) == Record("100", stale.token)
        with pytest.raises(StaleToken):
            await paused.register("balance:7").write("200", fence=stale)


async def test_a_value_is_forgotten_after_keep(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, locks.lock("account:7", ttl=1000) as lease:
        register = locks.register("balance:7")
        await register.write("90", fence=lease.fence, keep=60)
        clock.advance(59)
        assert await register.read() == Record("90", lease.token)
        clock.advance(2)
        assert await register.read() is None
        with pytest.raises(StaleToken):
            await register.write("100", fence=lease.fence._replace(token=lease.token - 1))


async def test_values_up_to_256_kib_and_nothing_is_sent_of_more(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks, locks.lock("account:7") as lease:
        register = locks.register("balance:7")
        for value in ("x" * MOST_BYTES, "ü" * (MOST_BYTES // 2)):
            await register.write(value, fence=lease.fence)
            assert await register.read() == Record(value, lease.token)
        sent = len(locks.tap.calls)
        for long in ("x" * (MOST_BYTES + 1), "ü" * (MOST_BYTES // 2) + "x"):
            with pytest.raises(ValueError, match="has 262145 UTF-8 bytes; at most 262144 are allowed") as caught:
                await register.write(long, fence=lease.fence)
            assert len(str(caught.value)) < 200
        for bad in (b"x", None, 7, "\ud800"):
            with pytest.raises(ValueError, match=r"value must be a str|cannot be encoded"):
                await register.write(bad, fence=lease.fence)  # type: ignore[arg-type]
        for keep in (0, 0.5, True, float("inf")):
            with pytest.raises(ValueError, match="keep must be a finite number"):
                await register.write("x", fence=lease.fence, keep=keep)
        assert len(locks.tap.calls) == sent


async def test_a_write_without_a_fence_is_not_possible(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks, locks.lock("account:7") as lease:
        register: Any = locks.register("balance:7")
        sent = len(locks.tap.calls)
        with pytest.raises(TypeError, match="fence"):
            await register.write("90")
        with pytest.raises(TypeError):
            await register.write("90", lease.fence)
        for bad in (None, lease, lease.token, (*lease.fence,)):
            with pytest.raises(ValueError, match=r"fence must be the fence of a lease \(`fence=lease.fence`\)"):
                await register.write("90", fence=bad)
        for bad in (lease, lease.token):
            with pytest.raises(ValueError, match="fence must be"):
                await register.read(bad)
        assert len(locks.tap.calls) == sent


async def test_a_fence_of_another_namespace_is_refused(url: str, clock: ManualClock) -> None:
    """Its tokens are counted elsewhere."""
    async with Client(url, clock=clock) as locks, Client(url, clock=clock, namespace="billing") as other:
        async with other.lock("account:7") as lease:
            assert await other.register("r").read(lease.fence) is None
            with pytest.raises(ValueError, match=r"of the namespace 'billing'.*in 'default'.*cannot be compared"):
                await locks.register("r").read(lease.fence)
            with pytest.raises(ValueError, match="namespace 'billing'"):
                await locks.register("r").write("x", fence=lease.fence)


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb", None, 7], ids=repr)
async def test_bad_names(url: str, name: Any) -> None:
    async with Client(url) as locks:
        with pytest.raises(ValueError, match="register"):
            locks.register(name)


async def test_a_store_without_registers_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(url) as locks:
        monkeypatch.setattr(locks._engine.store, "capabilities", locks.capabilities._replace(register=False))
        with pytest.raises(Unsupported, match="lack `register`; use sqlite://"):
            locks.register("a")


async def test_permits_cannot_write(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks, locks.semaphore("gpu", permits=2) as lease:
        with pytest.raises(Unsupported, match="no fence can tell"):
            await locks.register("r").write("x", fence=lease.fence)


async def test_a_write_that_went_unanswered_may_be_repeated(url: str, clock: ManualClock) -> None:
    async with CaseClient(url, clock=clock) as locks, locks.lock("account:7") as lease:
        register = locks.register("balance:7")
        for hooks in (locks.tap.before, locks.tap.after):
            hooks["write"] = times(1, unanswered)
            with pytest.raises(StoreUnavailable):
                await register.write("90", fence=lease.fence)
            await register.write("90", fence=lease.fence)
            assert await register.read() == Record("90", lease.token)


async def test_while_draining_a_holder_can_still_write(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        register, gate = locks.register("balance:7"), Gate()

        async def body() -> None:
            async with locks.lock("account:7") as lease:
                await gate.wait()
                await register.write("90", fence=lease.fence)

        working = spawn(body)
        await eventually(lambda: gate.arrived)
        draining = spawn(locks.drain, 30)
        await eventually(lambda: locks._engine.draining)
        gate.open()
        await working.join()
        assert await draining.join() is True
        with pytest.raises(LockError, match="is closed"):
            await register.read()


async def test_a_register_that_once_uses_is_not_for_other_values(url: str, clock: ManualClock) -> None:
    async with Client(url, clock=clock) as locks:
        async with locks.lock("invoice:7") as lease:
            await locks.register("invoice:7").write("paid", fence=lease.fence)

        @locks.once("invoice:{number}")
        async def send(number: int) -> None:
            raise AssertionError("not called")

        with pytest.raises(StoreError, match="register 'invoice:7' has a value that `once` did not write"):
            await send(7)
