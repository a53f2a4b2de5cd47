"""Processes that contend for one file: killed, stopped, forked and interrupted."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.claim import Claim, Granted, Renewed, ResourceState, Waiting, find
from holdfast.stores.sqlite import host
from holdfast.stores.sqlite.claims import Claims
from holdfast.testing._sync.runtime import eventually

from .driven import environment, open_claims, sql

HERE = Path(__file__).parent


class Actor:
    """A process that locks as it is told."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "actor.py"), f"sqlite://{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))

    def send(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = 20.0) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            pytest.fail(f"no answer within {seconds} s")
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.send(do, **arguments)
        answer = self.answer()
        assert "message" not in answer, answer
        return answer

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self, *, reap: bool = True) -> float:
        """End it at once; unreaped it stays as a zombie. Return when."""
        at = boot_time()
        self.signal(signal.SIGKILL)
        if reap:
            self._process.wait(10)
        else:
            eventually(lambda: _stat(self.pid)[0] == "Z")
        return at

    def end(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()


class Stage:
    """A file and the processes that lock in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.actors: list[Actor] = []
        self._observer: Claims | None = None

    def actor(self) -> Actor:
        return self.cast(1)[0]

    def cast(self, count: int) -> list[Actor]:
        new = [Actor(self.path) for _ in range(count)]
        self.actors += new
        for actor in new:
            assert actor.answer()["pid"] == actor.pid
        return new

    def view(self, resource: str = "job") -> ResourceState | None:
        if self._observer is None:
            self._observer = open_claims(self.path, namespace="default")
        return find(self._observer.inspect(resource), resource)

    def await_waiters(self, count: int, resource: str = "job") -> None:
        def there() -> bool:
            state = self.view(resource)
            return state is not None and len(state.waiters) == count

        eventually(there, complaint=lambda: f"{count} should wait: {self.view(resource)}")

    def close(self) -> None:
        for actor in self.actors:
            actor.end()
        if self._observer is not None:
            self._observer.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "locks.db")
    yield stage
    stage.close()


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# -- killed


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombie"])
def test_the_next_waiter_holds_within_a_second_of_the_death_of_the_holder(stage: Stage, reap: bool) -> None:
    holder, waiter = stage.cast(2)
    first = holder.ask("acquire", name="job", ttl=30)
    waiter.send("acquire", name="job", ttl=30)
    stage.await_waiters(1)
    killed = holder.kill(reap=reap)
    held = waiter.answer()
    assert held["at"] - killed < 1.0
    assert held["token"] > first["token"]


def test_somebody_who_comes_after_the_death_of_the_holder_holds_at_once(stage: Stage) -> None:
    holder = stage.actor()
    holder.ask("acquire", name="job", ttl=30)
    holder.kill()
    newcomer = stage.actor()
    assert newcomer.ask("acquire", name="job", timeout=0)["token"]


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombie"])
def test_the_one_behind_a_killed_waiter_gets_it(stage: Stage, reap: bool) -> None:
    holder, head, behind = stage.cast(3)
    holder.ask("acquire", name="job")
    head.send("acquire", name="job")
    stage.await_waiters(1)
    behind.send("acquire", name="job")
    stage.await_waiters(2)
    head.kill(reap=reap)
    released = holder.ask("release", name="job")["at"]
    assert behind.answer()["at"] - released < 1.0


def test_the_one_behind_gets_it_when_holder_and_head_die_together(stage: Stage) -> None:
    holder, head, behind = stage.cast(3)
    holder.ask("acquire", name="job")
    head.send("acquire", name="job")
    stage.await_waiters(1)
    behind.send("acquire", name="job")
    stage.await_waiters(2)
    head.kill()
    killed = holder.kill()
    assert behind.answer()["at"] - killed < 1.0


def test_a_detached_claim_outlives_its_process_and_its_waiters_sleep(stage: Stage) -> None:
    holder, waiter = stage.cast(2)
    held = holder.ask("acquire", name="job", ttl=2.0, renew=False)
    holder.kill()
    got = waiter.ask("acquire", name="job")
    assert got["at"] - held["at"] > 1.9, "it was freed by the death of its process"
    assert got["at"] - held["at"] < 4.0
    assert got["asks"] <= 5, f"the waiter asked {got['asks']} times: it spins"


def test_what_min_hold_keeps_outlives_its_process_and_its_waiters_sleep(stage: Stage) -> None:
    holder, waiter = stage.cast(2)
    held = holder.ask("acquire", name="job", ttl=30, min_hold=2.0)
    holder.ask("release", name="job")
    holder.kill(reap=False)
    got = waiter.ask("acquire", name="job")
    assert 1.9 < got["at"] - held["at"] < 4.0
    assert got["asks"] <= 5, f"the waiter asked {got['asks']} times: it spins"


# -- who is dead


@pytest.fixture
def own() -> str:
    name = host.process_id()
    assert name.count(":") == 2
    return name


def test_a_process_is_dead_when_it_is_gone_or_its_pid_has_another_start(own: str) -> None:
    space, pid, start = own.split(":")
    parent = os.getppid()
    child = subprocess.Popen(["true"])
    child.wait()
    other = f"{space}:1:x"
    assert not host.is_dead(own, own)
    assert not host.is_dead(own, other), "seen by another process"
    assert host.is_dead(f"{space}:{pid}:{int(start) + 1}", other), "the pid was used again"
    assert host.is_dead(f"{space}:{child.pid}:{start}", other)
    assert not host.is_dead(f"{space}:{parent}:{_stat(parent)[19]}", own)
    assert host.is_dead(f"{space}:{parent}:1", own)


def _stat(pid: int) -> list[str]:
    """Return the facts of a process after its name: first its state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_process_of_another_pid_namespace_or_without_a_name_is_not_judged(own: str) -> None:
    for process in ("", "1:999999:5", f"{int(own.split(':')[0]) + 1}:{os.getpid()}:1"):
        assert not host.is_dead(process, own)
        assert host.pid_of(process, own) is None
        assert not host.is_dead(own, process)


def test_a_process_whose_main_thread_alone_has_ended_is_alive(own: str) -> None:
    code = (
        "import threading, time, ctypes, sys\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        name = f"{own.split(':')[0]}:{process.pid}:{_stat(process.pid)[19]}"
        try:
            eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
            assert not host.is_dead(name, own), "its other thread runs on"
        finally:
            process.kill()
        eventually(lambda: host.is_dead(name, own))  # now all of it has ended


class Elsewhere(Claims):
    """A client that says it is another process."""

    def pretend(self, process: str) -> None:
        self._process = process


def elsewhere(path: Path, process: str) -> Elsewhere:
    from holdfast._clock import SystemClock

    store = Elsewhere(path, "n", SystemClock(), 1.0, 6.0, False)
    store.pretend(process)
    return store


@pytest.mark.parametrize(
    ("changed", "dead"),
    [("start", True), ("pid", True), ("namespace", False), ("nothing known", False), ("nothing", False)],
)
def test_claims_are_judged_by_pid_namespace_pid_and_start(tmp_path: Path, own: str, changed: str, dead: bool) -> None:
    space, pid, start = own.split(":")
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = {
        "start": f"{space}:{pid}:{int(start) - 1}",
        "pid": f"{space}:{gone.pid}:{start}",
        "namespace": f"{int(space) + 1}:{gone.pid}:{start}",
        "nothing known": "",
        "nothing": own,
    }[changed]
    other = elsewhere(tmp_path / "locks.db", process)
    store = open_claims(tmp_path / "locks.db")
    assert isinstance(other.claim(Claim("job", "h1"), True), Granted)
    assert isinstance(store.claim(Claim("job", "h2"), False), Granted if dead else Waiting)
    assert other.renew([Claim("job", "h1")]) == ([holdfast.core.claim.LOST] if dead else [Renewed(30.0)])
    store.close()
    other.close()


# -- stopped


def test_a_holder_that_was_stopped_past_its_ttl_sees_the_loss_at_its_first_look(stage: Stage) -> None:
    holder, waiter = stage.cast(2)
    first = holder.ask("acquire", name="job", ttl=1)
    waiter.send("acquire", name="job")
    stage.await_waiters(1)
    holder.signal(signal.SIGSTOP)
    held = waiter.answer()
    assert held["token"] > first["token"]
    assert 0 < held["at"] - first["at"] < 3.0
    holder.send("look", name="job")  # the first thing it does when it goes on
    holder.signal(signal.SIGCONT)
    looked = holder.answer()
    assert looked["lost"] is True
    assert "lost" in looked["error"]
    # Control: whoever counts the time that it has run itself would believe that it still holds.
    assert looked["cpu"] - first["cpu"] < 1.0 < looked["age"]
    assert waiter.ask("look", name="job")["lost"] is False


def test_a_holder_that_was_stopped_for_less_than_its_ttl_still_holds(stage: Stage) -> None:
    holder = stage.actor()
    holder.ask("acquire", name="job", ttl=5)
    holder.signal(signal.SIGSTOP)
    eventually(lambda: _stat(holder.pid)[0] == "T")
    holder.send("look", name="job")
    holder.signal(signal.SIGCONT)
    assert holder.answer()["lost"] is False


# -- contention


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@pytest.mark.slow
def test_eight_processes_share_a_lock_without_overlap_and_fairly(stage: Stage) -> None:
    actors = stage.cast(8)
    begin = boot_time() + 0.2
    for actor in actors:
        actor.send("contend", name="job", seconds=3.0, begin=begin)
    shares, holds = [], []
    for actor in actors:
        mine = actor.answer(60)["holds"]
        shares.append(len(mine))
        holds += mine
    holds.sort()
    for (token, _, end), (later, start, _) in pairwise(holds):
        assert token < later
        assert end <= start, f"{token} held until {end}, and {later} from {start}"
    assert jain(shares) >= 0.95, shares
    assert len(holds) > 200, "they hardly got anywhere"
    assert stage.view() is None, "nothing is left"


@pytest.mark.control
def test_control_jain_tells_an_unfair_share() -> None:
    assert jain([100] * 8) == 1.0
    assert jain([100] * 7 + [0]) < 0.95
    assert jain([120, 100, 100, 100, 100, 100, 100, 20]) < 0.95


def test_a_waiter_is_woken_and_does_not_poll(stage: Stage) -> None:
    holder, waiter = stage.cast(2)
    held = holder.ask("acquire", name="job")
    waiter.send("acquire", name="job")
    stage.await_waiters(1)
    eventually(lambda: boot_time() - held["at"] > 1.0)
    released = holder.ask("release", name="job")["at"]
    got = waiter.answer()
    assert got["at"] - released < 0.5
    assert got["asks"] <= 3, f"asked {got['asks']} times in a second"


def test_waiters_go_on_when_their_wakeups_are_lost(stage: Stage) -> None:
    holder, *waiters = stage.cast(3)
    holder.ask("acquire", name="job")
    for count, waiter in enumerate(waiters, 1):
        waiter.send("acquire", name="job")
        stage.await_waiters(count)
    folder = stage.path.with_name("locks.db-wake")
    for socket in folder.iterdir():
        socket.unlink()
    folder.rmdir()
    last = holder.ask("release", name="job")["at"]
    for waiter in waiters:
        got = waiter.answer()
        assert got["at"] - last < 4.0, "a lost wake-up costs time, but not this much"
        last = waiter.ask("release", name="job")["at"]
    # A new waiter gets a new wake-up.
    newcomer = stage.actor()
    holder.ask("acquire", name="job")
    newcomer.send("acquire", name="job")
    stage.await_waiters(1)
    released = holder.ask("release", name="job")["at"]
    assert newcomer.answer()["at"] - released < 0.5


# -- forked


def run_forks(path: Path, forks: int, threads: int) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "forks.py"), str(path), str(forks), str(threads)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
        check=False,
    )
    assert done.stdout == "ok\n", done.stdout + done.stderr[-3000:]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.slow
