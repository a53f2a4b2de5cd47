"""Errors of the first hour where flavours differ, or where a file or a URL is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.testing._sync.runtime import eventually

both = pytest.mark.parametrize("flavour", [holdfast, holdfast.aio], ids=lambda module: module.__name__)


@both
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:6379", "'localhost:6379' has no scheme; write redis://localhost:6379$"),
        ("redis://localhost?db=2", "has the option 'db'; .* write redis://host:port/2$"),
    ],
)
def test_urls(flavour: ModuleType, url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        flavour.connect(url)


@both
def test_one_observer_instead_of_a_list(flavour: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"observers must be a list of callables, like \[print\]$"):
        flavour.connect("memory://", observers=print)


# Nobody listens at port 1. The file is told nevertheless: it is read before anything is opened.
FILES = pytest.mark.parametrize(
    ("url", "named"),
    [
        ("rediss://localhost:1?ca={}", "{}"),
        ("rediss://localhost:1?cert={0}&key={0}.key", "{0}, {0}.key"),
        ("etcds://localhost:1?ca={}", "{}"),
    ],
)


@FILES
def test_a_missing_certificate_is_named(url: str, named: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with holdfast.connect(url.format(missing)) as locks:
        with pytest.raises(holdfast.StoreError, match="No such file") as caught:
            locks.lock("r").acquire(timeout=0)
    assert named.format(missing) in str(caught.value)
    assert not isinstance(caught.value, holdfast.StoreUnavailable)


@FILES
async def test_a_missing_certificate_is_named_in_asyncio(url: str, named: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    async with holdfast.aio.connect(url.format(missing)) as locks:
        with pytest.raises(holdfast.StoreError, match="No such file") as caught:
            await locks.lock("r").acquire(timeout=0)
    assert named.format(missing) in str(caught.value)
    assert not isinstance(caught.value, holdfast.StoreUnavailable)


@pytest.mark.parametrize("kind", ["lock", "semaphore", "lock_all"])
async def test_an_acquire_that_is_not_awaited_is_neither_true_nor_false(kind: str, name: str) -> None:
    """A coroutine is true: the body would run without a lease."""
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        made: dict[str, Any] = {
            "lock": locks.lock("r"),
            "semaphore": locks.semaphore("r", permits=1),
            "lock_all": locks.lock_all("r"),
        }
        lock = made[kind]
        for asked in (lock.try_acquire(), lock.acquire()):
            with pytest.raises(TypeError, match=r"was not awaited, so it holds nothing; write `if await lock\.try_acq"):
                bool(asked)
            asked.close()
        assert await locks.inspect() == []


async def test_what_is_asked_for_can_be_awaited_in_every_way(name: str) -> None:
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        lock = locks.lock("r")
        asked = lock.try_acquire()
        lease = await asked
        assert lease
        assert await asyncio.create_task(lock.try_acquire()) is None
        assert await asyncio.wait_for(lock.try_acquire(0.01), 5) is None
        assert list(await asyncio.gather(lock.try_acquire(), lock.try_acquire())) == [None, None]
        async with asyncio.TaskGroup() as group:
            attempt = group.create_task(lock.try_acquire())
        assert attempt.result() is None
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await asked
        await lease.release()
        if taken := await lock.try_acquire():
            async with taken:
                waiting = asyncio.create_task(locks.lock("r").try_acquire(None))
                await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        else:
            pytest.fail("it was free")


def test_what_is_asked_for_can_be_run(name: str) -> None:
    locks = holdfast.aio.connect(f"memory://{name}")
    with asyncio.Runner() as runner:
        lease = runner.run(locks.lock("r").try_acquire())
        assert lease is not None
        runner.run(lease.release())
        runner.run(locks.close())


async def test_what_was_tried_is_not_entered_before_it_is_had(name: str) -> None:
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        asked: Any = locks.lock("r").try_acquire()
        with pytest.raises(TypeError, match="context manager"):
            async with asked:
                pytest.fail("it may be busy")
        asked.close()


class Saver:
    async def __call__(self, lease: holdfast.Lease) -> None: ...


async def save(lease: holdfast.Lease) -> None: ...


def save_soon(lease: holdfast.Lease) -> Any:
    return save(lease)


@pytest.mark.parametrize("on_lost", [save, Saver(), Saver().__call__], ids=["function", "object", "method"])
def test_a_blocking_client_refuses_a_coroutine_function_as_on_lost(on_lost: Any, name: str) -> None:
    with holdfast.connect(f"memory://{name}") as locks:
        makers: list[Any] = [locks.lock, locks.election, locks.tree, locks.lock_all, locks.once]
        for describe in (*makers, lambda name, **options: locks.rwlock(name, **options).read()):
            with pytest.raises(ValueError, match=r"on_lost=.* is a coroutine function; .*holdfast\.aio\.connect\(\)"):
                describe("r", on_lost=on_lost)
        assert locks.inspect() == []


def test_a_blocking_client_says_that_a_coroutine_was_not_run(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.connect(f"memory://{name}") as locks:
        lease = locks.lock("r", ttl=0.5, renew=False, on_lost=save_soon).acquire()
        eventually(lambda: "on_lost of 'r' failed" in caplog.messages)
        assert lease.lost
    assert "returned a coroutine, which was not run" in caplog.text
