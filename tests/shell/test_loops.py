"""Event loops under attack: blocked, cancelled, closed, several at once. The keeper does not depend on them."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._sync.client import Client as BlockingClient
from holdfast.core import events
from holdfast.core.urls import parse_url
from holdfast.errors import LeaseLost
from holdfast.keeper.pulse import Pulse
from holdfast.testing._async.case import TappedClient
from holdfast.testing._async.runtime import cancelled_at, eventually
from holdfast.testing._async.tap import Tap
from holdfast.testing._sync.runtime import eventually as eventually_blocking
from holdfast.testing.check import Ledger, Seen, open_files
from holdfast.testing.clock import ManualClock
from holdfast.testing.servers.etcd import EtcdServer
from holdfast.testing.servers.redis import RedisServer
from tests.servers import needed
from tests.shell._async.kit import connect, kinds
from tests.shell.script import run
from tests.shell.threads import left, running

both_stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


@pytest.fixture
def url(store: str, name: str, tmp_path: Path) -> str:
    return {"memory": f"memory://{name}", "sqlite": f"sqlite://{tmp_path}/locks.db"}[store]


def driven(url: str, clock: ManualClock, **options: Any) -> TappedClient:
    """Return a client on the driven clock."""
    return TappedClient(parse_url(url), clock=clock, **options)


# -- who finds the loss


async def test_a_loss_first_seen_by_a_thread_is_told(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[Lease, int]] = []
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        locks.tap.cut_off("renew")
        keeper = locks._engine.keeper
        attend, may_look = keeper.attend, threading.Event()

        def held_up() -> float:
            may_look.wait(10)
            return attend()

        def look(lease: Lease) -> bool:
            clock.advance(31)
            return lease.lost

        async def work() -> None:
            lock = locks.lock("r", ttl=30, on_lost=lambda lease: told.append((lease, threading.get_ident())))
            async with lock as lease:
                entered.set_result(lease)
                await asyncio.sleep(60)

        entered: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        body = asyncio.create_task(work())
        lease = await entered
        keeper.attend = held_up  # type: ignore[method-assign]
        assert await asyncio.to_thread(look, lease)
        assert not told
        may_look.set()
        with pytest.raises(LeaseLost):
            await body
        assert told == [(lease, threading.get_ident())]
        assert kinds(seen).count("Lost") == 1
        await eventually(lambda: any("is lost" in message for message in caplog.messages))


# -- cancellation


@both_stores
async def test_cancelling_all_tasks_stops_no_renewal(url: str, clock: ManualClock) -> None:
    """Frameworks do so when they restart what they run. The client goes on, with old leases and new ones."""
    async with driven(url, clock) as locks, driven(url, clock) as others:
        first = await locks.lock("a", ttl=30).acquire()
        busy = await others.lock("b", ttl=300).acquire()
        waiting = asyncio.create_task(locks.lock("b").acquire())
        clock.advance(10.01)
        await locks.tap.reached("renewals", 1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await busy.release()
        second = await locks.lock("b", ttl=30).acquire(5)
        for _ in range(9):
            clock.advance(10.01)
            await eventually(lambda: min(first.remaining, second.remaining) > 20 or first.lost or second.lost)
        first.check()
        second.check()
        await first.release()
        await second.release()
        assert await others.inspect() == []


def spread(locks: TappedClient) -> None:
    """Have every exchange give way to the loop, before the store acts and after it."""

    async def give_way() -> None:
        await asyncio.sleep(0)

    for hooks in (locks.tap.before, locks.tap.after):
        hooks.update(dict.fromkeys(("claim", "release", "renew"), give_way))


async def with_lock(locks: Client) -> None:
    async with locks.lock("r", ttl=30) as lease:
        await lease.renew()


async def with_acquire(locks: Client) -> None:
    async with locks.lock("r", ttl=30).acquire() as lease:
        await asyncio.sleep(0)
        lease.check()


async def with_all(locks: Client) -> None:
    async with locks.lock_all("q", "r", "s", ttl=30):
        await asyncio.sleep(0)


async def by_hand(locks: Client) -> None:
    lease = await locks.lock("r", ttl=30).acquire()
    await lease.release()


@both_stores
@pytest.mark.parametrize("use", [with_lock, with_acquire, with_all, by_hand])
async def test_a_cancellation_at_any_await_leaves_nothing(
    use: Callable[[Client], Any], url: str, clock: ManualClock
) -> None:
    before, tasks = running(), asyncio.all_tasks()
    async with driven(url, clock) as others:
        async with driven(url, clock) as locks:
            spread(locks)
            struck = 0
            while await cancelled_at(struck, lambda: use(locks)):
                struck += 1
                await eventually(lambda: _all_free(others))
            assert struck >= 4
            assert not locks._engine.keeper.held
            clock.advance(10.01)
            assert locks._engine.keeper.agenda.holds() == []
    assert asyncio.all_tasks() == tasks
    await eventually(lambda: not left(before), complaint=lambda: left(before))


async def _all_free(others: Client) -> bool:
    return await others.inspect() == []


@both_stores
async def test_close_cancelled_at_any_await_is_finished(url: str, clock: ManualClock) -> None:
    before, tasks, struck = running(), asyncio.all_tasks(), 0
    async with driven(url, clock) as others:
        while True:
            locks = driven(url, clock)
            spread(locks)
            lease = await locks.lock("r", ttl=30).acquire()
            waiting = asyncio.create_task(locks.lock("r", ttl=30).acquire())
            await locks.tap.reached("claims", 2)
            was_struck = await cancelled_at(struck, locks.close)
            with pytest.raises(holdfast.LockError, match="closed"):
                await waiting
            assert lease.state == "released"
            assert await others.inspect() == []
            assert asyncio.all_tasks() == tasks
            await locks.close()
            if not was_struck:
                break
            struck += 1
        assert struck >= 1
    await eventually(lambda: not left(before), complaint=lambda: left(before))


def count_closes(locks: TappedClient) -> list[bool]:
    """Return a list that grows with each close of the store."""
    closed, close = list[bool](), locks.tap.close

    async def counted() -> None:
        await close()
        closed.append(True)

    locks.tap.close = counted  # type: ignore[method-assign]
    return closed


@both_stores
async def test_cancelling_all_tasks_while_close_runs_leaves_it_to_the_next(url: str, clock: ManualClock) -> None:
    """A second close() does what the first could not: no thread and no open file stays behind."""
    before, files = running(), set(open_files())
    locks = driven(url, clock)
    gate = locks.tap.hold_up("release")
    closed = count_closes(locks)
    lease = await locks.lock("r", ttl=30).acquire()
    closing = asyncio.create_task(locks.close())
    await eventually(lambda: gate.arrived)
    for _ in range(3):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if not task.get_coro().__qualname__.startswith("_awaited"):  # type: ignore[union-attr]
                task.cancel()
        await asyncio.sleep(0.005)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await eventually(lambda: lease.state == "released")
    await eventually(lambda: locks._engine.keeper.ended)
    assert closed == []
    await locks.close()
    await locks.close()
    assert closed == [True]
    async with driven(url, clock) as others:
        assert await others.inspect() == []
    await eventually(lambda: not left(before), complaint=lambda: left(before))
    await eventually(lambda: set(open_files()) <= files)


# -- a loop that is blocked


def pulse_of(lease: Lease) -> Pulse:
    pulse: Pulse = lease._hold.keeper.pulse
    return pulse


async def answered(clock: ManualClock, lease: Lease) -> None:
    """Wait until the loop was asked for a sign of life, now, and has given it."""
    pulse = pulse_of(lease)
    await eventually(lambda: pulse._asked == clock.now() and not pulse.owes)


def block(clock: ManualClock, lease: Lease, thirds: int) -> None:
    """Block the loop, in this line of code, while so many thirds of the ttl pass."""
    for _ in range(thirds):
        clock.advance(lease.ttl / 3 + 0.01)
        while not (lease.remaining > lease.ttl * 0.9 and pulse_of(lease)._looked == clock.now()):
            time.sleep(0.002)


async def test_a_blocked_loop_is_told_once_with_its_line(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    async with connect(name, clock, namespace="n", observers=[seen]) as locks:

        def blocked() -> list[events.LoopBlocked]:
            return [event for event in seen if isinstance(event, events.LoopBlocked)]

        async with locks.lock("r", ttl=30) as lease:
            for _ in range(6):  # a loop that runs gives no cause
                clock.advance(10.01)
                await eventually(lambda: lease.remaining > 27)
                await answered(clock, lease)
            assert blocked() == []
            block(clock, lease, 6)
            (event,) = blocked()
            assert 10 <= event.seconds <= 30.1
            assert event.namespace == "n"
            assert f"{__file__}:" in event.where
            assert " in block" in event.where
            for _ in range(2):
                clock.advance(10.01)
                await eventually(lambda: lease.remaining > 27)
                await answered(clock, lease)
            assert len(blocked()) == 1
            block(clock, lease, 4)
            assert len(blocked()) == 2
            lease.check()
    said = [record for record in caplog.records if "the event loop has not run for" in record.message]
    assert [record.levelno for record in said] == [logging.WARNING] * 2
    assert f"{event.seconds:.1f} s: {event.where}. Nothing else goes on" in said[0].message


async def test_the_line_of_a_block_inside_of_the_standard_library(name: str) -> None:
    """The caller of what blocks is of more use than the innermost frame of somebody else's code."""
    seen = Seen()

    def wait_for_a_thread(condition: threading.Event) -> None:
        condition.wait(10)

    def free(condition: threading.Event) -> None:
        eventually_blocking(lambda: "LoopBlocked" in kinds(seen))
        condition.set()

    async with holdfast.aio.connect(f"memory://{name}", observers=[seen]) as locks:
        async with locks.lock("r", ttl=0.6):
            done = threading.Event()
            threading.Thread(target=free, args=(done,)).start()
            wait_for_a_thread(done)
    (event,) = (event for event in seen if isinstance(event, events.LoopBlocked))
    assert "threading.py" in event.where
    assert "called from" in event.where
    assert "wait_for_a_thread" in event.where


