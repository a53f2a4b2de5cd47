"""redis://, rediss://, redis+sentinel:// and redis+cluster://: one Lua script a verb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

from ..._clock import Clock
from ..._redis.address import read_address
from ..._redis.config import REPLICATED, SINGLE, Found, learn
from ..._redis.replies import US, Names, check_entered, new_channel, pack_wish, read_answer, read_state
from ..._redis.scripts import Script, load
from ..._redis.wire import Command, Endpoint, ReplyError, explain
from ...core.claim import (
    LOST,
    Answer,
    Claim,
    Granted,
    Record,
    Renewal,
    Renewed,
    ResourceState,
    Unknown,
    Waiting,
    bare,
    changed,
)
from ...core.fence import Fence
from ...core.promises import Capabilities
from ...core.urls import StoreURL
from ...errors import StoreError, StoreUnavailable
from .redis_servers import Cluster, Sentinels, Servers
from .transport_redis_bells import Subscriber

_CLAIM, _RELEASE, _RENEW = load("redis_claim"), load("redis_release"), load("redis_renew")
_INSPECT, _READ, _WRITE = load("redis_inspect"), load("redis_read"), load("redis_write")
_PAGE = 500  # keys that are looked at in one round trip


class RedisStore:
    """Claims in the keys of one Redis server."""

    capabilities: Capabilities = SINGLE
    _servers_kind = Servers

    def __init__(self, url: StoreURL, *, namespace: str, io_timeout: float, clock: Clock) -> None:
        address = read_address(url)
        self._names = Names(namespace)
        self._clock = clock
        self._io_timeout = io_timeout
        self._base = self.capabilities
        self._found: dict[Endpoint, Found] = {}
        self._servers = self._servers_kind(address, io_timeout, self._learn)
        self._channel = new_channel(os.urandom(8).hex())
        self._bells = Subscriber(self._channel, clock, io_timeout)
        self._life = b"%d" % (self.capabilities.waiting_life * US)
        self._packed: tuple[list[Any], tuple[bytes, ...]] = ([], ())  # the last one: a lock packs the same every time
        self._interrupts = 0

    async def ready(self) -> None:
        """See Store."""
        await self._servers.masters(monotonic() + self._io_timeout)

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        resource, holder, *wish = claim
        bells = self._bells
        if queue and bells.number:
            bells.expect(holder)  # before asking: the notice may come before the answer
        packed = self._packed
        if packed[0] != wish:
            packed = self._packed = (wish, pack_wish(wish, self._channel))
        key = self._names.queue(resource)
        reply = await self._run(_CLAIM, key, holder, *packed[1], b"1" if queue else b"0", self._life)
        if type(reply) is int:  # just granted
            bells.forget(holder)
            return bare(Granted, (reply, claim[4]))
        if reply[0] == 1 or not queue:
            bells.forget(holder)
        return read_answer(reply)

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> Granted | None:
        """See Store. A release gives the resource to the next in line, and the notice brings its token."""
        holder = claim.holder
        if await self._listens(holder) and await self._bells.wait(holder, until):
            token = int(self._bells.said(holder) or 0)
            # A notice may be read very late: after a pause, or when the network was slow. If it is older than the
            # answer, that grant has ended, or the answer would have told of it.
            if token > waiting.newest:
                self._bells.forget(holder)
                return Granted(token, claim.ttl)
        return None

    async def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See Store."""
        asked = [(self._names.queue(claim.resource), claim.holder, int(claim.ttl * US)) for claim in claims]
        questions = [(key, _call(_RENEW, key, holder, ttl)) for key, holder, ttl in asked]
        answers: list[Renewal] = []
        for claim, reply, question in zip(claims, await self._ask_all(questions), asked, strict=True):
            try:
                renewed = await self._run(_RENEW, *question) if isinstance(reply, ReplyError) else reply
                answers.append(Renewed(claim.ttl) if renewed else LOST)
            except StoreError as error:
                answers.append(Unknown(str(error)))
        return answers

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store."""
        self._bells.forget(holder)
        return bool(await self._run(_RELEASE, self._names.queue(resource), holder, b"%d" % (keep * US)))

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
            replies = await self._ask_all([(key, _call(_INSPECT, key)) for _, key in page])
            for (name, key), reply in zip(page, replies, strict=True):
                state = await self._run(_INSPECT, key) if isinstance(reply, ReplyError) else reply
                states.append(read_state(name, state))
        return [state for state in states if state.holders or state.waiters]

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        bell, key, interrupts = os.urandom(8).hex(), self._names.queue(resource), self._interrupts
        try:
            while self._interrupts == interrupts:
                self._bells.expect(bell)
                state = read_state(resource, await self._run(_INSPECT, key, f"{self._channel} {bell}", self._life))
                now = self._clock.now()
                if changed(seen, state) or now >= until:
                    return
                if not await self._listens(bell):
                    continue
                # An expiry changes the holders without anybody doing anything; and a notice may get lost.
                left = min((claim.left for claim in state.holders), default=inf)
                refresh = self.capabilities.waiting_life / 3
                if await self._bells.wait(bell, min(until, now + min(left, refresh))):
                    return
        finally:
            self._bells.forget(bell)

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

    def interrupt(self) -> None:
        """See Store."""
        self._interrupts += 1
        self._bells.interrupt()

    async def close(self) -> None:
        """See Store."""
        self.interrupt()
        await self._bells.close()
        await self._servers.close()

    async def _listens(self, bell: str) -> bool:
        """Tell whether nothing was missed since the bell was hung up. If not, subscribe: then ask again."""
        until = monotonic() + self._io_timeout
        endpoint = await self._servers.home(until)
        if self._bells.heard_all(bell, endpoint):
            return True
        try:
            await self._bells.open(endpoint, self._servers.access, until)
        except ReplyError as error:
            raise explain(error, endpoint) from None
        except StoreUnavailable:
            self._servers.avoid(endpoint)
            raise
        return False

    async def _run(self, script: Script, key: str, *args: str | bytes | int) -> Any:
        """Run a script; the server may have forgotten it since.

        Raises: StoreUnavailable; StoreError.
        """
        until = monotonic() + self._io_timeout
        try:
            return await self._servers.call(key, ("EVALSHA", script.sha, 1, key, *args), until)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise explain(error, self._servers) from None
        try:
            return await self._servers.call(key, ("EVAL", script.source, 1, key, *args), until)
        except ReplyError as error:
            raise explain(error, self._servers) from None

    async def _ask_all(self, questions: Sequence[tuple[str, Command]]) -> list[Any]:
        return await self._servers.calls(questions, monotonic() + self._io_timeout) if questions else []

    def _learn(self, endpoint: Endpoint, found: Found) -> None:
        self.capabilities = learn(self._found, endpoint, found, self._base)


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