@pytest.mark.parametrize(("forks", "threads"), [(50, 1), (48, 4)], ids=["in a row", "in four threads"])
def test_forks_with_an_open_client_under_load(tmp_path: Path, forks: int, threads: int) -> None:
    run_forks(tmp_path / "locks.db", forks, threads)


def test_a_fork_leaves_no_connection_to_the_child(tmp_path: Path) -> None:
    """SQLite must not be carried through a fork: the descriptors are closed before it and opened again after it."""
    path = tmp_path / "locks.db"
    code = f"""
import os, sys, holdfast
path = {str(path)!r}
def files():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + fd))
        except OSError:
            pass
    return [name for name in found if name in (path, path + "-wal", path + "-shm")]
locks = holdfast.connect("sqlite://" + path)
lease = locks.lock("job").acquire()
assert files(), "control: it is open before"
pid = os.fork()
if pid == 0:
    os._exit(len(files()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child has inherited the connection"
lease.renew()
assert files()
lease.release()
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), timeout=30)


# -- interrupted


def test_ctrl_c_in_a_contended_acquire_leaves_nothing_waiting(stage: Stage) -> None:
    holder = stage.actor()
    holder.ask("acquire", name="job")
    url = f"sqlite://{stage.path}"
    code = f"import holdfast\nwith holdfast.connect({url!r}).lock('job'):\n    print('held')\n"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        stage.await_waiters(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out == ""
    state = stage.view()
    assert state is not None
    assert [len(state.holders), len(state.waiters)] == [1, 0], "the claim was not withdrawn"


@pytest.mark.parametrize(
    "code",
    [
        "locks = holdfast.connect(url); lease = locks.lock('job').acquire()",
        "lease = holdfast.connect(url).lock('job').acquire()",
    ],
    ids=["client kept", "client dropped"],
)
def test_a_process_that_ends_in_order_gives_back_what_it_held(stage: Stage, code: str) -> None:
    whole = f"import holdfast; url = 'sqlite://{stage.path}'; {code}; assert lease.token"
    subprocess.run([sys.executable, "-c", whole], check=True, env=environment(), timeout=30, capture_output=True)
    assert stage.view() is None


def test_a_writer_that_is_killed_in_the_middle_harms_nobody(stage: Stage) -> None:
    actor = stage.actor()
    actor.ask("acquire", name="job")
    code = (
        "import os, signal, sqlite3, sys\n"
        f"c = sqlite3.connect({str(stage.path)!r}, isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE')\n"
        "c.execute('UPDATE claims SET holder = NULL')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert actor.ask("look", name="job")["lost"] is False
    state = stage.view()
    assert state is not None
    assert len(state.holders) == 1
    actor.ask("release", name="job")
    assert sql(stage.path, "PRAGMA integrity_check") == [("ok",)]
