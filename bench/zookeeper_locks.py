"""Locks on ZooKeeper, ours and the peers', to be timed or contended for; and processes that use them side by side."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import holdfast
from bench.contend import Take
from bench.harness import Slice, peer, timed
from holdfast.testing.servers.zookeeper import Settings, ZooKeeperServer

TTL = 30  # of leases and of all sessions
# What ZooKeeper and its sample zoo.cfg have. The short times of the tests would add pings and elections to the figures.
SETTINGS: Settings = {
    "tick": 2000,
    "init_limit": 10,
    "sync_limit": 5,
    "min_session_timeout": 4000,
    "max_session_timeout": 40_000,
    "container_check": 60_000,
    "fsync": True,
}
STATED = f"ZooKeeper on loopback, fsync on, tickTime 2000 (as by default), sessions of {TTL} s, no TLS"
_IO_TIMEOUT = 10.0
_START_SECONDS = 30.0  # for all processes to be connected; if one has failed, the others do not wait for ever
_PATIENCE = 60.0  # seconds after its time in which a process must have ended


def host_of(server: ZooKeeperServer) -> str:
    """Return the address of one server. Clients that know no other are all connected to the same one."""
    return f"127.0.0.1:{server.port}"


@contextmanager
def ours(host: str, name: str) -> Iterator[Take]:
    """holdfast."""
    with holdfast.connect(f"zookeeper://{host}", io_timeout=_IO_TIMEOUT) as locks:
        lock = locks.lock(name, ttl=TTL)

        def take() -> tuple[int, Callable[[], object]]:
            lease = lock.acquire()
            return lease.token, lease.release

        yield take


@contextmanager
def kazoo(host: str, name: str) -> Iterator[Take]:
    """kazoo's Lock: a new one every time, as holdfast makes a new claim."""
    client = peer("kazoo.client").KazooClient(hosts=host, timeout=TTL)
    client.start(timeout=_IO_TIMEOUT)

    def take() -> tuple[int, Callable[[], object]]:
        lock = client.Lock(f"/kazoo/{name}")
        assert lock.acquire(), "kazoo did not get the lock"
        return 0, lock.release

    try:
        yield take
    finally:
        client.stop()
        client.close()


@contextmanager
def tooz(host: str, name: str) -> Iterator[Take]:
    """tooz's ZooKeeper driver, on top of kazoo."""
    peer("kazoo")
    coordinator = peer("tooz.coordination").get_coordinator(f"zookeeper://{host}?timeout={TTL}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())

    def take() -> tuple[int, Callable[[], object]]:
        assert lock.acquire(), "tooz did not get the lock"
        return 0, lock.release

    try:
        yield take
    finally:
        coordinator.stop()


# Opens a lock of this name for a client of this server.
Open = Callable[[str, str], AbstractContextManager[Take]]
LOCKS: Mapping[str, Open] = {"holdfast": ours, "kazoo Lock": kazoo, "tooz/zookeeper": tooz}
MODULES: Mapping[str, str] = {"holdfast": "holdfast", "kazoo Lock": "kazoo", "tooz/zookeeper": "tooz"}


@contextmanager
def paired(open_: Open, host: str, name: str) -> Iterator[Slice]:
    """Time acquire + release."""
    with open_(host, name) as take:
        yield timed(lambda: take()[1]())


def side_by_side(work: Callable[..., None], calls: Sequence[tuple[object, ...]], seconds: float) -> None:
    """Run a function in a process for each of these arguments; it gets a barrier for all of them before its own.

    Raises:
        RuntimeError: if a process failed or did not end in time.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(calls), timeout=_START_SECONDS)
    workers = [context.Process(target=work, args=(start, *arguments)) for arguments in calls]
    for worker in workers:
        worker.start()
    give_up = time.monotonic() + seconds + _PATIENCE
    for worker in workers:
        worker.join(max(0, give_up - time.monotonic()))
    codes = [worker.exitcode for worker in workers]
    for worker in workers:
        worker.kill()
        worker.join()
    if set(codes) != {0}:
        raise RuntimeError(f"the processes' exit codes: {codes} (None: not ended {_PATIENCE:g} s after its time)")
