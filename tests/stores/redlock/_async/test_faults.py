"""What Redlock keeps when nodes are down, hang, are slow, lose replies, data or the right time."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import pytest

from holdfast._async.client import Client, connect
from holdfast._async.lease import Lease
from holdfast._clock import SystemClock
from holdfast.core.claim import Claim, Granted, Record, Waiting
from holdfast.core.urls import parse_url
from holdfast.errors import AcquireTimeout, LeaseLost, StaleToken, StoreError, StoreUnavailable
from holdfast.stores.redlock._async.store import RedlockStore
from holdfast.testing._async.runtime import eventually, pause, spawn
from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers.redlock import RedlockServers
from tests.faults.clock import moved, why_not
from tests.stores.redlock.kept import ballot, counter, holders, line, poison

pytestmark = pytest.mark.server

HOUR = 3600
PATIENT = 10.0  # io_timeout: a node then has 5 s to answer, far more than a busy machine needs
NODE_TIMEOUT = PATIENT / 2


class WallClock(SystemClock):
    """A clock whose wall time is off by so many seconds."""

    __slots__ = ("_off",)

    def __init__(self, off: float) -> None:
        self._off = int(off * 1e9)

    def wall_ns(self) -> int:
        return time.time_ns() + self._off


def us() -> int:
    return time.time_ns() // 1000


# -- a minority that is down, hangs or is slow


@pytest.mark.parametrize("how", ["down", "hanging"])
async def test_minority_that_does_not_answer_costs_one_node_timeout_once(nodes: RedlockServers, how: str):
    client, rival = connect(nodes.url, io_timeout=PATIENT), connect(nodes.url, io_timeout=PATIENT)
    async with client, rival:
        async with rival.lock("warm"):
            pass
        async with client.lock("r"):
            for node in nodes.nodes[:2]:
                node.kill() if how == "down" else node.pause()
            try:
                took = []
                for _ in range(3):
                    started = time.monotonic()
                    # Busy: a round that is not won has to wait for every node that may answer.
                    assert await rival.lock("r").try_acquire() is None
                    took.append(time.monotonic() - started)
                assert took[0] < NODE_TIMEOUT * 1.7
                assert max(took[1:]) < NODE_TIMEOUT / 2
                started = time.monotonic()
                async with rival.lock("other"), client.lock("another"):
                    pass
                assert time.monotonic() - started < NODE_TIMEOUT * 1.7
            finally:
                for node in nodes.nodes[:2]:
                    node.start() if how == "down" else node.resume()
        # And they take part again when they answer.
        async with rival.lock("r"):
            pass
        # The other one as well: what it still owes a node would be in the way there.
        await eventually(lambda: not client._engine.store._nodes._silent)  # type: ignore[attr-defined]
        await eventually(lambda: not rival._engine.store._nodes._silent)  # type: ignore[attr-defined]
        async with rival.lock("r"):
            await eventually(lambda: "" not in holders(nodes))


async def test_slow_minority_is_not_waited_for(nodes: RedlockServers):
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes.nodes[:2]]
        ports = [proxy.port for proxy in proxies] + [node.port for node in nodes.nodes[2:]]
        async with connect(_url(ports), io_timeout=PATIENT) as client:
            async with client.lock("r"):
                pass
            for proxy in proxies:
                proxy.down.delay = 3.0
            started = time.monotonic()
            for _ in range(5):
                async with client.lock("r") as lease:
                    pass
            assert lease.token
            assert time.monotonic() - started < 3.0
            for proxy in proxies:
                proxy.heal()
            await eventually(lambda: holders(nodes) == [""] * 5)


async def test_majority_that_does_not_answer_is_an_outage(nodes: RedlockServers):
    client = connect(nodes.url, io_timeout=1.0)
    async with client:
        lease = await client.lock("r", ttl=2).acquire()
        with nodes.silenced(3):
            with pytest.raises(StoreUnavailable, match="2 of 5 nodes answered, and 3 are needed"):
                await client.lock("other").acquire(0)
            with pytest.raises(StoreUnavailable):
                await lease.renew()
            assert lease.state == "at risk"  # unknown is not yet lost
            await pause(2.1)
            assert lease.lost
        with pytest.raises(LeaseLost):
            await lease.release()
        async with client.lock("other", timeout=10):
            pass


# -- replies that are lost, messages that come late


async def test_grant_whose_replies_were_lost_is_found_again(nodes: RedlockServers):
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes.nodes]
        async with connect(_url([proxy.port for proxy in proxies]), io_timeout=1.0) as client:
            store = client._engine.store
            async with client.lock("warm"):
                pass
            claim = Claim("r", "actor.1", ttl=60.0)
            for proxy in proxies:
                proxy.down.mode = "drop"
            with pytest.raises(StoreUnavailable):
                await store.claim(claim)
            assert holders(nodes) == ["actor.1"] * 5
            (granted_before,) = {ballot(node) for node in nodes.nodes}
            for proxy in proxies:
                proxy.heal()
            granted = await store.claim(claim)
            assert isinstance(granted, Granted)
            assert granted.token == granted_before
            assert granted.left < 60.0
            assert await store.release("r", "actor.1") is True
            await eventually(lambda: holders(nodes) == [""] * 5)
            assert await store.release("r", "actor.1") is False


async def test_connections_reset_in_the_middle_are_survived(nodes: RedlockServers):
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes.nodes]
        async with connect(_url([proxy.port for proxy in proxies]), io_timeout=4.0) as client:
            for after in (1, 20, None):
                for proxy in proxies:
                    proxy.down.limit = after
                    if after is None:
                        proxy.reset()
                lease = await client.lock("r", timeout=30).acquire()
                for proxy in proxies:
                    proxy.heal()
                await lease.release()
            await eventually(lambda: holders(nodes) == [""] * 5)


async def test_claim_that_a_hanging_node_runs_late_leaves_no_ghost(nodes: RedlockServers):
    """The node is told to release when it answers again, after everybody else."""
    async with (
        connect(nodes.url, io_timeout=1.0) as client,
        connect(nodes.url, io_timeout=PATIENT) as other,
        other.lock("busy"),
    ):
        async with client.lock("warm"):
            pass
        nodes.nodes[0].pause()
        try:
            lease = await client.lock("r", ttl=60).acquire()  # the claim waits in the socket of the first node
            assert await client.lock("busy").try_acquire() is None  # waits for all: now the first node is silent
            await lease.release()
        finally:
            nodes.nodes[0].resume()
        await eventually(lambda: not client._engine.store._nodes._silent)  # type: ignore[attr-defined]
        await eventually(lambda: holders(nodes) == [""] * 5)
        assert counter(nodes.nodes[0]) == lease.token  # it ran both


async def test_scripts_that_nodes_have_forgotten_are_sent_again(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client:
        for flushed in (nodes.nodes[:1], nodes.nodes[:3], nodes.nodes):
            async with client.lock("r") as lease:
                for node in flushed:
                    node.call("SCRIPT", "FLUSH")
                await lease.renew()


# -- restarts


async def test_lease_survives_a_restart_of_all_nodes(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client, connect(nodes.url, io_timeout=PATIENT) as rival:
        async with client.lock("r", ttl=60) as lease:
            nodes.restart()
            assert await rival.lock("r").try_acquire() is None
            await lease.renew()
        async with rival.lock("r") as later:
            assert later.token > lease.token


async def test_minority_that_lost_its_data_changes_nothing(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client, connect(nodes.url, io_timeout=PATIENT) as rival:
        async with client.lock("r", ttl=60) as lease:
            for node in nodes.nodes[:2]:
                node.kill()
                node.forget()
                node.start()
            with pytest.raises(AcquireTimeout):
                await rival.lock("r").acquire(0)
            await lease.renew()
            assert holders(nodes)[:2] == ["", ""]  # a renewal creates nothing


async def test_tokens_rise_by_the_clock_when_all_data_is_lost(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client, connect(nodes.url, io_timeout=PATIENT) as rival:
        lease = await client.lock("r", ttl=60).acquire()
        for node in nodes.nodes:
            node.kill()
            node.forget()
            node.start()
        async with rival.lock("r", timeout=30) as later:  # two believe to hold: that is what lost data does
            assert later.token > lease.token
            with pytest.raises(LeaseLost):
                await lease.renew()


# -- clocks


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
async def test_jumped_clock_makes_two_holders_and_the_fence_refuses_the_older(nodes: RedlockServers):
    first, second = connect(nodes.url, io_timeout=PATIENT), connect(nodes.url, io_timeout=PATIENT)
    async with first, second:
        for node in nodes.nodes[3:]:
            node.stop()
        old = await first.lock("r", ttl=10).acquire()  # on three of five
        for node in nodes.nodes[3:]:
            node.start()
        assert await second.lock("r").try_acquire() is None  # the control: without the jump there is one holder
        with moved(nodes.nodes[0].pid, realtime=11.0):
            new = await second.lock("r", ttl=10).acquire()
            assert old.state == new.state == "held"  # nobody has told the first: both believe to hold
            assert new.token > old.token
            await second._engine.store.write("account", "new", new.fence)
            with pytest.raises(StaleToken):
                await first._engine.store.write("account", "old", old.fence)
            assert await second._engine.store.read("account") == Record("new", new.token)
            with pytest.raises(LeaseLost):
                await renewed_for_sure(old)
            await new.release()


async def renewed_for_sure(lease: Lease) -> None:
    """Renew, and again while the answer is unknown: a node that was down may still be left out."""

    async def answered() -> bool:
        try:
            await lease.renew()
        except StoreUnavailable:
            return False
        return True

    await eventually(answered)


async def test_poisoned_counter_of_a_minority_does_not_stop_the_others(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client:
        for count in (1, 2):
            for node in nodes.nodes[:count]:
                poison(node, us() + 2 * HOUR * 10**6)
            before = us()
            async with client.lock("r") as lease:
                assert before <= lease.token <= us()  # it was not carried away
                assert holders(nodes)[:count] == [""] * count
        for node in nodes.nodes[:3]:
            poison(node, us() + 2 * HOUR * 10**6)
        with pytest.raises(StoreError, match="clock"):
            await client.lock("r").acquire(0)


@pytest.mark.parametrize("off", [-0.75 * HOUR, 0.75 * HOUR])
async def test_tokens_rise_among_clients_whose_clocks_differ(nodes: RedlockServers, off: float):
    right = connect(nodes.url, io_timeout=PATIENT)
    wrong = Client(parse_url(nodes.url), io_timeout=PATIENT, clock=WallClock(off))
    async with right, wrong:
        tokens = []
        for client in (right, wrong, right, wrong, right):
            async with client.lock("r") as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("off", "way"), [(-2 * HOUR, "behind"), (2 * HOUR, "ahead of")])
async def test_clock_that_is_far_off_is_named(nodes: RedlockServers, off: float, way: str):
    async with Client(parse_url(nodes.url), io_timeout=PATIENT, clock=WallClock(off)) as client:
        with pytest.raises(StoreError, match=f"clock, which is 7[12][0-9][0-9] s {way} theirs"):
            await client.lock("r").acquire(0)
    assert holders(nodes) == [""] * 5


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
async def test_node_whose_clock_is_far_off_is_outvoted(nodes: RedlockServers):
    with moved(nodes.nodes[0].pid, realtime=-2.0 * HOUR):
        async with connect(nodes.url, io_timeout=PATIENT) as client, client.lock("r"):
            assert holders(nodes)[0] == ""
            await eventually(lambda: "" not in holders(nodes)[1:])


# -- what is left of rounds that were not won


async def test_votes_of_a_round_that_was_not_won_are_given_back(nodes: RedlockServers):
    async with connect(nodes.url, io_timeout=PATIENT) as client, connect(nodes.url, io_timeout=PATIENT) as rival:
        for node in nodes.nodes[3:]:
            node.stop()
        async with client.lock("r"):
            for node in nodes.nodes[3:]:
                node.start()
            claim = Claim("r", "actor.1", ttl=60.0)
            for queue in (True, False):
                assert isinstance(await rival._engine.store.claim(claim, queue), Waiting)
                assert holders(nodes)[3:] == ["", ""]
                lines = [len(line(node)) for node in nodes.nodes]
                assert lines == ([1] * 5 if queue else [0] * 5), "it waits everywhere, or nowhere"
                await rival._engine.store.release("r", "actor.1")


# -- configuration


def _url(ports: list[int]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


async def test_node_that_forgets_is_refused_where_correctness_is_required(
    nodes: RedlockServers, caplog: pytest.LogCaptureFixture
):
    for setting in (("appendfsync", "everysec"), ("appendonly", "no")):
        nodes.nodes[4].call("CONFIG", "SET", *setting)
        try:
            async with connect(nodes.url, require="correctness", io_timeout=PATIENT) as strict:
                with pytest.raises(StoreError, match=setting[0]):
                    await strict.ready()
                with pytest.raises(StoreError, match=setting[0]):
                    await strict.lock("r").acquire()
            caplog.clear()
            with caplog.at_level(logging.WARNING, "holdfast"):
                async with connect(nodes.url, io_timeout=PATIENT) as client:
                    async with client.lock("r", timeout=30):
                        pass
                    async with client.lock("r", timeout=30):
                        pass
            said = [record.message for record in caplog.records if setting[0] in record.message]
            assert len(said) == 1
        finally:
            nodes.nodes[4].call("CONFIG", "SET", "appendonly", "yes")
            nodes.nodes[4].call("CONFIG", "SET", "appendfsync", "always")


async def test_configured_nodes_are_good_enough_for_correctness(nodes: RedlockServers):
    async with connect(nodes.url, require="correctness", io_timeout=PATIENT) as client:
        await client.ready()
        async with client.lock("r") as lease:
            assert lease.token


# -- who is told that the resource is free


@pytest.mark.parametrize("away", ["from the start", "while it waits"])
async def test_waiter_is_served_although_the_node_that_tells_hangs(nodes: RedlockServers, away: str):
    """Notices come from the first node that answers; one that gets lost costs time, and nothing else."""
    async with connect(nodes.url, io_timeout=2.0) as client, connect(nodes.url, io_timeout=2.0) as holder:
        lease = await holder.lock("r", ttl=60).acquire()
        if away == "from the start":
            nodes.nodes[0].pause()
        try:
            call = spawn(client.lock("r", ttl=60).acquire)
            await eventually(lambda: client._engine.store._subscriber.number > 0)  # type: ignore[attr-defined]
            await eventually(lambda: len(line(nodes.nodes[1])) == 1)
            nodes.nodes[0].pause()
            await lease.release()
            await (await call.join(30)).release()
        finally:
            nodes.nodes[0].resume()


async def test_replies_that_nobody_waited_for_are_no_silence(nodes: RedlockServers, caplog: pytest.LogCaptureFixture):
    """A round ends when a majority has answered; the other answers wait in their sockets while the client is idle."""
    async with connect(nodes.url, io_timeout=2.0) as client:
        with caplog.at_level(logging.WARNING, "holdfast"):
            for _ in range(3):
                for _ in range(5):
                    async with client.lock("r"):
                        pass
                await pause(1.2)  # longer than a node may take to answer
    assert caplog.messages == []


@pytest.mark.parametrize("how", ["granted", "withdrawn", "unanswered"])
async def test_nothing_is_remembered_of_a_claim_that_waited_while_its_subscription_ended(
    nodes: RedlockServers, how: str
):
    async with connect(nodes.url, io_timeout=2) as client:
        store = client._engine.store
        assert isinstance(store, RedlockStore)
        held, waits = Claim("r", "client.1"), Claim("r", "client.2")
        await store.claim(held)
        for _ in range(2):  # the first time it subscribes
            waiting = await store.claim(waits)
            assert isinstance(waiting, Waiting)
            await store.wait(waits, waiting, 0.0)
        assert list(store._subscriber._wakeups) == [waits.holder]
        store._subscriber.interrupt()  # as if its node had gone
        if how == "granted":
            await store.release("r", held.holder)
            assert isinstance(await store.claim(waits), Granted)
        elif how == "withdrawn":
            await store.release("r", waits.holder)
        else:
            with nodes.silenced(), pytest.raises(StoreUnavailable):
                await store.release("r", waits.holder)
        assert store._subscriber._wakeups == {}
