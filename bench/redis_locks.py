"""Locks on one Redis, ours and the peers', to be timed or contended for. The file `port` in a directory says where."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import holdfast
from bench.contend import Take
from bench.harness import Slice, peer, timed

TTL = 30
NAME = "bench"


def port_of(directory: Path) -> int:
    """Read where the server is."""
    return int((directory / "port").read_text())


def url_of(port: int) -> str:
    """Return our URL of the server, whose settings are chosen for the measurement."""
    return f"redis://127.0.0.1:{port}?trust_config=true"


@contextmanager
def ours(directory: Path) -> Iterator[Take]:
    """holdfast."""
    with holdfast.connect(url_of(port_of(directory))) as locks:
        lock = locks.lock(NAME, ttl=TTL)

        def take() -> tuple[int, Callable[[], object]]:
            lease = lock.acquire()
            return lease.token, lease.release

        yield take


def plain(lock: Any) -> Take:
    """Take and give back a lock that has no token."""

    def take() -> tuple[int, Callable[[], object]]:
        lock.acquire()
        return 0, lock.release

    return take


@contextmanager
def redis_py(directory: Path) -> Iterator[Take]:
    """redis-py's Lock: SET NX, polls every 0.1 s."""
    with peer("redis").Redis(port=port_of(directory)) as client:
        yield plain(client.lock(NAME + " redis-py", timeout=TTL))


@contextmanager
def python_redis_lock(directory: Path) -> Iterator[Take]:
    """python-redis-lock: SET NX, waits by BLPOP."""
    with peer("redis").Redis(port=port_of(directory)) as client:
        yield plain(peer("redis_lock").Lock(client, NAME + " python-redis-lock", expire=TTL))


@contextmanager
def pottery(directory: Path) -> Iterator[Take]:
    """pottery's Redlock on one server."""
    with peer("redis").Redis(port=port_of(directory)) as client:
        yield plain(peer("pottery").Redlock(key=NAME, masters={client}, auto_release_time=TTL))


@contextmanager
def tooz_redis(directory: Path) -> Iterator[Take]:
    """tooz's Redis driver."""
    coordinator = peer("tooz.coordination").get_coordinator(f"redis://127.0.0.1:{port_of(directory)}", b"bench")
    coordinator.start()
    try:
        yield plain(coordinator.get_lock(NAME.encode()))
    finally:
        coordinator.stop()


LOCKS: Mapping[str, Callable[[Path], AbstractContextManager[Take]]] = {
    "holdfast": ours,
    "redis-py Lock": redis_py,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
    "tooz/redis": tooz_redis,
}


def paired(kind: str) -> Callable[[Path], AbstractContextManager[Slice]]:
    """Make a contender of a lock."""

    @contextmanager
    def open_(directory: Path) -> Iterator[Slice]:
        with LOCKS[kind](directory) as take:
            yield timed(lambda: take()[1]())

    return open_
