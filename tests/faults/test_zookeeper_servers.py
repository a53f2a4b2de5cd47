"""The ZooKeeper servers that tests start: what they can be made to suffer happens to them, and ends.

On a busy machine members give each other up and elect anew at any time, and log and answer late. So these tests look
at what must come true, or must never be true, and count the member's own attempts instead of seconds.
"""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.testing._sync.runtime import eventually
from holdfast.testing.servers import START_SECONDS, Missing, free_port, zookeeper
from holdfast.testing.servers.zookeeper import PeerProxy, ZooKeeperEnsemble, ZooKeeperServer
from tests.servers import needed

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with needed(lambda: ZooKeeperEnsemble(proxied=True, sync_limit=5)) as found:
        yield found


def comes_true(condition: Callable[[], object]) -> None:
    """Wait with the patience that a start gets: an election takes as long, and may have to be held twice."""
    eventually(condition, limit=START_SECONDS)


def says(member: ZooKeeperServer, word: str) -> str:
    """Return its answer to a four letter word, or nothing if there is none in time."""
    try:
        return member.four(word)
    except OSError:
        return ""


def out(member: ZooKeeperServer) -> bool:
    """Return whether it says that it does not serve; one that is merely slow says nothing."""
    return "not currently serving" in says(member, "srvr")


def epoch(member: ZooKeeperServer) -> int:
    """Return how many elections there have been, as the member knows it; 0 if it does not serve."""
    zxid = re.search(r"^Zxid: 0x(\w+)$", says(member, "srvr"), re.MULTILINE)
    return int(zxid[1], 16) >> 32 if zxid else 0


def pair_serves(members: list[ZooKeeperServer]) -> bool:
    return sorted(str(member.mode()) for member in members) == ["follower", "leader"]


def attempts(member: ZooKeeperServer) -> int:
    """Return how often it has called all others and waited for them in vain."""
    return member.log.count("Notification time out")


def looks_in_vain(member: ZooKeeperServer, *, always: Callable[[], None] = lambda: None) -> None:
    """Wait until it has looked for the others two more times."""
    enough = attempts(member) + 2
    eventually(
        lambda: attempts(member) >= enough,
        always,
        limit=START_SECONDS,
        complaint=lambda: f"{member.mode()} instead of looking\n{member.log_end}",
    )


def stays_out(member: ZooKeeperServer) -> None:
    """See that a member that is cut off serves no more, however often it looks for the others."""

    def still_out() -> None:
        assert member.mode() is None, member.log_end

    comes_true(lambda: out(member))
    looks_in_vain(member)  # what was under way when it was cut off, be it the last step of a return, is over then
    looks_in_vain(member, always=still_out)
    comes_true(lambda: says(member, "ruok") == "imok")  # clients reach it


@pytest.mark.parametrize("tls", [False, True])
def test_one_server_answers_and_is_restarted(tls: bool) -> None:
    with needed(lambda: ZooKeeperServer("globalOutstandingLimit=77", tls=tls, tick=300)) as server:
        assert server.mode(START_SECONDS) == "standalone"
        server.stop()
        assert server.mode() is None
        server.start()
        assert server.mode(START_SECONDS) == "standalone"
        assert server.four("ruok", START_SECONDS) == "imok"
        assert "tickTime=300" in server.four("conf", START_SECONDS)
        assert "globalOutstandingLimit" in (server.folder / "zoo.cfg").read_text()


def test_a_missing_jar_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zookeeper, "JAR", tmp_path / "zookeeper.jar")
    with pytest.raises(Missing, match="make servers"):
        ZooKeeperServer()


def test_a_leader_that_is_killed_is_followed_by_another(ensemble: ZooKeeperEnsemble) -> None:
    old, *others = ensemble.in_order()
    comes_true(lambda: ensemble.followers == others)
    before = max(map(epoch, ensemble.members))
    old.kill()
    assert old.mode() is None
    new = ensemble.new_leader(old)
    assert new in others
    comes_true(lambda: pair_serves(others))
    comes_true(lambda: epoch(new) > before)
    old.start(wait=False)
    ensemble.wait_ready()


