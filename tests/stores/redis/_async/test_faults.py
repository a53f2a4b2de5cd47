"""Redis when things go wrong: replies that are lost, servers that stop, connections that break, data that is gone."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from holdfast._async.client import Client, connect
from holdfast.core.claim import Claim, Granted, Renewed
from holdfast.errors import LeaseLost, StaleToken, StoreUnavailable
from holdfast.testing._async.runtime import eventually, pause, spawn
from tests.stores.redis.kit import Rig

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")]

IO = 0.3
SLACK = 3.0  # a busy machine; far below what an unbounded call takes


def client(rig: Rig, io_timeout: float = IO, **options: object) -> Client:
    return connect(rig.url, io_timeout=io_timeout, **options)  # type: ignore[arg-type]


async def warm(locks: Client) -> None:
    """Open a connection and let the server know the scripts."""
    async with locks.lock("warm"):
        pass


async def test_a_grant_whose_reply_was_lost_is_found_again(rig: Rig) -> None:
    async with client(rig) as locks:
        await warm(locks)
        rig.proxy.down.mode = "drop"
        call = spawn(locks.lock("r").acquire, 20)
        await eventually(lambda: rig.holder("r") is not None)
        token = int(rig.server.call("HGET", "holdfast:{default:r}", "token"))
        await pause(2 * IO)
        rig.proxy.heal()
        rig.proxy.reset()
        lease = await call.join()
        assert lease.token == token, "the second try was taken for another claim"
        await lease.release()
        assert rig.holder("r") is None


@pytest.mark.control
async def test_control_a_plain_set_nx_takes_its_own_lost_grant_for_another_holder(rig: Rig) -> None:
    """What the test above is about: the same fault, and a lock that has no memory of who asked."""
    take = ("SET", "plain", "1", "NX", "PX", 30000)
    assert rig.server.call(*take) == b"OK"  # and the reply is lost
    assert rig.server.call(*take) is None, "the second try says: taken. By whom? By itself"


async def test_a_release_whose_reply_was_lost_is_done_once(rig: Rig) -> None:
    async with client(rig) as locks:
        await warm(locks)
        lease = await locks.lock("r").acquire()
        rig.proxy.down.mode = "drop"
        await lease.release()
        assert rig.holder("r") is None
        rig.proxy.heal()
        rig.proxy.reset()
        async with locks.lock("r", timeout=10) as again:
            assert again.token > lease.token


async def test_a_connection_reset_in_the_middle_of_a_reply_is_survived(rig: Rig) -> None:
    async with client(rig) as locks:
        await warm(locks)
        for bytes_ in (0, 1, 7, 20):
            rig.proxy.down.limit = bytes_
            lease = await locks.lock("r", timeout=10).acquire()
            rig.proxy.down.limit = bytes_
            await lease.release()
            await eventually(lambda: rig.holder("r") is None)


async def test_a_paused_server_is_told_in_time_and_its_late_grant_is_withdrawn(rig: Rig) -> None:
    """A stopped Redis runs what it was sent when it is resumed: nobody wants that claim any more."""
    async with client(rig) as locks:
        await warm(locks)
        rig.server.pause()
        started = time.monotonic()
        try:
            with pytest.raises(StoreUnavailable):
                await locks.lock("r", ttl=60).try_acquire()
            assert time.monotonic() - started < IO + SLACK
        finally:
            rig.server.resume()
        await eventually(lambda: rig.server.call("HGET", "holdfast:{default:r}", "token") is not None)
        await eventually(lambda: rig.holder("r") is None)


async def test_a_silent_network_is_told_in_time_also_while_connecting(rig: Rig) -> None:
    rig.proxy.silence()
    async with client(rig) as locks:
        for call in (locks.ready, locks.inspect, lambda: locks.lock("r").try_acquire()):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await call()
            assert time.monotonic() - started < IO + SLACK


async def test_a_name_whose_look_up_hangs_is_told_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: str, *args: Any, **options: Any) -> Any:
        if host == "far.away" and options.get("flags") != socket.AI_NUMERICHOST:
            answer.wait(20)
            host = "127.0.0.1"
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        async with connect(f"redis://far.away:{rig.server.port}", io_timeout=IO) as locks:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await locks.lock("r").try_acquire()
            assert time.monotonic() - started < IO + SLACK
            answer.set()
            async with locks.lock("r", timeout=10):
                pass
    finally:
        answer.set()


async def test_a_restart_with_its_data_costs_nobody_the_lease(rig: Rig) -> None:
    async with client(rig) as locks, client(rig) as rival:
        lease = await locks.lock("r", ttl=60).acquire()
        rig.server.kill()
        with pytest.raises(StoreUnavailable):
            await lease.renew()
        rig.server.start()
        await lease.renew()
        assert await rival.lock("r").try_acquire() is None
        await lease.release()
        assert await rival.lock("r").try_acquire() is not None


async def test_a_restart_without_its_data_is_told_and_tokens_rise(rig: Rig) -> None:
    """Two may believe to hold; the fence tells them apart."""
    async with client(rig) as locks, client(rig) as rival:
        lease = await locks.lock("r", ttl=60).acquire()
        rig.server.kill()
        rig.server.forget()
        rig.server.start()
        successor = await rival.lock("r", ttl=60, timeout=10).acquire()
        assert not lease.lost
        assert successor.token > lease.token
        await rival._engine.store.write("k", "new", successor.fence)
        with pytest.raises(StaleToken):
            await locks._engine.store.write("k", "old", lease.fence)
        with pytest.raises(LeaseLost):
            await lease.renew()


async def test_a_flushed_script_cache_is_survived(rig: Rig) -> None:
    async with client(rig) as locks:
        leases = [await locks.lock(f"r{number}", ttl=60).acquire() for number in range(5)]
        rig.server.call("SCRIPT", "FLUSH")
        claims = [lease._hold.claim for lease in leases]
        assert await locks._engine.store.renew(claims) == [Renewed(60.0)] * 5
        rig.server.call("SCRIPT", "FLUSH")
        for lease in leases:
            await lease.release()
        rig.server.call("SCRIPT", "FLUSH")
        assert await locks.inspect() == []


async def test_a_dropped_subscription_is_survived(rig: Rig) -> None:
    """The waiter asks again at once when its subscription breaks, and is told again after that."""
    async with client(rig, 10) as locks, client(rig, 10) as holder:
        for _ in range(3):
            lease = await holder.lock("r", ttl=60).acquire()
            call = spawn(locks.lock("r", ttl=60).acquire)
            await eventually(lambda: rig.listeners == 1)
            await pause(0.02)
            rig.server.call("CLIENT", "KILL", "TYPE", "pubsub")
            started = time.monotonic()
            await lease.release()
            await (await call.join()).release()
            assert time.monotonic() - started < 1.5, "it was not told: it came by its refresh"


async def test_a_lost_notice_costs_a_refresh_and_no_more(rig: Rig) -> None:
    """A subscription that hears nothing: the waiter asks again every third of its waiting life."""
    async with client(rig, 10) as locks:
        holder = Claim("r", "another")
        async with connect(rig.server.url) as past:
            assert isinstance(await past._engine.store.claim(holder), Granted)
            call = spawn(locks.lock("r", ttl=60).acquire)
            await eventually(lambda: rig.listeners == 1)
            await pause(0.05)
            # The notice goes to nobody: the claim in line was made by a client whose channel has another name.
            line = rig.server.call("HGETALL", "holdfast:{default:r}:claims")
            rig.server.call("HSET", "holdfast:{default:r}:claims", line[0], line[1].replace(b"wake:", b"lost:"))
            await past._engine.store.release("r", "another")
        lease = await call.join()
        await lease.release()


async def test_an_idle_connection_that_the_server_closed_is_not_used(rig: Rig) -> None:
    """`timeout=0` asks once: a connection that died long ago must not make that an outage."""
    async with client(rig, 10) as locks:
        for _ in range(5):
            lease = await locks.lock("r").try_acquire()
            assert lease is not None
            await lease.release()
            rig.server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await pause(0.05)


async def test_replies_never_go_to_somebody_else(rig: Rig) -> None:
    """Calls that time out between others: every answer is the one to its own question."""
    async with client(rig, 0.15) as locks:
        await warm(locks)
        store = locks._engine.store
        for number in range(6):
            rig.proxy.down.mode = "hold" if number % 2 else "pass"
            calls = [
                spawn(store.claim, Claim(f"r{number}.{i}", f"h{number}.{i}", 1, 5, 60.0, value=str(i)))
                for i in range(5)
            ]
            for call in calls:
                try:
                    assert isinstance(await call.join(), Granted)
                except StoreUnavailable:
                    assert number % 2
            rig.proxy.heal()
        await pause(0.2)
        for state in await store.inspect():
            (holder,) = state.holders
            assert f"r{holder.holder[1:]}" == state.resource
            assert holder.value == state.resource.partition(".")[2]
