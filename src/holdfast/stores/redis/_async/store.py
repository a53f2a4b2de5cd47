"""redis://, rediss://, redis+sentinel:// and redis+cluster://: one Lua script per verb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

from ...._async import runtime
from ...._clock import Clock
from ....core.claim import (
    LOST,
    Answer,
    Claim,
    Details,
    Evicted,
    Granted,
    Record,
    Renewal,
    Renewed,
    ResourceState,
    Unknown,
    Waiting,
    changed,
    details_of,
    unchecked,
)
from ....core.fence import Fence
from ....core.promises import Capabilities
from ....core.urls import StoreURL
from ....errors import StoreError, StoreUnavailable
from ....keeper.side import Blocking, Side
from ..address import read_address
from ..config import REPLICATED, SINGLE, Findings
from ..replies import US, Names, check_entered, new_channel, pack_claim, read_answer, read_state
from ..script import Script, load
from ..wire import Command, ReplyError, explain
from .servers import Cluster, Sentinels, Servers
from .transport_subscriber import Subscriber

_CLAIM, _RELEASE, _RENEW = load("redis", "claim"), load("redis", "release"), load("redis", "renew")
_EVICT = load("redis", "evict")
_INSPECT, _READ, _WRITE = load("redis", "inspect"), load("redis", "read"), load("redis", "write")
_PAGE = 500  # keys that are read in one round trip


class RedisStore:
    """Claims in the keys of one Redis server."""

    asks_login = True  # a password may be a callable
    capabilities: Capabilities = SINGLE
    _servers_kind = Servers

    def __init__(
        self,
        url: StoreURL,
        *,
        namespace: str,
        io_timeout: float,
        clock: Clock,
        findings: Findings | None = None,
    ) -> None:
        address = read_address(url)
        self._url = url
        self._namespace = namespace
        self._names = Names(namespace)
        self._clock = clock
        self._io_timeout = io_timeout
        self._findings = findings or Findings(self.capabilities, self._promise)
        self._servers = self._servers_kind(address, io_timeout, self._findings.add)
        self._channel = new_channel(os.urandom(8).hex())
        self._subscriber = Subscriber(self._channel, clock, io_timeout)
        self._life = b"%d" % (self.capabilities.waiting_life * US)
        self._packed: tuple[Details | None, tuple[bytes, ...]] = (
            None,
            (),
        )  # the last one: a lock packs the same every time
        self._interrupts = 0

    async def ready(self) -> None:
        """See Store."""
        await self._servers.masters(monotonic() + self._io_timeout)

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        holder, details, subscriber = claim.holder, details_of(claim), self._subscriber
        if queue and subscriber.number:
            subscriber.expect(holder)  # before asking: the notice may come before the answer
        packed = self._packed
        if packed[0] != details:
            packed = self._packed = (details, pack_claim(claim, self._channel))
        key = self._names.queue(claim.resource)
        reply = await self._run(_CLAIM, key, holder, *packed[1], b"1" if queue else b"0", self._life)
        if type(reply) is int:  # just granted
            subscriber.forget(holder)
            return unchecked(Granted, (reply, claim.ttl))
        if reply[0] == 1 or not queue:
            subscriber.forget(holder)
        return read_answer(reply)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> Granted | None:
        """See Store. A release gives the resource to the next in line, and the notice brings its token."""
        holder = claim.holder
        if await self._listens(holder) and await self._subscriber.wait(holder, until):
            token = int(self._subscriber.said(holder) or 0)
            # A notice may be read very late: after a pause, or when the network was slow. If it is older than the
            # answer, that grant has ended, or the answer would have told of it.
            if token > waiting.newest:
                self._subscriber.forget(holder)
                return Granted(token, claim.ttl)
        return None

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        until = monotonic() + (self._io_timeout if limit is None else min(limit, self._io_timeout))
        asked = [(self._names.queue(claim.resource), claim.holder, int(claim.ttl * US)) for claim in claims]
        questions = [(key, _call(_RENEW, key, holder, ttl)) for key, holder, ttl in asked]
        answers: list[Renewal] = []
        for claim, reply, question in zip(claims, await self._ask_all(questions, until), asked, strict=True):
            try:
                renewed = await self._run(_RENEW, *question, until=until) if isinstance(reply, ReplyError) else reply
                if isinstance(renewed, StoreError):
                    raise renewed
                answers.append(Renewed(claim.ttl) if renewed else LOST)
            except StoreError as error:
                answers.append(Unknown(str(error)))
        return answers

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        self._subscriber.forget(holder)
        return bool(await self._run(_RELEASE, self._names.queue(resource), holder, b"%d" % (keep * US)))

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store."""
        left = await self._run(_EVICT, self._names.queue(resource), holder, b"1" if at_once else b"0")
        return None if left < 0 else Evicted(left / US)

    async def time(self) -> tuple[float, float]:
        """See Store."""
        asked = monotonic()
        node = (await self._servers.masters(asked + self._io_timeout))[0]
        try:
            seconds, micros = await node.call(("TIME",), asked + self._io_timeout)
        except ReplyError as error:
            raise explain(error, node.endpoint) from None
        took = monotonic() - asked  # it was asked somewhere in between
        return int(seconds) + int(micros) / US + took / 2, took / 2

    async def state(self, resource: str) -> ResourceState | None:
        """See Store. Without a scan of the keys, which inspect needs."""
        state = read_state(resource, await self._run(_INSPECT, self._names.queue(resource)))
        return state if state.holders or state.waiters else None

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        pattern = self._names.pattern(prefix)
        keys: set[bytes] = set()
        for node in await self._servers.masters(monotonic() + self._io_timeout):
            cursor: Any = b"0"
            while True:
                command: Command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
                try:
                    cursor, found = await node.call(command, monotonic() + self._io_timeout)
                except ReplyError as error:
                    raise explain(error, node.endpoint) from None
                keys.update(found)
                if cursor == b"0":
                    break
        names = sorted((self._names.resource(key), key.decode()) for key in keys)
        states: list[ResourceState] = []
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            asked = [(key, _call(_INSPECT, key)) for _, key in page]
            replies = await self._ask_all(asked, monotonic() + self._io_timeout)
            for (name, key), reply in zip(page, replies, strict=True):
                if isinstance(reply, StoreError):
                    raise reply
                state = await self._run(_INSPECT, key) if isinstance(reply, ReplyError) else reply
                states.append(read_state(name, state))
        return [state for state in states if state.holders or state.waiters]

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        name, key, interrupts = os.urandom(8).hex(), self._names.queue(resource), self._interrupts
        try:
            while self._interrupts == interrupts:
                self._subscriber.expect(name)
                state = read_state(resource, await self._run(_INSPECT, key, f"{self._channel} {name}", self._life))
                now = self._clock.now()
                if changed(seen, state) or now >= until:
                    return
                if not await self._listens(name):
                    continue
                # An expiry changes the holders without anybody doing anything; and a notice may get lost.
                left = min((claim.left for claim in state.holders), default=inf)
                refresh = self.capabilities.waiting_life / 3
                if await self._subscriber.wait(name, min(until, now + min(left, refresh))):
                    return
        finally:
            self._subscriber.forget(name)

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        entering = () if fence is None else (fence.token, int(fence.shared))
        reply = await self._run(_READ, self._names.register(key), *entering)
        check_entered(reply, fence)
        return Record(reply[1].decode(), reply[2]) if len(reply) > 1 else None

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        milliseconds = "" if keep is None else int(keep * 1000)
        name = self._names.register(key)
        check_entered(await self._run(_WRITE, name, fence.token, int(fence.shared), value, milliseconds), fence)

    def blocking(self) -> Blocking:
        """See Store. Connections of its own: those of the loop can be used by the loop alone."""
        return runtime.blocking(self, self._twin)

    def _twin(self) -> Blocking:
        from .._sync import store

        kind = getattr(store, type(self).__name__)
        twin = kind(
            self._url,
            namespace=self._namespace,
            io_timeout=self._io_timeout,
            clock=self._clock,
            findings=self._findings,
        )

        def release(resource: str, holder: str, keep: float = 0.0) -> bool:
            self._subscriber.forget(holder)
            released: bool = twin.release(resource, holder, keep)
            return released

        return Side(twin.renew, release, twin.close, twin.ready)

    def wake(self, holder: str) -> None:
        """See Store."""
        self._subscriber.wake(holder)

    def interrupt(self) -> None:
        """See Store."""
        self._interrupts += 1
        self._subscriber.interrupt()

    async def close(self) -> None:
        """See Store."""
        self.interrupt()
        await self._subscriber.close()
        await self._servers.close()

    async def _listens(self, name: str) -> bool:
        """Return whether no notice for this name can have been missed. If False, it has subscribed: ask again."""
        until = monotonic() + self._io_timeout
        endpoint = await self._servers.subscription_endpoint(until)
        if self._subscriber.heard_all(name, endpoint):
            return True
        try:
            await self._subscriber.open(endpoint, self._servers.access, until)
        except ReplyError as error:
            raise explain(error, endpoint) from None
        except StoreUnavailable:
            self._servers.avoid(endpoint)
            raise
        return False

    async def _run(self, script: Script, key: str, *args: str | bytes | int, until: float = 0.0) -> Any:
        """Run a script; the server may have forgotten it since.

        Raises: StoreUnavailable; StoreError.
        """
        until = until or monotonic() + self._io_timeout
        try:
            return await self._servers.call(key, ("EVALSHA", script.sha, 1, key, *args), until)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise explain(error, self._servers) from None
        try:
            return await self._servers.call(key, ("EVAL", script.source, 1, key, *args), until)
        except ReplyError as error:
            raise explain(error, self._servers) from None

    async def _ask_all(self, questions: Sequence[tuple[str, Command]], until: float) -> list[Any]:
        return await self._servers.calls(questions, until) if questions else []

    def _promise(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities


class SentinelStore(RedisStore):
    """Claims in the keys of the master that sentinels name."""

    capabilities = REPLICATED._replace(store="redis+sentinel")
    _servers_kind = Sentinels


class ClusterStore(RedisStore):
    """Claims in the keys of a Redis cluster."""

    capabilities = REPLICATED._replace(store="redis+cluster")
    _servers_kind = Cluster


def _call(script: Script, key: str, *args: str | int) -> Command:
    return ("EVALSHA", script.sha, 1, key, *args)
