"""A release on Redis gives the resource to the first in line: what that spares, and what it must not cost."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from holdfast._async.client import Client, connect
from holdfast._async.store import Store
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim, Granted, Waiting
from holdfast.errors import AcquireTimeout
from holdfast.stores.redis._async import store as module
from holdfast.stores.redis.script import load
from holdfast.testing._async.runtime import Call, eventually, pause, spawn
from tests.stores.redis.driven import mutant
from tests.stores.redis.kit import Rig

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

QUEUE = "holdfast:{default:r}"
WAITER = "import sys, holdfast; holdfast.connect(sys.argv[1]).lock('r', ttl=60).acquire()"


def questions(rig: Rig) -> int:
    """Return how many scripts clients have called."""
    stats = rig.server.call("INFO", "commandstats").decode()
    return sum(
        int(line.split("calls=")[1].split(",")[0])
        for line in stats.splitlines()
        if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
    )


def start(program: str, *args: str) -> subprocess.Popen[bytes]:
    """Run a program in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", program, *args])


async def in_line(rig: Rig, locks: Client, **options: float) -> Call:  # type: ignore[type-arg]
    """Let a client wait for the resource, which another holds, and listen."""
    call = spawn(locks.lock("r", **options).acquire)  # type: ignore[arg-type]
    await eventually(lambda: rig.server.call("ZCARD", QUEUE + ":line") == 1 and rig.listeners == 1)
    await pause(0.02)  # it asks once more, for it may have been told before it listened
    return call


async def test_the_first_in_line_need_not_ask(rig: Rig) -> None:
    asked = []
    async with connect(rig.url, io_timeout=10) as holder, connect(rig.url, io_timeout=10) as locks:
        for _ in range(5):
            lease = await holder.lock("r", ttl=60).acquire()
            call = await in_line(rig, locks, ttl=60)
            before = questions(rig)
            await lease.release()
            heir = await call.join()
            asked.append(questions(rig) - before)
            assert heir.token > lease.token
            assert heir.token == int(rig.server.call("HGET", QUEUE, "token"))
            await heir.release()
    assert min(asked) == 1, "the release itself; more only where a refresh fell into it"


async def test_whoever_has_waited_long_for_a_short_lease_asks_how_much_is_left(rig: Rig) -> None:
    """Its ttl counts from the last question as far as it knows, and that is nearly over."""
    async with connect(rig.url, io_timeout=10) as holder, connect(rig.url, io_timeout=10) as locks:
        lease = await holder.lock("r", ttl=60).acquire()
        call = await in_line(rig, locks, ttl=1.5)
        await pause(1.0)
        before = questions(rig)
        await lease.release()
        heir = await call.join()
        assert questions(rig) - before >= 2
        await heir.release()


async def test_a_lease_that_cannot_be_renewed_gets_its_whole_ttl(rig: Rig) -> None:
    """Counted from the last question it would be shorter, and nothing would ever prolong it."""
    async with connect(rig.url, io_timeout=10) as holder, connect(rig.url, io_timeout=10) as locks:
        lease = await holder.lock("r", ttl=60).acquire()
        call = await in_line(rig, locks, ttl=60, renew=False)
        before = questions(rig)
        await lease.release()
        heir = await call.join()
        assert questions(rig) - before >= 2
        await heir.release()


async def test_an_old_notice_is_not_taken_for_a_grant(rig: Rig) -> None:
    """It is read late, after a pause or from a slow network: what it tells of has ended, and another holds."""
    async with connect(rig.url, io_timeout=10) as locks, connect(rig.url, io_timeout=10) as others:
        store, rival, now = locks._engine.store, others._engine.store, SystemClock().now
        assert isinstance(store, module.RedisStore)
        mine = Claim("r", "mine", ttl=0.5)
        await rival.claim(Claim("r", "first", ttl=60.0))
        await store.wait(mine, await _waiting(store, mine), now())  # subscribes
        await _waiting(store, mine)
        await rival.release("r", "first")
        assert rig.holder("r") == b"mine", "it was given the resource, and does not look"
        token = int(rig.server.call("HGET", QUEUE, "token"))
        await pause(0.6)
        assert isinstance(await rival.claim(Claim("r", "second", ttl=60.0)), Granted)
        waiting = await _waiting(store, mine)
        rig.server.call("PUBLISH", store._channel, f"mine {token}")
        assert await store.wait(mine, waiting, now() + 5) is None
        # Control: it is the number that tells them apart.
        waiting = await _waiting(store, mine)
        later = waiting.newest + 1
        rig.server.call("PUBLISH", store._channel, f"mine {later}")
        while (handed := await store.wait(mine, waiting, now() + 5)) is None:
            await store.claim(mine)
        assert handed == Granted(later, 0.5)


async def _waiting(store: Store, claim: Claim) -> Waiting:
    answer = await store.claim(claim)
    assert isinstance(answer, Waiting)
    return answer


async def test_min_hold_counts_from_when_it_was_given(rig: Rig) -> None:
    async with connect(rig.url, io_timeout=10) as holder, connect(rig.url, io_timeout=10) as locks:
        lease = await holder.lock("r", ttl=60).acquire()
        call = await in_line(rig, locks, ttl=60, min_hold=30)
        await pause(1.5)
        released = time.monotonic()
        await lease.release()
        await (await call.join()).release()
        (state,) = await holder.inspect("r")
        assert state.holders[0].left >= 30 - (time.monotonic() - released)


async def test_a_notice_that_was_lost_costs_a_refresh(rig: Rig) -> None:
    """The server has given it away, and the new holder does not know: it finds out when it asks again."""
    async with connect(rig.server.url) as holder, connect(rig.url, io_timeout=10) as locks:
        lease = await holder.lock("r", ttl=60).acquire()
        call = await in_line(rig, locks, ttl=60)
        rig.proxy.down.mode = "drop"
        await lease.release()
        assert rig.holder("r") is not None
        rig.proxy.heal()
        heir = await call.join()
        assert heir.token == int(rig.server.call("HGET", QUEUE, "token"))
        await heir.release()


@pytest.mark.parametrize("to_the_dead", [False, True], ids=["", "control"])
async def test_a_dead_waiter_is_given_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, to_the_dead: bool) -> None:
    """It keeps its place in line for its waiting life, as ever, and not the resource for a whole ttl."""
    if to_the_dead:
        right = "and redis.pcall('PUBSUB', 'NUMSUB', waiter.channel)[2]"
        monkeypatch.setattr(module, "_RELEASE", mutant(load("redis", "release"), right, "and 1"))
    async with connect(rig.url, io_timeout=10) as holder, connect(rig.url, io_timeout=10) as locks:
        lease = await holder.lock("r", ttl=60).acquire()
        waiter = start(WAITER, rig.server.url)
        await eventually(lambda: rig.server.call("ZCARD", QUEUE + ":line") == 1 and rig.listeners == 1)
        await pause(0.1)
        waiter.kill()
        waiter.wait()
        await eventually(lambda: rig.listeners == 0)
        await lease.release()
        if to_the_dead:
            assert rig.holder("r") is not None
            with pytest.raises(AcquireTimeout):
                await locks.lock("r", ttl=60).acquire(8)
        else:
            assert rig.holder("r") is None
            await (await locks.lock("r", ttl=60).acquire(8)).release()