@pytest.mark.parametrize("reset", [False, True], ids=["silently", "reset"])
def test_a_member_that_is_cut_off_serves_no_more_until_it_is_healed(ensemble: ZooKeeperEnsemble, reset: bool) -> None:
    _, follower, _ = ensemble.in_order()
    others = [other for other in ensemble.members if other is not follower]
    with ensemble.cut_off(follower, reset=reset):
        stays_out(follower)
        comes_true(lambda: pair_serves(others))
        assert follower.mode() is None
    ensemble.wait_ready()


@pytest.mark.parametrize("reset", [False, True], ids=["silently", "reset"])
def test_a_leader_that_is_cut_off_is_followed_by_another(ensemble: ZooKeeperEnsemble, reset: bool) -> None:
    old, *others = ensemble.in_order()
    before = max(map(epoch, ensemble.members))
    with ensemble.cut_off(old, reset=reset):
        stays_out(old)
        comes_true(lambda: pair_serves(others))
        comes_true(lambda: max(map(epoch, others)) > before)
        assert old.mode() is None
    ensemble.wait_ready()


def test_no_member_calls_back_around_the_proxies(ensemble: ZooKeeperEnsemble) -> None:
    """A member of a higher number hangs up on one of a lower, and calls back: where it said, or where zoo.cfg says."""
    one = ensemble.members[0]
    try:
        with ensemble.cut_off(one, reset=True):
            looks_in_vain(one)  # it has forgotten who leads
            calls = [ensemble.ways[one.number, other.number] for other in ensemble.members[1:]]
            for quorum, election in calls:
                quorum.heal()
                election.heal()
            stays_out(one)  # it may call, and cannot be called back
            # The control: with its own address in its calls, nothing else keeps it from coming back around the cut.
            for _, election in calls:
                election.election = False
            comes_true(one.answers)
    finally:
        for ways in ensemble.ways.values():
            ways[1].election = True
        one.kill()  # it takes the connections with it that lead around
        one.start(wait=False)
        ensemble.wait_ready()


class SlowWay(PeerProxy):
    """A way whose end is far off."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.reaching, self.arrives = threading.Event(), threading.Event()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.reaching.set()
        await asyncio.to_thread(self.arrives.wait, START_SECONDS)
        return await super()._reach()


def test_a_connection_that_is_being_made_when_a_member_is_cut_off_comes_to_nothing() -> None:
    """It takes half a second if a leader has yet to open its port. Nobody would end it once it stood."""
    with socket.create_server(("127.0.0.1", 0)) as member, SlowWay(member.getsockname()[1]) as way:
        member.settimeout(START_SECONDS)
        with socket.create_connection(("127.0.0.1", way.port), START_SECONDS) as caller:
            assert way.reaching.wait(START_SECONDS)
            way.refuse = True
            way.reset()
            way.arrives.set()
            with pytest.raises(ConnectionResetError):
                caller.recv(1)
        assert not way.up.forwarded


class BusyWay(PeerProxy):
    """A way that is slow to see who calls."""

    def hold_up(self, gate: threading.Event) -> None:
        held = threading.Event()

        def hold() -> None:
            held.set()
            gate.wait(START_SECONDS)

        self._loop.call_soon_threadsafe(hold)
        assert held.wait(START_SECONDS)


def test_a_caller_who_comes_as_a_way_is_closed_leaves_no_connection_behind() -> None:
    gate = threading.Event()
    with BusyWay(free_port()) as way:
        way.hold_up(gate)
        with socket.create_connection(("127.0.0.1", way.port), START_SECONDS):
            pass
        threading.Timer(0.1, gate.set).start()  # when the way is being closed
    gc.collect()  # what is found open now fails the test, as any warning does


def test_a_member_without_a_majority_serves_readers_if_it_may() -> None:
    with needed(lambda: ZooKeeperEnsemble(read_only=True)) as ensemble:
        one, *others = ensemble.members
        for other in others:
            other.kill()
        comes_true(lambda: one.mode() == "read-only")
        assert not one.answers(), "nobody can write"