async def test_a_short_lease_that_was_given_back_does_not_make_a_long_one_impatient(
    name: str, clock: ManualClock
) -> None:
    """What counts is a third of the ttl of a lease that is held."""
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        async with locks.lock("long", ttl=300) as lease:
            await answered(clock, lease)
            async with locks.lock("short", ttl=1):
                clock.advance(0.4)
                await locks.tap.reached("renewals", 1)
                await answered(clock, lease)
            clock.advance(2)
            await answered(clock, lease)
            for _ in range(10):
                clock.advance(1)
                time.sleep(0.01)  # noqa: ASYNC251 (the loop is to be blocked)
            lease.check()
    assert "LoopBlocked" not in kinds(seen)


async def test_a_short_lease_beside_a_long_one_counts_from_its_beginning(name: str, clock: ManualClock) -> None:
    seen = Seen()
    async with connect(name, clock, observers=[seen]) as locks:
        async with locks.lock("long", ttl=300) as long, locks.lock("other", ttl=300):
            await answered(clock, long)
            clock.advance(1)
            async with locks.lock("short", ttl=6) as lease:
                block(clock, lease, 4)
    assert kinds(seen).count("LoopBlocked") == 1


class Plain:
    """An asyncio store of a third party: all verbs, and no blocking side."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        if verb == "blocking":
            raise AttributeError(verb)
        return getattr(self._store, verb)


class PlainClient(Client):
    """A client of such a store."""

    def _make_store(self) -> Any:
        return Plain(super()._make_store())


async def test_a_store_without_a_blocking_side_is_kept_through_the_loop(
    name: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Lease] = []
    async with PlainClient(parse_url(f"memory://{name}"), clock=clock) as locks:
        leases = [await locks.lock(f"r{number}", ttl=30, on_lost=told.append).acquire() for number in range(3)]
        for _ in range(9):
            clock.advance(10.01)
            await eventually(lambda: min(lease.remaining for lease in leases) > 20)
        assert told == []
        said = [record for record in caplog.records if "has no blocking()" in record.message]
        assert [record.levelno for record in said] == [logging.WARNING]
        assert "the asyncio store memory has no blocking(): its leases are renewed through the event loop" in (
            said[0].message
        )
        held = leases.pop()
        for lease in leases:
            await lease.release()
    assert held.state == "released"  # close() has done so, through the loop that awaits it
    async with holdfast.aio.connect(f"memory://{name}") as others:
        assert await others.inspect() == []


async def test_the_loss_says_that_the_loop_was_blocked(name: str, clock: ManualClock) -> None:
    """Without a blocking side law 15 is not kept; then the message names the culprit."""
    async with PlainClient(parse_url(f"memory://{name}"), clock=clock, io_timeout=0.05) as locks:
        lease = await locks.lock("r", ttl=30).acquire()
        keeper = locks._engine.keeper
        await eventually(lambda: keeper.next < float("inf"))
        while not lease.lost:  # and the loop is blocked
            clock.advance(1)
            time.sleep(0.02)  # noqa: ASYNC251
        with pytest.raises(LeaseLost, match=r"no renewal was answered within its ttl of 30 s; the event loop was "
                           r"blocked for \d\d\.\d s"):  # fmt: skip
            await lease.release()


async def test_the_loss_says_that_the_process_did_not_run(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lease = await locks.lock("r", ttl=30).acquire()
        clock.advance(31)
        with pytest.raises(LeaseLost, match="this process did not run for longer than its ttl of 30 s"):
            lease.check()


@both_stores
async def test_many_leases_outlive_a_blocked_loop(url: str, clock: ManualClock) -> None:
    async with driven(url, clock, io_timeout=30) as locks:
        leases = [await locks.lock(f"r{number}", ttl=30).acquire() for number in range(200)]
        for _ in range(30):
            clock.advance(3)
            eventually_blocking(lambda: min(lease.remaining for lease in leases) > 15 or any(s.lost for s in leases))
        assert {lease.state for lease in leases} == {"held"}
        assert locks.tap.count("renew") < 60  # in batches
        await asyncio.gather(*(lease.release() for lease in leases))
        assert await locks.inspect() == []


# -- a loop that was closed


def closed_with_leases(make: Callable[[], TappedClient], ttl: float) -> tuple[TappedClient, list[Lease]]:
    """Run a loop to its end, and leave leases behind that somebody refers to."""

    async def main() -> tuple[TappedClient, list[Lease]]:
        locks = make()
        return locks, [await locks.lock(f"r{number}", ttl=ttl).acquire() for number in range(3)]

    return asyncio.run(main())


def _are_released(tap: Tap) -> bool:
    return sorted(tap.released) == ["r0", "r1", "r2"]


@both_stores
def test_a_loop_closed_with_leases_held_gives_them_back(url: str, clock: ManualClock) -> None:
    before, files = running(), set(open_files())
    locks, leases = closed_with_leases(lambda: driven(url, clock), 30)
    clock.advance(10.01)  # far from their end
    eventually_blocking(partial(_are_released, locks.tap))
    with BlockingClient(parse_url(url), clock=clock) as others:
        for number in range(3):
            with others.lock(f"r{number}", timeout=0):
                pass
    eventually_blocking(lambda: not left(before), complaint=lambda: left(before))
    eventually_blocking(lambda: set(open_files()) <= files)
    assert [lease.state for lease in leases] == ["released"] * 3


@pytest.mark.server
@pytest.mark.parametrize("server", [RedisServer, EtcdServer])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of a loop that is gone
def test_a_loop_closed_with_leases_on_a_server_gives_them_back(server: Any) -> None:
    before = running()
    with needed(server) as running_server:
        locks, leases = closed_with_leases(lambda: TappedClient(parse_url(running_server.url), io_timeout=10), 3)
        eventually_blocking(partial(_are_released, locks.tap))
        with holdfast.connect(running_server.url) as others:
            assert others.inspect() == []
        assert [lease.state for lease in leases] == ["released"] * 3
        del locks, leases
        gc.collect()
        eventually_blocking(lambda: not left(before), complaint=lambda: left(before))


@pytest.mark.parametrize("store", ["sqlite"])  # in memory the line itself keeps the waiter from being collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_acquires_of_a_dead_loop_end_with_their_waiting_life(url: str, clock: ManualClock) -> None:
    """Coroutines of a loop that was closed under them end in the collector, where nothing can be awaited."""
    before = running()
    loop = asyncio.new_event_loop()
    with BlockingClient(parse_url(url), clock=clock) as others, others.lock("r"):
        locks: Any = driven(url, clock)
        task: Any = loop.create_task(locks.lock("r", ttl=30).acquire())
        task._log_destroy_pending = False
        loop.run_until_complete(locks.tap.reached("claims", 1))
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        assert [len(state.waiters) for state in others.inspect()] == [1]
        del task
        gc.collect()
        clock.advance(others.capabilities.waiting_life)
        eventually_blocking(lambda: [len(state.waiters) for state in others.inspect()] == [0])
    with BlockingClient(parse_url(url), clock=clock) as others, others.lock("r", timeout=0):
        pass
    del locks

    def pass_by() -> None:
        clock.advance(1)
        gc.collect()

    eventually_blocking(lambda: not left(before), pass_by, complaint=lambda: left(before))


# -- several loops


@both_stores
def test_several_loops_in_several_threads(url: str) -> None:
    before, ledger, errors = running(), Ledger(), list[BaseException]()
    clients: list[Client] = []
    all_done = threading.Barrier(4, timeout=60)

    async def work() -> None:
        async with holdfast.aio.connect(url, io_timeout=30) as locks:
            clients.append(locks)
            kept = await locks.lock(f"own {threading.get_ident()}", ttl=0.6).acquire()
            for number in range(25):
                async with locks.lock("shared", ttl=60) as lease:
                    holder = f"{threading.get_ident()}.{number}"
                    ledger.enter(holder, 1, 1)
                    await asyncio.sleep(0)
                    ledger.leave(holder)
                    lease.check()
            await asyncio.to_thread(all_done.wait)
            for client in clients:
                if client is not locks:
                    with pytest.raises(RuntimeError, match="belongs to another event loop"):
                        await client.lock("shared").acquire()
            await asyncio.to_thread(all_done.wait)
            kept.check()

    def main() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=main) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert ledger.entered == 100
    with holdfast.connect(url) as locks:
        assert locks.inspect() == []
    eventually_blocking(lambda: not left(before), complaint=lambda: left(before))


def test_several_loops_share_a_blocking_client(name: str) -> None:
    """It belongs to no loop: each may call it in threads."""
    before, ledger = running(), Ledger()

    def work(number: int) -> None:
        with locks.lock("shared"):
            ledger.enter(str(number), 1, 1)
            ledger.leave(str(number))

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(10)))

    with holdfast.connect(f"memory://{name}") as locks:
        threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert ledger.entered == 30
        assert locks.inspect() == []
    eventually_blocking(lambda: not left(before), complaint=lambda: left(before))


# -- the end of the program

ENDS = {
    "the loop was closed": "lease = asyncio.run(acquire())",
    "the loop was left": """
        loop = asyncio.new_event_loop()
        lease = loop.run_until_complete(acquire())
        """,
    "exit inside of the body": """
        async def main():
            async with await acquire():
                sys.exit()

        asyncio.run(main())
        """,
    "the loop runs in a daemon": """
        def main():
            async def hold():
                global lease
                lease = await acquire()
                held.set()
                await asyncio.sleep(60)

            asyncio.run(hold())

        held = threading.Event()
        threading.Thread(target=main, daemon=True).start()
        held.wait()
        """,
    "the client was dropped": """
        async def main():
            return await (await asyncio.create_task(make())).lock("r", ttl=300).acquire()

        async def make():
            return holdfast.aio.connect(sys.argv[1])

        lease = asyncio.run(main())
        """,
}
PREAMBLE = """
import asyncio, sys, threading
import holdfast, holdfast.aio

