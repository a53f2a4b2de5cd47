"""What other processes do in the laws: the roles that `holdfast.testing.child` plays."""

from __future__ import annotations

import os
from contextlib import aclosing

from ..._async.client import Client, connect
from ..._async.lease import Lease
from ...core.events import Event, Queued
from ...errors import LeaseLost, NotHeld
from ..child import ended, say, told
from . import runtime


def lock_once(**arguments: object) -> None:
    """Lock, say the token, end."""
    runtime.run(_lock_once, **arguments)  # type: ignore[arg-type]


async def _lock_once(url: str, namespace: str, ttl: float, stop: str) -> None:
    async with connect(url, namespace=namespace) as client:
        async with client.lock("r", ttl=ttl) as lease:
            say(lease.token)


def hold(**arguments: object) -> None:
    """Lock and hold until told to stop; say the token, later whether the lease was lost."""
    runtime.run(_hold, **arguments)  # type: ignore[arg-type]


async def _hold(url: str, namespace: str, ttl: float, stop: str, renew: bool = True, look: str = "") -> None:
    def tell(event: Event) -> None:
        if isinstance(event, Queued):
            say("queued")

    client = connect(url, namespace=namespace, observers=[tell])
    lease = await client.lock("r", ttl=ttl, renew=renew).acquire()
    say("held", lease.token)
    while not told(stop):
        if look and told(look):
            say("lost", lease.lost)
            look = ""
        await runtime.pause(0.002)
    await client.close()
    say("closed")
    await runtime.pause(60)  # what becomes free now does so because of close(), not because the process died


def contend(**arguments: object) -> None:
    """Lock many times; say the tokens, and "overlap" if another was inside."""
    runtime.run(_contend, **arguments)  # type: ignore[arg-type]


async def _contend(url: str, namespace: str, ttl: float, stop: str, rounds: int, inside: str) -> None:
    tokens: list[int] = []
    async with connect(url, namespace=namespace, io_timeout=10) as client:
        for _ in range(rounds):
            async with client.lock("r", ttl=ttl, timeout=60) as lease:
                try:
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    say("overlap", tokens)
                    return
                tokens.append(lease.token)
                await runtime.pause(0)
                os.unlink(inside)
    say("tokens", tokens)


def fork(**arguments: object) -> None:
    """Fork while a lease is held and entered, and let the child say what it can do with it."""
    runtime.run(_fork, **arguments)  # type: ignore[arg-type]


async def _fork(url: str, namespace: str, ttl: float, stop: str) -> None:
    client = connect(url, namespace=namespace)
    async with client.lock("r", ttl=ttl) as lease:
        if (child := os.fork()) == 0:
            try:
                runtime.run(_in_child, client, lease, ttl)
            except BaseException as error:
                say("failed", repr(error))
            os._exit(0)
        ended(child)
        say("parent", lease.lost, lease.state)
        await lease.renew()
    say("released", lease.state)
    await client.close()


async def _in_child(client: Client, lease: Lease, ttl: float) -> None:
    for name in ("check", "release"):
        try:
            if name == "check":
                lease.check()
            else:
                await lease.release()
            say(name, "nothing")
        except NotHeld:
            say(name, "NotHeld")
    say("lost", lease.lost)
    await lease.__aexit__(None, None, None)
    say("exit", "silent")
    say("same", await client.lock("r", ttl=ttl).try_acquire() is None)
    async with client.lock("other", ttl=ttl, timeout=5) as own:
        await own.renew()
        say("other", own.state)
    await client.close()


def lead(**arguments: object) -> None:
    """Campaign; say when a term begins and how it ends, until told to stop."""
    runtime.run(_lead, **arguments)  # type: ignore[arg-type]


async def _lead(url: str, namespace: str, ttl: float, stop: str) -> None:
    async with connect(url, namespace=namespace) as client:
        async with aclosing(client.election("r", ttl=ttl).terms()) as terms:
            async for term in terms:
                say("leads", term.token)
                while not term.lost and not told(stop):
                    await runtime.pause(0.002)
                say("lost" if term.lost else "resigned", term.token)
                if told(stop):
                    return


def work(**arguments: object) -> None:
    """Do work once; say the token that it runs under, and the result: its own when told to stop, or another's."""
    runtime.run(_work, **arguments)  # type: ignore[arg-type]


async def _work(url: str, namespace: str, ttl: float, stop: str) -> None:
    async with connect(url, namespace=namespace) as client:

        @client.once("r", ttl=ttl)
        async def do(*, lease: Lease | None = None) -> int:
            assert lease is not None
            say("runs", lease.token)
            while not told(stop):
                await runtime.pause(0.002)
            return lease.token

        try:
            say("result", await do())
        except LeaseLost:  # in asyncio the work is cancelled when its lease is lost
            say("result", await do())
