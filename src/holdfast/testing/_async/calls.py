"""Laws 12 and 13: every call returns in time, and bad input is refused before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..._async.client import Client, connect
from ...core.urls import parse_url
from ...errors import AcquireTimeout, StoreUnavailable, Unsupported
from ..check import raises
from ..law import law
from . import runtime
from .case import Case, CaseClient
from .runtime import eventually
from .tap import Tap, times, unanswered

_IO = 0.25
_SHORT_IO = 0.1  # where no answer is waited for that has to come in time
_SLACK = 2.0  # a busy machine; far below what a call without a limit would take
_HELD = 20  # leases that a silent store does not release: each takes _IO, and more than _SLACK together
_VERBS = ("ready", "claim", "renew", "release", "inspect", "read", "write")


def _silence(tap: Tap, io_timeout: float = _IO) -> None:
    async def silent() -> None:
        await runtime.pause(io_timeout)
        raise StoreUnavailable(f"no answer within {io_timeout:g} s")

    for verb in _VERBS:
        tap.before[verb] = silent


async def _within(seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
    """Demand that a call raises StoreUnavailable within that time."""
    started = time.monotonic()
    with raises(StoreUnavailable):
        await call()
    took = time.monotonic() - started
    assert took <= seconds + _SLACK, f"{took:.1f} s instead of {seconds:g} s"


async def _calls_return(client: CaseClient, ttl: float, io_timeout: float) -> None:
    lock = client.lock("r", ttl=ttl)
    await _within(io_timeout, lambda: _awaited(lock.acquire(0)))
    await _within(0.3 + io_timeout, lambda: _awaited(lock.acquire(0.3)))
    await _within(0.3 + io_timeout, lambda: lock.try_acquire(0.3))
    await _within(4 * io_timeout, lambda: _awaited(lock.acquire(None)))


async def _awaited(lease: Awaitable[Any]) -> Any:
    return await lease


@law(12)
async def acquire_returns_although_the_store_is_silent(case: Case) -> None:
    """A silent store is told as StoreUnavailable, never as a busy resource, within timeout + io_timeout."""
    client = await case.client(real=True, io_timeout=_SHORT_IO)
    _silence(client.tap, _SHORT_IO)
    await _calls_return(client, case.real_ttl, _SHORT_IO)


@law(12)
async def lease_calls_return_although_the_store_is_silent(case: Case) -> None:
    """A renewal is told as unknown, a release as nothing: the keeper goes on trying."""
    client = await case.client(real=True, io_timeout=_IO)
    lease = await client.lock("r", ttl=60).acquire()
    _silence(client.tap)
    await _within(_IO, lease.renew)
    await _within(_IO, client.inspect)
    started = time.monotonic()
    await lease.release()
    assert time.monotonic() - started <= _IO + _SLACK
    client.tap.heal()
    await case.nothing_left()


@law(12)
async def wait_ends_in_time_although_the_store_falls_silent(case: Case) -> None:
    """A waiter whose store stops answering comes back at its timeout all the same."""
    client, holder = await case.client(real=True, io_timeout=_IO), await case.client(real=True)
    await holder.lock("r", ttl=60).acquire()
    started = time.monotonic()
    call = case.spawn(client.lock("r", ttl=60).acquire, 0.6)
    await eventually(lambda: client.tap.count("wait") > 0)
    _silence(client.tap)
    try:
        await call.join()
        raise AssertionError("a lease on what another holds")
    except (AcquireTimeout, StoreUnavailable):
        pass
    assert time.monotonic() - started <= 0.6 + _IO + _SLACK


@law(12)
async def close_returns_although_the_store_is_silent(case: Case) -> None:
    """close(timeout) gives up after its timeout, however much is held; what it could not release ends at its ttl."""
    client = await case.client(real=True, io_timeout=_IO)
    for number in range(_HELD):
        await client.lock(f"r{number}", ttl=60).acquire()
    _silence(client.tap)
    started = time.monotonic()
    await client.close(0.5)
    assert time.monotonic() - started <= 0.5 + _IO + _SLACK


@law(12, "silence")
async def calls_return_although_the_server_is_silent(case: Case) -> None:
    """The same with the real thing: the connection is open, and no answer comes."""
    assert case.target.silence is not None
    client = await case.client(real=True, io_timeout=_IO)
    lease = await client.lock("held", ttl=60).acquire()
    with case.target.silence(case.url):
        await _calls_return(client, case.real_ttl, _IO)
        await _within(_IO, lease.renew)
        started = time.monotonic()
        await lease.release()
        assert time.monotonic() - started <= _IO + _SLACK
    await case.nothing_left("held")
    await case.nothing_left("r")


@law(12)
async def outage_that_ends_in_time_is_survived(case: Case) -> None:
    """An acquire goes on asking, and gets the lease once the store answers again."""
    client = await case.client(real=True, io_timeout=_IO)
    _silence(client.tap)
    call = case.spawn(client.lock("r", ttl=60).acquire, 30)
    await eventually(lambda: client.tap.count("claim") >= 2)
    client.tap.heal()
    lease = await call.join()
    assert lease.state == "held"


@law(12)
async def outage_during_the_wait_is_survived(case: Case) -> None:
    """A waiter that loses its connection does not give up: it asks again, and is served in its turn."""
    client, store = await case.client(), await case.store()
    holder = case.claim(ttl=100)
    await store.claim(holder)
    client.tap.before["wait"] = times(2, unanswered)
    call = case.spawn(client.lock("r", ttl=60).acquire, 30)
    await case.until(lambda: client.tap.count("wait") >= 3 or call.done)
    assert len(await case.waiters()) == 1
    await store.release("r", holder.holder)
    await case.until(lambda: call.done)
    await call.join()


_NAMES: list[object] = ["", "x" * 513, "é" * 257, "a\nb", "a\0b", "\x7f", "\x85", "\ud800", None, 7, b"r", ["r"]]
_SECONDS: list[object] = [True, False, float("nan"), float("inf"), float("-inf"), -1, -0.001, "5", b"5", [5]]
_TTLS: list[object] = [*_SECONDS, None, 0, 0.49]
_URLS: list[object] = [
    "",
    "locks.db",
    "://x",
    "no-such-scheme-x://h",
    7,
    "memory://h:99999",
    "memory://a#b",
]


def _tells(caught: str, value: object) -> None:
    """Demand that a message shows the value: as Python writes it, or the beginning of a long one."""
    shown = repr(value) if not isinstance(value, str) or len(value) < 100 else repr(value)[1:30]
    assert shown in caught, f"{caught!r} does not show {shown}"


@law(13)
async def bad_names_and_numbers_are_refused(case: Case) -> None:
    """Whatever is no name, ttl, timeout or flag raises ValueError with the value, and nothing is sent."""
    client = await case.client()
    table: list[tuple[Callable[[Any], object], list[object]]] = [
        (lambda value: client.lock(value), _NAMES),
        (lambda value: client.lock("r", owner=value), [name for name in _NAMES if name is not None]),
        (lambda value: client.lock("r", ttl=value), _TTLS),
        (lambda value: client.lock("r", timeout=value), _SECONDS),
        (lambda value: client.lock("r", min_hold=value), [*_SECONDS, None]),
        (lambda value: client.lock("r", max_hold=value), _SECONDS),
        (lambda value: client.lock("r", reentrant=value), [None, 0, 1, "yes"]),
        (lambda value: client.lock("r", renew=value), [None, 0, 1, "yes"]),
        (lambda value: client.lock("r", fair=value), [0, 1, "yes"]),
        (lambda value: client.lock("r", on_lost=value), [1, "print"]),
        (lambda value: client.lock("r", ttl=5, min_hold=value), [5.1]),
    ]
    for make, values in table:
        for value in values:
            with raises(ValueError) as caught:
                make(value)
            _tells(caught.message, value)
    assert client.tap.calls == []


@law(13)
async def what_the_store_cannot_do_is_refused(case: Case) -> None:
    """What the store has no capability for raises Unsupported and names the store; nothing is sent."""
    client, can = await case.client(), case.capabilities
    asked: list[tuple[bool, dict[str, Any]]] = [
        (can.fair, {"fair": True}),
        (can.unfair, {"fair": False}),
        (can.detached, {"renew": False}),
        (can.detached, {"min_hold": 0.1}),
        (can.min_ttl <= 0.5, {"ttl": 0.5}),
        (can.max_ttl >= 1e9, {"ttl": 1e9}),
    ]
    for possible, option in asked:
        options: dict[str, Any] = {"ttl": case.real_ttl, **option}
        if possible:
            client.lock("r", **options)
        else:
            with raises(Unsupported) as caught:
                client.lock("r", **options)
            assert can.store in caught.message
    assert client.tap.calls == []


@law(13)
async def bad_timeouts_of_calls_are_refused(case: Case) -> None:
    """A bad timeout of a call raises ValueError, and nothing is sent."""
    client = await case.client()
    lock = client.lock("r", ttl=case.ttl)
    for value in _SECONDS:
        timeout: Any = value
        with raises(ValueError) as caught:
            await lock.acquire(timeout)
        _tells(caught.message, value)
        with raises(ValueError):
            await lock.try_acquire(timeout)
    assert client.tap.calls == []
    lease = await lock.acquire()
    for value in _SECONDS:
        timeout = value
        with raises(ValueError):
            await lease.wait_lost(timeout)
        with raises(ValueError):
            await client.close(timeout)
    assert lease.state == "held"


@law(13)
async def bad_arguments_of_connect_are_refused(case: Case) -> None:
    """A bad URL, namespace, owner, requirement, observer or io_timeout raises ValueError before there is a client."""
    url = parse_url(case.url)
    table: dict[str, list[Any]] = {
        "namespace": _NAMES,
        "owner": [name for name in _NAMES if name is not None],
        "require": ["speed", 1, True],
        "observers": [[1], ["print"]],
        "io_timeout": [*_SECONDS, 0, None],
    }
    for name, values in table.items():
        for value in values:
            with raises(ValueError) as caught:
                Client(url, **{name: value})
            _tells(caught.message, value[0] if name == "observers" else value)
    for value in _URLS:
        address: Any = value
        with raises(ValueError):
            connect(address)


@law(13)
async def passwords_are_never_shown(case: Case) -> None:
    """Whatever is wrong with a URL, its password is not in the message; nor is it where an address is shown."""
    for url in (
        "no-such-scheme-x://user:hunter2@host/0",
        "no-such-scheme-x://user:hunter2@host:port/0",
        "memory://user:hunter2@host/path",
        "sqlite://user:hunter2@host/path?option=1",
        "user:hunter2@host",
    ):
        with raises(ValueError) as caught:
            connect(url)
        assert "hunter2" not in caught.message
    address = parse_url("redis://user:hunter2@host/0")  # messages and reprs show addresses by this text
    assert "hunter2" not in f"{address} {address!r}"