async def acquire():
    global locks
    locks = holdfast.aio.connect(sys.argv[1])
    return await locks.lock("r", ttl=300).acquire()
"""


@pytest.mark.parametrize("end", ENDS)
def test_a_lease_held_at_the_end_of_the_program_is_given_back(end: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    _, err = run(PREAMBLE + dedent(ENDS[end]), url)
    assert err == ""
    with holdfast.connect(url) as locks, locks.lock("r", timeout=0):
        pass


# -- floods


@pytest.mark.parametrize(("store", "count"), [("memory", 10_000), ("sqlite", 2_000)])
async def test_a_flood_of_acquires(store: str, count: int, url: str) -> None:
    before, tasks = running(), asyncio.all_tasks()
    granted: list[int] = []

    async def take(number: int) -> None:
        async with locks.lock(f"r{number % (count // 4)}", ttl=60, timeout=60) as lease:
            granted.append(lease.token)

    async with holdfast.aio.connect(url, io_timeout=60) as locks:
        await asyncio.gather(*(take(number) for number in range(count)))
        assert len(granted) == count
        assert await locks.inspect() == []
        leases = await asyncio.gather(*(locks.lock(f"s{number}", ttl=60).acquire() for number in range(count // 4)))
        waiting = [asyncio.create_task(locks.lock(f"s{number}").acquire()) for number in range(count // 4)]
        await asyncio.sleep(0)
        started = time.monotonic()
        await locks.close(timeout=30)
        assert time.monotonic() - started < 30
        for task in waiting:
            with pytest.raises(holdfast.LockError):
                await task
        assert {lease.state for lease in leases} == {"released"}
    assert asyncio.all_tasks() == tasks
    with holdfast.connect(url) as others:
        assert others.inspect() == []
    await eventually(lambda: not left(before), complaint=lambda: left(before))


@both_stores
async def test_a_flood_that_cannot_be_served_times_out(url: str) -> None:
    before = running()
    async with holdfast.aio.connect(url, io_timeout=30) as locks:
        async with locks.lock("r", ttl=60):
            calls = [asyncio.create_task(locks.lock("r", ttl=60).acquire(0.2)) for _ in range(300)]
            done, _ = await asyncio.wait(calls, timeout=60)
            assert {type(call.exception()) for call in done} == {holdfast.AcquireTimeout}
            assert len(done) == 300

            async def nobody_waits() -> bool:
                return [len(state.waiters) for state in await locks.inspect()] == [0]

            # Whoever was told late withdraws in the background; by itself a place in line ends later than this.
            await eventually(nobody_waits, limit=4.0)
    await eventually(lambda: not left(before), complaint=lambda: left(before))
